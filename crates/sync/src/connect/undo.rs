//! Blocks that are kept for a node, and have no undo data.
//!
//! Undo data comes of connecting a block. Blocks that hints prove are not connected, and those that an
//! earlier start connected without keeping blocks are not connected again. That is said as soon as it
//! is known, before the rest of the work is done: whoever needs them starts anew. The
//! [last ones](crate::request::LAST_BLOCKS), which every node needs, have undo data in any case.

use crate::progress::Event;
use crate::request::Request;
use crate::source::ChainSource;
use apus_chain::HeightRange;

/// Ranges that are told; more come of many starts with and without blocks kept.
const TOLD_MAX: usize = 3;

/// Warns of blocks of `done` that will have no undo data in the folder of blocks that are kept.
pub(crate) fn warn_of_missing(request: &Request<'_>, dir: &dyn ChainSource, done: HeightRange) {
    let missing = dir.without_undo(done);
    let Some(last) = missing.last() else { return };
    let ranges: Vec<String> = missing.iter().rev().take(TOLD_MAX).rev().map(shown).collect();
    let more = if missing.len() > TOLD_MAX { ", and others below," } else { "" };
    request.observer.event(Event::RunWarning(format!(
        "blocks {}{more} will have no undo data in the folder of kept blocks, since this run proves \
         them by hints or connected them before it kept blocks: a node there cannot go back below \
         block {}",
        ranges.join(", "),
        last.end - 1
    )));
}

fn shown(range: &HeightRange) -> String {
    match range.count() {
        1 => range.start.to_string(),
        _ => format!("{} to {}", range.start, range.end - 1),
    }
}
