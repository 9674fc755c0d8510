//! Blocks that are kept for a node, and have no undo data.
//!
//! Undo data comes of connecting a block. Blocks that hints prove are not connected, and those that an
//! earlier start connected without keeping blocks are not connected again. That is said as soon as it
//! is known, before the rest of the work is done: whoever needs them starts anew.

use crate::progress::Event;
use crate::run::{Request, Stop};
use crate::source::ChainSource;
use apus_chain::{Height, HeightRange};

/// So many of its last blocks a node takes back when it starts, to see that it can (Core `init.cpp`,
/// `DEFAULT_CHECKBLOCKS`, and `validation.cpp`, `CVerifyDB`).
pub const TAKEN_BACK: Height = 6;

/// Ranges that are told; more come of many starts with and without blocks kept.
const TOLD_MAX: usize = 3;

/// Warns of blocks of `done` that will have no undo data in the folder of blocks that are kept.
pub(crate) fn warn_of_missing(request: &Request<'_>, dir: &dyn ChainSource, done: HeightRange) {
    let missing = dir.without_undo(done);
    let Some(last) = missing.last() else { return };
    let end = match request.stop {
        Stop::At(height) => height,
        Stop::AtHints => last.end - 1,
        Stop::AtTip => dir.chain().tip_height(),
    };
    let is_near_end = !request.follow && end < last.end - 1 + TAKEN_BACK;
    let ranges: Vec<String> = missing.iter().rev().take(TOLD_MAX).rev().map(shown).collect();
    let more = if missing.len() > TOLD_MAX { ", and others below," } else { "" };
    let mut warning = format!(
        "blocks {}{more} will have no undo data in the folder of kept blocks, since this run proves \
         them by hints or connected them before it kept blocks: a node there cannot go back below \
         block {}",
        ranges.join(", "),
        last.end - 1
    );
    if is_near_end {
        warning.push_str(
            ", and looks for the undo data of its last six blocks when it starts: start it with \
             -checklevel=2 until it has six more",
        );
    }
    request.observer.event(Event::RunWarning(warning));
}

fn shown(range: &HeightRange) -> String {
    match range.count() {
        1 => range.start.to_string(),
        _ => format!("{} to {}", range.start, range.end - 1),
    }
}
