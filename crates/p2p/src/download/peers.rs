//! [`DownloadPeer`]: what one peer has, owes and can do.
//!
//! A peer owes blocks in the order of the requests, because nodes answer in that order. A block taken away
//! from a peer stays owed, marked lost: it may still arrive, and until then it delays later requests.
//! Decisions are made in the other modules.
//!
//! Speeds and block sizes are decaying averages. They use `f64` arithmetic without transcendental functions,
//! so that the same events give the same numbers everywhere.

use super::window::Key;
use crate::message::Services;
use apus_chain::{BlockHash, Height};
use std::collections::{BTreeMap, BTreeSet};

/// Fewest blocks requested from a peer: one arriving and one queued behind it.
const IN_FLIGHT_MIN: usize = 2;
/// Maximum number of blocks that a peer may owe, even if the options allow more: as many as Core accepts in a `getdata`
/// (`net_processing.cpp`, `MAX_INV_SZ`).
const CAP_MAX: usize = 50_000;
/// How long requested blocks should keep a peer busy after a round trip, in milliseconds. This covers the
/// time between two ticks, and estimates that are too low.
const AHEAD_MS: f64 = 1_500.0;
/// Assumed rate of a peer that has delivered nothing yet, in bytes per millisecond.
const RATE_GUESS: f64 = 300.0;
/// Assumed round trip before the first answer, in milliseconds.
const ROUND_TRIP_GUESS_MS: u64 = 200;
/// A longer round trip measures a queue, not a distance. In milliseconds.
const ROUND_TRIP_MAX_MS: u64 = 10_000;
/// Fewer bytes do not count as progress: two empty messages a second are still silence.
const HEARD_BYTES: u64 = 1_000;
/// How far below its best block we ask a pruned peer. Core keeps 288 blocks (BIP-159) and asks for two
/// fewer, because new blocks may arrive meanwhile (Core `net_processing.cpp`, `FindNextBlocks`).
const LIMITED_BLOCKS: Height = 288 - 2;
/// A peer that takes longer for a block is late with it, however much it sends, in milliseconds.
const BLOCK_MS: u64 = 30_000;
/// A stall is forgiven after this time, in milliseconds.
const STRIKE_FORGIVEN_MS: u64 = 600_000;

/// A block requested from a peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockRequest {
    pub(super) key: Key,
    pub(super) sent_at: u64,
    /// The expected size in bytes.
    pub(super) expected: u64,
    /// The block was taken away from the peer, or is no longer wanted.
    pub(super) lost: bool,
}

/// A peer's chain, its unanswered requests and its measured speed.
#[derive(Debug)]
pub(super) struct DownloadPeer {
    services: Services,
    /// Height of the last block that its chain shares with ours, and height of its best block.
    chain: Option<(Height, Height)>,
    /// Blocks off our chain that it is known to have.
    pub(super) extras: BTreeSet<BlockHash>,
    /// Blocks that it said it lacks.
    pub(super) refused: BTreeSet<BlockHash>,
    /// Blocks it owes, by request number.
    owed: BTreeMap<u64, BlockRequest>,
    numbers: BTreeMap<BlockHash, u64>,
    next_number: u64,
    owed_bytes: u64,
    /// Bytes received of the incoming block.
    partial: u64,
    /// Average size of its recent blocks; the latest weighs half.
    size_lately: u64,
    /// The highest request number delivered, plus one.
    answered: u64,
    /// The peer skipped requests below this number; and since when.
    pub(super) passed_over: Option<(u64, u64)>,
    busy: Meter,
    recent: Meter,
    /// When bytes last arrived, and when a block did.
    bytes_at: u64,
    block_at: u64,
    /// When enough bytes last arrived to count as progress; and bytes since then.
    heard_at: u64,
    since_heard: u64,
    round_trip_ms: Option<u64>,
    /// True if the peer owed nothing when the last request was sent.
    fresh: bool,
    /// How many blocks it may owe. Grows with each delivery.
    cap: usize,
    strikes: u32,
    struck_at: u64,
    /// True if it lost its blocks because of its silence, and is still silent.
    pub(super) stalled: bool,
    pub(super) unrequested: u32,
    /// Blocks that it said it lacks, less those delivered.
    pub(super) refusals: u32,
    pub(super) added_at: u64,
    pub(super) blocks: u64,
    pub(super) bytes: u64,
}

impl DownloadPeer {
    pub(super) fn new(services: Services, now: u64) -> Self {
        Self {
            services,
            chain: None,
            extras: BTreeSet::new(),
            refused: BTreeSet::new(),
            owed: BTreeMap::new(),
            numbers: BTreeMap::new(),
            next_number: 0,
            owed_bytes: 0,
            partial: 0,
            size_lately: 0,
            answered: 0,
            passed_over: None,
            busy: Meter::default(),
            recent: Meter::default(),
            bytes_at: now,
            block_at: now,
            heard_at: now,
            since_heard: 0,
            round_trip_ms: None,
            fresh: false,
            cap: IN_FLIGHT_MIN,
            strikes: 0,
            struck_at: 0,
            stalled: false,
            unrequested: 0,
            refusals: 0,
            added_at: now,
            blocks: 0,
            bytes: 0,
        }
    }

    // ---- blocks it has ----

    pub(super) const fn set_chain(&mut self, common: Height, best: Height) {
        self.chain = Some((common, best));
    }

    /// Records that our chain changed above `fork`, so the peer's chain shares nothing with ours there.
    pub(super) fn clamp_chain(&mut self, fork: Height) {
        self.chain = self.chain.map(|(common, best)| (common.min(fork), best));
    }

    /// The first and last height at which it has our blocks.
    pub(super) fn span(&self) -> Option<(Height, Height)> {
        let (common, best) = self.chain?;
        if !self.services.has(Services::WITNESS) {
            return None;
        }
        if self.services.has(Services::NETWORK) {
            return Some((0, common));
        }
        let low = best.saturating_add(1).saturating_sub(LIMITED_BLOCKS);
        (self.services.has(Services::NETWORK_LIMITED) && low <= common).then_some((low, common))
    }

    /// Returns true if it may be asked for a block.
    pub(super) fn has(&self, key: Key, on_chain: bool) -> bool {
        let (height, hash) = key;
        let spans = self.span().is_some_and(|(low, high)| low <= height && height <= high);
        ((on_chain && spans) || self.extras.contains(&hash)) && !self.refused.contains(&hash)
    }

    // ---- blocks it owes ----

    /// Records a request for a block.
    pub(super) fn ask(&mut self, key: Key, expected: u64, now: u64) {
        if self.owed.is_empty() {
            self.fresh = true;
            self.passed_over = None;
        }
        self.owed
            .insert(self.next_number, BlockRequest { key, sent_at: now, expected, lost: false });
        self.numbers.insert(key.1, self.next_number);
        self.next_number += 1;
        self.owed_bytes += expected;
    }

    /// Updates the expected sizes. Neighbouring blocks are alike: the next one is hardly smaller than the
    /// last.
    pub(super) fn expect(&mut self, size: impl Fn(Height) -> u64) {
        let least = self.size_lately.max(self.partial);
        self.owed.values_mut().for_each(|owed| owed.expected = size(owed.key.0).max(least));
        self.owed_bytes = self.owed.values().map(|owed| owed.expected).sum();
    }

    /// Marks an owed block as lost, or as assigned again. Returns false if the peer does not owe it.
    pub(super) fn set_lost(&mut self, hash: &BlockHash, lost: bool) -> bool {
        let Some(owed) = self.numbers.get(hash).and_then(|number| self.owed.get_mut(number)) else {
            return false;
        };
        owed.lost = lost;
        true
    }

    /// Removes a block from the owed ones, and returns its request.
    pub(super) fn settle(&mut self, hash: &BlockHash) -> Option<BlockRequest> {
        let number = self.numbers.remove(hash)?;
        let owed = self.owed.remove(&number)?;
        self.owed_bytes -= owed.expected;
        Some(owed)
    }

    /// Records a delivered block. Returns its request, or `None` if there was none.
    pub(super) fn deliver(
        &mut self,
        hash: &BlockHash,
        bytes: u64,
        now: u64,
    ) -> Option<BlockRequest> {
        let number = *self.numbers.get(hash)?;
        self.credit(bytes.saturating_sub(self.partial), now);
        self.partial = 0;
        self.since_heard = 0;
        self.heard_at = now;
        self.block_at = now;
        self.answered = self.answered.max(number + 1);
        let owed = self.settle(hash)?;
        // Request and transfer both lie within this time, so no round trip is longer.
        let bound = now.saturating_sub(owed.sent_at);
        self.round_trip_ms = self.round_trip_ms.map(|known| known.min(bound));
        self.cap = (self.cap + 1).min(CAP_MAX);
        self.size_lately = self.size_lately.midpoint(bytes.min(SIZE_MAX));
        self.refusals = self.refusals.saturating_sub(1);
        self.blocks += 1;
        self.bytes += bytes;
        Some(owed)
    }

    /// Records how many bytes of the incoming block have arrived. Returns true if that counts as progress.
    pub(super) fn progress(&mut self, partial: u64, now: u64) -> bool {
        let came = partial.saturating_sub(self.partial);
        if self.owed.is_empty() || came == 0 {
            return false;
        }
        self.partial = partial;
        self.credit(came, now);
        self.since_heard += came;
        if self.since_heard < HEARD_BYTES {
            return false;
        }
        self.since_heard = 0;
        self.heard_at = now;
        true
    }

    /// Credits received bytes. Time counts from when they could have arrived.
    fn credit(&mut self, bytes: u64, now: u64) {
        let sent_at = self.owed.values().next().map_or(now, |front| front.sent_at);
        let fresh = core::mem::take(&mut self.fresh);
        if fresh {
            let on_the_line = self.busy.rate(0).map_or(0, |rate| (bytes as f64 / rate) as u64);
            let sample = now.saturating_sub(sent_at).saturating_sub(on_the_line);
            self.round_trip(sample);
        }
        let from = self.bytes_at.max(sent_at + self.round_trip_ms.unwrap_or(0));
        let time_ms = now.saturating_sub(from);
        // The first bytes after a pause may seem to take no time at all.
        if !fresh || time_ms > 0 {
            self.busy.add(bytes, time_ms);
        }
        self.recent.add(bytes, now.saturating_sub(self.bytes_at));
        self.bytes_at = now;
    }

    /// Adds a round trip sample. Short ones are the most accurate, but the route may have become longer.
    pub(super) fn round_trip(&mut self, sample_ms: u64) {
        let sample = sample_ms.min(ROUND_TRIP_MAX_MS);
        let known = self.round_trip_ms.unwrap_or(sample).min(sample);
        self.round_trip_ms = Some(known + (sample - known) / 8);
    }

    pub(super) fn is_owing(&self) -> bool {
        !self.owed.is_empty()
    }

    /// How many blocks it owes, lost ones included.
    pub(super) fn owed_count(&self) -> usize {
        self.owed.len()
    }

    /// The blocks assigned to it, in the order of the requests.
    pub(super) fn counted_on(&self) -> impl DoubleEndedIterator<Item = &BlockRequest> {
        self.owed.values().filter(|owed| !owed.lost)
    }

    /// The owed blocks that are no longer assigned to it.
    pub(super) fn lost(&self) -> Vec<Key> {
        self.owed.values().filter(|owed| owed.lost).map(|owed| owed.key).collect()
    }

    /// Blocks that it skipped for longer than `patience_ms` while it answered later requests.
    pub(super) fn left_out(&mut self, patience_ms: u64, now: u64) -> Vec<BlockHash> {
        let Some((mark, since)) = self.passed_over else {
            if self.owed.keys().next().is_some_and(|number| *number < self.answered) {
                self.passed_over = Some((self.answered, now));
            }
            return Vec::new();
        };
        if now.saturating_sub(since) < patience_ms {
            return Vec::new();
        }
        self.passed_over = None;
        self.owed.range(..mark).map(|(_, owed)| owed.key.1).collect()
    }

    // ---- its speed ----

    /// How long it could have sent but did not, in milliseconds.
    fn idle_ms(&self, now: u64) -> u64 {
        let front = self.owed.values().next();
        front.map_or(0, |front| {
            now.saturating_sub(self.bytes_at.max(front.sent_at + self.round_trip_ms()))
        })
    }

    /// How long it has owed blocks without making progress, in milliseconds.
    pub(super) fn silent_ms(&self, now: u64) -> u64 {
        self.owed.values().next().map_or(0, |front| {
            now.saturating_sub(self.heard_at.max(front.sent_at + self.round_trip_ms()))
        })
    }

    /// Bytes per millisecond while it owes blocks, or `None` if it never sent any.
    pub(super) fn rate(&self, now: u64) -> Option<f64> {
        self.busy.rate(self.idle_ms(now))
    }

    /// Recent bytes per millisecond, busy or not.
    pub(super) fn recent_rate(&self, now: u64) -> f64 {
        self.recent.rate(now.saturating_sub(self.bytes_at)).unwrap_or(0.0)
    }

    fn rate_or_guess(&self, now: u64) -> f64 {
        self.rate(now).unwrap_or(RATE_GUESS).max(1e-6)
    }

    pub(super) fn round_trip_ms(&self) -> u64 {
        self.round_trip_ms.unwrap_or(ROUND_TRIP_GUESS_MS)
    }

    /// Bytes still owed.
    fn remaining(&self) -> f64 {
        self.owed_bytes.saturating_sub(self.partial) as f64
    }

    /// How long it will be busy, in milliseconds.
    fn backlog_ms(&self, now: u64) -> f64 {
        self.remaining() / self.rate_or_guess(now)
    }

    /// Time until it runs dry without further requests, less a round trip.
    pub(super) fn slack_ms(&self, now: u64) -> i64 {
        self.backlog_ms(now) as i64 - self.round_trip_ms() as i64
    }

    /// Returns true if it owes few enough blocks for another batch. A cheap check.
    pub(super) fn may_take_batch(&self, part: usize, in_flight_max: usize) -> bool {
        let full = self.cap.min(in_flight_max);
        full.saturating_sub(self.owed_count()) * part >= full
    }

    /// How many more blocks of this size to request from it.
    pub(super) fn room(&self, size: u64, in_flight_max: usize, now: u64) -> usize {
        let owed = self.owed_count();
        let by_count = self.cap.min(in_flight_max).saturating_sub(owed);
        let by_rate = self.rate(now).map_or(by_count, |rate| {
            let full = rate * (self.round_trip_ms() as f64 + AHEAD_MS);
            ((full - self.remaining()).max(0.0) / size.max(1) as f64) as usize
        });
        by_count.min(by_rate.max(IN_FLIGHT_MIN.saturating_sub(owed)))
    }

    /// In how many milliseconds a block of this size would arrive if requested now.
    pub(super) fn arrival_if_asked_ms(&self, size: u64, now: u64) -> u64 {
        let line = self.remaining() + size as f64;
        (line / self.rate_or_guess(now)) as u64 + self.round_trip_ms()
    }

    /// The last `count` blocks that are assigned to it and still `missing`, each with the milliseconds until
    /// its expected arrival; [`u64::MAX`] if overdue.
    pub(super) fn arrivals(
        &self,
        count: usize,
        missing: impl Fn(Key) -> bool,
        now: u64,
    ) -> Vec<(BlockRequest, u64)> {
        let rate = self.rate_or_guess(now);
        let Some(front) = self.owed.values().next() else { return Vec::new() };
        let on_its_way = (front.sent_at + self.round_trip_ms()).saturating_sub(now);
        let overdue = self.is_overdue(front.expected, now);
        let mut before = self.remaining();
        let mut arrivals = Vec::new();
        for owed in self.owed.values().rev() {
            let arrival = if overdue { u64::MAX } else { on_its_way + (before / rate) as u64 };
            if !owed.lost && arrivals.len() < count && missing(owed.key) {
                arrivals.push((*owed, arrival));
            }
            before = (before - owed.expected as f64).max(0.0);
        }
        arrivals
    }

    /// The block that it has been sending for [`BLOCK_MS`] or longer: a peer may send a little of it now and then, or
    /// messages that are none.
    pub(super) fn late_front(&self, now: u64) -> Option<Key> {
        let front = self.owed.values().next()?;
        let since = self.block_at.max(front.sent_at + self.round_trip_ms());
        (now.saturating_sub(since) >= BLOCK_MS).then_some(front.key)
    }

    /// Returns true if it has been silent for much longer than a block takes to send, or takes too long for a block.
    fn is_overdue(&self, size: u64, now: u64) -> bool {
        if self.late_front(now).is_some() {
            return true;
        }
        let usual = self.busy.rate(0).map_or(1_000.0, |rate| size as f64 / rate.max(1e-6));
        self.idle_ms(now) as f64 > (3.0 * usual).max(500.0)
    }

    // ---- its conduct ----

    /// Records that it was silent for too long. Returns how often that happened recently.
    pub(super) fn strike(&mut self, now: u64) -> u32 {
        if now.saturating_sub(self.struck_at) > STRIKE_FORGIVEN_MS {
            self.strikes = 0;
        }
        self.strikes += 1;
        self.struck_at = now;
        self.stalled = true;
        self.cap = (self.cap / 2).max(IN_FLIGHT_MIN);
        self.strikes
    }

    /// Ends a stall. Returns the lost blocks, which can be assigned to it again.
    pub(super) fn resume(&mut self) -> Vec<Key> {
        if !core::mem::take(&mut self.stalled) {
            return Vec::new();
        }
        self.lost()
    }
}

/// Half-life of a measurement, in milliseconds.
const MEMORY_MS: f64 = 8_000.0;
/// How many blocks share one average: several weeks' worth.
const BUCKET_HEIGHTS: u32 = 4_096;
/// Assumed block size before any is known, in bytes.
const SIZE_START: f64 = 1_000_000.0;
/// Maximum number of blocks that an average stands for, so that it adapts.
const WEIGHT_MAX: f64 = 8.0;
/// Size of the largest block (BIP-141: 4,000,000 weight units, at least one per byte).
pub(super) const SIZE_MAX: u64 = 4_000_000;
/// Size of the smallest block: header, count and coinbase.
const SIZE_MIN: f64 = 120.0;

/// A rate of bytes over time; recent bytes weigh most.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter {
    bytes: f64,
    time_ms: f64,
}

impl Meter {
    /// Adds bytes and the time they took.
    pub(super) fn add(&mut self, bytes: u64, time_ms: u64) {
        let kept = MEMORY_MS / (MEMORY_MS + time_ms as f64);
        self.bytes = self.bytes * kept + bytes as f64;
        self.time_ms = self.time_ms * kept + time_ms as f64;
    }

    /// Bytes per millisecond, given that nothing arrived for the last `silent_ms`. `None` before the first
    /// byte.
    pub(super) fn rate(&self, silent_ms: u64) -> Option<f64> {
        let mut now = self.clone();
        now.add(0, silent_ms);
        (now.bytes > 0.0).then(|| now.bytes / now.time_ms.max(1.0))
    }
}

/// Average block sizes by height. Consumers are at different heights at the same time, and blocks grew from
/// two hundred bytes to two million.
#[derive(Debug, Clone, Default)]
pub(super) struct Sizes(BTreeMap<u32, SizeAverage>);

#[derive(Debug, Clone, Copy)]
struct SizeAverage {
    average: f64,
    /// How many blocks the average stands for; one if copied from a neighbour.
    weight: f64,
}

impl Sizes {
    /// Expected size of a block at this height, in bytes: at most [`SIZE_MAX`].
    pub(super) fn expected(&self, height: Height) -> u64 {
        self.nearest(height / BUCKET_HEIGHTS).average as u64
    }

    /// Adds the size of a block at this height.
    pub(super) fn add(&mut self, height: Height, bytes: u64) {
        let bucket = height / BUCKET_HEIGHTS;
        let SizeAverage { average, weight } = self.nearest(bucket);
        let weight = if self.0.contains_key(&bucket) { weight } else { weight.min(1.0) };
        let size = (bytes.min(SIZE_MAX) as f64).max(SIZE_MIN);
        let average = average + (size - average) / (weight + 1.0);
        self.0.insert(bucket, SizeAverage { average, weight: (weight + 1.0).min(WEIGHT_MAX) });
    }

    /// The nearest bucket with data.
    fn nearest(&self, bucket: u32) -> SizeAverage {
        let below = self.0.range(..=bucket).next_back();
        let above = self.0.range(bucket..).next();
        match (below, above) {
            (Some((low, size)), Some((high, _))) if bucket - low <= high - bucket => *size,
            (_, Some((_, size))) | (Some((_, size)), None) => *size,
            (None, None) => SizeAverage { average: SIZE_START, weight: 0.0 },
        }
    }
}
