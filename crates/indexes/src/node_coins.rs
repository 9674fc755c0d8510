//! [`node_coins`]: sums up the coins of a node, for comparison with the index of their statistics.

use crate::error::IndexesError;
use apus_chain::{BlockHash, MuHashBatch, Reader, read_coin, write_utxo_element};
use apus_datadir::chainstate::read_node;
use std::path::Path;

/// Coins between two checks for an interrupt.
const AT_ONCE: u64 = 1 << 16;

/// The coins of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCoins {
    /// The block that they are at.
    pub best: BlockHash,
    /// Their number.
    pub coins: u64,
    /// Their amount in satoshi.
    pub amount: u64,
    /// Their MuHash, in internal byte order.
    pub muhash: [u8; 32],
}

/// Reads all coins in a `chainstate` folder.
///
/// # Errors
/// [`IndexesError::Damaged`] if a coin cannot be read; what `stop` returns.
pub(crate) fn node_coins(
    chainstate: &Path,
    stop: &dyn Fn() -> Result<(), IndexesError>,
) -> Result<NodeCoins, IndexesError> {
    let (mut muhash, mut coins, mut amount) = (MuHashBatch::new(), 0, 0_u64);
    let summary = read_node(chainstate, &mut |outpoint, stored| {
        coins += 1;
        if coins % AT_ONCE == 0 {
            stop()?;
        }
        let coin = read_coin(&mut Reader::new(stored)).map_err(|error| {
            IndexesError::Damaged(format!(
                "the coin {outpoint} in {} cannot be read: {error}. `apus reindex --replace` makes a new chainstate",
                chainstate.display()
            ))
        })?;
        // Far above all money, wrong sums still differ from right ones.
        amount = amount.saturating_add(coin.amount);
        muhash.insert_written(|out| write_utxo_element(out, &outpoint, coin.as_ref()));
        Ok::<_, IndexesError>(())
    })?;
    Ok(NodeCoins { best: summary.best, coins, amount, muhash: muhash.finish().finalize() })
}
