//! Gaps between indices: how many outputs lie between one and the one before.

use super::elias_fano::OUTPUTS_PER_BLOCK_MAX;
use super::error::HintsFault;
use apus_chain::write_compact_size;

/// Appends the index that lies `gap` outputs behind the one after the last.
pub(super) fn push_gap(indices: &mut Vec<u32>, gap: u32) -> Result<(), HintsFault> {
    let least = indices.last().map_or(0, |last| u64::from(*last) + 1);
    let (value, limit) = (least + u64::from(gap), u64::from(OUTPUTS_PER_BLOCK_MAX) - 1);
    if value > limit {
        return Err(HintsFault::TooLarge { field: "an index", value, limit });
    }
    indices.push(value as u32);
    Ok(())
}

/// Appends the gaps of ascending `indices` as CompactSizes.
pub(super) fn write_gaps(out: &mut Vec<u8>, indices: &[u32]) {
    let mut least = 0;
    for index in indices {
        write_compact_size(out, u64::from(index - least));
        least = index + 1;
    }
}
