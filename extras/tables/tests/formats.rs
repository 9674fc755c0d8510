//! Tables of real sets in every format, read by other programs' libraries: the rows have the set's hash.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![cfg(all(feature = "parquet", feature = "sqlite"))]

use apus_chain::ScriptType;
use apus_chain::{CoinRef, HashSerialized3, MAX_MONEY, Network, OutPoint, Txid, UtxoSetHash};
use apus_datadir::snapshot::SnapshotReader;
use apus_tables::{Table, TableColumns, TableFacts, TableFormat, TablePlace};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use rusqlite::Connection;
use rusqlite::types::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

static GOING: AtomicBool = AtomicBool::new(false);

/// A row as another library reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    txid: Vec<u8>,
    vout: u32,
    value: u64,
    coinbase: bool,
    height: u32,
    script: Vec<u8>,
    kind: Option<String>,
    address: Option<String>,
}

fn unhex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn read_sqlite(path: &Path) -> (Vec<Row>, BTreeMap<String, String>) {
    let database = Connection::open(path).unwrap();
    let bytes = |value: Value| match value {
        Value::Text(digits) => unhex(&digits),
        Value::Blob(bytes) => bytes,
        other => panic!("{other:?}"),
    };
    let mut statement = database.prepare("SELECT * FROM utxos ORDER BY rowid").unwrap();
    let columns = statement.column_count();
    let has = |name: &str| statement.column_index(name).ok();
    let (kind, address) = (has("type"), has("address"));
    let rows = statement
        .query_map((), |row| {
            assert!((6..9).contains(&columns));
            Ok(Row {
                txid: bytes(row.get("txid")?),
                vout: row.get("vout")?,
                value: row.get::<_, i64>("value")? as u64,
                coinbase: row.get("coinbase")?,
                height: row.get("height")?,
                script: bytes(row.get("scriptpubkey")?),
                kind: kind.map(|at| row.get(at)).transpose()?,
                address: address.map(|at| row.get(at)).transpose()?.flatten(),
            })
        })
        .unwrap();
    let rows = rows.map(Result::unwrap).collect();
    let mut statement = database.prepare("SELECT key, value FROM meta").unwrap();
    let facts = statement.query_map((), |row| {
        let value = match row.get(1)? {
            Value::Text(text) => text,
            Value::Integer(number) => number.to_string(),
            other => panic!("{other:?}"),
        };
        Ok((row.get(0)?, value))
    });
    (rows, facts.unwrap().map(Result::unwrap).collect())
}

fn read_parquet(path: &Path, columns: TableColumns) -> (Vec<Row>, BTreeMap<String, String>) {
    let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let bytes = |row: &parquet::record::Row, at| match columns.raw {
        true => row.get_bytes(at).unwrap().data().to_vec(),
        false => unhex(row.get_string(at).unwrap()),
    };
    let rows = reader.get_row_iter(None).unwrap().map(|row| {
        let row = row.unwrap();
        Row {
            txid: bytes(&row, 0),
            vout: row.get_uint(1).unwrap(),
            value: row.get_long(2).unwrap() as u64,
            coinbase: row.get_bool(3).unwrap(),
            height: row.get_uint(4).unwrap(),
            script: bytes(&row, 5),
            kind: columns.kind.then(|| row.get_string(6).unwrap().clone()),
            address: columns
                .address
                .then(|| row.get_string(6 + usize::from(columns.kind)).ok().cloned())
                .flatten(),
        }
    });
    let rows = rows.collect();
    let facts = reader.metadata().file_metadata().key_value_metadata().unwrap();
    (rows, facts.iter().map(|it| (it.key.clone(), it.value.clone().unwrap())).collect())
}

fn read_csv(path: &Path, columns: TableColumns) -> (Vec<Row>, BTreeMap<String, String>) {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let kind = if columns.kind { ",type" } else { "" };
    let address = if columns.address { ",address" } else { "" };
    let header = format!("txid,vout,value,coinbase,height,scriptpubkey{kind}{address}");
    assert_eq!(lines.next().unwrap(), header);
    let rows = lines.map(|line| {
        let values: Vec<&str> = line.split(',').collect();
        assert_eq!(values.len(), header.split(',').count(), "{line}");
        let address = columns.address.then(|| values.last().unwrap().to_string());
        Row {
            txid: unhex(values[0]),
            vout: values[1].parse().unwrap(),
            value: values[2].parse().unwrap(),
            coinbase: values[3] == "1",
            height: values[4].parse().unwrap(),
            script: unhex(values[5]),
            kind: columns.kind.then(|| values[6].to_owned()),
            address: address.filter(|address| !address.is_empty()),
        }
    });
    let rows = rows.collect();
    let facts: serde_json::Value =
        serde_json::from_slice(&fs::read(path.with_added_extension("json")).unwrap()).unwrap();
    let text = |value: &serde_json::Value| match value.as_str() {
        Some(text) => text.to_owned(),
        None => value.to_string(),
    };
    let facts = facts.as_object().unwrap();
    (rows, facts.iter().map(|(key, value)| (key.clone(), text(value))).collect())
}

fn read(
    path: &Path,
    format: TableFormat,
    columns: TableColumns,
) -> (Vec<Row>, BTreeMap<String, String>) {
    match format {
        TableFormat::Csv => read_csv(path, columns),
        TableFormat::Sqlite => read_sqlite(path),
        TableFormat::Parquet => read_parquet(path, columns),
    }
}

/// The hash of the set in rows.
fn hash_of(rows: &[Row]) -> UtxoSetHash {
    let mut hash = HashSerialized3::new();
    for row in rows {
        let mut txid: [u8; 32] = row.txid.clone().try_into().unwrap();
        txid.reverse();
        let Row { vout, height, coinbase, value: amount, .. } = *row;
        let coin = CoinRef { height, coinbase, amount, script: &row.script };
        hash.push(&OutPoint { txid: Txid(txid), vout }, coin);
    }
    hash.finish()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// Writes a table of a snapshot, with facts that claim `extra` coins more.
fn write(place: &TablePlace, snapshot: &Path, extra: u64) -> Result<TableFacts, String> {
    let mut reader = SnapshotReader::new(File::open(snapshot).unwrap(), None).unwrap();
    let header = *reader.header();
    let mut table = Table::create(place, header.network).unwrap();
    let mut hash = HashSerialized3::new();
    let mut height = 0;
    while let Some(next) = reader.next_coin().unwrap() {
        table.put(&next.outpoint, next.coin.as_ref()).unwrap();
        hash.push(&next.outpoint, next.coin.as_ref());
        height = height.max(next.coin.height);
    }
    let facts = TableFacts {
        network: header.network,
        block: header.base_hash,
        height,
        coins: header.coins + extra,
        total: table.total(),
        hash_serialized_3: hash.finish(),
    };
    table.finish(&facts, &GOING).map_err(|error| error.to_string())?;
    table.publish().unwrap();
    Ok(facts)
}

const ALL_COLUMNS: [TableColumns; 4] = [
    TableColumns { raw: false, kind: false, address: false },
    TableColumns { raw: true, kind: true, address: false },
    TableColumns { raw: true, kind: false, address: true },
    TableColumns { raw: false, kind: true, address: true },
];

#[test]
fn other_libraries_read_the_whole_set() {
    let sandbox = tempfile::tempdir().unwrap();
    for (name, chain) in [
        ("main-4521", bitcoin::Network::Bitcoin),
        ("signet-120", bitcoin::Network::Signet),
        ("regtest-315", bitcoin::Network::Regtest),
    ] {
        let node = fs::read(fixture(name).join("gettxoutsetinfo.json")).unwrap();
        let node: serde_json::Value = serde_json::from_slice(&node).unwrap();
        for (format, columns) in TableFormat::ALL
            .into_iter()
            .flat_map(|format| ALL_COLUMNS.map(|columns| (format, columns)))
        {
            let path = sandbox.path().join(format!("{name}-{columns:?}.{format}"));
            let Ok(place) = TablePlace::new(&path, format, columns) else {
                assert!(columns.raw && format == TableFormat::Csv);
                continue;
            };
            let facts = write(&place, &fixture(name).join("utxo.dat"), 0).unwrap();
            let (rows, read_facts) = read(&path, format, columns);
            assert_eq!(hash_of(&rows).to_string(), node["hash_serialized_3"].as_str().unwrap());
            assert_eq!(rows.len() as u64, node["txouts"].as_u64().unwrap());
            assert_eq!(rows.iter().map(|row| row.value).sum::<u64>(), facts.total);
            let fact = |key: &str| read_facts[key].as_str();
            assert_eq!(fact("chain"), facts.network.to_string());
            assert_eq!(fact("block_hash"), node["bestblock"].as_str().unwrap());
            assert_eq!(fact("height"), node["height"].to_string());
            assert_eq!(fact("coins"), node["txouts"].to_string());
            assert_eq!(fact("hash_serialized_3"), node["hash_serialized_3"].as_str().unwrap());
            assert!(fact("program").starts_with("apus "), "{read_facts:?}");
            let total: f64 = fact("total").parse::<f64>().unwrap() / 1e8;
            assert!((total - node["total_amount"].as_f64().unwrap()).abs() < 1e-8);
            for row in rows {
                let script = bitcoin::Script::from_bytes(&row.script);
                let address = bitcoin::Address::from_script(script, chain).ok();
                let expected = address.map(|it| it.to_string()).filter(|_| columns.address);
                assert_eq!(row.address, expected, "{script:?}");
                let kind = columns.kind.then(|| ScriptType::of(&row.script).name().to_owned());
                assert_eq!(row.kind, kind);
            }
        }
    }
}

/// The statement that Bitcoin Core's script sends.
#[test]
fn the_database_has_the_schema_of_cores_script() {
    let sandbox = tempfile::tempdir().unwrap();
    let path = sandbox.path().join("utxos.sqlite");
    let place = TablePlace::new(&path, TableFormat::Sqlite, TableColumns::default()).unwrap();
    write(&place, &fixture("signet-120/utxo.dat"), 0).unwrap();
    let database = Connection::open(&path).unwrap();
    let schema: String = database
        .query_row("SELECT sql FROM sqlite_schema WHERE name = 'utxos'", (), |row| row.get(0))
        .unwrap();
    assert_eq!(
        schema,
        "CREATE TABLE utxos(txid TEXT, vout INT, value INT, coinbase INT, height INT, scriptpubkey TEXT)"
    );
    let intact: String =
        database.query_row("PRAGMA integrity_check", (), |row| row.get(0)).unwrap();
    assert_eq!(intact, "ok");
    let names: Vec<_> = fs::read_dir(sandbox.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn a_table_that_lacks_coins_gets_no_name() {
    for format in TableFormat::ALL {
        let sandbox = tempfile::tempdir().unwrap();
        let path = sandbox.path().join("utxos");
        let place = TablePlace::new(&path, format, TableColumns::default()).unwrap();
        let error = write(&place, &fixture("signet-120/utxo.dat"), 1).unwrap_err();
        assert!(error.contains("did not get its name"), "{error}");
        assert!(place.files().iter().all(|file| !file.exists()), "{format}");
    }
}

#[test]
fn an_empty_set_and_more_rows_than_a_group() {
    for (format, rows) in TableFormat::ALL.into_iter().flat_map(|it| [(it, 0), (it, 140_000)]) {
        let sandbox = tempfile::tempdir().unwrap();
        let path = sandbox.path().join("utxos");
        let place = TablePlace::new(&path, format, TableColumns::default()).unwrap();
        let mut table = Table::create(&place, Network::Main).unwrap();
        let mut hash = HashSerialized3::new();
        for number in 0..rows {
            let mut txid = [7; 32];
            txid[..4].copy_from_slice(&u32::to_be_bytes(number / 3));
            let outpoint = OutPoint { txid: Txid(txid), vout: number % 3 };
            let script = vec![0x51; (number % 50) as usize];
            let coin = CoinRef {
                height: number,
                coinbase: number % 7 == 0,
                amount: number.into(),
                script: &script,
            };
            table.put(&outpoint, coin).unwrap();
            hash.push(&outpoint, coin);
        }
        let (coins, total) = (u64::from(rows), table.total());
        let facts = TableFacts {
            network: Network::Main,
            block: Default::default(),
            height: 0,
            coins,
            total,
            hash_serialized_3: hash.finish(),
        };
        table.finish(&facts, &GOING).unwrap();
        table.publish().unwrap();
        let (read, _) = read(&path, format, TableColumns::default());
        assert_eq!(
            (read.len() as u64, hash_of(&read)),
            (coins, facts.hash_serialized_3),
            "{format}"
        );
    }
}

#[test]
fn a_set_with_more_than_all_money_is_refused() {
    let sandbox = tempfile::tempdir().unwrap();
    let path = sandbox.path().join("utxos");
    let place = TablePlace::new(&path, TableFormat::Csv, TableColumns::default()).unwrap();
    let mut table = Table::create(&place, Network::Main).unwrap();
    let coin = |amount| CoinRef { height: 0, coinbase: false, amount, script: &[0x51] };
    let outpoint = OutPoint { txid: Txid([0; 32]), vout: 0 };
    table.put(&outpoint, coin(MAX_MONEY)).unwrap();
    table.put(&outpoint, coin(0)).unwrap();
    let error = table.put(&outpoint, coin(1)).unwrap_err().to_string();
    assert!(error.contains("more than all money"), "{error}");
}

#[test]
fn an_interrupted_check_gives_no_name() {
    for format in TableFormat::ALL {
        let sandbox = tempfile::tempdir().unwrap();
        let path = sandbox.path().join("utxos");
        let place = TablePlace::new(&path, format, TableColumns::default()).unwrap();
        let mut table = Table::create(&place, Network::Main).unwrap();
        let coin = CoinRef { height: 0, coinbase: false, amount: 1, script: &[0x51] };
        table.put(&OutPoint { txid: Txid([0; 32]), vout: 0 }, coin).unwrap();
        let facts = TableFacts {
            network: Network::Main,
            block: Default::default(),
            height: 0,
            coins: 1,
            total: 1,
            hash_serialized_3: HashSerialized3::new().finish(),
        };
        let stopped = AtomicBool::new(true);
        assert!(table.finish(&facts, &stopped).is_err(), "{format}");
        assert!(table.publish().is_err());
        assert!(!path.exists());
    }
}
