//! The chain in numbers as Parquet, read by another library's reader of rows.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![cfg(feature = "parquet")]

use apus_chain::BlockHash;
use apus_indexes::numbers_columns;
use apus_storage::create_file;
use apus_tables::parquet_numbers;
use parquet::data_type::Decimal;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use std::fs::File;
use std::path::Path;

/// The numbers of a block: some as large as they can be.
fn numbers(height: u32) -> Vec<u128> {
    let columns = numbers_columns().into_iter().zip(1..);
    let number = |(column, at): (apus_indexes::NumbersColumn, u128)| match column.is_wide {
        true => (10u128.pow(38) - 1) / u128::from(height + 1),
        false => (i64::MAX as u128) >> (height % 60) >> at,
    };
    columns.map(number).collect()
}

fn write(path: &Path, rows: u32) {
    let file = Box::new(create_file(path).unwrap());
    let mut writer = parquet_numbers(file, path).unwrap();
    for height in 0..rows {
        writer.put(height, &BlockHash([height as u8; 32]), &numbers(height)).unwrap();
    }
    writer.finish().unwrap();
}

fn number(field: &Field) -> u128 {
    match field {
        Field::Long(number) => *number as u128,
        Field::Decimal(Decimal::Bytes { value, precision: 38, scale: 0 }) => {
            u128::from_be_bytes(value.data().try_into().unwrap())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_reader_finds_the_numbers() {
    let folder = tempfile::tempdir().unwrap();
    // One block, and more than fit a group.
    for rows in [1, 17_000] {
        let path = folder.path().join(format!("{rows}.parquet"));
        write(&path, rows);
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let schema = reader.metadata().file_metadata().schema_descr();
        let names: Vec<&str> = schema.columns().iter().map(|column| column.name()).collect();
        let expected = numbers_columns().into_iter().map(|column| column.name);
        assert_eq!(names[..2], ["height", "hash"]);
        assert!(expected.eq(names[2..].iter().copied()));
        let mut height = 0;
        for row in reader.get_row_iter(None).unwrap() {
            let row: Row = row.unwrap();
            let fields: Vec<(&String, &Field)> = row.get_column_iter().collect();
            assert_eq!(*fields[0].1, Field::UInt(height));
            let hash = BlockHash([height as u8; 32]).to_string();
            assert_eq!(*fields[1].1, Field::Str(hash));
            let found: Vec<u128> = fields[2..].iter().map(|(_, field)| number(field)).collect();
            assert_eq!(found, numbers(height));
            height += 1;
        }
        assert_eq!(height, rows);
    }
}

#[test]
fn a_number_that_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("numbers.parquet");
    let mut writer = parquet_numbers(Box::new(create_file(&path).unwrap()), &path).unwrap();
    let mut numbers = numbers(7);
    numbers[0] = 1 << 63;
    let error = writer.put(7, &BlockHash([0; 32]), &numbers).unwrap_err();
    assert!(error.to_string().contains("block 7"), "{error}");
}
