//! The thread that watches the clock: looks for peers, and for those that went silent.

use super::guard::Guard;
use super::peer::{Origin, spawn};
use super::seeds::Seeds;
use super::state::State;
use super::{NetworkError, Shared, unix_time};
use crate::PeerId;
use crate::addresses::NodeAddress;
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
pub(super) fn drive(shared: &Arc<Shared>) {
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
fn watch(state: &mut State, shared: &Shared, now: u64) {
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
fn part_with_useless(state: &mut State, now: u64) {
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
fn dial_named(shared: &Arc<Shared>, named: &mut [Named], now: u64) {
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
fn dial_found(shared: &Arc<Shared>, now: u64) {
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
