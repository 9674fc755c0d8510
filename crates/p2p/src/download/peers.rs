//! [`DownloadPeer`]: what one peer has, owes and has shown to be able to.
//!
//! Blocks are owed in the order in which they were asked for, which is the order in which nodes
//! answer. What was taken away from a peer it still owes, marked lost: it may come, and until then
//! it stands in the way of what is asked for later. Nothing here decides; see the other modules.
//!
//! How fast a peer is, and how large blocks are, are averages that forget: arithmetic of `f64` without
//! transcendental functions, so that the same events give the same numbers everywhere.

use super::window::Key;
use crate::message::Services;
use apus_chain::{BlockHash, Height};
use std::collections::{BTreeMap, BTreeSet};

/// What a peer is asked for at the least, in blocks: one that comes and one behind it.
const IN_FLIGHT_MIN: usize = 2;
/// No peer may owe more blocks, whatever the options say: what Core takes in a `getdata`
/// (`net_processing.cpp`, `MAX_INV_SZ`).
const CAP_MAX: usize = 50_000;
/// For how long a peer is to be busy beyond a round trip with what it was asked for, in
/// milliseconds. It hides the time between two looks at it, and estimates that are too low.
const AHEAD_MS: f64 = 1_500.0;
/// What is assumed of a peer that delivered nothing yet, in bytes per millisecond.
const RATE_GUESS: f64 = 300.0;
/// What is assumed as long as no answer came, in milliseconds.
const ROUND_TRIP_GUESS_MS: u64 = 200;
/// A longer round trip is a queue, not a distance, in milliseconds.
const ROUND_TRIP_MAX_MS: u64 = 10_000;
/// With fewer bytes a peer counts as silent: two messages of nothing a second are no progress.
const HEARD_BYTES: u64 = 1_000;
/// How far below its best block a limited peer is asked: Core keeps 288 (BIP-159) and asks for two
/// less, as blocks may come in between (Core `net_processing.cpp`, `FindNextBlocks`).
const LIMITED_BLOCKS: Height = 288 - 2;
/// After so long a stall is forgiven, in milliseconds.
const STRIKE_FORGIVEN_MS: u64 = 600_000;

/// A block that a peer was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owed {
    pub(super) key: Key,
    pub(super) sent_at: u64,
    /// Its expected size in bytes.
    pub(super) expected: u64,
    /// Whether it was taken away, or is not wanted any more.
    pub(super) lost: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct DownloadPeer {
    services: Services,
    /// Height of the last block that its chain shares with ours, and of its best block.
    chain: Option<(Height, Height)>,
    /// Blocks off the chain that it is known to have.
    pub(super) extras: BTreeSet<BlockHash>,
    /// Blocks that it said it has not.
    pub(super) refused: BTreeSet<BlockHash>,
    /// What it owes, by a number that counts up.
    owed: BTreeMap<u64, Owed>,
    numbers: BTreeMap<BlockHash, u64>,
    next_number: u64,
    owed_bytes: u64,
    /// Bytes that came of the block which is coming in.
    partial: u64,
    /// Size of the last blocks that came, the last counting half.
    size_lately: u64,
    /// The greatest number of a block delivered, and one after it.
    answered: u64,
    /// Requests below this number are passed over, since when.
    pub(super) passed_over: Option<(u64, u64)>,
    busy: Meter,
    recent: Meter,
    /// When bytes last came.
    bytes_at: u64,
    /// When enough bytes last came to count as progress, and bytes since.
    heard_at: u64,
    since_heard: u64,
    round_trip_ms: Option<u64>,
    /// Whether the last request went to a peer that owed nothing.
    fresh: bool,
    /// How many blocks it may owe: grows with what it delivers.
    cap: usize,
    strikes: u32,
    struck_at: u64,
    /// Whether it lost its blocks by its silence and has not broken it since.
    pub(super) stalled: bool,
    pub(super) unrequested: u32,
    /// Blocks that it said it has not, less those delivered.
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

    // ---- what it has ----

    pub(super) const fn set_chain(&mut self, common: Height, best: Height) {
        self.chain = Some((common, best));
    }

    /// Our chain has other blocks above `fork`.
    pub(super) fn clamp_chain(&mut self, fork: Height) {
        self.chain = self.chain.map(|(common, best)| (common.min(fork), best));
    }

    /// The heights at which it has our blocks, first and last.
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

    /// Whether it may be asked for a block.
    pub(super) fn has(&self, key: Key, on_chain: bool) -> bool {
        let (height, hash) = key;
        let spans = self.span().is_some_and(|(low, high)| low <= height && height <= high);
        ((on_chain && spans) || self.extras.contains(&hash)) && !self.refused.contains(&hash)
    }

    // ---- what it owes ----

    /// It is asked for a block.
    pub(super) fn ask(&mut self, key: Key, expected: u64, now: u64) {
        if self.owed.is_empty() {
            self.fresh = true;
            self.passed_over = None;
        }
        self.owed.insert(self.next_number, Owed { key, sent_at: now, expected, lost: false });
        self.numbers.insert(key.1, self.next_number);
        self.next_number += 1;
        self.owed_bytes += expected;
    }

    /// Blocks are expected to have these sizes now, and those behind each other to be alike: what comes
    /// next is hardly smaller than what came last.
    pub(super) fn expect(&mut self, size: impl Fn(Height) -> u64) {
        let least = self.size_lately.max(self.partial);
        self.owed.values_mut().for_each(|owed| owed.expected = size(owed.key.0).max(least));
        self.owed_bytes = self.owed.values().map(|owed| owed.expected).sum();
    }

    /// It is counted on for a block that it owes, or no longer. Whether it owes it.
    pub(super) fn set_lost(&mut self, hash: &BlockHash, lost: bool) -> bool {
        let Some(owed) = self.numbers.get(hash).and_then(|number| self.owed.get_mut(number)) else {
            return false;
        };
        owed.lost = lost;
        true
    }

    /// It does not owe this block any more.
    pub(super) fn settle(&mut self, hash: &BlockHash) -> Option<Owed> {
        let number = self.numbers.remove(hash)?;
        let owed = self.owed.remove(&number)?;
        self.owed_bytes -= owed.expected;
        Some(owed)
    }

    /// It delivered a block; what it was asked for, if it was.
    pub(super) fn deliver(&mut self, hash: &BlockHash, bytes: u64, now: u64) -> Option<Owed> {
        let number = *self.numbers.get(hash)?;
        self.credit(bytes.saturating_sub(self.partial), now);
        self.partial = 0;
        self.since_heard = 0;
        self.heard_at = now;
        self.answered = self.answered.max(number + 1);
        let owed = self.settle(hash)?;
        // Asking and transferring lie between these two: no round trip takes longer.
        let bound = now.saturating_sub(owed.sent_at);
        self.round_trip_ms = self.round_trip_ms.map(|known| known.min(bound));
        self.cap = (self.cap + 1).min(CAP_MAX);
        self.size_lately = self.size_lately.midpoint(bytes.min(SIZE_MAX));
        self.refusals = self.refusals.saturating_sub(1);
        self.blocks += 1;
        self.bytes += bytes;
        Some(owed)
    }

    /// So many bytes are there of the block that is coming in; whether that is progress.
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

    /// Bytes came. Time counts from when they could have come.
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
        // The first bytes after a pause may have come in no time as far as can be seen.
        if !fresh || time_ms > 0 {
            self.busy.add(bytes, time_ms);
        }
        self.recent.add(bytes, now.saturating_sub(self.bytes_at));
        self.bytes_at = now;
    }

    /// A round trip took so long. The shortest say most, but the way may have become longer.
    pub(super) fn round_trip(&mut self, sample_ms: u64) {
        let sample = sample_ms.min(ROUND_TRIP_MAX_MS);
        let known = self.round_trip_ms.unwrap_or(sample).min(sample);
        self.round_trip_ms = Some(known + (sample - known) / 8);
    }

    pub(super) fn is_owing(&self) -> bool {
        !self.owed.is_empty()
    }

    /// How many blocks it owes, those it lost among them.
    pub(super) fn owed_count(&self) -> usize {
        self.owed.len()
    }

    /// The blocks that it is counted on for, in the order of the requests.
    pub(super) fn counted_on(&self) -> impl DoubleEndedIterator<Item = &Owed> {
        self.owed.values().filter(|owed| !owed.lost)
    }

    /// All that it owes and is not counted on for.
    pub(super) fn lost(&self) -> Vec<Key> {
        self.owed.values().filter(|owed| owed.lost).map(|owed| owed.key).collect()
    }

    /// Blocks that it left out while it answered later requests, for longer than `patience_ms`.
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

    // ---- what it can ----

    /// How long it could have sent and did not, in milliseconds.
    fn idle_ms(&self, now: u64) -> u64 {
        let front = self.owed.values().next();
        front.map_or(0, |front| {
            now.saturating_sub(self.bytes_at.max(front.sent_at + self.round_trip_ms()))
        })
    }

    /// How long it has been without progress although it owes blocks, in milliseconds.
    pub(super) fn silent_ms(&self, now: u64) -> u64 {
        self.owed.values().next().map_or(0, |front| {
            now.saturating_sub(self.heard_at.max(front.sent_at + self.round_trip_ms()))
        })
    }

    /// Bytes per millisecond while it owes blocks, if it ever sent any.
    pub(super) fn rate(&self, now: u64) -> Option<f64> {
        self.busy.rate(self.idle_ms(now))
    }

    /// Bytes per millisecond of late, busy or not.
    pub(super) fn recent_rate(&self, now: u64) -> f64 {
        self.recent.rate(now.saturating_sub(self.bytes_at)).unwrap_or(0.0)
    }

    fn rate_or_guess(&self, now: u64) -> f64 {
        self.rate(now).unwrap_or(RATE_GUESS).max(1e-6)
    }

    pub(super) fn round_trip_ms(&self) -> u64 {
        self.round_trip_ms.unwrap_or(ROUND_TRIP_GUESS_MS)
    }

    /// What it owes beyond what came of the first.
    fn remaining(&self) -> f64 {
        self.owed_bytes.saturating_sub(self.partial) as f64
    }

    /// For how long it is busy, in milliseconds.
    fn backlog_ms(&self, now: u64) -> f64 {
        self.remaining() / self.rate_or_guess(now)
    }

    /// How long until it would run dry if it were asked for nothing more, less a round trip.
    pub(super) fn slack_ms(&self, now: u64) -> i64 {
        self.backlog_ms(now) as i64 - self.round_trip_ms() as i64
    }

    /// Whether it owes so little that it may be asked for a batch: a glance without arithmetic.
    pub(super) fn may_take_batch(&self, part: usize, in_flight_max: usize) -> bool {
        let full = self.cap.min(in_flight_max);
        full.saturating_sub(self.owed_count()) * part >= full
    }

    /// How many more blocks of this size it is to be asked for.
    pub(super) fn room(&self, size: u64, in_flight_max: usize, now: u64) -> usize {
        let owed = self.owed_count();
        let by_count = self.cap.min(in_flight_max).saturating_sub(owed);
        let by_rate = self.rate(now).map_or(by_count, |rate| {
            let full = rate * (self.round_trip_ms() as f64 + AHEAD_MS);
            ((full - self.remaining()).max(0.0) / size.max(1) as f64) as usize
        });
        by_count.min(by_rate.max(IN_FLIGHT_MIN.saturating_sub(owed)))
    }

    /// In how many milliseconds a block of this size would be there, if it were asked for it now.
    pub(super) fn arrival_if_asked_ms(&self, size: u64, now: u64) -> u64 {
        let line = self.remaining() + size as f64;
        (line / self.rate_or_guess(now)) as u64 + self.round_trip_ms()
    }

    /// In how many milliseconds each of the last `count` blocks that it is counted on for, and that
    /// are still `missing`, is expected; [`u64::MAX`] for one that is overdue.
    pub(super) fn arrivals(
        &self,
        count: usize,
        missing: impl Fn(Key) -> bool,
        now: u64,
    ) -> Vec<(Owed, u64)> {
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

    /// Whether it is silent for much longer than it takes to send a block.
    fn is_overdue(&self, size: u64, now: u64) -> bool {
        let usual = self.busy.rate(0).map_or(1_000.0, |rate| size as f64 / rate.max(1e-6));
        self.idle_ms(now) as f64 > (3.0 * usual).max(500.0)
    }

    // ---- what it did ----

    /// It was silent for too long; how often that happened of late.
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

    /// It is not stalled any more. The blocks that it lost may count on it again.
    pub(super) fn resume(&mut self) -> Vec<Key> {
        if !core::mem::take(&mut self.stalled) {
            return Vec::new();
        }
        self.lost()
    }
}

/// After so much time a measurement weighs half, in milliseconds.
const MEMORY_MS: f64 = 8_000.0;
/// How many blocks share one average: some weeks of them.
const BUCKET_HEIGHTS: u32 = 4_096;
/// The size of a block as long as none is known, in bytes.
const SIZE_START: f64 = 1_000_000.0;
/// No average stands for more blocks, so that it follows.
const WEIGHT_MAX: f64 = 8.0;
/// No block is larger (BIP-141: 4,000,000 weight units, of which a byte has at least one).
pub(super) const SIZE_MAX: u64 = 4_000_000;
/// No block takes less: its header, a count and a coinbase.
const SIZE_MIN: f64 = 120.0;

/// Bytes for time, the recent ones counting most.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter {
    bytes: f64,
    time_ms: f64,
}

impl Meter {
    /// So many bytes came within so much time.
    pub(super) fn add(&mut self, bytes: u64, time_ms: u64) {
        let kept = MEMORY_MS / (MEMORY_MS + time_ms as f64);
        self.bytes = self.bytes * kept + bytes as f64;
        self.time_ms = self.time_ms * kept + time_ms as f64;
    }

    /// Bytes per millisecond, if nothing came for the last `silent_ms`; none before the first byte.
    pub(super) fn rate(&self, silent_ms: u64) -> Option<f64> {
        let mut now = self.clone();
        now.add(0, silent_ms);
        (now.bytes > 0.0).then(|| now.bytes / now.time_ms.max(1.0))
    }
}

/// What blocks weigh on average, by where they stand in the chain: different consumers are at
/// different heights at the same time, and blocks grew from two hundred bytes to two million.
#[derive(Debug, Clone, Default)]
pub(super) struct Sizes(BTreeMap<u32, SizeAverage>);

#[derive(Debug, Clone, Copy)]
struct SizeAverage {
    average: f64,
    /// How many blocks that stands for; one if it is a neighbour's.
    weight: f64,
}

impl Sizes {
    /// What a block at this height is expected to have, in bytes: at most [`SIZE_MAX`].
    pub(super) fn expected(&self, height: Height) -> u64 {
        self.nearest(height / BUCKET_HEIGHTS).average as u64
    }

    /// A block at this height had so many bytes.
    pub(super) fn add(&mut self, height: Height, bytes: u64) {
        let bucket = height / BUCKET_HEIGHTS;
        let SizeAverage { average, weight } = self.nearest(bucket);
        let weight = if self.0.contains_key(&bucket) { weight } else { weight.min(1.0) };
        let size = (bytes.min(SIZE_MAX) as f64).max(SIZE_MIN);
        let average = average + (size - average) / (weight + 1.0);
        self.0.insert(bucket, SizeAverage { average, weight: (weight + 1.0).min(WEIGHT_MAX) });
    }

    /// The bucket that was seen and is nearest.
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
