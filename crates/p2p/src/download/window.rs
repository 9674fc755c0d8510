//! [`DownloadWindow`]: the blocks that are wanted or handed out, and the memory they may take.
//!
//! Invariants: a block is handed out at most once until the consumer accepts or rejects it; a block is free
//! to request if and only if it is wanted, not handed out, and not owed by any peer; and blocks handed out
//! never take more than `bytes_max` plus one block. Peers are only ids here.

use crate::PeerId;
use apus_chain::{BlockHash, Height, HeightRange};
use std::collections::{BTreeMap, BTreeSet};

/// Fewest bytes counted for a block in flight.
const RESERVE_MIN: u64 = 1_000;

/// A block: height and hash. Sorts by height.
pub(super) type Key = (Height, BlockHash);

/// The first possible key at this height.
pub(super) const fn first_key(height: Height) -> Key {
    (height, BlockHash([0; 32]))
}

/// The last possible key at this height.
pub(super) const fn last_key(height: Height) -> Key {
    (height, BlockHash([0xff; 32]))
}

/// The window's response to a delivered block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    /// The consumer gets it.
    Taken,
    /// This copy is not needed.
    Unneeded,
    /// It is needed, but memory is full; it will be requested again.
    NoRoom,
}

#[derive(Debug)]
enum WantedState {
    /// Not received yet.
    Awaited {
        /// Bytes counted while a peer owes it.
        reserve: u64,
    },
    /// The consumer has it.
    HandedOut { from: PeerId, bytes: u64, wanted: bool },
}

#[derive(Debug)]
struct WantedBlock {
    state: WantedState,
    /// It is on our chain. Other blocks are wanted by hash.
    on_chain: bool,
    /// The peers assigned to it, in the order in which they were asked.
    owners: Vec<PeerId>,
}

/// The wanted blocks with their states, and running totals of their memory.
#[derive(Debug)]
pub(super) struct DownloadWindow {
    bytes_max: u64,
    entries: BTreeMap<Key, WantedBlock>,
    heights: BTreeMap<BlockHash, Height>,
    /// Blocks on our chain to request.
    free: BTreeSet<Key>,
    /// Blocks off our chain to request.
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

    /// Changes one entry and keeps the totals and the free sets up to date.
    fn change<T>(&mut self, key: Key, change: impl FnOnce(&mut WantedBlock) -> T) -> Option<T> {
        self.account(key, false);
        let result = self.entries.get_mut(&key).map(change);
        self.account(key, true);
        result
    }

    /// Adds an entry to the totals, or subtracts it.
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

    /// Adds a block. If it is there already, it may move onto our chain.
    pub(super) fn want(&mut self, key: Key, on_chain: bool) {
        // A hash has only one height, even if the caller passes another.
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

    /// Marks a block as not wanted. One that is handed out stays in the window.
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

    /// Marks a block as off our chain, which now has another block at this height.
    pub(super) fn leave_chain(&mut self, key: Key) {
        self.change(key, |entry| entry.on_chain = false);
        self.unwant(key);
    }

    /// The blocks on our chain at these heights, except handed-out blocks that are no longer wanted.
    pub(super) fn on_chain(&self, range: HeightRange) -> Vec<Key> {
        let within = self.entries.range(first_key(range.start)..first_key(range.end));
        within.filter(|(_, entry)| entry.on_chain).map(|(key, _)| *key).collect()
    }

    /// The blocks on our chain from this height on.
    pub(super) fn on_chain_from(&self, height: Height) -> Vec<Key> {
        let above = self.entries.range(first_key(height)..);
        above.filter(|(_, entry)| entry.on_chain).map(|(key, _)| *key).collect()
    }

    /// The key of this hash, if it is in the window.
    pub(super) fn key(&self, hash: &BlockHash) -> Option<Key> {
        self.heights.get(hash).map(|height| (*height, *hash))
    }

    /// Assigns a block with this expected size to a peer.
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

    /// Releases a peer from a block.
    pub(super) fn release(&mut self, key: Key, peer: PeerId) {
        self.change(key, |entry| entry.owners.retain(|owner| *owner != peer));
    }

    /// Records the delivery of a block that the peer was asked for.
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

    /// Frees the memory of a block that the consumer accepted. Returns false if it was not handed out.
    pub(super) fn consumed(&mut self, hash: &BlockHash) -> bool {
        let Some(key) = self.handed_out_key(hash) else { return false };
        self.remove(key);
        true
    }

    /// Takes back a damaged block: returns the peer that sent it. The block is awaited again.
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

    /// The first block to request at these heights that `may` allows.
    pub(super) fn next_free(
        &self,
        low: Height,
        high: Height,
        may: impl Fn(&BlockHash) -> bool,
    ) -> Option<Key> {
        let within = self.free.range(first_key(low)..=last_key(high));
        within.copied().find(|(_, hash)| may(hash))
    }

    /// The first block to request off our chain that `may` allows.
    pub(super) fn next_extra(&self, may: impl Fn(&BlockHash) -> bool) -> Option<Key> {
        self.free_extras.iter().copied().find(|(_, hash)| may(hash))
    }

    /// Returns true if memory allows requesting a block of this expected size.
    ///
    /// The lowest block of the window is always admitted while the handed-out blocks are within bounds: a
    /// consumer that needs order may hold all the others and wait for it.
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

    /// Returns true if the consumer has the lowest block and so need not wait for a peer.
    pub(super) fn lowest_is_handed_out(&self) -> bool {
        self.entries.first_key_value().is_some_and(|(_, entry)| !entry.is_awaited())
    }

    /// The peers that owe a block, if it has not been received yet.
    pub(super) fn owners(&self, key: Key) -> Option<&[PeerId]> {
        let entry = self.entries.get(&key).filter(|entry| entry.is_awaited());
        entry.map(|entry| entry.owners.as_slice())
    }

    /// Returns true if a block is in the window and on our chain.
    pub(super) fn is_on_chain(&self, key: Key) -> bool {
        self.entries.get(&key).is_some_and(|entry| entry.on_chain)
    }

    /// Every block to request, those on our chain first.
    pub(super) fn all_free(&self) -> impl Iterator<Item = Key> + '_ {
        self.free.iter().chain(&self.free_extras).copied()
    }

    pub(super) fn any_free(&self) -> bool {
        !self.free.is_empty() || !self.free_extras.is_empty()
    }

    /// How many blocks are in the window.
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

    /// Compares the totals with a recount of every entry.
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
    fn a_block_is_handed_out_once_until_the_consumer_decides() {
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
    fn unwanted_blocks_are_not_requested_and_handed_out_ones_stay() {
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
    fn memory_counts_owed_and_handed_out_blocks() {
        let mut window = window(10_000, 0..5);
        window.assign(key(1), A, 6_000);
        assert!(window.admits(key(2), 4_000));
        assert!(!window.admits(key(2), 4_001));
        // The lowest block may always be requested.
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
    fn a_limit_below_one_block_still_admits_one_at_a_time() {
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
        fn counts_match_the_entries_and_memory_is_bounded(
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
