//! [`read_numbers`]: reads the chain in numbers from CSV, for a chart of the set's growth.

use std::io::{self, BufRead, Read};

/// The columns that are read, in the order of [`BlockGrowth`].
const COLUMNS: [&str; 4] = ["height", "bytes", "coins", "amount_sat"];

/// Far longer than any line.
const LINE_MAX: u64 = 1 << 16;

/// Far more blocks than any chain has.
const BLOCKS_MAX: usize = 10_000_000;

/// A block, and the chain and the set after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockGrowth {
    /// Its height.
    pub height: u64,
    /// Bytes of all blocks up to this one.
    pub bytes: u64,
    /// Coins of the set after the block.
    pub coins: u64,
    /// Their amount.
    pub amount_sat: u64,
}

/// Why numbers cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum NumbersError {
    /// The system's error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line is wrong.
    #[error("line {number}: {what}")]
    Line {
        /// Its number, from 1.
        number: u64,
        /// The fault.
        what: String,
    },
}

/// Reads the numbers of all blocks, by ascending height; at least one.
///
/// # Errors
///
/// Fails if the file cannot be read, lacks a column, or has a line that does not fit the columns.
pub fn read_numbers(file: impl BufRead) -> Result<Vec<BlockGrowth>, NumbersError> {
    let mut lines = NumbersLines { file, number: 0 };
    let head = lines.next()?.ok_or_else(|| lines.wrong("it is empty"))?;
    let place = |name: &str| head.split(',').position(|column| column == name);
    let [Some(height), Some(bytes), Some(coins), Some(amount)] = COLUMNS.map(place) else {
        let columns = COLUMNS.join(", ");
        return Err(lines.wrong(&format!(
            "its first line does not name the columns {columns}: make the file with `apus index --numbers`"
        )));
    };
    let (mut blocks, mut sum): (Vec<BlockGrowth>, u64) = (Vec::new(), 0);
    while let Some(line) = lines.next()? {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |place: usize| fields.get(place).and_then(|field| field.parse().ok());
        let numbers = [height, bytes, coins, amount].map(number);
        let [Some(height), Some(bytes), Some(coins), Some(amount_sat)] = numbers else {
            return Err(
                lines.wrong("a number is missing from the line, or a field is not a number")
            );
        };
        if blocks.last().is_some_and(|last| last.height >= height) || blocks.len() == BLOCKS_MAX {
            return Err(lines.wrong("heights must ascend, and a chain has fewer blocks"));
        }
        sum = sum.saturating_add(bytes);
        blocks.push(BlockGrowth { height, bytes: sum, coins, amount_sat });
    }
    match blocks.is_empty() {
        true => Err(lines.wrong("it has no block")),
        false => Ok(blocks),
    }
}

/// The lines of a file.
struct NumbersLines<R> {
    file: R,
    number: u64,
}

impl<R: BufRead> NumbersLines<R> {
    fn next(&mut self) -> Result<Option<String>, NumbersError> {
        let mut line = String::new();
        self.number += 1;
        let read = (&mut self.file).take(LINE_MAX).read_line(&mut line);
        match read {
            Ok(0) => Ok(None),
            Ok(_) if line.ends_with('\n') => {
                line.truncate(line.trim_end().len());
                Ok(Some(line))
            }
            Ok(_) => {
                Err(self.wrong("the line does not end: the file is cut off, or is of another kind"))
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(self.wrong("this is not text, and charts are drawn from CSV"))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn wrong(&self, what: &str) -> NumbersError {
        NumbersError::Line { number: self.number, what: what.to_owned() }
    }
}
