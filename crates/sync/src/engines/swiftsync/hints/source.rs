//! [`HintsSource`]: bytes that several threads read at the same time, each at its own offset.
//!
//! A file stays open from the check to the last read, so that replacing it under its name has no effect; the
//! reader must notice if something writes into it.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

/// A file, or bytes in place of one.
pub trait HintsSource: Send + Sync {
    /// Returns the current length in bytes.
    fn bytes(&self) -> io::Result<u64>;
    /// Reads some bytes at `offset` into `buffer` and returns how many; 0 only at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl HintsSource for File {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buffer, offset)
    }
}

impl HintsSource for Vec<u8> {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|start| self.get(start..));
        rest.unwrap_or_default().read(buffer)
    }
}

/// Reads a source from an offset on.
pub(super) struct SourceReader {
    source: Arc<dyn HintsSource>,
    offset: u64,
}

impl SourceReader {
    pub(super) fn new(source: &Arc<dyn HintsSource>, offset: u64) -> Self {
        Self { source: Arc::clone(source), offset }
    }
}

impl Read for SourceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn files_and_bytes_read_alike() {
        let data: Vec<u8> = (0..50).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&data).unwrap();
        let sources: [Arc<dyn HintsSource>; 2] = [Arc::new(data.clone()), Arc::new(file)];
        for source in sources {
            assert_eq!(source.bytes().unwrap(), 50);
            for offset in [0, 7, 50, 51, 1 << 40] {
                let mut rest = Vec::new();
                SourceReader::new(&source, offset).read_to_end(&mut rest).unwrap();
                assert_eq!(rest, data.get(offset as usize..).unwrap_or_default());
            }
        }
    }
}
