//! [`HintsWindow`]: a stream seen through a buffer of fixed size, with the position in the file.
//!
//! A decoder peeks at some bytes in one piece and then takes them; the buffer never grows, so memory stays
//! bounded for any stream. It knows no encoding, only CompactSizes.

use super::elias_fano::number;
use super::error::{HintsError, HintsFault};
use apus_chain::{Height, Reader};
use std::io::{self, Read};

pub(super) struct HintsWindow<R> {
    reader: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    offset: u64,
    ended: bool,
}

impl<R: Read> HintsWindow<R> {
    /// Creates a window of at most `capacity` bytes; the first byte of `reader` is at `offset`.
    pub(super) fn new(reader: R, capacity: usize, offset: u64) -> Self {
        let buffer = vec![0; capacity].into_boxed_slice();
        Self { reader, buffer, start: 0, end: 0, offset, ended: false }
    }

    /// Returns the next byte's offset in the file.
    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the underlying reader.
    pub(super) const fn reader_mut(&mut self) -> &mut R {
        &mut self.reader
    }

    /// Returns the bytes ahead: at least `count` (which the capacity must allow), or all that remain. Errors
    /// name `height`.
    pub(super) fn peek(&mut self, count: usize, height: Height) -> Result<&[u8], HintsError> {
        debug_assert!(count <= self.buffer.len(), "the window is smaller than {count} bytes");
        while self.end - self.start < count && !self.ended {
            self.make_room(count);
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    let offset = self.offset + (self.end - self.start) as u64;
                    return Err(HintsError::Read { height, offset, source });
                }
            }
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// Moves unread bytes to the front if `count` bytes would not fit after them.
    fn make_room(&mut self, count: usize) {
        if self.buffer.len() - self.start < count {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Whether the stream has ended.
    pub(super) fn at_end(&mut self, height: Height) -> Result<bool, HintsError> {
        Ok(self.peek(1, height)?.is_empty())
    }

    /// Skips `count` bytes that were peeked at.
    pub(super) fn skip(&mut self, count: usize) {
        debug_assert!(count <= self.end - self.start, "only bytes seen can be skipped");
        self.start += count;
        self.offset += count as u64;
    }

    /// Takes the next `N` bytes.
    pub(super) fn array<const N: usize>(
        &mut self,
        height: Height,
        field: &'static str,
    ) -> Result<[u8; N], HintsError> {
        let offset = self.offset;
        let bytes = *self.peek(N, height)?.first_chunk::<N>().ok_or(HintsError::block(
            height,
            offset,
            HintsFault::End { field },
        ))?;
        self.skip(N);
        Ok(bytes)
    }

    /// Takes a CompactSize of at most `limit`.
    pub(super) fn number(
        &mut self,
        height: Height,
        field: &'static str,
        limit: u32,
    ) -> Result<u32, HintsError> {
        let offset = self.offset;
        let mut reader = Reader::new(self.peek(9, height)?);
        let value = number(&mut reader, field, limit)
            .map_err(|fault| HintsError::block(height, offset, fault))?;
        let length = reader.position();
        self.skip(length);
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Yields one byte at a time, with an interruption before each.
    struct Drip<'a>(&'a [u8], bool);

    impl Read for Drip<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let count = buffer.len().min(1);
            self.0.read(&mut buffer[..count])
        }
    }

    #[test]
    fn fields_are_read_whole_for_any_chunking_of_the_stream() {
        let data: Vec<u8> = (0..100).collect();
        let mut window = HintsWindow::new(Drip(&data, false), 9, 1000);
        let mut seen = Vec::new();
        for count in (1..=9).cycle() {
            let bytes = window.peek(count, 0).unwrap();
            assert!(bytes.len() >= count || seen.len() + bytes.len() == data.len());
            let take = bytes.len().min(count);
            seen.extend_from_slice(&bytes[..take]);
            window.skip(take);
            assert_eq!(window.offset(), 1000 + seen.len() as u64);
            if take == 0 {
                break;
            }
        }
        assert_eq!(seen, data);
        assert!(window.at_end(0).unwrap());
    }

    /// Yields its bytes, then fails.
    struct Fails<'a>(&'a [u8]);

    impl Read for Fails<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() { Err(io::ErrorKind::Other.into()) } else { self.0.read(buffer) }
        }
    }

    #[test]
    fn an_error_names_the_byte_that_could_not_be_read() {
        let mut window = HintsWindow::new(Fails(&[1, 2, 3, 4, 5]), 16, 1000);
        window.peek(3, 7).unwrap();
        window.skip(3);
        let error = window.peek(4, 8).unwrap_err();
        assert!(
            matches!(error, HintsError::Read { height: 8, offset: 1005, .. }),
            "after the two that are ahead: {error}"
        );
    }

    #[test]
    fn numbers_are_bounded_and_strict() {
        let bytes = [5, 0xfd, 0x00, 0x01, 0xfd, 0x05, 0x00, 0xfe];
        let mut window = HintsWindow::new(&bytes[..], 16, 7);
        assert_eq!(window.number(1, "x", 5).unwrap(), 5);
        let large = window.number(1, "x", 255).unwrap_err();
        assert!(matches!(
            large,
            HintsError::Block {
                height: 1,
                offset: 8,
                fault: HintsFault::TooLarge { value: 256, .. },
                ..
            }
        ));
        window.skip(3);
        let long = window.number(2, "x", 255).unwrap_err();
        assert!(matches!(
            long,
            HintsError::Block { height: 2, offset: 11, fault: HintsFault::NonCanonical { .. }, .. }
        ));
        window.skip(3);
        let cut = window.number(2, "x", 255).unwrap_err();
        assert!(matches!(cut, HintsError::Block { offset: 14, fault: HintsFault::End { .. }, .. }));
    }
}
