//! The rows of txospenderindex, and its database (Core `index/txospenderindex.cpp`).

use crate::block::IndexBlock;
use crate::chain::IndexedChain;
use crate::error::IndexesError;
use crate::read_back::IndexDatabase;
use crate::rows::{RowBuffers, RowFiles};
use crate::salt::Salt;
use crate::txindex::write_place;

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
    database: &mut IndexDatabase<'_>,
    chain: &IndexedChain<'_>,
    salt: Salt,
    rows: RowFiles<'_, ROW>,
    stop: &dyn Fn() -> Result<(), IndexesError>,
) -> Result<u64, IndexesError> {
    database.put(b"B", &chain.locator)?;
    let (mut keys, mut salted) = (Vec::new(), false);
    let count = rows.sorted(stop, &mut |list| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockPlace;
    use crate::chain::tests::headers;
    use crate::rows::RowsBudget;
    use apus_datadir::{DatabaseEntries, WriterOptions};
    use apus_storage::DirStorage;

    /// Writes rows of a hash's bytes and a height; returns the keys.
    fn keys(of_rows: &[(&[u8; HASH], u32)]) -> Vec<Vec<u8>> {
        let (scratch, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let scratch = DirStorage::private(scratch.path());
        let (expected_bytes, buffers_bytes, sort_bytes, files_max) = (0, 0, 1 << 20, 1);
        let budget = RowsBudget { expected_bytes, buffers_bytes, sort_bytes, files_max };
        let rows = RowFiles::new(&scratch, "txospenderindex", budget);
        let mut buffers = rows.buffers();
        for (hash, height) in of_rows {
            let mut row = [0; ROW];
            row[..HASH].copy_from_slice(*hash);
            row[HASH..12].copy_from_slice(&height.to_be_bytes());
            row[ROW - 1] = 81;
            buffers.push(row).unwrap();
        }
        buffers.finish().unwrap();
        let (headers, storage) = (headers(2), DirStorage::new(folder.path()));
        let place =
            |height| Some(BlockPlace { file: 0, offset: [0, 256, 16_512][height as usize] });
        let chain = IndexedChain::new(&headers, place);
        let mut database = IndexDatabase::new(&storage, WriterOptions::default()).unwrap();
        let salt = Salt::from_bytes(&[5; 16]);
        let count = put(&mut database, &chain, salt, rows, &|| Ok(())).unwrap();
        assert_eq!(count, of_rows.len() as u64);
        database.finish(&|| Ok(())).unwrap();
        let mut entries = DatabaseEntries::open(folder.path()).unwrap();
        let mut found = Vec::new();
        while let Some((key, value)) = entries.next().unwrap() {
            let expected: &[u8] = if key == SALT { &[5; 16] } else { &[] };
            assert!(key == b"B" || value == expected);
            found.push(key.to_vec());
        }
        found
    }

    #[test]
    fn the_salt_is_at_its_place_among_the_rows() {
        for (hashes, at) in [(&[][..], 1), (&[b'i'][..], 2), (b"hj", 2), (b"ab", 3)] {
            let hashes: Vec<[u8; HASH]> = hashes.iter().map(|first| [*first; HASH]).collect();
            let rows: Vec<_> = hashes.iter().map(|hash| (hash, 1)).collect();
            let found = keys(&rows);
            assert_eq!((found.len(), &*found[at]), (rows.len() + 2, SALT), "{hashes:?}");
        }
    }

    /// Only two outpoints with one hash, or an outpoint that two blocks spend, come here: keys ascend nevertheless.
    #[test]
    fn rows_with_one_hash_are_ordered_by_the_bytes_of_their_places() {
        let hash = [0x70; HASH];
        let found = keys(&[(&hash, 1), (&hash, 2)]);
        // File 0; offsets 16,512 and 256 as VARINTs; offset behind the header.
        let key = |place: &[u8]| [b"s", &hash[..], &[0], place, &[1]].concat();
        assert_eq!(found[2..], [key(&[0x80, 0x80, 0]), key(&[0x81, 0])]);
    }
}
