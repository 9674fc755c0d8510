//! Hints files (BIP-456) through the `hintsfile` crate, in both bit orders in use.

use bitcoin::consensus::encode::{VarInt, deserialize_partial};
use hintsfile::{EliasFano, Hintsfile, HintsfileBuilder};

/// The bit of each byte that the packed bits fill first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BitOrder {
    /// The most significant bit: the draft's vectors.
    Msb,
    /// The least significant bit: the `hintsfile` crate from 0.2 on.
    Lsb,
}

/// Makes the file for these hints, one entry for each height from 1 on.
pub fn hints_file(hints: &[Vec<u32>], order: BitOrder) -> Vec<u8> {
    let stop_height = u32::try_from(hints.len()).expect("a height");
    let mut file = Vec::new();
    let mut builder = HintsfileBuilder::new(&mut file).initialize(stop_height).unwrap();
    for block in hints {
        builder.append(EliasFano::compress(block)).unwrap();
    }
    builder.finish().unwrap();
    match order {
        BitOrder::Lsb => file,
        BitOrder::Msb => {
            // The header and the two counts are the same; only the packed bytes are reversed.
            let elements = hints.iter().flat_map(|block| most_significant_first(block));
            file[..9].iter().copied().chain(elements).collect()
        }
    }
}

fn most_significant_first(block: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    EliasFano::compress(block).write(&mut bytes).unwrap();
    if !block.is_empty() {
        let (_, n_len) = deserialize_partial::<VarInt>(&bytes).unwrap();
        let (_, m_len) = deserialize_partial::<VarInt>(&bytes[n_len..]).unwrap();
        bytes[n_len + m_len..].iter_mut().for_each(|byte| *byte = byte.reverse_bits());
    }
    bytes
}

/// Reads a file whose bits are in the order of the `hintsfile` crate.
pub fn read_hints_file(mut file: &[u8]) -> Vec<Vec<u32>> {
    let hints = Hintsfile::from_reader(&mut file).unwrap();
    (1..=hints.stop_height()).map(|height| hints.indices_at_height(height).unwrap()).collect()
}
