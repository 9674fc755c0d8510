//! Which phases a run is going to have, and what each costs; and the segments of a pass as a row of cells ([`SegmentMap`]).
//!
//! A cost goes by how many bytes of blocks and how many coins there are, since chains of one size differ in coins by
//! twenty times. Costs are those of one machine; [`RunCourse`](super::RunCourse) finds out how much slower this one is.

use apus_chain::HeightRange;
use apus_sync::{Phase, Segment, SegmentState};

/// What a phase takes of one core, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PhaseCost {
    /// For each byte of the chain's blocks.
    byte_ns: f64,
    /// For each coin that the blocks leave.
    coin_ns: f64,
    /// For each of those that are looked up once more, which are some tens of thousands at most.
    looked_up_ns: f64,
    /// More threads are of no use to it.
    threads_max: f64,
}

impl PhaseCost {
    const fn of_blocks(byte_ns: f64) -> Self {
        Self { byte_ns, coin_ns: 0.0, looked_up_ns: 0.0, threads_max: f64::INFINITY }
    }

    const fn of_coins(coin_ns: f64, threads_max: f64) -> Self {
        Self { byte_ns: 0.0, coin_ns, looked_up_ns: 0.0, threads_max }
    }

    /// Whether it goes by coins alone.
    pub(super) fn is_of_coins(self) -> bool {
        self.byte_ns == 0.0
    }

    /// Whether it runs the scripts of all blocks. How long that takes nobody knows before: signatures take it, and some
    /// scripts have none.
    pub(super) fn runs_scripts(self) -> bool {
        self.byte_ns >= WITH_SCRIPTS
    }

    /// How many threads it uses of so many.
    pub(super) fn threads(self, threads: f64) -> f64 {
        threads.min(self.threads_max)
    }

    /// Seconds on as many threads as it uses of so many.
    pub(super) fn seconds(self, amounts: Amounts, threads: f64) -> f64 {
        let Amounts { block_bytes, coins } = amounts;
        let all_ns = self.byte_ns * block_bytes + self.coin_ns * coins;
        all_ns / 1e9 / self.threads(threads)
    }

    /// Seconds for looking coins up, which one thread does.
    pub(super) fn looked_up_seconds(self, amounts: Amounts) -> f64 {
        self.looked_up_ns / 1e9 * amounts.coins.min(LOOKED_UP_MAX)
    }
}

/// What a run goes over, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Amounts {
    pub(super) block_bytes: f64,
    pub(super) coins: f64,
}

/// So many coins are looked up at most, of any set but the largest.
const LOOKED_UP_MAX: f64 = 75_000.0;

/// A phase that is to come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Expected {
    pub(crate) phase: Phase,
    pub(crate) cost: PhaseCost,
    /// Whether it only comes if the run tells, before it takes blocks, how much of it there is.
    pub(crate) if_told: bool,
}

impl Expected {
    /// A phase of which only its name is known.
    pub(crate) fn of(phase: Phase) -> Self {
        Self::at(phase, cost(phase))
    }

    /// The same with so much more for each coin.
    fn with_coin(mut self, coin_ns: f64) -> Self {
        self.cost.coin_ns += coin_ns;
        self
    }

    fn at(phase: Phase, cost: PhaseCost) -> Self {
        Self { phase, cost, if_told: false }
    }
}

/// What the run goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunWay {
    /// Hints, and then by connecting blocks where that is asked for.
    Hints {
        /// Whether blocks above may be connected.
        connects: bool,
    },
    /// Blocks alone, joined.
    Join,
    /// Blocks alone, in ascending height.
    Order,
    /// Proofs.
    Proofs,
    /// A node's own coins and undo data, of a node that is verified.
    Node,
}

/// What a run writes beside files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writes {
    /// No folder.
    Files,
    /// A chainstate.
    Coins,
    /// A chainstate, and the blocks that came from peers beside it.
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

    /// Whether all blocks are written, and read back.
    fn has_all_blocks(self) -> bool {
        matches!(self, Self::AllBlocks | Self::CoinsBesideBlocks)
    }
}

/// What a phase costs as a rule.
fn cost(phase: Phase) -> PhaseCost {
    match phase {
        Phase::Headers | Phase::Undo | Phase::Index => PhaseCost::of_blocks(0.02),
        Phase::Hints => PhaseCost::of_blocks(0.01),
        Phase::Spends => PhaseCost::of_blocks(0.05),
        Phase::Blocks => PhaseCost::of_blocks(1.4),
        Phase::Join => PhaseCost::of_blocks(1.5),
        Phase::Connect => PhaseCost::of_blocks(JUDGED),
        Phase::Coins => PhaseCost::of_coins(200.0, 2.0),
        Phase::CheckCoins => {
            PhaseCost { looked_up_ns: LOOKED_UP, ..PhaseCost::of_coins(READ_BACK, 1.3) }
        }
        Phase::CheckBlocks => PhaseCost::of_blocks(3.4),
        Phase::Compare => PhaseCost::of_coins(100.0, 1.0),
        Phase::Survey | Phase::Extra("caches") => PhaseCost::of_blocks(0.7),
        // The roots of the Utreexo forest.
        Phase::Extra(_) => PhaseCost::of_coins(500.0, f64::INFINITY),
    }
}

/// Gathering what blocks make and spend, for a join.
const GATHERED: f64 = 2.6;

/// What a coin that stays takes beside, when it is gathered and when it is joined.
const GATHERED_COIN: f64 = 90.0;
const JOINED_COIN: f64 = 150.0;

/// Judging blocks by what was joined: by what the first walk noted of them, or by their bytes, which are copied as well.
const JUDGED: f64 = 0.3;
const JUDGED_AND_COPIED: f64 = 2.0;

/// Connecting a block in its order, its coins looked up in memory; and how many threads have work then.
const IN_ORDER: f64 = 8.2;
const IN_ORDER_THREADS: f64 = 1.5;

/// Any of these with all scripts run.
const WITH_SCRIPTS: f64 = 175.0;

/// Judging a range by proofs.
const BY_PROOFS: f64 = 4.0;

/// Taking a coin out of the store of the engine `utxo`, beside what it takes else.
const OUT_OF_STORE: f64 = 500.0;

/// Writing a coin into a chainstate, reading it back, and looking it up in there.
const INTO_CHAINSTATE: f64 = 80.0;
const READ_BACK: f64 = 200.0;
const LOOKED_UP: f64 = 7_000.0;

/// The phases of a run. `scripts` says whether those of all blocks are run, `coins` whether the set is handed out.
pub(crate) fn expected(way: RunWay, scripts: bool, coins: bool, writes: Writes) -> Vec<Expected> {
    let blocks = |phase, byte_ns| {
        let byte_ns = if scripts { WITH_SCRIPTS } else { byte_ns };
        Expected::at(phase, PhaseCost::of_blocks(byte_ns))
    };
    let mut all = vec![Expected::of(Phase::Headers)];
    match way {
        RunWay::Hints { connects } => {
            all.push(Expected::of(Phase::Hints));
            all.push(blocks(Phase::Blocks, 1.4));
            if connects {
                // Above hints nothing is assumed valid.
                let cost = PhaseCost::of_blocks(WITH_SCRIPTS);
                all.push(Expected { if_told: true, ..Expected::at(Phase::Connect, cost) });
            }
        }
        RunWay::Join => {
            // Scripts run once, when blocks are judged.
            let gathered = Expected::at(Phase::Blocks, PhaseCost::of_blocks(GATHERED));
            all.push(gathered.with_coin(GATHERED_COIN));
            all.push(Expected::of(Phase::Join).with_coin(JOINED_COIN));
            let copied = writes == Writes::AllBlocks;
            all.push(blocks(Phase::Connect, if copied { JUDGED_AND_COPIED } else { JUDGED }));
        }
        RunWay::Order => {
            let mut connect = blocks(Phase::Connect, IN_ORDER);
            if !scripts {
                connect.cost.threads_max = IN_ORDER_THREADS;
            }
            all.push(connect);
        }
        RunWay::Proofs => {
            all.push(Expected::of(Phase::Hints));
            all.push(blocks(Phase::Blocks, BY_PROOFS));
        }
        RunWay::Node => {
            all.insert(0, Expected::at(Phase::Hints, PhaseCost::of_coins(READ_BACK, 1.0)));
            all.push(blocks(Phase::Blocks, 1.4));
        }
    }
    if coins {
        let mut taken = cost(Phase::Coins);
        taken.coin_ns += if way == RunWay::Order { OUT_OF_STORE } else { 0.0 };
        taken.coin_ns += if writes.has_folder() { INTO_CHAINSTATE } else { 0.0 };
        all.push(Expected::at(Phase::Coins, taken));
    }
    if matches!(writes, Writes::AllBlocks | Writes::LastBlocks) {
        all.push(Expected::of(Phase::Index));
    }
    if writes.has_folder() {
        all.push(Expected::of(Phase::CheckCoins));
    }
    if writes.has_all_blocks() {
        all.push(Expected::of(Phase::CheckBlocks));
    }
    all
}

/// More cells than this are too small to see.
const CELLS_MAX: usize = 600;

/// The segments of the pass under way, by ascending height.
#[derive(Debug, Clone, Default)]
pub(crate) struct SegmentMap {
    segments: Vec<Segment>,
    done: usize,
    begun: usize,
}

impl SegmentMap {
    /// A pass begins.
    pub(crate) fn begin(&mut self, mut segments: Vec<Segment>) {
        segments.sort_unstable_by_key(|segment| segment.range);
        let in_state = |state| segments.iter().filter(|it| it.state == state).count();
        (self.done, self.begun) = (in_state(SegmentState::Done), in_state(SegmentState::Begun));
        self.segments = segments;
    }

    /// A segment got further.
    pub(crate) fn note(&mut self, range: HeightRange, state: SegmentState) {
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

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.segments.len()
    }

    /// How many are done.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// How many are under way.
    pub(crate) fn begun(&self) -> usize {
        self.begun
    }

    /// A character for each cell: `.` nothing is done, `1` to `3` quarters are, `#` all, `a` a thread is at it.
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
        // Of another pass.
        map.note(HeightRange::new(9, 10), SegmentState::Done);
        assert_eq!((map.cells().as_str(), map.begun(), map.done()), (".a.#", 1, 1));
        map.note(HeightRange::new(2, 3), SegmentState::Done);
        assert_eq!((map.cells().as_str(), map.begun(), map.done()), (".#.#", 0, 2));
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
