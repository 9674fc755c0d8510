//! Headers on disk: frames of raw headers in one file, each with a checksum.
//!
//! This module only encodes and decodes. The caller handles the files and validates the headers. A truncated
//! or corrupt frame counts as absent, and so does everything after it; the frames before it are read.
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
//! Each header comes after its parent. The genesis block is not included; branches may be. The file only
//! grows. A file that ends within its first 16 bytes is rewritten from scratch.

use apus_chain::{Header, Network};
use apus_hash::sha256;
use std::io::{self, Read, Write};

/// The file's magic bytes.
const MAGIC: [u8; 8] = *b"APUSHDRS";

/// The only version.
const VERSION: u32 = 1;

/// Length of the file header, in bytes.
pub const HEAD_BYTES: usize = 16;

/// Maximum number of headers in a frame: 160 KB.
pub const FRAME_HEADERS_MAX: usize = 2000;

/// Length of a checksum, in bytes.
const CHECKSUM_BYTES: usize = 32;

/// Writes the file header.
pub fn write_head(out: &mut dyn Write, network: Network) -> io::Result<()> {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..].copy_from_slice(&network.magic());
    out.write_all(&head)
}

/// Writes headers as frames, with one write each. Writes nothing if there are no headers.
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

/// Reads frames in order, up to the first damaged one.
pub struct HeaderFileReader<'a> {
    /// `None` once the intact part is read.
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
    /// Reads the file header. Returns `None` if the file is of another kind, version or network, or
    /// truncated, as after a crash while it was created.
    pub fn open(input: &'a mut dyn Read, network: Network) -> Option<Self> {
        let (mut head, mut wanted) = ([0; HEAD_BYTES], Vec::new());
        input.read_exact(&mut head).ok()?;
        write_head(&mut wanted, network).ok()?;
        (head[..] == wanted).then_some(Self { input: Some(input), good_bytes: HEAD_BYTES as u64 })
    }

    /// The headers of the next frame, or `None` at the end of the file or of its intact part.
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

    /// Length of the file up to the end of the last intact frame: truncate it here before appending.
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
    fn the_first_bytes_match_the_documentation() {
        let (bytes, _) = file(&[1]);
        assert_eq!(bytes[..20], *b"APUSHDRS\x01\0\0\0\xf9\xbe\xb4\xd9\x01\0\0\0");
        assert_eq!(bytes.len(), 16 + 4 + 80 + 32);
        assert_eq!(bytes[100..], sha256(&bytes[16..100]));
    }

    #[test]
    fn a_file_of_another_kind_is_refused() {
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
    fn an_impossible_count_takes_no_memory() {
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
        fn written_frames_are_read_back(frames in proptest::collection::vec(0usize..2100, 0..4)) {
            let (bytes, headers) = file(&frames);
            prop_assert_eq!(read(&bytes, Network::Main).unwrap(), (headers, bytes.len() as u64));
        }

        /// Exactly the intact frames before the damage are read, however the file is truncated or altered.
        #[test]
        fn a_damaged_tail_loses_nothing_before_it(at in 16usize..1600, flip in 0u8..=255) {
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
