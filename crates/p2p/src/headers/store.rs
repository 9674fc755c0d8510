//! Headers on a disk: frames of raw headers, each with its checksum, in one file.
//!
//! This encodes and decodes them, nothing more: files are
//! the caller's, and so is the check of what the headers say. A frame that is cut short or
//! rotten, and all that follows it, counts as absent; what came before is given.
//!
//! ```text
//! 8     41 50 55 53 48 44 52 53   "APUSHDRS"
//! 4     version, 1
//! 4     magic of the network
//!       for each frame:
//! 4     number of headers n, 1 to 2,000
//! 80·n  headers, as peers send them
//! 32    SHA-256 of all bytes of the frame before
//! ```
//!
//! Each header comes after its parent; the genesis block is not among them, branches may be. A file only grows. One that
//! ends within its first 16 bytes is begun anew.

use apus_chain::{Header, Network};
use apus_hash::sha256;
use std::io::{self, Read, Write};

/// First bytes of the file.
const MAGIC: [u8; 8] = *b"APUSHDRS";

/// The only version there is.
const VERSION: u32 = 1;

/// Bytes before the first frame.
pub const HEAD_BYTES: usize = 16;

/// Most headers of a frame: 160 KB.
pub const FRAME_HEADERS_MAX: usize = 2000;

/// Bytes of a checksum.
const CHECKSUM_BYTES: usize = 32;

/// Writes what stands before the first frame.
pub fn write_head(out: &mut dyn Write, network: Network) -> io::Result<()> {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..].copy_from_slice(&network.magic());
    out.write_all(&head)
}

/// Writes headers as frames: one write each. Writes nothing where there are none.
pub fn write_frames(out: &mut dyn Write, headers: &[[u8; Header::SIZE]]) -> io::Result<()> {
    for headers in headers.chunks(FRAME_HEADERS_MAX) {
        let bytes = headers.as_flattened();
        let mut frame = Vec::with_capacity(4 + bytes.len() + CHECKSUM_BYTES);
        frame.extend_from_slice(&(headers.len() as u32).to_le_bytes());
        frame.extend_from_slice(bytes);
        frame.extend_from_slice(&sha256(&frame));
        out.write_all(&frame)?;
    }
    Ok(())
}

/// Reads frames one after the other, up to the first that is not whole.
pub struct HeaderFileReader<'a> {
    /// None behind what is good of the file.
    input: Option<&'a mut dyn Read>,
    good_bytes: u64,
}

impl std::fmt::Debug for HeaderFileReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeaderFileReader")
            .field("good_bytes", &self.good_bytes)
            .finish_non_exhaustive()
    }
}

impl<'a> HeaderFileReader<'a> {
    /// Reads what stands before the first frame; none where that is another kind of file, of another
    /// version or network, or cut short, as after a crash while the file was begun.
    pub fn open(input: &'a mut dyn Read, network: Network) -> Option<Self> {
        let (mut head, mut wanted) = ([0; HEAD_BYTES], Vec::new());
        input.read_exact(&mut head).ok()?;
        write_head(&mut wanted, network).ok()?;
        (head[..] == wanted).then_some(Self { input: Some(input), good_bytes: HEAD_BYTES as u64 })
    }

    /// The headers of the next frame; none at the end of the file or of what is good of it.
    pub fn next_frame(&mut self) -> Option<Vec<[u8; Header::SIZE]>> {
        let (input, mut count) = (self.input.take()?, [0; 4]);
        input.read_exact(&mut count).ok()?;
        let headers = u32::from_le_bytes(count) as usize;
        if !(1..=FRAME_HEADERS_MAX).contains(&headers) {
            return None;
        }
        let mut frame = vec![0; count.len() + headers * Header::SIZE + CHECKSUM_BYTES];
        frame[..count.len()].copy_from_slice(&count);
        input.read_exact(&mut frame[count.len()..]).ok()?;
        let (body, checksum) = frame.split_at(frame.len() - CHECKSUM_BYTES);
        if sha256(body) != *checksum {
            return None;
        }
        self.good_bytes += frame.len() as u64;
        self.input = Some(input);
        let (headers, _) = body[count.len()..].as_chunks();
        Some(headers.to_vec())
    }

    /// Length of the file up to the end of the last whole frame: where to cut it before more are
    /// appended.
    pub const fn good_bytes(&self) -> u64 {
        self.good_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8], network: Network) -> Option<(Vec<[u8; 80]>, u64)> {
        let mut input = bytes;
        let mut reader = HeaderFileReader::open(&mut input, network)?;
        let mut headers = Vec::new();
        while let Some(frame) = reader.next_frame() {
            headers.extend(frame);
        }
        assert!(reader.next_frame().is_none(), "the end stays the end");
        Some((headers, reader.good_bytes()))
    }

    fn file(frames: &[usize]) -> (Vec<u8>, Vec<[u8; 80]>) {
        let (mut bytes, mut all) = (Vec::new(), Vec::new());
        write_head(&mut bytes, Network::Main).unwrap();
        for (number, &count) in frames.iter().enumerate() {
            let headers: Vec<_> = (0..count).map(|i| [(7 * i + number) as u8; 80]).collect();
            write_frames(&mut bytes, &headers).unwrap();
            all.extend(headers);
        }
        (bytes, all)
    }

    #[test]
    fn the_first_bytes_are_as_the_page_says() {
        let (bytes, _) = file(&[1]);
        assert_eq!(bytes[..20], *b"APUSHDRS\x01\0\0\0\xf9\xbe\xb4\xd9\x01\0\0\0");
        assert_eq!(bytes.len(), 16 + 4 + 80 + 32);
        assert_eq!(bytes[100..], sha256(&bytes[16..100]));
    }

    #[test]
    fn another_kind_of_file_is_refused() {
        let (bytes, headers) = file(&[3, 2500]);
        assert_eq!(read(&bytes, Network::Main).unwrap(), (headers, bytes.len() as u64));
        assert_eq!(read(&bytes, Network::Signet), None);
        let mut newer = bytes.clone();
        newer[8] = 2;
        assert_eq!(read(&newer, Network::Main), None);
        assert_eq!(read(b"APUSPLAN", Network::Main), None);
        assert_eq!(read(&bytes[..9], Network::Main), None);
    }

    #[test]
    fn a_count_that_cannot_be_takes_no_memory() {
        for count in [0, FRAME_HEADERS_MAX as u32 + 1, u32::MAX] {
            let (mut bytes, headers) = file(&[5]);
            let good = bytes.len() as u64;
            bytes.extend(count.to_le_bytes());
            bytes.extend([0; 200]);
            assert_eq!(read(&bytes, Network::Main).unwrap(), (headers, good));
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(frames in proptest::collection::vec(0usize..2100, 0..4)) {
            let (bytes, headers) = file(&frames);
            prop_assert_eq!(read(&bytes, Network::Main).unwrap(), (headers, bytes.len() as u64));
        }

        /// Cut or altered anywhere, the whole frames before that are read, and no others.
        #[test]
        fn a_damaged_tail_costs_itself_only(at in 16usize..1600, flip in 0u8..=255) {
            let (mut bytes, headers) = file(&[2, 7, 1, 4]);
            let at = at.min(bytes.len() - 1);
            let ends = [16, 212, 808, 924, 1280];
            prop_assert_eq!(bytes.len(), ends[4]);
            let whole = ends.iter().take_while(|&&end| end <= at).count() - 1;
            let count = [0, 2, 9, 10, 14][whole];
            if flip == 0 {
                bytes.truncate(at);
            } else {
                bytes[at] ^= flip;
            }
            let expected = (headers[..count].to_vec(), ends[whole] as u64);
            prop_assert_eq!(read(&bytes, Network::Main).unwrap(), expected);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = read(&bytes, Network::Main);
            let (mut file, _) = file(&[1]);
            file.extend(bytes);
            read(&file, Network::Main).unwrap();
        }
    }
}
