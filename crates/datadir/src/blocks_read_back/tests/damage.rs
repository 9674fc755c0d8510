//! Damages folders between writing and reading back.

use super::*;
use apus_chain::{CoinRef, Reader, read_coin, write_coin, write_varint};

/// The kind of the expected error, and a part of its message.
type ExpectedError<'a> = (fn(&ReadBackError) -> bool, &'a str);

#[track_caller]
fn found(folder: &Folder, what: &str, (is, expected): ExpectedError<'_>) {
    let error = folder.read().map(|_| ()).unwrap_err();
    let text = error.to_string();
    assert!(is(&error), "{what}: {text}");
    assert!(text.contains(expected), "{what}: {text}");
    assert!(text.contains(folder.dir.path().to_str().unwrap()), "{what}: {text}");
}

fn of_block(error: &ReadBackError) -> bool {
    error.to_string().contains("where block ") && !error.is_about_index()
}

fn of_undo(error: &ReadBackError) -> bool {
    error.to_string().contains("where the undo data of block ") && !error.is_about_index()
}

fn of_folder(error: &ReadBackError) -> bool {
    error.to_string().contains("was checked after writing") && !error.is_about_index()
}

fn of_index(error: &ReadBackError) -> bool {
    matches!(error, ReadBackError::Index { .. }) && error.is_about_index()
}

#[test]
fn a_flipped_bit_anywhere_in_the_files_is_found() {
    let chain = chain(11);
    let folder = Folder::in_order(&chain, KEY);
    let files: Vec<(PathBuf, Vec<u8>)> = folder.files().into_iter().collect();
    let mut rng = Rng::new(11);
    for round in 0..400 {
        let (path, bytes) = &files[rng.index(files.len())];
        if bytes.is_empty() {
            continue;
        }
        let (at, bit) = (rng.index(bytes.len()), rng.below(8));
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << bit;
        fs::write(path, &damaged).unwrap();
        let error = folder.read().map(|_| ()).unwrap_err();
        let name = path.file_name().unwrap().to_str().unwrap();
        let place = format!("round {round}: bit {bit} of byte {at} of {name}: {error}");
        match &name[..3] {
            "blk" => assert!(of_block(&error), "{place}"),
            "rev" => assert!(of_undo(&error), "{place}"),
            // With another key, no record is at its position.
            _ => assert!(of_block(&error), "{place}"),
        }
        assert!(name == KEY_FILE || error.to_string().contains(name), "{place}");
        fs::write(path, bytes).unwrap();
    }
    folder.read().unwrap();
}

/// No merkle root covers witnesses, but the witness commitment does.
#[test]
fn a_flipped_bit_in_a_witness_is_found() {
    let mut chain = chain(12);
    let layout = &mut apus_chain::BlockLayout::new();
    let (height, at) = (0..chain.len())
        .find_map(|height| {
            let raw = &chain[height].block;
            let view = layout.read(raw).unwrap();
            let with = view.txs().skip(1).find(|tx| tx.raw().get(4..6) == Some(&[0, 1]))?;
            let start = with.raw().as_ptr() as usize - raw.as_ptr() as usize;
            // The witnesses come just before the lock time.
            Some((height, start + with.raw().len() - 5))
        })
        .unwrap();
    chain[height].block[at] ^= 1;
    let folder = Folder::in_order(&chain, KEY);
    found(&folder, "witness", (of_block, &format!("block {height} should be")));
}

#[test]
fn shorter_longer_and_missing_files_are_found() {
    let folder = Folder::in_order(&chain(13), KEY);
    for (name, bytes) in folder.files() {
        let file = name.file_name().unwrap().to_str().unwrap().to_owned();
        fs::remove_file(&name).unwrap();
        let gone = folder.read().map(|_| ()).unwrap_err().to_string();
        assert!(gone.contains(&file), "{gone}");
        fs::write(&name, &bytes[..bytes.len() - 1]).unwrap();
        found(&folder, "cut", (of_folder, &file));
        fs::write(&name, [&bytes[..], &[0]].concat()).unwrap();
        found(&folder, "one more", (of_folder, &file));
        fs::write(&name, bytes).unwrap();
    }
    for name in ["blk00077.dat", "rev00077.dat", "notes", ".lock"] {
        let path = folder.blocks().join(name);
        fs::write(&path, "").unwrap();
        found(&folder, "one file more", (of_folder, name));
        fs::remove_file(path).unwrap();
    }
    folder.read().unwrap();
    let pruned = Folder::pruned(&chain(13), KEY);
    for name in ["blk00077.dat", "rev00077.dat", "notes"] {
        let path = pruned.blocks().join(name);
        fs::write(&path, [0; 8]).unwrap();
        found(&pruned, "pruned", (of_folder, name));
        fs::remove_file(path).unwrap();
    }
    for (name, bytes) in pruned.files() {
        fs::remove_file(&name).unwrap();
        assert!(pruned.read().is_err(), "{} is gone", name.display());
        fs::write(&name, &bytes).unwrap();
    }
    pruned.read().unwrap();
}

/// Writes a valid record with the right number of coins, one of them slightly wrong.
#[test]
fn a_wrong_coin_in_undo_data_is_found() {
    type Change = fn(&mut CoinRef<'_>);
    let changes: [Change; 5] = [
        |coin| coin.height += 1,
        |coin| coin.coinbase = !coin.coinbase,
        |coin| coin.amount += 1,
        |coin| coin.script = &[0x51, 0x52],
        |_| (),
    ];
    let (all, others) = (chain(16), chain(17));
    for (at, change) in changes.into_iter().enumerate() {
        let harmed = |made: &Made, which: usize| {
            let undo = apus_chain::BlockUndo::read(&made.undo).unwrap();
            let (mut out, mut seen) = (Vec::new(), 0);
            let mut writer = BlockUndoWriter::new(&mut out, undo.tx_count());
            for tx in 1..undo.tx_count() {
                let mut stored = Vec::new();
                for coin in undo.spent_by(tx).unwrap() {
                    let mut bytes = Vec::new();
                    coin.write_stored(&mut bytes);
                    if seen == which {
                        let coin = read_coin(&mut Reader::new(&bytes)).unwrap();
                        let mut coin = coin.as_ref();
                        change(&mut coin);
                        let mut other = Vec::new();
                        write_coin(&mut other, coin);
                        bytes = other;
                    }
                    seen += 1;
                    stored.push(bytes);
                }
                writer.push_stored_tx(stored.iter().map(Vec::as_slice)).unwrap();
            }
            writer.finish();
            out
        };
        for which in [0, 1] {
            let mut changed = all.clone();
            for made in changed.iter_mut().filter(|made| made.coins > 1) {
                made.undo = harmed(made, which);
            }
            for mut folder in
                [Folder::in_order(&changed, KEY), Folder::in_any_order(&changed, &others, 3)]
            {
                folder.chain = all.clone();
                match at {
                    4 => drop(folder.read().unwrap()),
                    _ => {
                        found(&folder, "a coin", (of_undo, "match the coins that the block spent"))
                    }
                }
            }
        }
    }
    // Writes the same coins in another order.
    let mut changed = all.clone();
    for made in &mut changed {
        let undo = apus_chain::BlockUndo::read(&made.undo).unwrap();
        let mut all = vec![Vec::new(); undo.coins().len()];
        undo.coins().iter().zip(&mut all).for_each(|(coin, out)| coin.write_stored(out));
        all.reverse();
        let (mut out, mut rest) = (Vec::new(), &all[..]);
        let mut writer = BlockUndoWriter::new(&mut out, undo.tx_count());
        for tx in 1..undo.tx_count() {
            let (coins, after) = rest.split_at(undo.spent_by(tx).unwrap().len());
            rest = after;
            writer.push_stored_tx(coins.iter().map(Vec::as_slice)).unwrap();
        }
        writer.finish();
        made.undo = out;
    }
    let mut folder = Folder::in_order(&changed, KEY);
    folder.chain = all;
    found(&folder, "another order", (of_undo, "match the coins that the block spent"));
}

/// Writes valid records of another block, or with other coins.
#[test]
fn other_blocks_and_other_coins_are_found() {
    let (all, others) = (chain(14), chain(15));
    let spending = all.iter().rposition(|made| made.coins > 1).unwrap();
    let with = |change: &dyn Fn(&mut Vec<Made>)| {
        let mut changed = all.clone();
        change(&mut changed);
        let mut folder = Folder::in_order(&changed, KEY);
        folder.chain = all.clone();
        folder
    };
    let txs = |made: &Made| made.tx_count as usize;
    let rewritten = |counts: &[usize]| {
        let mut undo = Vec::new();
        let mut writer = BlockUndoWriter::new(&mut undo, counts.len() + 1);
        for count in counts {
            let coin = [2, 50, 7, 0x51];
            writer.push_stored_tx(std::iter::repeat_n(&coin[..], *count)).unwrap();
        }
        writer.finish();
        undo
    };
    let counts: Vec<usize> = {
        let undo = apus_chain::BlockUndo::read(&all[spending].undo).unwrap();
        (1..txs(&all[spending])).map(|tx| undo.spent_by(tx).unwrap().len()).collect()
    };
    let more: Vec<usize> = [&counts[..], &[1]].concat();
    let fewer = counts[..counts.len() - 1].to_vec();
    let mut one_more = counts.clone();
    one_more[0] += 1;
    let cases = [(more, "transactions, not"), (fewer, "transactions, not"), (one_more, "inputs")];
    for (counts, expected) in cases {
        let undo = rewritten(&counts);
        let folder = with(&|chain| chain[spending].undo = undo.clone());
        found(&folder, "undo", (of_undo, expected));
    }
    let folder = with(&|chain| chain[spending].undo.push(0));
    found(&folder, "longer undo", (of_undo, "cannot be read"));
    let folder = with(&|chain| chain[1].undo = vec![0; 20_000]);
    found(&folder, "long undo", (of_undo, "more than 0 coins can take"));
    // Writes the right number of different coins: only their sum shows the difference.
    let mut folder = with(&|chain| chain[spending].undo = rewritten(&counts));
    found(&folder, "other coins", (of_undo, "match the coins that the block spent"));
    folder.sums = false;
    folder.read().unwrap();
    let mut folder = Folder::in_order(&all[..100], KEY);
    folder.chain = others[..100].to_vec();
    found(&folder, "another chain", (of_index, "where the chain has"));
}

/// The numbers of an index entry, and the header after them.
fn numbers(value: &[u8]) -> (Vec<u64>, &[u8]) {
    let (numbers, header) = value.split_at(value.len() - 80);
    let mut reader = Reader::new(numbers);
    let mut found = Vec::new();
    while reader.position() < numbers.len() {
        found.push(reader.varint().unwrap());
    }
    (found, header)
}

fn entry(numbers: &[u64], header: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    numbers.iter().for_each(|number| write_varint(&mut out, *number));
    out.extend_from_slice(header);
    out
}

fn key_of(made: &Made) -> Vec<u8> {
    [&b"b"[..], &made.hash.0].concat()
}

/// Sets one field of a block's entry to `to`, and expects the error.
#[track_caller]
fn with_field(folder: &Folder, height: usize, field: usize, to: u64, expected: ExpectedError<'_>) {
    let whole = folder.entries();
    let mut changed = whole.clone();
    let value = changed.get_mut(&key_of(&folder.chain[height])).unwrap();
    let (mut fields, header) = numbers(value);
    assert_ne!(fields[field], to, "a different value");
    fields[field] = to;
    *value = entry(&fields, header);
    folder.set_entries(&changed);
    found(folder, &format!("field {field} of {height} as {to}"), expected);
    folder.set_entries(&whole);
}

/// The fields are: version, height, status, transactions, file, position, position of undo data.
#[test]
fn wrong_fields_of_a_block_entry_are_found() {
    let chain = chain(16);
    let folder = Folder::in_order(&chain, KEY);
    let place =
        |height: usize, field: usize| numbers(&folder.entries()[&key_of(&chain[height])]).0[field];
    let block = |expected| (of_block as fn(&ReadBackError) -> bool, expected);
    let undo = |expected| (of_undo as fn(&ReadBackError) -> bool, expected);
    let index = |expected| (of_index as fn(&ReadBackError) -> bool, expected);
    with_field(&folder, 50, 1, 51, index("where the chain has block"));
    with_field(&folder, 50, 1, 131, index("131 blocks"));
    with_field(&folder, 50, 1, u64::MAX, index("cannot be read"));
    for status in [157 | 32, 157 | 64, 157 | 256, 156, 29] {
        with_field(&folder, 50, 2, status, index("status"));
    }
    // These statuses require other fields.
    for status in [133, 141, 149, 2] {
        with_field(&folder, 50, 2, status, index("cannot be read"));
    }
    with_field(&folder, 0, 2, 141, index("has status 141, not 139"));
    with_field(&folder, 50, 3, 0, index("no transactions"));
    with_field(&folder, 50, 3, 99, block("the block index says 99"));
    with_field(&folder, 50, 4, place(50, 4) + 1, index("the entry of file"));
    with_field(&folder, 50, 4, 10_000, index("no entry for that file"));
    with_field(&folder, 50, 5, place(50, 5) + 1, block("its record ends"));
    with_field(&folder, 50, 5, place(51, 5), block("its record ends"));
    with_field(&folder, 50, 5, 1 << 31, block("its record ends"));
    with_field(&folder, 50, 5, 7, index("an impossible position"));
    with_field(&folder, 50, 6, place(50, 6) + 1, undo(""));
    with_field(&folder, 50, 6, place(49, 6), undo(""));
    with_field(&folder, 50, 6, 1, index("an impossible position"));
    with_field(&folder, 50, 6, 0, index("an impossible position"));
    folder.read().unwrap();
}

#[test]
fn missing_and_superfluous_entries_are_found() {
    type Change = fn(&mut BTreeMap<Vec<u8>, Vec<u8>>, &[Made]);
    let cases: [(Change, &str); 14] = [
        (|all, chain| drop(all.remove(&key_of(&chain[0])).unwrap()), "block 0 ("),
        (|all, chain| drop(all.remove(&key_of(&chain[70])).unwrap()), "block 70 ("),
        (|all, chain| drop(all.remove(&key_of(&chain[130])).unwrap()), "block 130 ("),
        (
            |all, chain| {
                let value = all[&key_of(&chain[7])].clone();
                all.insert([&b"b"[..], &[9; 32]].concat(), value);
            },
            "where the chain has block",
        ),
        (|all, _| drop(all.insert(b"b".to_vec(), vec![1])), "unexpected entry"),
        (|all, _| drop(all.insert(b"R".to_vec(), b"1".to_vec())), "unexpected entry"),
        (|all, _| drop(all.insert(PRUNED.to_vec(), b"1".to_vec())), "unexpected entry"),
        (|all, _| drop(all.insert(b"x".to_vec(), vec![])), "unexpected entry"),
        (|all, _| drop(all.remove(&b"l"[..]).unwrap()), "it states None as the last"),
        (
            |all, _| drop(all.insert(b"l".to_vec(), vec![3, 0, 0, 0])),
            "it states Some(3) as the last",
        ),
        (|all, _| drop(all.remove(&b"f\x03\0\0\0"[..]).unwrap()), "before its last one"),
        (|all, _| drop(all.insert(b"f\xff\xff\xff\xff".to_vec(), vec![0; 7])), "unexpected entry"),
        (|all, _| drop(all.insert(b"f\0\0\0\0".to_vec(), vec![0; 8])), "file 0 cannot be read"),
        (
            |all, chain| {
                let other = all[&key_of(&chain[8])].clone();
                let (_, header) = numbers(&other);
                let value = all.get_mut(&key_of(&chain[7])).unwrap();
                *value = entry(&numbers(value).0, header);
            },
            "has the header of block",
        ),
    ];
    let folder = Folder::in_order(&chain(17), KEY);
    let whole = folder.entries();
    for (change, expected) in cases {
        let mut changed = whole.clone();
        change(&mut changed, &folder.chain);
        folder.set_entries(&changed);
        found(&folder, expected, (of_index, expected));
    }
    // Change every number of every file.
    for (key, value) in whole.iter().filter(|(key, _)| key[0] == b'f') {
        for field in 0..7 {
            let mut changed = whole.clone();
            let mut reader = Reader::new(value);
            let mut numbers: Vec<u64> = (0..7).map(|_| reader.varint().unwrap()).collect();
            numbers[field] += 1;
            changed.insert(key.clone(), entry(&numbers, &[]));
            folder.set_entries(&changed);
            let error = folder.read().map(|_| ()).unwrap_err();
            let of_length = matches!(field, 1 | 2);
            assert!(if of_length { of_folder(&error) } else { of_index(&error) }, "{error}");
        }
    }
    folder.set_entries(&whole);
    folder.read().unwrap();
}

/// Core's constant, repeated so that the test does not depend on the module under test.
const PRUNED: &[u8] = b"F\x10prunedblockfiles";

#[test]
fn a_wrong_pruned_index_is_found() {
    let folder = Folder::pruned(&chain(18), KEY);
    let whole = folder.entries();
    let mut changed = whole.clone();
    changed.remove(PRUNED).unwrap();
    folder.set_entries(&changed);
    found(&folder, "no flag", (of_index, "flag for pruned blocks"));
    for (key, value) in
        [(PRUNED, &b"0"[..]), (b"f\x01\0\0\0", &[0; 7]), (b"f\0\0\0\0", &[0, 9, 0, 0, 0, 0, 0])]
    {
        let mut changed = whole.clone();
        changed.insert(key.to_vec(), value.to_vec());
        folder.set_entries(&changed);
        found(&folder, "other value", (of_index, ""));
    }
    folder.set_entries(&whole);
    with_field(&folder, 60, 2, 5, (of_index, "status 5"));
    with_field(&folder, 60, 3, 77, (of_index, "wrong number of transactions: 77"));
    // For stored blocks, the index's positions and undo data count too.
    let kept = FIRST as usize;
    with_field(&folder, kept, 2, 133, (of_index, "cannot be read"));
    with_field(&folder, kept, 3, 77, (of_index, "wrong number of transactions: 77"));
    with_field(&folder, kept, 5, 9, (of_block, ""));
    with_field(&folder, kept + 3, 6, 9, (of_undo, ""));
    folder.read().unwrap();
}

#[test]
fn blocks_in_any_order_must_be_complete_too() {
    let folder = Folder::in_any_order(&chain(19), &chain(20), 1);
    let entries = folder.entries();
    let places = |height: usize| numbers(&entries[&key_of(&folder.chain[height])]).0;
    let with = (1..130).find(|height| places(*height).len() == 7).unwrap();
    let without = (1..130).find(|height| places(*height).len() == 6).unwrap();
    with_field(&folder, with, 5, places(without)[5] + 3, (of_block, "no record"));
    with_field(&folder, with, 6, places(with)[6] + 3, (of_undo, "no record"));
    with_field(&folder, without, 2, 133, (of_index, "cannot be read"));
    let mut rng = Rng::new(5);
    for height in [with, without] {
        let [_, _, _, _, file, at, ..] = places(height)[..] else { unreachable!() };
        let path = folder.blocks().join(files::file_name(file as u32));
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        bytes[at as usize + rng.index(folder.chain[height].block.len())] ^= 4;
        fs::write(&path, &bytes).unwrap();
        found(&folder, "flipped", (of_block, &format!("block {height} should be")));
        fs::write(&path, &whole).unwrap();
    }
    folder.read().unwrap();
}

#[test]
fn an_index_that_is_not_a_database_is_refused() {
    let folder = Folder::in_order(&chain(21), KEY);
    let index = folder.blocks().join("index");
    let table = fs::read_dir(&index).unwrap().map(|entry| entry.unwrap().path());
    let table = table.into_iter().find(|path| path.extension().is_some_and(|it| it == "ldb"));
    let table = table.unwrap();
    let mut bytes = fs::read(&table).unwrap();
    bytes[40] ^= 1;
    fs::write(&table, bytes).unwrap();
    found(
        &folder,
        "checksum",
        (|error| matches!(error, ReadBackError::Independent(_)), "checksum"),
    );
    fs::remove_dir_all(&index).unwrap();
    let error = folder.read().map(|_| ()).unwrap_err();
    assert!(error.is_about_index(), "{error}");
}
