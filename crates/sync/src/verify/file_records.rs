//! [`EntriesByFile`]: the content of each block file, according to the index's entries of blocks. It is
//! compared with the index's records of files.
//!
//! A node appends blocks and undo data where these records end, overwriting what is there, and deletes a file
//! whose record lists no block that it needs (Core `node/blockstorage.cpp`, `FindNextBlockPos`,
//! `FindFilesToPrune`, `ScanAndUnlinkAlreadyPrunedFiles`). So a record may list more than the file contains,
//! which old nodes and crashes cause, but never less.

use super::finding::{FindingKind, Findings, FoundFault};
use apus_chain::Header;
use apus_datadir::{BlockFiles, FileInfo, IndexEntry, IndexRest, UndoFiles};
use core::ops::Bound;
use std::collections::BTreeMap;

/// Old nodes counted the eight bytes before a block twice when they rebuilt the index.
const SLACK: u64 = 8;

/// Files without blocks that the index may have at its end. A node has at most a few.
const UNUSED_MAX: u32 = 1000;

/// The content of each file according to the entries of blocks, by file number.
#[derive(Debug, Default)]
pub(super) struct EntriesByFile(BTreeMap<u32, InFile>);

#[derive(Debug, Default)]
struct InFile {
    /// Number of blocks, and their heights and times.
    info: FileInfo,
    /// Offsets of the last block and of the last undo data.
    last_block: Option<u64>,
    last_undo: Option<u64>,
}

impl EntriesByFile {
    pub(super) fn add(&mut self, entry: &IndexEntry) {
        if let Some((file, offset)) = entry.data {
            let there = self.0.entry(file).or_default();
            there.info.add(entry.height, Header::parse(&entry.header).time);
            there.last_block = there.last_block.max(Some(offset));
        }
        if let Some((file, offset)) = entry.undo {
            let there = self.0.entry(file).or_default();
            there.last_undo = there.last_undo.max(Some(offset));
        }
    }

    /// Compares the entries with the index's records of files, and the records with the current file lengths.
    pub(super) fn compare(&self, index: &IndexRest, files: &BlockFiles, findings: &Findings) {
        let used = self.0.keys().next_back().copied().unwrap_or_default();
        let compared = ComparedRecord { index, files, findings, reach: reach(index), used };
        compared.last_file();
        let undo = UndoFiles::open(files.dir(), files.magic()).ok();
        for (number, entries) in &self.0 {
            match compared.record(*number) {
                Some(info) => compared.file(*number, entries, info, undo.as_ref()),
                None => compared.add(*number, no_record(entries)),
            }
        }
        for (number, info) in &index.files {
            if let Some(info) = info {
                compared.lengths(*number, info, undo.as_ref());
            }
        }
    }
}

fn no_record(entries: &InFile) -> String {
    let blocks = entries.info.blocks;
    format!(
        "the index has no record of this file that a node reads, but {blocks} blocks in it: the node would \
         overwrite them, and delete the file if it prunes"
    )
}

/// Returns the last file whose record a node reads. A node reads on past the file that the index calls the last
/// until a record is missing, so too low a number, which old versions left, does no harm (`LoadBlockIndexDB` in
/// Core's `node/blockstorage.cpp`).
fn reach(index: &IndexRest) -> u32 {
    let mut reach = last_file(index);
    for (number, info) in index.files.range((Bound::Excluded(reach), Bound::Unbounded)) {
        if *number != reach + 1 || info.is_none() {
            break;
        }
        reach = *number;
    }
    reach
}

/// Returns the number that the index has of the last file. A node starts with 0 if there is none.
fn last_file(index: &IndexRest) -> u32 {
    index.last_file.and_then(|last| last.try_into().ok()).unwrap_or_default()
}

struct ComparedRecord<'a> {
    index: &'a IndexRest,
    files: &'a BlockFiles,
    findings: &'a Findings,
    /// The last file whose record a node reads; see [`reach`].
    reach: u32,
    /// The last file with blocks.
    used: u32,
}

impl ComparedRecord<'_> {
    fn add(&self, number: u32, what: String) {
        self.findings
            .add(FindingKind::FileRecord, FoundFault::new(what).of(&self.files.path(number)));
    }

    /// Returns the record of a file, if a node reads it.
    fn record(&self, number: u32) -> Option<&FileInfo> {
        self.index.files.get(&number)?.as_ref().filter(|_| number <= self.reach)
    }

    /// Compares the number of the last file with the records of all files.
    fn last_file(&self) {
        let (last, reach) = (last_file(self.index), self.reach);
        let what = match self.index.files.keys().next_back() {
            _ if self.index.last_file.is_some_and(i32::is_negative) => {
                "the index has a negative number for the last block file: the node does not start"
                    .to_owned()
            }
            _ if last > self.used.saturating_add(UNUSED_MAX) => format!(
                "the index names block file {last} as the last, but the last with blocks is file {}: the node needs \
                 memory for every file between them, and may not start",
                self.used
            ),
            Some(highest) if reach < *highest => format!(
                "a node reads the records of block files only up to number {reach}, but the index has one of \
                 file {highest}"
            ),
            highest if highest < Some(&last) => {
                format!("the index names block file {last} as the last, but has no record of it")
            }
            _ => return,
        };
        let index = self.files.home().join("index");
        self.findings.add(FindingKind::FileRecord, FoundFault::new(what).of(&index));
    }

    /// Compares a record with the blocks in the file.
    fn file(&self, number: u32, entries: &InFile, record: &FileInfo, undo: Option<&UndoFiles>) {
        let InFile { info, last_block, last_undo } = entries;
        if let Some(offset) = *last_block {
            let place = self.files.locate(number, offset).ok().flatten();
            let end = place.map_or(offset, |place| place.end());
            if record.size < end {
                let size = record.size;
                self.add(number, format!(
                    "the index says that {size} bytes of this file are in use, but its blocks end at byte {end}: \
                     the node would overwrite them"
                ));
            }
        }
        if let Some(offset) = *last_undo {
            let end = undo.and_then(|undo| undo.end(number, offset)).unwrap_or(offset);
            if record.undo_size < end {
                let size = record.undo_size;
                self.add(number, format!(
                    "the index says that {size} bytes of rev{number:05}.dat are in use, but its undo data ends at \
                     byte {end}: the node would overwrite it"
                ));
            }
        }
        if info.blocks == 0 {
            return;
        }
        if record.blocks < info.blocks {
            let (listed, found) = (record.blocks, info.blocks);
            self.add(
                number,
                format!(
                    "the file's record lists {listed} blocks, but the index has entries for {found}"
                ),
            );
        }
        if record.height_first > info.height_first || record.height_last < info.height_last {
            self.add(number, format!(
                "the file's record lists blocks {} to {}, but the index has entries for blocks {} to {}: a node \
                 that prunes would delete blocks that it needs",
                record.height_first, record.height_last, info.height_first, info.height_last
            ));
        }
        if record.time_first > info.time_first || record.time_last < info.time_last {
            self.add(number, format!(
                "the file's record lists block times {} to {}, but the index entries have times {} to {}",
                record.time_first, record.time_last, info.time_first, info.time_last
            ));
        }
    }

    /// Compares a record with the lengths of both files. Other checks report a missing file, if it is needed.
    fn lengths(&self, number: u32, record: &FileInfo, undo: Option<&UndoFiles>) {
        let blocks = self.files.get(number).map(|file| file.length);
        let undo = undo.and_then(|undo| undo.length(number));
        for (name, used, length) in [("blk", record.size, blocks), ("rev", record.undo_size, undo)]
        {
            if let Some(length) = length
                && used > length.saturating_add(SLACK)
            {
                self.add(number, format!(
                    "the index says that {used} bytes of {name}{number:05}.dat are in use, but the file has \
                     {length}"
                ));
            }
        }
    }
}
