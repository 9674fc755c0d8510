//! Reads the rows of txindex and txospenderindex: for each block the sum of its rows, as [`CheckedChain::row`]
//! hashes them.
//!
//! Rows of blocks that a reorganisation left may stay, and those of blocks above the best one. They do no harm:
//! their blocks are off the chain, or are indexed again. Any other row must be at a transaction of the chain.
//!
//! A row of txindex at a place without a block answers no question: its transaction is missing at its block. For a coin,
//! txospenderindex may have several rows, of which version 31 takes the first, and fails if it leads to no transaction
//! (Core `index/txospenderindex.cpp`, `FindSpender`). So each of its rows must lead to a block that the node has.

use super::{BestError, CheckedChain, FoundError};
use crate::forms::IndexForm;
use crate::salt::Salt;
use apus_chain::{BlockHash, Height, Reader};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// The rows of an index.
#[derive(Default)]
pub(crate) struct FoundRows {
    /// The last block whose rows must be there.
    pub(crate) best: Height,
    /// The sum of each block's rows.
    pub(crate) sums: Vec<u64>,
    /// The key of the rows' hashes; of the older form, which has none, any.
    pub(crate) salt: Option<Salt>,
}

impl FoundRows {
    fn new(chain: &CheckedChain<'_>) -> Self {
        Self { best: 0, sums: vec![0; chain.tip() as usize + 1], salt: None }
    }

    fn add(&mut self, height: Height, row: u64) {
        let sum = &mut self.sums[height as usize];
        *sum = sum.wrapping_add(row);
    }
}

/// What is in the folder of txindex: rows of two forms, of which the newer one may have only the upper blocks.
#[derive(Default)]
pub(crate) struct FoundTxIndex {
    pub(crate) old: Option<FoundRows>,
    pub(crate) new: Option<NewRows>,
}

/// The rows of the newer form.
#[derive(Default)]
pub(crate) struct NewRows {
    pub(crate) rows: FoundRows,
    /// The numbers of the chain's blocks.
    pub(crate) numbers: Vec<Option<u32>>,
}

/// Values of keys that occur once.
#[derive(Default)]
struct TxIndexHead {
    best: Option<Vec<u8>>,
    new_best: Option<Vec<u8>>,
    next: Option<u32>,
    salt: Option<Salt>,
}

/// Reads the folder of txindex. Returns each form with why it cannot be compared, if so.
pub(super) fn read_txindex(
    chain: &CheckedChain<'_>,
    folder: &Path,
) -> Result<(FoundTxIndex, Vec<(IndexForm, BestError)>), FoundError> {
    let mut reading = TxIndexReading::new(chain, folder);
    chain.for_each_entry(folder, |key, value| {
        if let Err(what) = reading.entry(key, value) {
            reading.fault(what, key);
        }
    })?;
    Ok(reading.finish())
}

struct TxIndexReading<'c, 'a> {
    chain: &'c CheckedChain<'a>,
    folder: &'c Path,
    head: TxIndexHead,
    old: FoundRows,
    has_old: bool,
    new: FoundRows,
    numbers: Vec<Option<u32>>,
    /// Numbers of blocks off the chain; their rows do no harm.
    off_chain: HashSet<u32>,
    by_number: HashMap<u32, Option<Height>>,
}

impl<'c, 'a> TxIndexReading<'c, 'a> {
    fn new(chain: &'c CheckedChain<'a>, folder: &'c Path) -> Self {
        Self {
            chain,
            folder,
            head: TxIndexHead::default(),
            old: FoundRows::new(chain),
            has_old: false,
            new: FoundRows::new(chain),
            numbers: vec![None; chain.tip() as usize + 1],
            off_chain: HashSet::new(),
            by_number: HashMap::new(),
        }
    }

    fn fault(&self, what: &str, key: &[u8]) {
        let form = match key.first() {
            Some(b't' | b'B') => IndexForm::TxIndex,
            _ => IndexForm::TxIndexV2,
        };
        let what = format!("the entry {} {what}", hex(key));
        self.chain.faults.add(form, None, self.folder, what);
    }

    /// Reads an entry; keys ascend, so the numbers of blocks come before the rows that use them.
    fn entry(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match key {
            b"B" => self.head.best = Some(value.to_vec()),
            best if best == IndexForm::TxIndexV2.best_block_key() => {
                self.head.new_best = Some(value.to_vec());
            }
            b"\x0enext_block_seq" => self.head.next = Some(u32::from_le_bytes(exact(value)?)),
            b"\x0etxid_hash_salt" => self.head.salt = Some(Salt::from_bytes(&exact(value)?)),
            [b'h', hash @ ..] => self.block(exact(hash)?, u32::from_le_bytes(exact(value)?)),
            [b's', number @ ..] => return self.number(number, exact(value)?),
            [b't', txid @ ..] => return self.old_row(&exact::<32>(txid)?, value),
            [b'x', row @ ..] if value.is_empty() => return self.new_row(row),
            _ => return Err("is not one that a node writes"),
        }
        Ok(())
    }

    fn block(&mut self, hash: [u8; 32], number: u32) {
        match self.chain.chain.headers.height_of(&BlockHash(hash)) {
            Some(height) => self.numbers[height as usize] = Some(number),
            None => {
                self.off_chain.insert(number);
            }
        }
    }

    fn number(&mut self, key: &[u8], hash: [u8; 32]) -> Result<(), &'static str> {
        let mut reader = Reader::new(key);
        let number = read_number(&mut reader).filter(|_| reader.unread().is_empty());
        let number = number.ok_or("has no number of a block")?;
        let height = self.chain.chain.headers.height_of(&BlockHash(hash));
        let agrees = match height {
            Some(height) => self.numbers[height as usize] == Some(number),
            None => self.off_chain.contains(&number),
        };
        if !agrees {
            return Err("gives a number to a block that has another one");
        }
        self.by_number.insert(number, height);
        Ok(())
    }

    fn old_row(&mut self, txid: &[u8; 32], value: &[u8]) -> Result<(), &'static str> {
        self.has_old = true;
        let (block, offset) = read_place(value).ok_or("has no place")?;
        if let Some(height) = self.chain.by_place.get(&block) {
            self.old.add(*height, self.chain.row(txid, offset));
        }
        Ok(())
    }

    fn new_row(&mut self, row: &[u8]) -> Result<(), &'static str> {
        let (prefix, rest) = row.split_at_checked(5).ok_or("is too short")?;
        let mut reader = Reader::new(rest);
        let number = read_number(&mut reader).ok_or("has no number of a block")?;
        let [a, b, c] = exact(reader.unread())?;
        match self.by_number.get(&number) {
            None => Err("has the number of no block"),
            Some(None) => Ok(()),
            Some(Some(height)) => {
                let offset = u32::from_be_bytes([0, a, b, c]);
                self.new.add(*height, self.chain.row(prefix, offset.into()));
                Ok(())
            }
        }
    }

    fn finish(mut self) -> (FoundTxIndex, Vec<(IndexForm, BestError)>) {
        let (mut found, mut failed) = (FoundTxIndex::default(), Vec::new());
        let has_new = self.head.new_best.is_some() || !self.by_number.is_empty();
        let new_best = self.chain.best_block(self.head.new_best.as_deref());
        if self.has_old || self.head.best.is_some() || !has_new {
            let best = self.head.best.as_deref();
            let best = match (self.chain.best_block(best), &new_best) {
                // The node left this block after it had gone over to the newer form, which has all blocks above the fork.
                // A locator skips blocks, so the fork may be above the block that it names.
                (Err(error @ BestError::Elsewhere(_)), Ok(end)) => {
                    let named = self.chain.block_below(best).ok_or(error);
                    named.map(|named| named.max(self.below_numbers(*end)))
                }
                (best, _) => best,
            };
            match best {
                Ok(best) => found.old = Some(FoundRows { best, ..std::mem::take(&mut self.old) }),
                // A node that went over to the newer form may have rows of the older one without a best block.
                Err(BestError::Wrong(_)) if has_new => {}
                Err(error) => failed.push((IndexForm::TxIndex, error)),
            }
        }
        if has_new {
            self.check_head();
            match new_best {
                Ok(best) => {
                    let salt = self.head.salt;
                    let rows = FoundRows { best, salt, ..std::mem::take(&mut self.new) };
                    found.new = Some(NewRows { rows, numbers: std::mem::take(&mut self.numbers) });
                }
                Err(error) => failed.push((IndexForm::TxIndexV2, error)),
            }
        }
        (found, failed)
    }

    /// The highest block up to `end` that has no number in the newer form; 0 if all have one.
    fn below_numbers(&self, end: Height) -> Height {
        let has_none = |height: &Height| self.numbers[*height as usize].is_none();
        (0..=end).rev().find(has_none).unwrap_or_default()
    }

    /// Checks the entries from which a node continues.
    fn check_head(&self) {
        let fault = |what: &str| {
            self.chain.faults.add(IndexForm::TxIndexV2, None, self.folder, what);
        };
        if self.head.salt.is_none() {
            fault("the salt of its rows is missing: the node would find none of them");
        }
        let above = self.by_number.keys().max().map_or(0, |last| last.saturating_add(1));
        if self.head.next.is_none_or(|next| next < above) {
            fault(
                "the number of the next block is missing or given already: the node would lose rows",
            );
        }
        for (height, number) in self.numbers.iter().enumerate() {
            if number.is_some_and(|number| !self.by_number.contains_key(&number)) {
                let block = Some(self.chain.block(height as Height));
                let what = "the entry with the number of this block is missing";
                self.chain.faults.add(IndexForm::TxIndexV2, block, self.folder, what);
            }
        }
    }
}

/// The salt of txospenderindex: a C string, with its zero.
const SPENDER_SALT: &[u8] = b"siphash_key\0";

/// Reads txospenderindex.
pub(super) fn read_spenders(
    chain: &CheckedChain<'_>,
    folder: &Path,
) -> Result<Result<FoundRows, BestError>, FoundError> {
    let (mut found, mut best, others) = (FoundRows::new(chain), None, chain.other_places()?);
    chain.for_each_entry(folder, |key, value| {
        let read = match key {
            b"B" => {
                best = Some(value.to_vec());
                Ok(())
            }
            SPENDER_SALT => exact(value).map(|salt| found.salt = Some(Salt::from_bytes(&salt))),
            // Version 31 wrote a zero.
            [b's', row @ ..] if matches!(value, [] | [0]) => {
                spender_row(chain, row, &mut found, others.as_ref())
            }
            _ => Err("is not one that a node writes"),
        };
        if let Err(what) = read {
            let what = format!("the entry {} {what}", hex(key));
            chain.faults.add(IndexForm::TxoSpender, None, folder, what);
        }
    })?;
    if found.salt.is_none() {
        let what = "the salt of its rows is missing: the node would find none of them";
        chain.faults.add(IndexForm::TxoSpender, None, folder, what);
    }
    Ok(chain.best_block(best.as_deref()).map(|best| FoundRows { best, ..found }))
}

fn spender_row(
    chain: &CheckedChain<'_>,
    row: &[u8],
    found: &mut FoundRows,
    others: Option<&HashSet<(u32, u32)>>,
) -> Result<(), &'static str> {
    let (hash, place) = row.split_at_checked(8).ok_or("is too short")?;
    let (block, offset) = read_place(place).ok_or("has no place")?;
    match chain.by_place.get(&block) {
        Some(height) => found.add(*height, chain.row(hash, offset)),
        None if others.is_some_and(|others| !others.contains(&block)) => {
            return Err(
                "leads to where the node has no block: the node could not say what spends its coin",
            );
        }
        None => {}
    }
    Ok(())
}

/// Reads the place of a transaction: that of its block, and its offset in the block behind the header.
fn read_place(bytes: &[u8]) -> Option<((u32, u32), u64)> {
    let mut reader = Reader::new(bytes);
    let [file, block, offset] =
        [reader.varint().ok()?, reader.varint().ok()?, reader.varint().ok()?];
    reader.finish().ok()?;
    Some(((u32::try_from(file).ok()?, u32::try_from(block).ok()?), offset))
}

fn read_number(reader: &mut Reader<'_>) -> Option<u32> {
    u32::try_from(reader.varint().ok()?).ok()
}

fn exact<const N: usize>(bytes: &[u8]) -> Result<[u8; N], &'static str> {
    bytes.try_into().map_err(|_| "has another length than a node writes")
}

/// The first bytes of a key, for messages.
pub(super) fn hex(key: &[u8]) -> String {
    key.iter().take(40).map(|byte| format!("{byte:02x}")).collect()
}
