//! [`write_files`]: writes the proof files of a chain, as `apus utreexo prove` does.

use crate::bridge::ProofData;
use crate::sandbox::Sandbox;
use apus_chain::{BlockHash, HeightRange};
use apus_utreexo::{RangeHead, RangeWriter, range_file_name};
use bitcoin::hashes::Hash;
use bitcoin::{Block, Network};

/// Writes a chain's proofs into a folder, one file per block range.
pub(crate) fn write_files(
    sandbox: &Sandbox,
    network: Network,
    folder: &str,
    blocks: &[Block],
    proofs: &ProofData,
    ranges: &[HeightRange],
) {
    let hash = |height: u32| BlockHash(blocks[height as usize].block_hash().to_byte_array());
    std::fs::create_dir_all(sandbox.path(folder)).unwrap();
    for &heights in ranges {
        let roots = |height: u32| &proofs.roots[height as usize];
        let head = RangeHead {
            network: network.magic().to_bytes(),
            first: heights.start,
            before: hash(heights.start - 1),
            roots: roots(heights.start - 1).clone(),
        };
        let mut writer = RangeWriter::new(Vec::new(), &head).unwrap();
        for height in heights.heights() {
            let entry = proofs.entries[height as usize].bytes();
            writer.put(&hash(height), roots(height).leaves(), &entry).unwrap();
        }
        let bytes = writer.finish(roots(heights.end - 1)).unwrap();
        sandbox.write(&format!("{folder}/{}", range_file_name(heights)), &bytes);
    }
}
