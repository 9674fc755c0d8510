//! [`write_group`]: the coins of one transaction as they lie in a snapshot.

use super::SnapshotError;
use super::sequence::Sequence;
use apus_chain::{Txid, vout_order, write_compact_size};

/// Appends one transaction with its coins, each as number of the output and stored form
/// ([`write_coin`](apus_chain::write_coin)). Any order will do; the slice is put in the right one.
///
/// Nothing is appended where an output comes twice or cannot be, or there is none.
pub fn write_group(
    out: &mut Vec<u8>,
    txid: &Txid,
    coins: &mut [(u32, &[u8])],
) -> Result<(), SnapshotError> {
    coins.sort_unstable_by(|&(left, _), &(right, _)| vout_order(left, right));
    let (start, offset) = (out.len(), out.len() as u64);
    let mut sequence = Sequence::new(coins.len() as u64);
    sequence.begin(offset, *txid, coins.len() as u64)?;

    out.extend_from_slice(txid.as_bytes());
    write_compact_size(out, coins.len() as u64);
    for &(vout, bytes) in coins.iter() {
        let checked = sequence
            .check_vout(offset, *txid, u64::from(vout))
            .and_then(|outpoint| sequence.coin(offset, outpoint, 0));
        if let Err(error) = checked {
            out.truncate(start);
            return Err(error);
        }
        write_compact_size(out, u64::from(vout));
        out.extend_from_slice(bytes);
    }
    Ok(())
}
