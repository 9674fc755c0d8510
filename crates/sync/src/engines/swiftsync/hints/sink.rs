//! [`HintsSink`]: a stream being written, with the height and the offset for its errors.

use super::error::{HintsError, HintsFault};
use apus_chain::Height;
use std::io::{self, Write};

pub(super) struct HintsSink<W> {
    writer: W,
    offset: u64,
    /// The next height to write.
    pub(super) next: Height,
    /// Reused for the bytes of each block.
    pub(super) scratch: Vec<u8>,
}

impl<W: Write> HintsSink<W> {
    pub(super) const fn new(writer: W, start_height: Height) -> Self {
        Self { writer, offset: 0, next: start_height, scratch: Vec::new() }
    }

    /// Writes `scratch` and empties it.
    pub(super) fn flush_scratch(&mut self) -> Result<(), HintsError> {
        let written = self.writer.write_all(&self.scratch);
        self.fail_with(written)?;
        self.offset += self.scratch.len() as u64;
        self.scratch.clear();
        Ok(())
    }

    /// Writes `scratch` as the hints of the next height.
    pub(super) fn end_block(&mut self) -> Result<(), HintsError> {
        self.flush_scratch()?;
        self.next = self.next.saturating_add(1);
        Ok(())
    }

    /// The error for a fault in the hints of the next height; drops their prepared bytes.
    pub(super) fn invalid(&mut self, fault: HintsFault) -> HintsError {
        self.scratch.clear();
        HintsError::block(self.next, self.offset, fault)
    }

    /// The error if more or fewer blocks were written than up to `stop_height`.
    pub(super) const fn miscounted(&self, stop_height: Height) -> HintsError {
        HintsError::BlockCount { height: self.next, offset: self.offset, stop_height }
    }

    pub(super) fn finish(mut self) -> Result<W, HintsError> {
        let flushed = self.writer.flush();
        self.fail_with(flushed)?;
        Ok(self.writer)
    }

    fn fail_with(&self, result: io::Result<()>) -> Result<(), HintsError> {
        let (height, offset) = (self.next, self.offset);
        result.map_err(|source| HintsError::Write { height, offset, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes this many bytes, then fails.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn errors_name_the_block_and_where_its_hints_begin() {
        let mut sink = HintsSink::new(Full(8), 5);
        for (height, offset) in [(5, 0), (6, 3)] {
            let error = sink.invalid(HintsFault::Genesis);
            assert!(
                matches!(error, HintsError::Block { height: at, offset: byte, .. } if (at, byte) == (height, offset)),
                "{error}"
            );
            sink.scratch.extend_from_slice(&[1, 2, 3]);
            sink.end_block().unwrap();
        }
        let error = sink.miscounted(9);
        assert!(matches!(error, HintsError::BlockCount { height: 7, offset: 6, stop_height: 9 }));
        sink.scratch.extend_from_slice(&[1, 2, 3]);
        let error = sink.end_block().unwrap_err();
        assert!(matches!(error, HintsError::Write { height: 7, offset: 6, .. }), "{error}");
    }
}
