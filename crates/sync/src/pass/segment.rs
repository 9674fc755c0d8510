//! One segment, done by one thread: here, or on another machine.

use crate::engines::pass::{FinishedSegment, Pass};
use crate::error::SyncError;
use crate::supply::{Supply, Walker};
use apus_chain::{BlockBytes, Height, HeightRange};

/// Walks over the blocks of a segment and feeds the pass; none where it was halted. `each` is told of the
/// height and the bytes of each block.
pub fn do_segment<P: Pass>(
    pass: &P,
    input: P::Input,
    range: HeightRange,
    supply: &Supply<'_>,
    walker: &mut Walker<'_>,
    each: &dyn Fn(Height, u64),
) -> Result<Option<FinishedSegment<P::Partial>>, SyncError>
where
    SyncError: From<P::Error>,
{
    let mut segment = pass.begin(input)?;
    let mut take = |block: &BlockBytes<'_>| {
        pass.block(&mut segment, block)?;
        each(block.height(), block.view().raw().len() as u64);
        Ok(())
    };
    // A source gives the blocks of a range in any order.
    let at_once = if P::BLOCKS_ASCEND { 1 } else { range.count().max(1) };
    for start in range.heights().step_by(at_once as usize) {
        let some = HeightRange::new(start, range.end.min(start.saturating_add(at_once)));
        if !walker.take(some, &mut take)? {
            return Ok(None);
        }
    }
    let _permit = supply.permit();
    Ok(Some(pass.finish(segment)?))
}
