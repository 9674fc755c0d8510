//! The thread that watches the clock: looks for peers, by the network's seeds where no address is left to
//! try, and for those that went silent.

use super::state::NetworkState;
use super::threads::{Guard, Origin, spawn};
use super::{NetworkError, NetworkShared, unix_time};
use crate::PeerId;
use crate::addresses::{NodeAddress, resolve_seeds, seeds_by_name};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How often the clock is looked at.
const TICK: Duration = Duration::from_millis(50);

/// How often peers are looked for.
const DIAL_MS: u64 = 250;

/// A peer that is named by the user is tried again after so long at first, in milliseconds.
const RETRY_MS: u64 = 500;

/// And after so long at most.
const RETRY_MS_MAX: u64 = 30_000;

/// How often it is asked whether the peers there are of use, in milliseconds.
const USEFUL_EVERY_MS: u64 = 1_000;

/// Peers that are of none are parted with after so long.
const USELESS_MS: u64 = 4_000;

/// A peer of the user's.
struct Named {
    address: NodeAddress,
    id: Option<PeerId>,
    wait_ms: u64,
    /// The same for one that misbehaved.
    blamed_ms: u64,
    next_at: u64,
}

/// Runs until the network ends.
pub(super) fn drive(shared: &Arc<NetworkShared>) {
    let _guard = Guard(shared);
    let options = &shared.options;
    let named = |address: &NodeAddress| Named {
        address: address.clone(),
        id: None,
        wait_ms: RETRY_MS,
        blamed_ms: RETRY_MS,
        next_at: 0,
    };
    let mut named: Vec<Named> = options.connect.iter().map(named).collect();
    // One that connects to none looks for none.
    let mut seeds = (named.is_empty() && options.outbound > 0).then(Seeds::new);
    let mut dial_at = 0;
    while !shared.has_ended() {
        let now = shared.now();
        let mut state = shared.lock();
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
        let state = shared.lock();
        drop(shared.wake.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner));
    }
}

/// What happens because time passes.
fn watch(state: &mut NetworkState, shared: &NetworkShared, now: u64) {
    let received: Vec<(PeerId, u64)> = state
        .peers
        .iter()
        .filter_map(|(&id, peer)| Some((id, peer.handle.as_ref()?.partial_bytes())))
        .collect();
    for (id, bytes) in received {
        state.download.progress(id, bytes, now);
    }
    // The machine may have slept.
    state.headers.set_clock(unix_time(), now);
    state.headers.tick(now);
    state.wish_again(now);
    state.act(now);
    part_with_useless(state, now);
    state.look_after_peers(now);
    let quiet_ms = now.saturating_sub(state.useful_at);
    let patience = shared.options.patience;
    if state.is_awaited() && quiet_ms > patience.as_millis() as u64 && state.failure.is_none() {
        let peers = state.peers.values().filter(|peer| peer.handle.is_some()).count();
        let (seconds, last) = (patience.as_secs(), state.last_lost.clone());
        let nobody_known = shared.options.connect.is_empty() && state.book.is_empty();
        state.fail(match nobody_known && peers == 0 {
            true => NetworkError::NoAddresses { seconds, network: shared.options.params.network },
            false => NetworkError::Quiet { seconds, peers, last },
        });
        shared.changed.notify_all();
    }
}

/// Blocks are wanted that no peer has, or that each refused once: after a while the peers that we
/// dialled make room for others, or for themselves on a connection that may do better.
fn part_with_useless(state: &mut NetworkState, now: u64) {
    if now < state.usefulness_at {
        return;
    }
    state.usefulness_at = now + USEFUL_EVERY_MS;
    if !state.is_stuck(now) {
        state.stuck_since = None;
        return;
    }
    let since = *state.stuck_since.get_or_insert(now);
    if now - since >= USELESS_MS {
        state.stuck_since = None;
        state.part_with_all("has none of the blocks that are wanted");
    }
}

/// Keeps a connection to each peer that the user named.
fn dial_named(shared: &Arc<NetworkShared>, named: &mut [Named], now: u64) {
    {
        // In the place of the only peer there is, itself: a new connection may go better.
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

/// Keeps as many connections as are wanted to peers of the address book.
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

/// Seeds are asked again when addresses have been missing for so long, in milliseconds.
const DRY_MS: u64 = 60_000;

/// And for so long after they were asked often: they are other people's machines.
const DRY_MS_MAX: u64 = 960_000;

/// With so many peers the seeds need not be asked for more.
const ENOUGH_PEERS: usize = 4;

/// When to ask.
#[derive(Debug)]
struct Rhythm {
    was_asked: bool,
    dry_since: Option<u64>,
    wait_ms: u64,
}

impl Rhythm {
    const NEW: Self = Self { was_asked: false, dry_since: None, wait_ms: DRY_MS };

    /// Whether the seeds are to be asked now: first of all, and then when there was no address to
    /// try for long.
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

/// See the module.
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

    /// Takes what they answered, and asks them if that is due.
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
            // Names go to the proxy: the seeds are nodes as well, and know others. The book tries
            // them again by itself.
            for seed in seeds_by_name(network) {
                state.book.add_user(seed, unix_time());
            }
            return;
        }
        drop(state);
        let (sender, of_thread) = (self.sender.clone(), Arc::clone(shared));
        // On a thread of its own: names may take long. Without it, what is remembered has to do.
        let _ = std::thread::Builder::new().name("seeds".to_owned()).spawn(move || {
            let _guard = Guard(&of_thread);
            let (found, _) = resolve_seeds(network, PATIENCE);
            // The network may have ended meanwhile.
            let _ = sender.send(found);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times at which the seeds are asked, a look each second.
    fn asked(seconds: u64, is_dry: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut rhythm = Rhythm::NEW;
        (0..seconds).filter(|now| rhythm.is_due(is_dry(*now), now * 1000)).collect()
    }

    #[test]
    fn seeds_are_asked_at_first_and_when_addresses_ran_out() {
        assert_eq!(asked(10_000, |_| false), [0]);
        // From 1 on, at first after one minute, then after two, and so on.
        let times = [0, 61, 181, 421, 901, 1861, 2821, 3781];
        assert_eq!(asked(4000, |_| true), times);
        // Every two minutes there is one for a moment.
        assert_eq!(asked(300, |now| now % 120 < 100), [0, 61, 180]);
        assert_eq!(asked(1000, |now| now % 50 > 0), [0]);
    }
}
