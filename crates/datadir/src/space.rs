//! [`free_bytes`]: how much a disk still takes.

use std::io;
use std::path::Path;

/// Bytes that this user may still write to the file system that `path`, which exists, is on.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_room_and_nowhere_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let free = free_bytes(folder.path()).unwrap();
        assert!((1 << 20..1 << 60).contains(&free), "{free}");
        assert!(free_bytes(&folder.path().join("nowhere")).is_err());
    }
}
