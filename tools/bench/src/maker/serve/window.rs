//! [`BlockWindow`]: the last blocks made, and what clients wait for.

use crate::maker::build::BuiltBlock;
use apus_chain::Height;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Blocks made ahead of the highest one asked for.
const AHEAD: Height = 128;

/// What the maker of blocks should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Demand {
    /// Make the next block.
    Next,
    /// Start again from the first block.
    Again,
    /// Stop.
    End,
}

#[derive(Debug, Default)]
struct State {
    /// Consecutive blocks, the highest last.
    blocks: VecDeque<Arc<BuiltBlock>>,
    bytes: u64,
    /// Height of the last block made.
    made: Height,
    starts: u32,
    /// The highest block asked for.
    asked: Height,
    /// A block that was asked for, but is no longer in the window.
    gone: Option<Height>,
    ended: bool,
}

/// The window, shared by the maker and all connections.
#[derive(Debug)]
pub(super) struct BlockWindow {
    bytes_max: u64,
    state: Mutex<State>,
    changed: Condvar,
}

impl BlockWindow {
    /// An empty window for this many bytes of blocks.
    pub(super) fn new(bytes_max: u64) -> Self {
        let state = State { starts: 1, ..State::default() };
        Self { bytes_max, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// A block; `None` if it does not exist within this time. It is being made then.
    pub(super) fn block(&self, height: Height, patience: Duration) -> Option<Arc<BuiltBlock>> {
        let mut state = self.state.lock();
        if let Some(block) = state.get(height) {
            state.ask(height);
            self.changed.notify_all();
            return Some(block);
        }
        state.ask(height);
        self.changed.notify_all();
        let missing = |state: &mut State| !state.ended && state.get(height).is_none();
        self.changed.wait_while_for(&mut state, missing, patience);
        state.get(height)
    }

    /// Waits until the next block is needed, or something else is to be done.
    pub(super) fn wait_for_demand(&self) -> Demand {
        let idle = |state: &mut State| {
            !state.ended && state.gone.is_none() && state.made >= state.asked.saturating_add(AHEAD)
        };
        self.wait_while(idle)
    }

    /// Waits after the last block.
    pub(super) fn wait_at_the_end(&self) -> Demand {
        self.wait_while(|state| !state.ended && state.gone.is_none())
    }

    fn wait_while(&self, idle: impl FnMut(&mut State) -> bool) -> Demand {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, idle);
        if state.ended {
            return Demand::End;
        }
        let Some(height) = state.gone.take() else { return Demand::Next };
        let starts = state.starts + 1;
        *state = State { asked: height, starts, ..State::default() };
        Demand::Again
    }

    /// Adds the next block, and drops the lowest ones if there are too many.
    pub(super) fn push(&self, block: BuiltBlock) {
        let mut state = self.state.lock();
        state.made = block.height;
        state.bytes += block.bytes.len() as u64;
        state.blocks.push_back(Arc::new(block));
        while state.bytes > self.bytes_max
            && state.blocks.len() > 1
            && let Some(dropped) = state.blocks.pop_front()
        {
            state.bytes -= dropped.bytes.len() as u64;
        }
        self.changed.notify_all();
    }

    /// The highest block made, and how often the chain was started.
    pub(super) fn progress(&self) -> (Height, u32) {
        let state = self.state.lock();
        (state.made, state.starts)
    }

    /// Ends all waiting.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }
}

impl State {
    fn get(&self, height: Height) -> Option<Arc<BuiltBlock>> {
        let first = self.blocks.front()?.height;
        self.blocks.get(height.checked_sub(first)? as usize).cloned()
    }

    fn ask(&mut self, height: Height) {
        self.asked = self.asked.max(height);
        if height <= self.made && self.get(height).is_none() {
            self.gone = Some(self.gone.map_or(height, |gone| gone.min(height)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maker::blocks::{ChainBlocks, keys};
    use crate::maker::{MakeOptions, Scale};

    const AT_ONCE: Duration = Duration::ZERO;

    #[test]
    fn blocks_are_made_when_asked_for_and_again_when_gone() {
        let options = MakeOptions::history(Scale::FULL, 1);
        let keys = keys(&options);
        let mut blocks = ChainBlocks::new(&options, &keys);
        // Most of the first blocks have about 200 bytes.
        let window = BlockWindow::new(20_000);
        for _ in 0..AHEAD {
            assert_eq!(window.wait_for_demand(), Demand::Next);
            window.push(blocks.next().unwrap());
        }
        assert!(window.block(AHEAD + 2, AT_ONCE).is_none(), "it is not made yet");
        for height in AHEAD + 1..=AHEAD + 2 {
            assert_eq!(window.wait_for_demand(), Demand::Next);
            window.push(blocks.next().unwrap());
            assert_eq!(window.progress(), (height, 1));
        }
        assert_eq!(window.block(AHEAD + 2, AT_ONCE).map(|it| it.height), Some(AHEAD + 2));
        assert_eq!(window.block(AHEAD + 1, AT_ONCE).map(|it| it.height), Some(AHEAD + 1));
        assert!(window.block(7, AT_ONCE).is_none(), "it is gone");
        assert_eq!(window.wait_for_demand(), Demand::Again);
        assert_eq!(window.progress(), (0, 2));
        let again = ChainBlocks::new(&options, &keys);
        again.take(8).for_each(|block| window.push(block));
        assert_eq!(window.block(7, AT_ONCE).map(|it| it.height), Some(7));
        window.end();
        assert_eq!(window.wait_for_demand(), Demand::End);
        assert_eq!(window.wait_at_the_end(), Demand::End);
    }
}
