//! Reads a node's chainstate, which the node may be using.

use super::*;
use apus_testkit::rng::Rng;

fn read(dir: &Path) -> Result<(ChainstateSummary, Coins), ChainstateDbError> {
    let mut coins = Coins::new();
    let read = read_node(dir, &mut |outpoint, bytes| {
        coins.push((outpoint, bytes.to_vec()));
        Ok::<_, ChainstateDbError>(())
    })?;
    Ok((read, coins))
}

fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, bytes) in files(&node_chainstate()) {
        fs::write(dir.path().join(path.file_name().unwrap()), bytes).unwrap();
    }
    dir
}

#[test]
fn both_readers_agree_on_a_nodes_coins() {
    let before = files(&node_chainstate());
    let (this, other) = (read(&node_chainstate()).unwrap(), read_all(&node_chainstate()).unwrap());
    assert!(this == other);
    assert!(files(&node_chainstate()) == before);
}

/// Any flipped bit of a table is noticed, or the coins are unchanged. That includes the filters, which only
/// look-ups need.
#[test]
fn a_flipped_bit_of_a_table_is_noticed() {
    let (whole, dir) = (read(&node_chainstate()).unwrap(), copy());
    let (mut rng, mut not_noticed) = (Rng::new(5), Vec::new());
    for (path, bytes) in files(dir.path()) {
        if path.extension().is_none_or(|extension| extension != "ldb") {
            continue;
        }
        let places: Vec<usize> = match bytes.len() {
            length if length < 1000 => (0..length).collect(),
            length => (0..150).map(|_| rng.index(length)).collect(),
        };
        for place in places {
            let mut flipped = bytes.clone();
            flipped[place] ^= 1 << rng.below(8);
            fs::write(&path, &flipped).unwrap();
            match read(dir.path()) {
                Ok(found) => {
                    assert!(found == whole, "{} at byte {place}", path.display());
                    not_noticed.push(bytes.len() - place);
                }
                Err(ChainstateDbError::Table { path: named, .. }) => assert_eq!(named, path),
                Err(error) => panic!("{error}"),
            }
        }
        fs::write(&path, &bytes).unwrap();
    }
    // The footer's padding, between the handles and the magic number.
    assert!(not_noticed.iter().all(|from_end| (8..48).contains(from_end)), "{not_noticed:?}");
}

#[test]
fn missing_files_are_named() {
    let dir = copy();
    fs::remove_file(dir.path().join("000008.ldb")).unwrap();
    let error = read(dir.path()).unwrap_err();
    assert!(matches!(&error, ChainstateDbError::Vanished { path } if path.ends_with("000008.ldb")));
    fs::remove_file(dir.path().join("CURRENT")).unwrap();
    assert!(matches!(read(dir.path()).unwrap_err(), ChainstateDbError::Missing { .. }));
}
