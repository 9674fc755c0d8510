//! The cost model: which phases a job will have, and what each costs. Also [`SegmentMap`], which shows the segments of
//! a pass as a row of cells.
//!
//! A cost depends on the bytes of blocks and on the number of coins, since chains of the same size differ in coins by
//! a factor of twenty. Costs are those of one reference machine; [`ProgressEstimate`](super::ProgressEstimate) measures
//! how much slower this one is.

use apus_chain::{Height, HeightRange};
use apus_sync::{Phase, Segment, SegmentState};

/// The cost of a phase, in nanoseconds of one core.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PhaseCost {
    /// Cost per byte of the chain's blocks.
    byte_ns: f64,
    /// Cost per coin that stays unspent.
    coin_ns: f64,
    /// Cost per coin that is looked up again: at most some tens of thousands.
    looked_up_ns: f64,
    /// Number of threads that the phase can use.
    threads_max: f64,
}

impl PhaseCost {
    const fn of_blocks(byte_ns: f64) -> Self {
        Self { byte_ns, coin_ns: 0.0, looked_up_ns: 0.0, threads_max: f64::INFINITY }
    }

    const fn of_coins(coin_ns: f64, threads_max: f64) -> Self {
        Self { byte_ns: 0.0, coin_ns, looked_up_ns: 0.0, threads_max }
    }

    /// Whether the cost depends on coins alone.
    pub(super) fn is_of_coins(self) -> bool {
        self.byte_ns == 0.0
    }

    /// Whether the phase runs the scripts of all blocks. Their time cannot be predicted: signatures dominate it, and
    /// some scripts have none.
    pub(super) fn runs_scripts(self) -> bool {
        self.byte_ns >= WITH_SCRIPTS
    }

    /// How many of `threads` the phase uses.
    pub(super) fn threads(self, threads: f64) -> f64 {
        threads.min(self.threads_max)
    }

    /// Seconds of the phase on as many of `threads` as it uses.
    pub(super) fn seconds(self, amounts: Amounts, threads: f64) -> f64 {
        let Amounts { block_bytes, coins } = amounts;
        let all_ns = self.byte_ns * block_bytes + self.coin_ns * coins;
        all_ns / 1e9 / self.threads(threads)
    }

    /// Seconds for looking up coins, on one thread.
    pub(super) fn looked_up_seconds(self, amounts: Amounts) -> f64 {
        self.looked_up_ns / 1e9 * amounts.coins.min(LOOKED_UP_MAX)
    }
}

/// The input of a job, as far as known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Amounts {
    pub(super) block_bytes: f64,
    pub(super) coins: f64,
}

/// Upper bound on the coins looked up, for any set but the largest.
const LOOKED_UP_MAX: f64 = 75_000.0;

/// A phase that the job is expected to have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ExpectedPhase {
    pub(crate) phase: Phase,
    pub(crate) cost: PhaseCost,
    /// Whether the phase takes place only if the job announces its work before the blocks phase starts.
    pub(crate) if_announced: bool,
}

impl ExpectedPhase {
    /// Creates a phase with its usual cost.
    pub(crate) fn of(phase: Phase) -> Self {
        Self::at(phase, cost(phase))
    }

    /// Adds `coin_ns` to the cost of each coin.
    fn with_coin(mut self, coin_ns: f64) -> Self {
        self.cost.coin_ns += coin_ns;
        self
    }

    fn at(phase: Phase, cost: PhaseCost) -> Self {
        Self { phase, cost, if_announced: false }
    }
}

/// How a job derives the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunMethod {
    /// From hints; then connects the blocks above them if the user wants that.
    Hints {
        /// Whether blocks above the hints may be connected.
        connects: bool,
    },
    /// From blocks alone, joined.
    Join,
    /// From blocks alone, in ascending height.
    Order,
    /// From proofs.
    Proofs,
    /// From a node's coins and undo data, to verify the node.
    Node,
}

/// The folders that a job writes, in addition to files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writes {
    /// No folder.
    Files,
    /// A chainstate.
    Coins,
    /// A chainstate, and next to it the blocks from peers.
    CoinsBesideBlocks,
    /// A data directory with all blocks.
    AllBlocks,
    /// A data directory with the last blocks.
    LastBlocks,
}

impl Writes {
    fn has_folder(self) -> bool {
        self != Self::Files
    }

    /// Whether the job writes all blocks and reads them back.
    fn has_all_blocks(self) -> bool {
        matches!(self, Self::AllBlocks | Self::CoinsBesideBlocks)
    }
}

/// The usual cost of a phase.
fn cost(phase: Phase) -> PhaseCost {
    match phase {
        Phase::Headers | Phase::Undo | Phase::Index => PhaseCost::of_blocks(0.02),
        Phase::Hints => PhaseCost::of_blocks(0.01),
        Phase::Spends => PhaseCost::of_blocks(0.05),
        Phase::Blocks => PhaseCost::of_blocks(1.4),
        Phase::Copy => PhaseCost::of_blocks(VALIDATED_AND_COPIED),
        Phase::Join => PhaseCost::of_blocks(1.5),
        Phase::Connect => PhaseCost::of_blocks(VALIDATED),
        Phase::Fill => PhaseCost::of_coins(FILLED, 1.0),
        Phase::Coins => PhaseCost::of_coins(200.0, 2.0),
        Phase::CheckCoins => {
            PhaseCost { looked_up_ns: LOOKED_UP, ..PhaseCost::of_coins(READ_BACK, 1.3) }
        }
        Phase::CheckBlocks => PhaseCost::of_blocks(3.4),
        Phase::Compare => PhaseCost::of_coins(100.0, 1.0),
        Phase::Survey | Phase::Extra("caches") => PhaseCost::of_blocks(0.7),
        // All of Core's indexes.
        Phase::Extra("index-blocks") => PhaseCost::of_blocks(9.0),
        Phase::Extra("index-tables") => PhaseCost::of_blocks(1.5),
        // The roots of the Utreexo forest.
        Phase::Extra(_) => PhaseCost::of_coins(500.0, f64::INFINITY),
    }
}

/// Cost of gathering the outputs and spends of blocks for a join.
const GATHERED: f64 = 2.6;

/// Extra cost of a coin that stays unspent, when it is gathered and when it is joined.
const GATHERED_COIN: f64 = 90.0;
const JOINED_COIN: f64 = 150.0;

/// Cost of validating blocks with the result of the join: from their summaries of the first pass, or from their bytes,
/// which are also copied.
const VALIDATED: f64 = 0.3;
const VALIDATED_AND_COPIED: f64 = 2.0;

/// Cost of storing a coin for blocks that are connected in order.
const FILLED: f64 = 600.0;

/// Cost of connecting blocks in order, with coin look-ups in memory, and the number of threads that this keeps busy.
const IN_ORDER: f64 = 8.2;
const IN_ORDER_THREADS: f64 = 1.5;

/// Cost of any of these phases if it runs all scripts.
const WITH_SCRIPTS: f64 = 175.0;

/// Cost of validating a block range with proofs.
const BY_PROOFS: f64 = 4.0;

/// Extra cost of reading a coin from the store of the engine `utxo`.
const OUT_OF_STORE: f64 = 500.0;

/// Cost of writing a coin into a chainstate, reading it back, and looking it up there.
const INTO_CHAINSTATE: f64 = 80.0;
const READ_BACK: f64 = 200.0;
const LOOKED_UP: f64 = 7_000.0;

/// Returns a job's expected phases. `scripts` says whether the job runs the scripts of all blocks, `coins` whether it
/// emits the set.
pub(crate) fn expected(
    way: RunMethod,
    scripts: bool,
    coins: bool,
    writes: Writes,
) -> Vec<ExpectedPhase> {
    let blocks = |phase, byte_ns| {
        let byte_ns = if scripts { WITH_SCRIPTS } else { byte_ns };
        ExpectedPhase::at(phase, PhaseCost::of_blocks(byte_ns))
    };
    let mut all = vec![ExpectedPhase::of(Phase::Headers)];
    match way {
        RunMethod::Hints { connects } => {
            all.push(ExpectedPhase::of(Phase::Hints));
            all.push(blocks(Phase::Blocks, 1.4));
            if writes == Writes::AllBlocks {
                all.push(ExpectedPhase::of(Phase::Copy));
            }
            if connects {
                // Blocks above the hints are never assumed valid.
                let cost = PhaseCost::of_blocks(WITH_SCRIPTS);
                all.push(ExpectedPhase {
                    if_announced: true,
                    ..ExpectedPhase::at(Phase::Connect, cost)
                });
            }
        }
        RunMethod::Join => {
            // Scripts run once, when blocks are validated.
            let gathered = ExpectedPhase::at(Phase::Blocks, PhaseCost::of_blocks(GATHERED));
            all.push(gathered.with_coin(GATHERED_COIN));
            all.push(ExpectedPhase::of(Phase::Join).with_coin(JOINED_COIN));
            let copied = writes == Writes::AllBlocks;
            all.push(blocks(Phase::Connect, if copied { VALIDATED_AND_COPIED } else { VALIDATED }));
        }
        RunMethod::Order => {
            let mut connect = blocks(Phase::Connect, IN_ORDER);
            if !scripts {
                connect.cost.threads_max = IN_ORDER_THREADS;
            }
            all.push(connect);
        }
        RunMethod::Proofs => {
            all.push(ExpectedPhase::of(Phase::Hints));
            all.push(blocks(Phase::Blocks, BY_PROOFS));
        }
        RunMethod::Node => {
            all.insert(0, ExpectedPhase::at(Phase::Hints, PhaseCost::of_coins(READ_BACK, 1.0)));
            all.push(blocks(Phase::Blocks, 1.4));
        }
    }
    // The last blocks are connected in order, for their undo data.
    if writes == Writes::LastBlocks && way != RunMethod::Order {
        all.push(ExpectedPhase::of(Phase::Fill));
    }
    if coins {
        let mut taken = cost(Phase::Coins);
        taken.coin_ns += if way == RunMethod::Order { OUT_OF_STORE } else { 0.0 };
        taken.coin_ns += if writes.has_folder() { INTO_CHAINSTATE } else { 0.0 };
        all.push(ExpectedPhase::at(Phase::Coins, taken));
    }
    if matches!(writes, Writes::AllBlocks | Writes::LastBlocks) {
        all.push(ExpectedPhase::of(Phase::Index));
    }
    if writes.has_folder() {
        all.push(ExpectedPhase::of(Phase::CheckCoins));
    }
    if writes.has_all_blocks() {
        all.push(ExpectedPhase::of(Phase::CheckBlocks));
    }
    all
}

/// Maximum number of cells: more would be too small to see.
const CELLS_MAX: usize = 600;

/// The segments of the current pass, by ascending height.
#[derive(Debug, Clone, Default)]
pub(crate) struct SegmentMap {
    segments: Vec<Segment>,
    done: usize,
    begun: usize,
}

impl SegmentMap {
    /// Starts the map of a new pass.
    pub(crate) fn begin(&mut self, mut segments: Vec<Segment>) {
        segments.sort_unstable_by_key(|segment| segment.range);
        let in_state = |state| segments.iter().filter(|it| it.state == state).count();
        (self.done, self.begun) = (in_state(SegmentState::Done), in_state(SegmentState::Begun));
        self.segments = segments;
    }

    /// Records the new state of a segment, or of a part of one that was cut.
    pub(crate) fn note(&mut self, range: HeightRange, state: SegmentState) {
        self.cut_at(range.start);
        self.cut_at(range.end);
        let found = self.segments.binary_search_by_key(&range, |segment| segment.range);
        let Ok(at) = found else { return };
        let before = std::mem::replace(&mut self.segments[at].state, state);
        let mut count = |state, by: isize| match state {
            SegmentState::Waiting => {}
            SegmentState::Begun => self.begun = self.begun.saturating_add_signed(by),
            SegmentState::Done => self.done = self.done.saturating_add_signed(by),
        };
        count(before, -1);
        count(state, 1);
    }

    /// Cuts the segment that this height lies within.
    fn cut_at(&mut self, height: Height) {
        let at = self.segments.partition_point(|segment| segment.range.end <= height);
        let Some(segment) = self.segments.get_mut(at) else { return };
        let HeightRange { start, end } = segment.range;
        if start >= height {
            return;
        }
        let above = segment.bytes * u64::from(end - height) / u64::from(end - start);
        segment.bytes -= above;
        segment.range.end = height;
        let (range, state) = (HeightRange::new(height, end), SegmentState::Waiting);
        self.segments.insert(at + 1, Segment { range, bytes: above, state });
    }

    /// The number of segments.
    pub(crate) fn count(&self) -> usize {
        self.segments.len()
    }

    /// The number of segments done.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// The number of segments in progress.
    pub(crate) fn begun(&self) -> usize {
        self.begun
    }

    /// Returns one character per cell: `.` for nothing done, `1` to `3` for quarters done, `#` for all done, `a` for
    /// work in progress.
    pub(crate) fn cells(&self) -> String {
        let cells = self.segments.len().min(CELLS_MAX);
        (0..cells)
            .map(|cell| {
                let bound = |cell| cell * self.segments.len() / cells;
                cell_of(&self.segments[bound(cell)..bound(cell + 1)])
            })
            .collect()
    }
}

fn cell_of(segments: &[Segment]) -> char {
    let is = |state| segments.iter().filter(|segment| segment.state == state).count();
    let done = is(SegmentState::Done);
    match 4 * done / segments.len().max(1) {
        4 => '#',
        _ if is(SegmentState::Begun) > 0 => 'a',
        1 => '1',
        2 => '2',
        3 => '3',
        _ => '.',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(count: u32) -> SegmentMap {
        let mut map = SegmentMap::default();
        let segment = |start| Segment {
            range: HeightRange::new(start, start + 1),
            bytes: 1,
            state: SegmentState::Waiting,
        };
        map.begin((1..=count).map(segment).collect());
        map
    }

    #[test]
    fn a_map_fills_in() {
        let mut map = map(4);
        assert_eq!(map.cells(), "....");
        map.note(HeightRange::new(2, 3), SegmentState::Begun);
        map.note(HeightRange::new(4, 5), SegmentState::Done);
        // A segment of another pass changes nothing.
        map.note(HeightRange::new(9, 10), SegmentState::Done);
        assert_eq!((map.cells().as_str(), map.begun(), map.done()), (".a.#", 1, 1));
        map.note(HeightRange::new(2, 3), SegmentState::Done);
        assert_eq!((map.cells().as_str(), map.begun(), map.done()), (".#.#", 0, 2));
    }

    #[test]
    fn a_cut_segment_is_several() {
        let mut map = SegmentMap::default();
        let (range, state) = (HeightRange::new(1, 9), SegmentState::Waiting);
        map.begin(vec![Segment { range, bytes: 80, state }]);
        map.note(range, SegmentState::Begun);
        // Its rest begins before the segment is done.
        map.note(HeightRange::new(4, 9), SegmentState::Begun);
        assert_eq!((map.count(), map.begun(), map.done()), (2, 2, 0));
        map.note(HeightRange::new(1, 4), SegmentState::Done);
        map.note(HeightRange::new(4, 7), SegmentState::Done);
        assert_eq!((map.cells().as_str(), map.begun(), map.done()), ("##.", 0, 2));
        assert_eq!(map.segments.iter().map(|it| it.bytes).collect::<Vec<_>>(), [30, 30, 20]);
    }

    #[test]
    fn many_segments_share_cells() {
        let mut map = map(2400);
        assert_eq!(map.cells().len(), CELLS_MAX);
        for (done, cell) in [(1, '1'), (2, '2'), (3, '3'), (4, '#')] {
            map.note(HeightRange::new(done, done + 1), SegmentState::Done);
            assert!(map.cells().starts_with(cell), "{done}");
        }
        assert_eq!(SegmentMap::default().cells(), "");
    }
}
