//! [`records()`]: the records of a manifest or of a log (LevelDB `doc/log_format.md`).
//!
//! A file is a row of blocks of 32 KiB, a record one piece or several. Nothing is passed over: a database at rest has
//! no record that a crash left unfinished.

use super::bytes::{Bytes, stored_sum};
use super::{ForeignError, fault};
use std::fs::File;
use std::io::Read;
use std::path::Path;

const BLOCK_BYTES: usize = 32 << 10;

/// Before each piece: checksum, length, kind.
const HEAD: usize = 7;

const WHOLE: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// The most that a manifest or log may have. One that has more is its node's to put in order.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// All records of a file, in order.
pub(super) fn records(path: &Path) -> Result<Vec<Vec<u8>>, ForeignError> {
    let bytes = whole(path)?;
    let (mut all, mut begun) = (Vec::new(), None::<Vec<u8>>);
    let mut at = 0;
    while let Some((kind, piece, next)) = piece(&bytes, at).map_err(|what| fault(path, at, what))? {
        match (kind, begun.take()) {
            (WHOLE, None) => all.push(piece.to_vec()),
            (FIRST, None) => begun = Some(piece.to_vec()),
            (MIDDLE, Some(record)) => begun = Some([&record, piece].concat()),
            (LAST, Some(record)) => all.push([&record, piece].concat()),
            _ => return Err(fault(path, at, "a piece of a record is not where it can be")),
        }
        at = next;
    }
    if begun.is_some() {
        return Err(fault(path, at, "it ends within a record"));
    }
    Ok(all)
}

type Piece<'b> = (u8, &'b [u8], usize);

/// The piece at an offset: kind, content, and where the next one begins; nothing at the end.
fn piece(bytes: &[u8], at: usize) -> Result<Option<Piece<'_>>, &'static str> {
    let left = BLOCK_BYTES - at % BLOCK_BYTES;
    // Too little for a head is filled up.
    let at = if left < HEAD { at + left } else { at };
    if at >= bytes.len() {
        return Ok(None);
    }
    let block_end = bytes.len().min((at / BLOCK_BYTES + 1) * BLOCK_BYTES);
    let mut rest = Bytes(&bytes[at..block_end]);
    let mut head =
        || Some((rest.four()?, u64::from(rest.byte()?), u64::from(rest.byte()?), rest.byte()?));
    let (sum, low, high, kind) = head().ok_or("it ends within the head of a record")?;
    let content = rest.take(low | high << 8).ok_or("a record is longer than what is left")?;
    if sum != stored_sum([&[kind], content]) {
        return Err("a record has a wrong checksum");
    }
    Ok(Some((kind, content, at + HEAD + content.len())))
}

/// A file that is small.
pub(super) fn whole(path: &Path) -> Result<Vec<u8>, ForeignError> {
    let mut bytes = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| fault(path, 0, error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(fault(path, 0, "it is too long for a database at rest"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with these pieces.
    fn file(pieces: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, content) in pieces {
            bytes.extend(stored_sum([&[*kind], content]).to_le_bytes());
            bytes.extend((content.len() as u16).to_le_bytes());
            bytes.push(*kind);
            bytes.extend_from_slice(content);
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, bytes).unwrap();
        records(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn pieces_make_records() {
        let rest = vec![5; BLOCK_BYTES - 2 * HEAD - 2 - 3];
        let mut bytes = file(&[(WHOLE, b"ab"), (FIRST, &rest)]);
        // Three bytes that no head fits into.
        bytes.extend([0; 3]);
        assert_eq!(bytes.len(), BLOCK_BYTES);
        bytes.extend(file(&[(MIDDLE, b"c"), (LAST, b"d"), (WHOLE, b"")]));
        let record = [&rest[..], b"cd"].concat();
        assert_eq!(read(&bytes).unwrap(), [b"ab".to_vec(), record, Vec::new()]);
        assert_eq!(read(&[]).unwrap(), [[0; 0]; 0]);
    }

    #[test]
    fn what_is_no_record_is_refused() {
        for (bytes, why) in [
            (file(&[(FIRST, b"a")]), "ends within a record"),
            (file(&[(LAST, b"a")]), "not where it can be"),
            (file(&[(FIRST, b"a"), (WHOLE, b"b")]), "not where it can be"),
            (file(&[(5, b"a")]), "not where it can be"),
            (file(&[(WHOLE, b"a")])[..6].to_vec(), "within the head"),
            (file(&[(WHOLE, b"abc")])[..9].to_vec(), "longer than what is left"),
            (vec![0; 20], "checksum"),
        ] {
            let error = read(&bytes).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
