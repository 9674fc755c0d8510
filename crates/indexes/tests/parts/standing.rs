//! How indexes stand beside a chain.

use crate::support::{fixture, new_folder};
use apus_chain::{BlockHash, HeaderChain, KnownBlock, Network, Params};
use apus_datadir::{BlocksFolder, DatabaseWriter, IndependentReadError, WriterOptions};
use apus_indexes::{IndexForm, IndexStanding, index_folder, index_standings};
use apus_storage::DirStorage;
use apus_sync::source::ChainSource;
use apus_sync::{BlocksDir, SilentObserver, UseIndex};
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Writes a database with one entry.
fn database(folder: &Path, form: IndexForm, key: &[u8], value: &[u8]) {
    let path = index_folder(folder, form).join(form.database());
    fs::create_dir_all(&path).unwrap();
    let storage = DirStorage::new(path);
    let mut database = DatabaseWriter::new(&storage, WriterOptions::default()).unwrap();
    database.put(key, value).unwrap();
    database.finish().unwrap();
}

/// The best block as a node stores it, of one hash.
fn locator(hash: &BlockHash) -> Vec<u8> {
    [&70_016_i32.to_le_bytes()[..], &[1], hash.as_bytes()].concat()
}

fn chain_to(blocks: &BlocksFolder, chain: UseIndex) -> HeaderChain {
    let (params, never) = (Params::of(Network::Regtest), AtomicBool::new(false));
    let dir = BlocksDir::open(blocks, params, i64::MAX, chain, &SilentObserver, &never);
    dir.unwrap().chain().clone()
}

#[test]
fn a_best_block_tells_what_a_node_does() {
    let blocks = BlocksFolder::from(fixture("regtest-315/regtest/blocks"));
    let whole = chain_to(&blocks, UseIndex::IfPresent);
    let at = |height| *whole.hash(height).unwrap();
    // The coins are below the last block that the node knows.
    let chain = chain_to(&blocks, UseIndex::Stated(at(300)));
    let unknown = BlockHash([7; 32]);
    for (best, expected) in [
        (at(300), IndexStanding::Current),
        (at(250), IndexStanding::Behind(250)),
        (at(0), IndexStanding::Behind(0)),
        (at(310), IndexStanding::Elsewhere(KnownBlock { height: 310, hash: at(310) })),
        (unknown, IndexStanding::Unknown(unknown)),
    ] {
        for form in IndexForm::ALL {
            let folder = new_folder();
            let newer = form == IndexForm::TxIndexV2;
            let key: &[u8] = if newer { b"\x0dbest_block_v2" } else { b"B" };
            database(folder.path(), form, key, &locator(&best));
            let standings = index_standings(folder.path(), &blocks, &chain).unwrap();
            assert_eq!(standings, [(form, expected)]);
        }
    }
    let cut = locator(&at(300))[..36].to_vec();
    for (key, value) in
        [(&b"M"[..], locator(&at(300))), (b"B", Vec::new()), (b"B", vec![0; 5]), (b"B", cut)]
    {
        let folder = new_folder();
        for form in [IndexForm::TxIndex, IndexForm::CoinStats] {
            database(folder.path(), form, key, &value);
        }
        let standings = index_standings(folder.path(), &blocks, &chain).unwrap();
        let unusable = |form| (form, IndexStanding::Unusable);
        assert_eq!(standings, [IndexForm::TxIndex, IndexForm::CoinStats].map(unusable));
        fs::write(index_folder(folder.path(), IndexForm::TxIndex).join("CURRENT"), "?").unwrap();
        let standings = index_standings(folder.path(), &blocks, &chain).unwrap();
        assert_eq!(standings, [IndexForm::TxIndex, IndexForm::CoinStats].map(unusable));
    }
    assert_eq!(index_standings(new_folder().path(), &blocks, &chain).unwrap(), []);
    // A node with much cache leaves a long log, which is no fault.
    let folder = new_folder();
    database(folder.path(), IndexForm::CoinStats, b"B", &locator(&at(300)));
    let log = index_folder(folder.path(), IndexForm::CoinStats).join("db/999999.log");
    fs::File::create(log).unwrap().set_len((64 << 20) + 1).unwrap();
    let standings = index_standings(folder.path(), &blocks, &chain).unwrap();
    assert_eq!(standings, [(IndexForm::CoinStats, IndexStanding::NotRead)]);
    // A file that the system cannot read tells nothing of the index.
    let current = index_folder(folder.path(), IndexForm::CoinStats).join("db/CURRENT");
    fs::remove_file(&current).unwrap();
    std::os::unix::fs::symlink(&current, &current).unwrap();
    let error = index_standings(folder.path(), &blocks, &chain).unwrap_err();
    assert!(matches!(error, IndependentReadError::Read { .. }), "{error}");
}
