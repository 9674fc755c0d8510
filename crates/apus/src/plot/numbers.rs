//! [`ChainNumbers`]: the file of `apus index --numbers`, for a chart of the set's growth.

use crate::failure::Failure;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// The columns that a chart shows, in the order of [`BlockNumbers`].
const COLUMNS: [&str; 4] = ["height", "bytes", "coins", "amount_sat"];

/// Far longer than any line.
const LINE_MAX: u64 = 1 << 16;

/// Far more blocks than any chain has.
const BLOCKS_MAX: usize = 10_000_000;

/// The numbers of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockNumbers {
    pub(super) height: u64,
    /// Bytes of all blocks up to this one.
    pub(super) bytes: u64,
    /// Coins of the set after the block.
    pub(super) coins: u64,
    /// Their amount.
    pub(super) amount_sat: u64,
}

/// The numbers of all blocks, by ascending height; at least one.
pub(super) struct ChainNumbers(pub(super) Vec<BlockNumbers>);

impl ChainNumbers {
    /// Reads a file.
    ///
    /// # Errors
    /// If the file cannot be read, lacks a column, or has a line that does not fit the columns.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let file = File::open(path).map_err(|error| Failure::opening(path, &error))?;
        let mut lines = NumbersLines { path, reader: BufReader::new(file), number: 0 };
        let head = lines.next()?.ok_or_else(|| lines.wrong("it is empty"))?;
        let place = |name: &str| head.split(',').position(|column| column == name);
        let [height, bytes, coins, amount] = COLUMNS.map(place);
        let (Some(height), Some(bytes), Some(coins), Some(amount)) = (height, bytes, coins, amount)
        else {
            let columns = COLUMNS.join(", ");
            return Err(lines.wrong(&format!(
                "its first line does not name the columns {columns}: make the file with `apus index --numbers`"
            )));
        };
        let (mut blocks, mut sum): (Vec<BlockNumbers>, u64) = (Vec::new(), 0);
        while let Some(line) = lines.next()? {
            let fields: Vec<&str> = line.split(',').collect();
            let number = |place: usize| fields.get(place).and_then(|field| field.parse().ok());
            let numbers = [height, bytes, coins, amount].map(number);
            let [Some(height), Some(bytes), Some(coins), Some(amount_sat)] = numbers else {
                return Err(lines.wrong("a number is missing, or is none"));
            };
            if blocks.last().is_some_and(|last| last.height >= height) || blocks.len() == BLOCKS_MAX
            {
                return Err(lines.wrong("heights must ascend, and a chain has fewer blocks"));
            }
            sum = sum.saturating_add(bytes);
            blocks.push(BlockNumbers { height, bytes: sum, coins, amount_sat });
        }
        match blocks.is_empty() {
            true => Err(lines.wrong("it has no block")),
            false => Ok(Self(blocks)),
        }
    }
}

/// The lines of a file.
struct NumbersLines<'p> {
    path: &'p Path,
    reader: BufReader<File>,
    number: u64,
}

impl NumbersLines<'_> {
    fn next(&mut self) -> Result<Option<String>, Failure> {
        let mut line = String::new();
        self.number += 1;
        let read = (&mut self.reader).take(LINE_MAX).read_line(&mut line);
        match read {
            Ok(0) => Ok(None),
            Ok(_) if line.ends_with('\n') => {
                line.truncate(line.trim_end().len());
                Ok(Some(line))
            }
            Ok(_) => {
                Err(self.wrong("the line does not end: the file is cut off, or is of another kind"))
            }
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Err(self.wrong("this is not text"))
            }
            Err(error) => Err(Failure::io(self.path, error)),
        }
    }

    fn wrong(&self, what: &str) -> Failure {
        Failure::wrong(format!("{}: line {}: {what}", self.path.display(), self.number))
    }
}
