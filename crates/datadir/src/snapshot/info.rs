//! [`snapshot_info`]: everything that `gettxoutsetinfo` would say of a snapshot, in one pass.

use super::{SnapshotError, SnapshotReader};
use apus_chain::{
    BlockHash, HashSerialized3, Height, MuHashBatch, Network, UtxoSetHash, UtxoStats,
    write_utxo_element,
};
use std::io::Read;

/// What a snapshot holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotInfo {
    /// The chain that the coins belong to.
    pub network: Network,
    /// The block after which the set is as stated.
    pub base_hash: BlockHash,
    /// Counts and sums.
    pub stats: UtxoStats,
    /// The greatest height of a coin; it cannot be above the base block's.
    pub height_max: Height,
    /// The hash that Core holds a snapshot against.
    pub hash_serialized_3: UtxoSetHash,
    /// The hash that does not depend on order, if it was asked for.
    pub muhash: Option<UtxoSetHash>,
    /// Length of the file.
    pub bytes: u64,
}

/// Reads a snapshot to its end. `with_muhash` costs several times as much as the rest.
pub fn snapshot_info<R: Read>(
    mut reader: SnapshotReader<R>,
    with_muhash: bool,
) -> Result<SnapshotInfo, SnapshotError> {
    let mut stats = UtxoStats::default();
    let mut hash = HashSerialized3::new();
    let mut muhash = with_muhash.then(MuHashBatch::new);
    let mut height_max = 0;
    let mut element = Vec::new();
    while let Some(next) = reader.next_coin()? {
        let coin = next.coin.as_ref();
        stats.push(&next.outpoint, coin);
        hash.push(&next.outpoint, coin);
        height_max = height_max.max(coin.height);
        if let Some(muhash) = &mut muhash {
            element.clear();
            write_utxo_element(&mut element, &next.outpoint, coin);
            muhash.insert(&element);
        }
    }
    let header = reader.header();
    Ok(SnapshotInfo {
        network: header.network,
        base_hash: header.base_hash,
        stats,
        height_max,
        hash_serialized_3: hash.finish(),
        muhash: muhash.map(|muhash| UtxoSetHash(muhash.finish().finalize())),
        bytes: reader.offset(),
    })
}
