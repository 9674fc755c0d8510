//! [`Reading`]: how fast the disk gives block files, and not the system what it has of them in memory.
//!
//! Some stretches of the files are dropped from the system's memory and read. Only those count of which the system says
//! that they came from a disk. Where it never says so, as of files that lie in memory, nothing was measured.

use crate::failure::Failure;
use crate::machine::disk_read_bytes;
use apus_datadir::BlockFile;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// Of a stretch that came from a disk, the disk gave at least so much, in percent.
const FROM_DISK_PERCENT: u64 = 90;

/// What the disk gave, and how long it took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reading {
    bytes: u64,
    seconds: f64,
}

impl Reading {
    /// Reads a stretch of a file, as much as `buffer` has room for.
    pub(super) fn read(
        &mut self,
        file: &BlockFile,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), Failure> {
        let failed = |error| Failure::io(&file.path, error);
        let open = File::open(&file.path).map_err(failed)?;
        // Where the system keeps it in spite of that, it tells below.
        let _ = fadvise(&open, offset, NonZeroU64::new(buffer.len() as u64), Advice::DontNeed);
        let (before, begun) = (disk_read_bytes(), Instant::now());
        open.read_exact_at(buffer, offset).map_err(failed)?;
        let seconds = begun.elapsed().as_secs_f64();
        let gave = disk_read_bytes().zip(before).map_or(0, |(after, before)| after - before);
        self.count(buffer.len() as u64, gave, seconds);
        Ok(())
    }

    fn count(&mut self, bytes: u64, gave: u64, seconds: f64) {
        if gave >= bytes / 100 * FROM_DISK_PERCENT && seconds > 0.0 {
            self.bytes += bytes;
            self.seconds += seconds;
        }
    }

    /// Of so many bytes that took so long.
    #[cfg(test)]
    pub(super) fn of(bytes: u64, seconds: f64) -> Self {
        Self { bytes, seconds }
    }

    /// Bytes a second; none where nothing came from a disk.
    pub(super) fn bytes_per_second(self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.bytes as f64 / self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_from_a_disk_counts() {
        let mut reading = Reading::default();
        assert_eq!(reading.bytes_per_second(), None);
        // Out of memory, at a rate that no disk has.
        reading.count(8_000_000, 0, 0.001);
        reading.count(8_000_000, 4_000_000, 0.02);
        assert_eq!(reading.bytes_per_second(), None);
        reading.count(8_000_000, 8_000_000, 0.08);
        reading.count(8_000_000, 7_500_000, 0.08);
        assert_eq!(reading.bytes_per_second(), Some(1e8));
    }

    #[test]
    fn what_is_read_is_what_the_file_has() {
        let desk = tempfile::tempdir().unwrap();
        let path = desk.path().join("blk00000.dat");
        std::fs::write(&path, [7; 5000]).unwrap();
        let file = BlockFile { number: 0, length: 5000, path };
        let mut buffer = [0; 3000];
        Reading::default().read(&file, 2000, &mut buffer).unwrap();
        assert_eq!(buffer, [7; 3000]);
        assert_eq!(Reading::default().read(&file, 2001, &mut buffer).unwrap_err().code, 3);
    }
}
