//! The driver thread: watches the clock, finds peers (through the network's seeds if no address is left to
//! try), and detects silent ones.

use super::state::NetworkState;
use super::threads::{Guard, Origin, spawn};
use super::{NetworkError, NetworkShared, unix_time};
use crate::PeerId;
use crate::addresses::{NodeAddress, resolve_seeds, seeds_by_name};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// How often the driver wakes up.
const TICK: Duration = Duration::from_millis(50);

/// If the driver did not run for this time, in milliseconds, the user had stopped the process, and no peer was silent.
const STOPPED_MS: u64 = 5_000;

/// How often to look for peers, in milliseconds.
const DIAL_MS: u64 = 250;

/// Initial delay before a user-named peer is tried again, in milliseconds.
const RETRY_MS: u64 = 500;

/// Greatest delay before a user-named peer is tried again, in milliseconds.
const RETRY_MS_MAX: u64 = 30_000;

/// How often to check whether the connected peers are useful, in milliseconds.
const USEFUL_EVERY_MS: u64 = 1_000;

/// Useless peers are disconnected after this time, in milliseconds.
const USELESS_MS: u64 = 4_000;

/// A peer named by the user.
struct UserPeer {
    address: NodeAddress,
    id: Option<PeerId>,
    wait_ms: u64,
    /// Like `wait_ms`, but after misbehaviour.
    blamed_ms: u64,
    next_at: u64,
}

/// Runs until the network ends.
pub(super) fn drive(shared: &Arc<NetworkShared>) {
    let _guard = Guard(shared);
    let options = &shared.options;
    let named = |address: &NodeAddress| UserPeer {
        address: address.clone(),
        id: None,
        wait_ms: RETRY_MS,
        blamed_ms: RETRY_MS,
        next_at: 0,
    };
    let mut named: Vec<UserPeer> = options.connect.iter().map(named).collect();
    // With zero outbound connections there is no need to find peers.
    let mut seeds = (named.is_empty() && options.outbound > 0).then(Seeds::new);
    let (mut dial_at, mut last) = (0, shared.now());
    while !shared.has_ended() {
        let now = shared.now();
        let mut state = shared.lock();
        // A block may have come since the process resumed.
        state.useful_at = now.min(state.useful_at + stopped_ms(now - last));
        last = now;
        watch(&mut state, shared, now);
        drop(state);
        if now >= dial_at {
            dial_at = now + DIAL_MS;
            match &mut seeds {
                None => {
                    dial_named(shared, &mut named, now);
                    let first = || named.iter().filter_map(|peer| peer.id).collect();
                    shared.lock().first_attempts.get_or_insert_with(first);
                }
                Some(seeds) => {
                    seeds.step(shared, now);
                    dial_found(shared, now);
                    shared.lock().first_attempts.get_or_insert_default();
                }
            }
        }
        shared.wake.wait_for(&mut shared.lock(), TICK);
    }
}

/// How much of the time between two runs of the driver does not count as a peer's silence.
const fn stopped_ms(elapsed: u64) -> u64 {
    if elapsed >= STOPPED_MS { elapsed } else { 0 }
}

/// Performs the periodic work.
fn watch(state: &mut NetworkState, shared: &NetworkShared, now: u64) {
    let received: Vec<(PeerId, u64)> = state
        .peers
        .iter()
        .filter_map(|(&id, peer)| Some((id, peer.handle.as_ref()?.partial_bytes())))
        .collect();
    for (id, bytes) in received {
        state.download.progress(id, bytes, now);
    }
    // Set the clock again, because the machine may have slept.
    state.headers.set_clock(unix_time(), now);
    state.headers.tick(now);
    state.retry_hash_requests(now);
    state.act(now);
    drop_useless(state, now);
    state.look_after_peers(now);
    let quiet_ms = now.saturating_sub(state.useful_at);
    let patience = shared.options.patience;
    if state.is_awaited() && quiet_ms > patience.as_millis() as u64 && state.failure.is_none() {
        let peers = state.peers.values().filter(|peer| peer.handle.is_some()).count();
        let (seconds, last) = (patience.as_secs(), state.last_lost.clone());
        let no_address_known = shared.options.connect.is_empty() && state.book.is_empty();
        state.fail(match no_address_known && peers == 0 {
            true => NetworkError::NoAddresses { seconds, network: shared.options.params.network },
            false => NetworkError::Quiet { seconds, peers, last },
        });
        shared.changed.notify_all();
    }
}

/// Disconnects the dialled peers after a while if none of them has the wanted blocks, or each has refused
/// them once; and found peers that stay behind our chain. They make room for other peers, or for themselves on a
/// better connection.
fn drop_useless(state: &mut NetworkState, now: u64) {
    if now < state.usefulness_at {
        return;
    }
    state.usefulness_at = now + USEFUL_EVERY_MS;
    state.drop_peers_behind(now);
    if !state.is_stuck(now) {
        state.stuck_since = None;
        return;
    }
    let since = *state.stuck_since.get_or_insert(now);
    if now - since >= USELESS_MS {
        state.stuck_since = None;
        state.disconnect_outbound(match state.are_pruned() {
            true => {
                "is pruned, so it has only the last 288 blocks, and this sync needs a node with all blocks"
            }
            false => "has no wanted block",
        });
    }
}

/// Keeps a connection to each user-named peer.
fn dial_named(shared: &Arc<NetworkShared>, named: &mut [UserPeer], now: u64) {
    {
        // The only peer can be replaced by itself: a new connection may work better.
        let mut state = shared.lock();
        let connected = state.peers.values().filter(|peer| peer.handle.is_some()).count();
        state.download.replacements(usize::from(connected == 1));
    }
    for peer in named {
        let mut state = shared.lock();
        let there = peer.id.and_then(|id| state.peers.get(&id));
        if let Some(there) = there {
            if there.handle.is_some() {
                peer.wait_ms = RETRY_MS;
            }
            continue;
        }
        if let Some(id) = peer.id.take() {
            let blamed = state.misbehaved.remove(&id);
            let wait_ms = if blamed { &mut peer.blamed_ms } else { &mut peer.wait_ms };
            peer.next_at = now + *wait_ms;
            *wait_ms = (*wait_ms * 2).min(RETRY_MS_MAX);
        }
        if now < peer.next_at {
            continue;
        }
        let id = state.new_peer(Some(peer.address.clone()), now);
        drop(state);
        peer.id = Some(id);
        spawn(shared, id, Origin::Dialled(peer.address.clone()));
    }
}

/// Keeps the configured number of connections to peers of the address book.
fn dial_found(shared: &Arc<NetworkShared>, now: u64) {
    loop {
        let mut state = shared.lock();
        let outbound = state.peers.values().filter(|peer| !peer.is_inbound()).count();
        let ready = state.book.ready_count(unix_time());
        state.download.replacements(ready);
        if outbound >= shared.options.outbound {
            return;
        }
        let Some(address) = state.book.pick(unix_time()) else { return };
        let id = state.new_peer(Some(address.clone()), now);
        drop(state);
        spawn(shared, id, Origin::Dialled(address));
    }
}

/// How long seeds may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Seeds are queried again after addresses have been missing for this time, in milliseconds.
const DRY_MS: u64 = 60_000;

/// Greatest such interval after repeated queries, because the seeds are other people's machines.
const DRY_MS_MAX: u64 = 960_000;

/// With this many peers there is no need to query the seeds for more.
const ENOUGH_PEERS: usize = 4;

/// The schedule of seed queries.
#[derive(Debug)]
struct Rhythm {
    was_asked: bool,
    dry_since: Option<u64>,
    wait_ms: u64,
}

impl Rhythm {
    const NEW: Self = Self { was_asked: false, dry_since: None, wait_ms: DRY_MS };

    /// Returns true if the seeds are due now: at first, and later when there has been no address to try for
    /// long.
    fn is_due(&mut self, is_dry: bool, now: u64) -> bool {
        if !std::mem::replace(&mut self.was_asked, true) {
            return true;
        }
        if !is_dry {
            (self.dry_since, self.wait_ms) = (None, DRY_MS);
            return false;
        }
        let since = *self.dry_since.get_or_insert(now);
        let due = now.saturating_sub(since) >= self.wait_ms;
        if due {
            self.dry_since = Some(now);
            self.wait_ms = (self.wait_ms * 2).min(DRY_MS_MAX);
        }
        due
    }
}

/// Queries a network's seeds when addresses run out.
pub(super) struct Seeds {
    rhythm: Rhythm,
    sender: Sender<Vec<SocketAddr>>,
    answers: Receiver<Vec<SocketAddr>>,
}

impl Seeds {
    pub(super) fn new() -> Self {
        let (sender, answers) = channel();
        Self { rhythm: Rhythm::NEW, sender, answers }
    }

    /// Takes the seeds' answers, and queries them again if due.
    pub(super) fn step(&mut self, shared: &Arc<NetworkShared>, now: u64) {
        let mut state = shared.lock();
        while let Ok(found) = self.answers.try_recv() {
            state.book.add_from_dns(&found, unix_time());
        }
        let outbound = state.peers.values().filter(|peer| !peer.is_inbound());
        let connected = outbound.filter(|peer| peer.handle.is_some()).count();
        let is_dry = connected < ENOUGH_PEERS.min(shared.options.outbound)
            && state.book.ready_count(unix_time()) == 0;
        if !self.rhythm.is_due(is_dry, now) {
            return;
        }
        let network = shared.options.params.network;
        if shared.options.proxy.is_some() {
            // Names go to the proxy: the seeds are nodes too, and know others. The book retries them by
            // itself.
            for seed in seeds_by_name(network) {
                state.book.add_user(seed);
            }
            return;
        }
        drop(state);
        let (sender, of_thread) = (self.sender.clone(), Arc::clone(shared));
        // A separate thread, because resolution may take long. If it cannot start, known addresses must
        // suffice.
        let _ = std::thread::Builder::new().name("seeds".to_owned()).spawn(move || {
            let _guard = Guard(&of_thread);
            let (found, _) = resolve_seeds(network, PATIENCE);
            // The network may have stopped during the wait.
            let _ = sender.send(found);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times at which the seeds are queried, checked once a second.
    fn asked(seconds: u64, is_dry: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut rhythm = Rhythm::NEW;
        (0..seconds).filter(|now| rhythm.is_due(is_dry(*now), now * 1000)).collect()
    }

    #[test]
    fn seeds_are_queried_at_start_and_when_addresses_run_out() {
        assert_eq!(asked(10_000, |_| false), [0]);
        // From second 1, after one minute, then after two, and so on.
        let times = [0, 61, 181, 421, 901, 1861, 2821, 3781];
        assert_eq!(asked(4000, |_| true), times);
        // Every two minutes an address is available for a moment.
        assert_eq!(asked(300, |now| now % 120 < 100), [0, 61, 180]);
        assert_eq!(asked(1000, |now| now % 50 > 0), [0]);
    }
}
