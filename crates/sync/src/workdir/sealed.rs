//! What the small files of a work folder have in common: magic and version before their content, and a
//! SHA-256 of all that behind it. What the content means is not known here.

use apus_chain::Reader;
use apus_hash::sha256;

/// The first bytes of a file: its content is to follow, and [`seal`].
pub(crate) fn begin(magic: &[u8; 8], version: u32) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.extend_from_slice(&version.to_le_bytes());
    out
}

/// Ends what [`begin`] began.
pub(crate) fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = sha256(&bytes);
    bytes.extend_from_slice(&checksum);
    bytes
}

/// The content of a file; none if it is damaged, another kind of file, or of another version.
pub(crate) fn open<'a>(bytes: &'a [u8], magic: &[u8; 8], version: u32) -> Option<Reader<'a>> {
    let (body, checksum) = bytes.split_last_chunk::<32>()?;
    let mut reader = Reader::new(body);
    let intact =
        sha256(body) == *checksum && reader.array().ok()? == magic && reader.u32().ok()? == version;
    intact.then_some(reader)
}
