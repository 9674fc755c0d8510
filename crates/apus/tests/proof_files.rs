//! [`write_files`]: the files of proofs of a chain, as `apus utreexo prove` leaves them.

use crate::bridge::Told;
use crate::desk::Desk;
use apus_chain::{BlockHash, HeightRange};
use apus_utreexo::{RangeHead, RangeWriter, range_file_name};
use bitcoin::hashes::Hash;
use bitcoin::{Block, Network};

/// Writes files of what is told of a chain, one for each range, into a folder.
pub(crate) fn write_files(
    desk: &Desk,
    network: Network,
    folder: &str,
    blocks: &[Block],
    told: &Told,
    ranges: &[HeightRange],
) {
    let hash = |height: u32| BlockHash(blocks[height as usize].block_hash().to_byte_array());
    std::fs::create_dir_all(desk.path(folder)).unwrap();
    for &heights in ranges {
        let roots = |height: u32| &told.roots[height as usize];
        let head = RangeHead {
            network: network.magic().to_bytes(),
            first: heights.start,
            before: hash(heights.start - 1),
            roots: roots(heights.start - 1).clone(),
        };
        let mut writer = RangeWriter::new(Vec::new(), &head).unwrap();
        for height in heights.heights() {
            let entry = told.entries[height as usize].bytes();
            writer.put(&hash(height), roots(height).leaves(), &entry).unwrap();
        }
        let bytes = writer.finish(roots(heights.end - 1)).unwrap();
        desk.write(&format!("{folder}/{}", range_file_name(heights)), &bytes);
    }
}
