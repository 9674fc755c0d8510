//! [`DownloadWindow`]: the blocks that are wanted or handed out, and the memory they may take.
//!
//! It holds that a block is handed out at most once until the consumer has judged it; that a block
//! is free to be asked for exactly if it is wanted, not handed out, and no peer owes it; and that
//! blocks handed out never weigh more than `bytes_max` and one block. It knows peers by name only.

use crate::PeerId;
use apus_chain::{BlockHash, Height, HeightRange};
use std::collections::{BTreeMap, BTreeSet};

/// The least that a block in flight is counted with, in bytes.
const RESERVE_MIN: u64 = 1_000;

/// A block: its height and its hash. The lowest is first.
pub(super) type Key = (Height, BlockHash);

/// The first key that a block at this height can have.
pub(super) const fn first_key(height: Height) -> Key {
    (height, BlockHash([0; 32]))
}

/// The last key that a block at this height can have.
pub(super) const fn last_key(height: Height) -> Key {
    (height, BlockHash([0xff; 32]))
}

/// What became of a block that a peer was asked for and delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    /// It is the consumer's now.
    Taken,
    /// This copy is not needed.
    Unneeded,
    /// It is needed, but memory is full; it is to be asked for again.
    NoRoom,
}

#[derive(Debug)]
enum WantedState {
    /// Not here yet.
    Awaited {
        /// What it counts with while a peer owes it, in bytes.
        reserve: u64,
    },
    /// The consumer's.
    HandedOut { from: PeerId, bytes: u64, wanted: bool },
}

#[derive(Debug)]
struct WantedBlock {
    state: WantedState,
    /// Whether it is on the chain; others are wanted by hash.
    on_chain: bool,
    /// The peers that are to deliver it, in the order in which they were asked.
    owners: Vec<PeerId>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct DownloadWindow {
    bytes_max: u64,
    entries: BTreeMap<Key, WantedBlock>,
    heights: BTreeMap<BlockHash, Height>,
    /// Blocks on the chain that are to be asked for.
    free: BTreeSet<Key>,
    /// Blocks off the chain that are to be asked for.
    free_extras: BTreeSet<Key>,
    in_flight: usize,
    in_flight_bytes: u64,
    handed_out: usize,
    pub(super) handed_out_bytes: u64,
}

impl DownloadWindow {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            entries: BTreeMap::new(),
            heights: BTreeMap::new(),
            free: BTreeSet::new(),
            free_extras: BTreeSet::new(),
            in_flight: 0,
            in_flight_bytes: 0,
            handed_out: 0,
            handed_out_bytes: 0,
        }
    }

    /// Puts the counts and the free sets right around a change of one entry.
    fn change<T>(&mut self, key: Key, change: impl FnOnce(&mut WantedBlock) -> T) -> Option<T> {
        self.account(key, false);
        let result = self.entries.get_mut(&key).map(change);
        self.account(key, true);
        result
    }

    /// Adds what an entry counts with to the totals, or takes it away.
    fn account(&mut self, key: Key, add: bool) {
        let Some(entry) = self.entries.get(&key) else { return };
        let (count, bytes, amount) = match entry.state {
            WantedState::Awaited { .. } if entry.owners.is_empty() => {
                let free = if entry.on_chain { &mut self.free } else { &mut self.free_extras };
                if add {
                    free.insert(key)
                } else {
                    free.remove(&key)
                };
                return;
            }
            WantedState::Awaited { reserve } => {
                (&mut self.in_flight, &mut self.in_flight_bytes, reserve)
            }
            WantedState::HandedOut { bytes, .. } => {
                (&mut self.handed_out, &mut self.handed_out_bytes, bytes)
            }
        };
        *count = if add { *count + 1 } else { *count - 1 };
        *bytes = if add { *bytes + amount } else { *bytes - amount };
    }

    /// A block is wanted; if it was already, it may have come onto the chain.
    pub(super) fn want(&mut self, key: Key, on_chain: bool) {
        // A hash has one height, whatever the caller thinks it is.
        let key = self.key(&key.1).unwrap_or(key);
        if self.entries.contains_key(&key) {
            self.change(key, |entry| {
                entry.on_chain |= on_chain;
                if let WantedState::HandedOut { wanted, .. } = &mut entry.state {
                    *wanted = true;
                }
            });
            return;
        }
        let state = WantedState::Awaited { reserve: 0 };
        self.entries.insert(key, WantedBlock { state, on_chain, owners: Vec::new() });
        self.heights.insert(key.1, key.0);
        self.account(key, true);
    }

    /// A block is not wanted any more; one that is handed out stays so.
    pub(super) fn unwant(&mut self, key: Key) {
        let gone = self.change(key, |entry| match &mut entry.state {
            WantedState::Awaited { .. } => true,
            WantedState::HandedOut { wanted, .. } => {
                *wanted = false;
                false
            }
        });
        if gone == Some(true) {
            self.remove(key);
        }
    }

    fn remove(&mut self, key: Key) {
        self.account(key, false);
        self.entries.remove(&key);
        self.heights.remove(&key.1);
    }

    /// The chain has another block at this one's height.
    pub(super) fn leave_chain(&mut self, key: Key) {
        self.change(key, |entry| entry.on_chain = false);
        self.unwant(key);
    }

    /// The blocks on the chain at these heights, but those handed out and unwanted.
    pub(super) fn on_chain(&self, range: HeightRange) -> Vec<Key> {
        let within = self.entries.range(first_key(range.start)..first_key(range.end));
        within.filter(|(_, entry)| entry.on_chain).map(|(key, _)| *key).collect()
    }

    /// The blocks on the chain from this height on.
    pub(super) fn on_chain_from(&self, height: Height) -> Vec<Key> {
        let above = self.entries.range(first_key(height)..);
        above.filter(|(_, entry)| entry.on_chain).map(|(key, _)| *key).collect()
    }

    /// The block of this hash, if it is in the window.
    pub(super) fn key(&self, hash: &BlockHash) -> Option<Key> {
        self.heights.get(hash).map(|height| (*height, *hash))
    }

    /// A peer is asked for a block that is expected to have so many bytes.
    pub(super) fn assign(&mut self, key: Key, peer: PeerId, bytes: u64) {
        self.change(key, |entry| {
            if let WantedState::Awaited { reserve } = &mut entry.state
                && entry.owners.is_empty()
            {
                *reserve = bytes.max(RESERVE_MIN);
            }
            if !entry.owners.contains(&peer) {
                entry.owners.push(peer);
            }
        });
    }

    /// A peer is not counted on for a block any more.
    pub(super) fn release(&mut self, key: Key, peer: PeerId) {
        self.change(key, |entry| entry.owners.retain(|owner| *owner != peer));
    }

    /// A peer delivered a block that it had been asked for.
    pub(super) fn deliver(&mut self, key: Key, peer: PeerId, bytes: u64) -> Delivery {
        self.release(key, peer);
        let awaited = self.entries.get(&key).is_some_and(|entry| entry.is_awaited());
        if !awaited {
            return Delivery::Unneeded;
        }
        if !self.has_room(key, self.handed_out_bytes, bytes) {
            return Delivery::NoRoom;
        }
        let state = WantedState::HandedOut { from: peer, bytes, wanted: true };
        self.change(key, |entry| entry.state = state);
        Delivery::Taken
    }

    /// The consumer has taken in a block, so that its memory is free; whether it had it.
    pub(super) fn consumed(&mut self, hash: &BlockHash) -> bool {
        let Some(key) = self.handed_out_key(hash) else { return false };
        self.remove(key);
        true
    }

    /// The consumer found a copy damaged: which peer sent it. The block is awaited again.
    pub(super) fn damaged(&mut self, hash: &BlockHash) -> Option<PeerId> {
        let key = self.handed_out_key(hash)?;
        let (sender, wanted) = match self.entries.get(&key)?.state {
            WantedState::HandedOut { from, wanted, .. } => (from, wanted),
            WantedState::Awaited { .. } => return None,
        };
        self.change(key, |entry| entry.state = WantedState::Awaited { reserve: RESERVE_MIN });
        if !wanted {
            self.remove(key);
        }
        Some(sender)
    }

    fn handed_out_key(&self, hash: &BlockHash) -> Option<Key> {
        let key = self.key(hash)?;
        self.entries.get(&key).filter(|entry| !entry.is_awaited()).map(|_| key)
    }

    /// The first block at these heights that is to be asked for and that `may` be.
    pub(super) fn next_free(
        &self,
        low: Height,
        high: Height,
        may: impl Fn(&BlockHash) -> bool,
    ) -> Option<Key> {
        let within = self.free.range(first_key(low)..=last_key(high));
        within.copied().find(|(_, hash)| may(hash))
    }

    /// The first block off the chain that is to be asked for and that `may` be.
    pub(super) fn next_extra(&self, may: impl Fn(&BlockHash) -> bool) -> Option<Key> {
        self.free_extras.iter().copied().find(|(_, hash)| may(hash))
    }

    /// Whether memory allows to ask for a block that is expected to have so many bytes.
    ///
    /// The lowest block of the window may always be asked for while what is handed out is within
    /// bounds: a consumer that needs order may wait for it with all others in its hands.
    pub(super) fn admits(&self, key: Key, bytes: u64) -> bool {
        let taken = self.in_flight_bytes + self.handed_out_bytes;
        self.has_room(key, taken, bytes.max(RESERVE_MIN))
    }

    fn has_room(&self, key: Key, taken: u64, bytes: u64) -> bool {
        taken == 0
            || taken.saturating_add(bytes) <= self.bytes_max
            || (self.lowest() == Some(key) && self.handed_out_bytes <= self.bytes_max)
    }

    fn lowest(&self) -> Option<Key> {
        self.entries.first_key_value().map(|(key, _)| *key)
    }

    /// Whether the consumer has the lowest block, so that it need not wait for a peer.
    pub(super) fn lowest_is_handed_out(&self) -> bool {
        self.entries.first_key_value().is_some_and(|(_, entry)| !entry.is_awaited())
    }

    /// The peers that owe a block which is not there yet.
    pub(super) fn owners(&self, key: Key) -> Option<&[PeerId]> {
        let entry = self.entries.get(&key).filter(|entry| entry.is_awaited());
        entry.map(|entry| entry.owners.as_slice())
    }

    /// Whether a block is on the chain; one that is not in the window is not.
    pub(super) fn is_on_chain(&self, key: Key) -> bool {
        self.entries.get(&key).is_some_and(|entry| entry.on_chain)
    }

    /// Every block that is to be asked for, those on the chain first.
    pub(super) fn all_free(&self) -> impl Iterator<Item = Key> + '_ {
        self.free.iter().chain(&self.free_extras).copied()
    }

    pub(super) fn any_free(&self) -> bool {
        !self.free.is_empty() || !self.free_extras.is_empty()
    }

    /// How many blocks the window has.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) const fn handed_out(&self) -> usize {
        self.handed_out
    }
}

impl WantedBlock {
    fn is_awaited(&self) -> bool {
        matches!(self.state, WantedState::Awaited { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);

    fn key(height: Height) -> Key {
        let mut hash = [7; 32];
        hash[..4].copy_from_slice(&height.to_le_bytes());
        (height, BlockHash(hash))
    }

    fn window(bytes_max: u64, heights: core::ops::Range<Height>) -> DownloadWindow {
        let mut window = DownloadWindow::new(bytes_max);
        heights.for_each(|height| window.want(key(height), true));
        window
    }

    /// What the counts have to be, by looking at every entry.
    fn check(window: &DownloadWindow) {
        let awaited = |e: &&WantedBlock| e.is_awaited();
        let owned = |e: &&WantedBlock| !e.owners.is_empty();
        let all = || window.entries.values();
        assert_eq!(window.in_flight, all().filter(awaited).filter(owned).count());
        assert_eq!(window.handed_out, all().filter(|e| !e.is_awaited()).count());
        let free = window.entries.iter().filter(|(_, e)| e.is_awaited() && e.owners.is_empty());
        let (on, off): (Vec<_>, Vec<_>) = free.partition(|(_, e)| e.on_chain);
        assert!(window.free.iter().eq(on.iter().map(|(key, _)| *key)));
        assert!(window.free_extras.iter().eq(off.iter().map(|(key, _)| *key)));
        assert_eq!(window.heights.len(), window.entries.len());
        let bytes = |e: &WantedBlock| match e.state {
            WantedState::HandedOut { bytes, .. } => bytes,
            WantedState::Awaited { .. } => 0,
        };
        assert_eq!(window.handed_out_bytes, all().map(bytes).sum::<u64>());
    }

    #[test]
    fn a_block_is_handed_out_once_until_it_is_judged() {
        let mut window = window(1 << 30, 5..6);
        window.assign(key(5), A, 100);
        window.assign(key(5), B, 100);
        assert_eq!(window.owners(key(5)), Some([A, B].as_slice()));
        assert_eq!(window.deliver(key(5), B, 300), Delivery::Taken);
        window.want(key(5), true);
        assert_eq!(window.deliver(key(5), A, 300), Delivery::Unneeded);
        assert!(!window.any_free());
        assert_eq!(window.damaged(&key(5).1), Some(B));
        assert_eq!(window.next_free(0, 9, |_| true), Some(key(5)));
        assert_eq!(window.damaged(&key(5).1), None);
        window.assign(key(5), A, 100);
        assert_eq!(window.deliver(key(5), A, 300), Delivery::Taken);
        assert!(window.consumed(&key(5).1));
        assert!(!window.consumed(&key(5).1));
        assert_eq!(window.len(), 0);
        check(&window);
    }

    #[test]
    fn what_is_not_wanted_is_not_asked_for_and_what_is_handed_out_stays() {
        let mut window = window(1 << 30, 0..3);
        window.assign(key(0), A, 1);
        window.assign(key(1), A, 1);
        assert_eq!(window.deliver(key(1), A, 10), Delivery::Taken);
        (0..3).for_each(|height| window.unwant(key(height)));
        assert_eq!((window.len(), window.in_flight(), window.handed_out()), (1, 0, 1));
        assert_eq!(window.deliver(key(0), A, 10), Delivery::Unneeded);
        assert_eq!(window.damaged(&key(1).1), Some(A));
        assert_eq!(window.len(), 0);
        check(&window);
    }

    #[test]
    fn memory_holds_what_is_owed_and_what_is_handed_out() {
        let mut window = window(10_000, 0..5);
        window.assign(key(1), A, 6_000);
        assert!(window.admits(key(2), 4_000));
        assert!(!window.admits(key(2), 4_001));
        // The lowest may always be asked for.
        assert!(window.admits(key(0), 9_000));
        assert_eq!(window.deliver(key(1), A, 9_500), Delivery::Taken);
        assert!(!window.admits(key(2), 600));
        window.assign(key(2), A, 400);
        assert_eq!(window.deliver(key(2), A, 501), Delivery::NoRoom);
        assert_eq!(window.next_free(1, 9, |_| true), Some(key(2)));
        window.assign(key(0), A, 400);
        assert_eq!(window.deliver(key(0), A, 4_000_000), Delivery::Taken);
        check(&window);
    }

    #[test]
    fn a_bound_below_one_block_lets_one_through_at_a_time() {
        let mut window = window(1, 0..2);
        assert!(window.admits(key(1), 1_000_000));
        window.assign(key(1), A, 1_000_000);
        assert_eq!(window.deliver(key(1), A, 1_000_000), Delivery::Taken);
        assert!(!window.admits(key(0), 1_000_000));
        assert!(window.consumed(&key(1).1));
        assert!(window.admits(key(0), 1_000_000));
    }

    proptest! {
        #[test]
        fn counts_are_what_the_entries_say_and_memory_is_bounded(
            steps in prop::collection::vec((0u8..9, 0u32..12, 0u32..3, 1u64..5_000), 0..200)
        ) {
            let mut window = DownloadWindow::new(6_000);
            for (what, height, peer, bytes) in steps {
                let (block, peer) = (key(height), PeerId(peer));
                match what {
                    0 => window.want(block, bytes % 2 == 0),
                    1 => window.unwant(block),
                    2 | 3 => window.assign(block, peer, bytes),
                    4 | 5 => drop(window.deliver(block, peer, bytes)),
                    6 => drop(window.consumed(&block.1)),
                    7 => drop(window.damaged(&block.1)),
                    _ => window.leave_chain(block),
                }
                check(&window);
                prop_assert!(window.handed_out_bytes < 6_000 + 5_000);
            }
        }
    }
}
