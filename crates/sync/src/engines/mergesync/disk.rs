//! Upper bound for the disk space of a sync's records, known before it begins.

use super::join_runs::merge_budget;
use crate::pass::segments_at_most;

/// Records and the runs joined from them, in percent of the blocks' bytes: measured with small transactions
/// whose coins are mostly spent far above their blocks. Expect half of this on the main chain.
const PERCENT: u64 = 60;

/// Added if segments leave more runs than may be open at once: the records again, in longer runs, while the
/// short ones stay until the sync no longer needs them to resume. Measured in the same way.
const PERCENT_MERGED: u64 = 30;

/// Maximum bytes on disk for a sync over this many bytes of blocks, with the request's memory and threads.
pub fn disk_bytes(block_bytes: u64, memory_bytes: u64, threads: usize) -> u64 {
    let threads = threads.max(1);
    let fan_in = merge_budget(memory_bytes, threads).fan_in as u64;
    let merged = segments_at_most(block_bytes, memory_bytes, threads as u64) > fan_in;
    block_bytes / 100 * (PERCENT + if merged { PERCENT_MERGED } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_memory_and_long_chains_take_more_disk() {
        let (chain, main) = (1_141_796_832, 800_000_000_000);
        assert_eq!(disk_bytes(chain, 450 << 20, 2), chain / 100 * 60);
        assert_eq!(disk_bytes(chain, 16 << 20, 2), chain / 100 * 60);
        assert_eq!(disk_bytes(10 * chain, 16 << 20, 2), chain / 10 * 90);
        assert_eq!(disk_bytes(main, 450 << 20, 8), main / 100 * 90);
        // No request overflows or panics.
        assert_eq!(disk_bytes(0, 0, 0), 0);
        assert!(disk_bytes(u64::MAX, u64::MAX / 8, usize::MAX >> 8) > 0);
    }
}
