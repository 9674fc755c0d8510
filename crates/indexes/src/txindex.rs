//! The rows of txindex in both forms, and their databases (Core `index/txindex.cpp`).

use crate::block::{BlockPlace, IndexBlock};
use crate::chain::{IndexedChain, number_order};
use crate::error::IndexesError;
use crate::forms::IndexForm;
use crate::read_back::IndexDatabase;
use crate::rows::{RowBuffers, RowFiles};
use crate::salt::Salt;
use apus_chain::{HEADER_SIZE, Height, Txid, write_varint};

/// A row of the older form: txid, height and offset, big-endian.
pub(crate) const OLD_ROW: usize = 32 + 4 + 3;

/// A row of the newer form: the key without its first byte, and zeros.
pub(crate) const ROW: usize = PREFIX + VARINT_MAX + 3;

/// Bytes of a hashed txid in a key.
const PREFIX: usize = 5;

/// Bytes of the longest VARINT of a height.
const VARINT_MAX: usize = 5;

/// Keys with a name begin with its length.
const NEXT_NUMBER: &[u8] = b"\x0enext_block_seq";
const SALT: &[u8] = b"\x0etxid_hash_salt";

/// Returns an offset in a block as three bytes: a block has less than four million.
fn offset_bytes(offset: usize) -> [u8; 3] {
    let [_, a, b, c] = (offset as u32).to_be_bytes();
    [a, b, c]
}

/// Adds the rows of a block in the older form.
pub(crate) fn add_old_rows(
    rows: &mut RowBuffers<'_, '_, OLD_ROW>,
    block: &IndexBlock<'_>,
    txids: &[[u8; 32]],
) -> Result<(), IndexesError> {
    let mut row = [0; OLD_ROW];
    row[32..36].copy_from_slice(&block.height.to_be_bytes());
    for (tx, txid) in block.view.txs().zip(txids) {
        row[..32].copy_from_slice(txid);
        row[36..].copy_from_slice(&offset_bytes(tx.offset()));
        rows.push(row)?;
    }
    Ok(())
}

/// Adds the rows of a block in the newer form.
pub(crate) fn add_rows(
    rows: &mut RowBuffers<'_, '_, ROW>,
    block: &IndexBlock<'_>,
    txids: &[[u8; 32]],
    salt: Salt,
) -> Result<(), IndexesError> {
    let mut number = Vec::with_capacity(VARINT_MAX);
    write_varint(&mut number, u64::from(number_of(block.height)));
    let at = PREFIX + number.len();
    let mut row = [0; ROW];
    row[PREFIX..at].copy_from_slice(&number);
    for (tx, txid) in block.view.txs().zip(txids) {
        row[..PREFIX].copy_from_slice(&salt.of_txid(&Txid(*txid)).to_be_bytes()[..PREFIX]);
        row[at..at + 3].copy_from_slice(&offset_bytes(tx.offset()));
        rows.push(row)?;
    }
    Ok(())
}

/// Returns the number of a block in the newer form: any numbers do, one for each block but genesis.
fn number_of(height: Height) -> u32 {
    height.saturating_sub(1)
}

/// Writes the database of the older form, except for its end. Returns the number of transactions: of two coinbases with
/// the same txid (BIP-30), the database has only that of the later block.
pub(crate) fn put_old(
    database: &mut IndexDatabase<'_>,
    chain: &IndexedChain<'_>,
    rows: RowFiles<'_, OLD_ROW>,
    stop: &dyn Fn() -> Result<(), IndexesError>,
) -> Result<u64, IndexesError> {
    database.put(b"B", &chain.locator)?;
    let (mut key, mut value) = ([b't'; 33], Vec::new());
    rows.sorted(stop, &mut |list| {
        for same in list.chunk_by(|a, b| a[..32] == b[..32]) {
            let Some(row) = same.last() else { continue };
            let (txid, place) = row.split_at(32);
            key[1..].copy_from_slice(txid);
            let [a, b, c, d, x, y, z] = *place.first_chunk().expect("a row has seven more bytes");
            let height = u32::from_be_bytes([a, b, c, d]);
            value.clear();
            write_place(&mut value, chain.place(height), u32::from_be_bytes([0, x, y, z]));
            database.put(&key, &value)?;
        }
        Ok(())
    })
}

/// Writes the place of a transaction: file, offset of the block, and offset behind the block's header (Core
/// `index/disktxpos.h`, `CDiskTxPos`).
pub(crate) fn write_place(out: &mut Vec<u8>, place: BlockPlace, offset: u32) {
    write_varint(out, u64::from(place.file));
    write_varint(out, u64::from(place.offset));
    write_varint(out, u64::from(offset.saturating_sub(HEADER_SIZE as u32)));
}

/// Writes the database of the newer form, except for its end. Returns the number of transactions.
pub(crate) fn put_new(
    database: &mut IndexDatabase<'_>,
    chain: &IndexedChain<'_>,
    salt: Salt,
    rows: RowFiles<'_, ROW>,
    stop: &dyn Fn() -> Result<(), IndexesError>,
) -> Result<u64, IndexesError> {
    database.put(IndexForm::TxIndexV2.best_block_key(), &chain.locator)?;
    database.put(NEXT_NUMBER, &chain.headers.tip_height().to_le_bytes())?;
    database.put(SALT, &salt.to_bytes())?;
    put_blocks(database, chain)?;
    let mut key = [b'x'; 1 + ROW];
    rows.sorted(stop, &mut |list| {
        for row in list {
            key[1..].copy_from_slice(row);
            // All bytes of a VARINT but the last have the first bit.
            let number = &row[PREFIX..PREFIX + VARINT_MAX];
            let length =
                number.iter().position(|byte| byte & 0x80 == 0).unwrap_or(VARINT_MAX - 1) + 1;
            database.put(&key[..1 + PREFIX + length + 3], &[])?;
        }
        Ok(())
    })
}

/// Writes the entries that give the number of a block, and the block of a number.
fn put_blocks(
    database: &mut IndexDatabase<'_>,
    chain: &IndexedChain<'_>,
) -> Result<(), IndexesError> {
    let hash = |height: &Height| chain.headers.hash(*height).copied().unwrap_or_default();
    let mut heights: Vec<Height> = (1..=chain.headers.tip_height()).collect();
    heights.sort_unstable_by_key(hash);
    let mut key = vec![b'h'; 33];
    for height in &heights {
        key[1..].copy_from_slice(hash(height).as_bytes());
        database.put(&key, &number_of(*height).to_le_bytes())?;
    }
    heights.sort_unstable_by_key(|height| number_order(number_of(*height)));
    for height in &heights {
        key.truncate(1);
        key[0] = b's';
        write_varint(&mut key, u64::from(number_of(*height)));
        database.put(&key, hash(height).as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::tests::headers;
    use crate::rows::RowsBudget;
    use apus_datadir::{DatabaseEntries, WriterOptions};
    use apus_storage::DirStorage;

    /// Two blocks of the main chain have a coinbase that an earlier block has (BIP-30).
    #[test]
    fn of_two_transactions_with_one_txid_the_later_is_found() {
        let (scratch, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let scratch = DirStorage::private(scratch.path());
        let (expected_bytes, buffers_bytes, sort_bytes, files_max) = (0, 0, 1 << 20, 1);
        let budget = RowsBudget { expected_bytes, buffers_bytes, sort_bytes, files_max };
        let rows = RowFiles::new(&scratch, "txindex", budget);
        let mut buffers = rows.buffers();
        for (txid, height) in [(7, 3_u32), (9, 2), (7, 1)] {
            let mut row = [txid; OLD_ROW];
            row[32..36].copy_from_slice(&height.to_be_bytes());
            row[36..].copy_from_slice(&offset_bytes(81));
            buffers.push(row).unwrap();
        }
        buffers.finish().unwrap();
        let (headers, storage) = (headers(3), DirStorage::new(folder.path()));
        let place = |height| Some(BlockPlace { file: 0, offset: height * 100 });
        let chain = IndexedChain::new(&headers, place);
        let mut database = IndexDatabase::new(&storage, WriterOptions::default()).unwrap();
        assert_eq!(put_old(&mut database, &chain, rows, &|| Ok(())).unwrap(), 3);
        database.finish(&|| Ok(())).unwrap();
        let mut entries = DatabaseEntries::open(folder.path()).unwrap();
        let mut found = Vec::new();
        while let Some((key, value)) = entries.next().unwrap() {
            found.push((key[key.len() - 1], value.to_vec()));
        }
        // VARINTs: 300 is 81 2c, 200 is 80 48.
        assert_eq!(found[1..], [(7, vec![0, 0x81, 0x2c, 1]), (9, vec![0, 0x80, 0x48, 1])]);
    }
}
