//! The file of the chain in numbers, for `apus index --numbers` and `apus sync --out stats:FILE`.

use crate::failure::Failure;
use apus_indexes::{NumbersFormat, NumbersPlace, csv_numbers};
use std::path::Path;

/// Returns about how many bytes the numbers of a chain take, as CSV or while they are collected: a block of a megabyte has
/// a kilobyte of numbers.
pub(crate) const fn numbers_bytes(block_bytes: u64) -> u64 {
    block_bytes / 1000
}

/// Returns where the numbers go: as Parquet if the file's name ends in `.parquet`, otherwise as CSV.
///
/// # Errors
/// If this build lacks the format.
pub(crate) fn numbers_place(path: &Path, replace: bool) -> Result<NumbersPlace, Failure> {
    let is_parquet = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("parquet"));
    let format = if is_parquet { parquet()? } else { csv_numbers as NumbersFormat };
    Ok(NumbersPlace::new(path, format, replace))
}

#[cfg(feature = "parquet")]
fn parquet() -> Result<NumbersFormat, Failure> {
    Ok(apus_tables::parquet_numbers)
}

#[cfg(not(feature = "parquet"))]
fn parquet() -> Result<NumbersFormat, Failure> {
    let lacking = crate::spelling::lacking("parquet").unwrap_or_default();
    Err(Failure::usage(format!("{lacking}. A name that does not end in .parquet gets CSV")))
}
