//! The chain in numbers as CSV: an independent reader of the text finds the same numbers.
//!
//! Input: whether the right names of the columns come first; then the lines.
//!
//! Inputs: at most 4096 bytes.

#![no_main]

use apus_fuzz::Input;
use apus_indexes::{BlockGrowth, numbers_columns, read_numbers};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let choice = input.u8();
    let mut bytes = Vec::new();
    if choice & 1 != 0 {
        let names: Vec<String> = numbers_columns().into_iter().map(|column| column.name).collect();
        bytes.extend(format!("height,hash,{}\n", names.join(",")).bytes());
    } else if choice & 2 != 0 {
        bytes.extend(b"bytes,amount_sat,height,coins\n");
    }
    bytes.extend(input.rest());
    let Ok(found) = read_numbers(&*bytes) else { return };
    let text = String::from_utf8(bytes).expect("only text is accepted");
    let rows: Vec<Vec<&str>> =
        text.split_terminator('\n').map(|line| line.trim_end().split(',').collect()).collect();
    let column = |name: &str| -> Vec<u64> {
        let at = rows[0].iter().position(|it| *it == name).expect("a column");
        rows[1..].iter().map(|row| row[at].parse().expect("a number")).collect()
    };
    let [heights, bytes, coins, amounts] = ["height", "bytes", "coins", "amount_sat"].map(column);
    assert_eq!(found.len(), rows.len() - 1);
    assert!(!found.is_empty() && heights.is_sorted_by(|one, next| one < next));
    let mut sum = 0u64;
    for (at, block) in found.into_iter().enumerate() {
        sum = sum.saturating_add(bytes[at]);
        let (height, coins, amount_sat) = (heights[at], coins[at], amounts[at]);
        assert_eq!(block, BlockGrowth { height, bytes: sum, coins, amount_sat });
    }
});
