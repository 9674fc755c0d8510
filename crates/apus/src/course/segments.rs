//! [`Map`]: the segments of a pass as a row of cells, which fill in.

use apus_chain::HeightRange;
use apus_sync::{Segment, SegmentState};

/// More cells than this are too small to see.
const CELLS_MAX: usize = 600;

/// The segments of the pass under way, by ascending height.
#[derive(Debug, Clone, Default)]
pub(crate) struct Map {
    segments: Vec<Segment>,
    done: usize,
    begun: usize,
}

impl Map {
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

    fn map(count: u32) -> Map {
        let mut map = Map::default();
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
        assert_eq!(Map::default().cells(), "");
    }
}
