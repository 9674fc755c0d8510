//! [`Packing`]: how a file is compressed, and what reads it.

use super::source::Source;
use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::fmt::{self, Display, Formatter};
use std::io::{self, BufRead, Read};
use std::path::Path;

/// The memory that a decoder may take for what it looks back to: what `zstd -d` takes, and twice what `xz -9`
/// needs.
const MEMORY_BYTES: u32 = 128 << 20;

/// A form of compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    Gzip,
    Xz,
    Zstd,
}

impl Packing {
    /// So many first bytes tell.
    pub(super) const MARK_BYTES: usize = 6;

    pub(super) fn of(first: &[u8]) -> Option<Self> {
        let marks: [(&[u8], Self); 3] = [
            (&[0x1f, 0x8b, 8], Self::Gzip),
            (&[0xfd, b'7', b'z', b'X', b'Z', 0], Self::Xz),
            (&[0x28, 0xb5, 0x2f, 0xfd], Self::Zstd),
        ];
        marks.into_iter().find(|(mark, _)| first.starts_with(mark)).map(|(_, packing)| packing)
    }

    /// What unpacks a file otherwise.
    pub(super) fn command(self, file: &Path) -> String {
        let program = match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        };
        format!("{program} -d {}", file.display())
    }
}

impl Display for Packing {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        })
    }
}

/// Reads what a source holds.
pub(super) fn reader<'s>(
    packing: Option<Packing>,
    source: &'s mut Source<'_>,
) -> Box<dyn Read + 's> {
    match packing {
        None => Box::new(source),
        Some(Packing::Gzip) => Box::new(MultiGzDecoder::new(source)),
        Some(Packing::Xz) => Box::new(XzReader::new_mem_limit(source, true, MEMORY_BYTES >> 10)),
        Some(Packing::Zstd) => Box::new(Zstd::new(source)),
    }
}

/// Frames of zstd, one behind the other. Those for other programs are skipped.
struct Zstd<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MEMORY_BYTES.into());
        Self { source, decoder, in_frame: false }
    }

    /// Goes to the next frame; `false` where there is none.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut frame = (&mut self.source).take(length.into());
                    if io::copy(&mut frame, &mut io::sink())? < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(_) => return Err(io::Error::other("the head of a frame cannot be read")),
            }
        }
        Ok(false)
    }

    fn end(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let stated = self.decoder.get_checksum_from_data();
        match stated.is_some() && stated != self.decoder.get_calculated_checksum() {
            true => Err(io::Error::new(io::ErrorKind::InvalidData, "its checksum is another")),
            false => Ok(()),
        }
    }
}

/// The library's own words are for who works on it.
fn no_block() -> io::Error {
    io::Error::other("it ends within a block, or a block is damaged")
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame && !self.begin()? {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, one).map_err(|_| no_block())?;
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            self.end()?;
        }
    }
}
