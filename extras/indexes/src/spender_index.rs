//! The rows of txospenderindex, and its database (Core `index/txospenderindex.cpp`).

use crate::block::IndexBlock;
use crate::chain::IndexedChain;
use crate::error::IndexesError;
use crate::rows::{RowBuffers, RowFiles};
use crate::salt::Salt;
use crate::txindex::write_place;
use apus_datadir::DatabaseWriter;

/// A row: the keyed hash of the spent outpoint as in the key, little-endian; then height and offset of the spending
/// transaction, big-endian.
pub(crate) const ROW: usize = HASH + 4 + 3;

/// Bytes of a keyed hash.
const HASH: usize = 8;

/// The key of the salt, a C string: with the zero at its end, and without its length. It sorts among the rows.
const SALT: &[u8] = b"siphash_key\0";

/// Adds the rows of a block: one for each input, without the coinbase's.
pub(crate) fn add_rows(
    rows: &mut RowBuffers<'_, '_, ROW>,
    block: &IndexBlock<'_>,
    salt: Salt,
) -> Result<(), IndexesError> {
    let mut row = [0; ROW];
    row[HASH..12].copy_from_slice(&block.height.to_be_bytes());
    for tx in block.view.txs().skip(1) {
        row[12..].copy_from_slice(&(tx.offset() as u32).to_be_bytes()[1..]);
        for input in tx.inputs() {
            row[..HASH].copy_from_slice(&salt.of_outpoint(input.outpoint()).to_le_bytes());
            rows.push(row)?;
        }
    }
    Ok(())
}

/// Writes the database, except for its end. Returns the number of inputs.
pub(crate) fn put(
    database: &mut DatabaseWriter<'_>,
    chain: &IndexedChain<'_>,
    salt: Salt,
    rows: RowFiles<'_, ROW>,
    stop: &dyn Fn() -> Result<(), IndexesError>,
) -> Result<u64, IndexesError> {
    database.put(b"B", &chain.locator)?;
    let (mut keys, mut count, mut salted) = (Vec::new(), 0, false);
    rows.sorted(&mut |list| {
        stop()?;
        for same in list.chunk_by(|a, b| a[..HASH] == b[..HASH]) {
            // Rows are ordered by their keys, which differ from rows in how numbers are written.
            keys.resize(keys.len().max(same.len()), Vec::new());
            let keys = &mut keys[..same.len()];
            keys.iter_mut().zip(same).for_each(|(key, row)| write_key(key, chain, row));
            keys.sort_unstable();
            for key in keys {
                if !salted && key.as_slice() > SALT {
                    database.put(SALT, &salt.to_bytes())?;
                    salted = true;
                }
                database.put(key, &[])?;
            }
        }
        count += list.len() as u64;
        Ok(())
    })?;
    if !salted {
        database.put(SALT, &salt.to_bytes())?;
    }
    Ok(count)
}

fn write_key(key: &mut Vec<u8>, chain: &IndexedChain<'_>, row: &[u8; ROW]) {
    let (hash, place) = row.split_at(HASH);
    let [a, b, c, d, x, y, z] = *place.first_chunk().expect("a row has seven more bytes");
    key.clear();
    key.push(b's');
    key.extend_from_slice(hash);
    let height = u32::from_be_bytes([a, b, c, d]);
    write_place(key, chain.place(height), u32::from_be_bytes([0, x, y, z]));
}
