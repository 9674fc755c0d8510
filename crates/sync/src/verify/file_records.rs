//! [`Stored`]: what lies in each block file by the entries of blocks, held against the index's records of files.
//!
//! A node appends blocks and undo data where these records end, whatever lies there, and removes a file of which
//! they say that it has no block it needs (Core `node/blockstorage.cpp`, `FindNextBlockPos`, `FindFilesToPrune`,
//! `ScanAndUnlinkAlreadyPrunedFiles`). So a record may say more than there is, which old nodes and crashes leave,
//! and never less.

use super::finding::{FindingKind, Findings, FoundFault};
use apus_chain::Header;
use apus_datadir::{BlockFiles, FileInfo, IndexEntry, IndexRest, UndoFiles};
use core::ops::Bound;
use std::collections::BTreeMap;

/// Old nodes that made their index anew counted the eight bytes before a block twice.
const SLACK: u64 = 8;

/// What entries say of files, by number.
#[derive(Debug, Default)]
pub(super) struct Stored(BTreeMap<u32, InFile>);

#[derive(Debug, Default)]
struct InFile {
    /// Blocks, heights and times.
    info: FileInfo,
    /// Where the last block and the last undo data begin.
    last_block: Option<u64>,
    last_undo: Option<u64>,
}

impl Stored {
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

    /// Compares with what the index says of files. The lengths of files are those of now.
    pub(super) fn compare(&self, index: &IndexRest, files: &BlockFiles, findings: &Findings) {
        let compared = ComparedRecord { index, files, findings, reach: reach(index) };
        compared.last_file();
        let undo = UndoFiles::open(files.dir(), files.magic()).ok();
        for (number, there) in &self.0 {
            match compared.record(*number) {
                Some(info) => compared.file(*number, there, info, undo.as_ref()),
                None => compared.add(*number, no_record(there)),
            }
        }
        for (number, info) in &index.files {
            if let Some(info) = info {
                compared.lengths(*number, info, undo.as_ref());
            }
        }
    }
}

fn no_record(there: &InFile) -> String {
    let blocks = there.info.blocks;
    format!(
        "the index has no record of this file that a node reads, and {blocks} blocks in it: the node would write \
         over them, and remove the file if it prunes"
    )
}

/// The last file that a node reads a record of: it goes on past the one that the index calls the last until a record is
/// missing, so that a number that is too low, as old versions left it, does no harm (`LoadBlockIndexDB` in Core's
/// `node/blockstorage.cpp`).
fn reach(index: &IndexRest) -> u32 {
    let mut reach = index.last_file.unwrap_or_default();
    for (number, info) in index.files.range((Bound::Excluded(reach), Bound::Unbounded)) {
        if *number != reach + 1 || info.is_none() {
            break;
        }
        reach = *number;
    }
    reach
}

struct ComparedRecord<'a> {
    index: &'a IndexRest,
    files: &'a BlockFiles,
    findings: &'a Findings,
    /// See [`reach`].
    reach: u32,
}

impl ComparedRecord<'_> {
    fn add(&self, number: u32, what: String) {
        self.findings
            .add(FindingKind::FileRecord, FoundFault::new(what).of(&self.files.path(number)));
    }

    /// A record, if a node reads it.
    fn record(&self, number: u32) -> Option<&FileInfo> {
        self.index.files.get(&number)?.as_ref().filter(|_| number <= self.reach)
    }

    /// Compares the record of the last file with those of all files.
    fn last_file(&self) {
        let (last, reach) = (self.index.last_file.unwrap_or_default(), self.reach);
        let what = match self.index.files.keys().next_back() {
            Some(highest) if reach < *highest => format!(
                "a node reads the records of block files up to number {reach}, and the index has one of file {highest}"
            ),
            highest if highest < Some(&last) => {
                format!(
                    "the index says that block file {last} is the last, and has no record of it"
                )
            }
            _ => return,
        };
        let index = self.files.home().join("index");
        self.findings.add(FindingKind::FileRecord, FoundFault::new(what).of(&index));
    }

    /// Compares a record with the blocks that lie in the file.
    fn file(&self, number: u32, there: &InFile, said: &FileInfo, undo: Option<&UndoFiles>) {
        let InFile { info, last_block, last_undo } = there;
        if let Some(offset) = *last_block {
            let place = self.files.locate(number, offset).ok().flatten();
            let end = place.map_or(offset, |place| place.end());
            if said.size < end {
                let size = said.size;
                self.add(number, format!(
                    "the index says that {size} bytes of it are in use, and blocks lie in it up to byte {end}: the \
                     node would write over them"
                ));
            }
        }
        if let Some(offset) = *last_undo {
            let end = undo.and_then(|undo| undo.end(number, offset)).unwrap_or(offset);
            if said.undo_size < end {
                let size = said.undo_size;
                self.add(number, format!(
                    "the index says that {size} bytes of rev{number:05}.dat are in use, and undo data lie in it up \
                     to byte {end}: the node would write over them"
                ));
            }
        }
        if info.blocks == 0 {
            return;
        }
        if said.blocks < info.blocks {
            let (told, found) = (said.blocks, info.blocks);
            self.add(
                number,
                format!("the index says that {told} blocks lie in it, and has {found} there"),
            );
        }
        if said.height_first > info.height_first || said.height_last < info.height_last {
            self.add(number, format!(
                "the index says that blocks {} to {} lie in it, and has blocks {} to {} there: a node that prunes \
                 would remove blocks that it needs",
                said.height_first, said.height_last, info.height_first, info.height_last
            ));
        }
        if said.time_first > info.time_first || said.time_last < info.time_last {
            self.add(number, format!(
                "the index says that its blocks have times {} to {}, and has blocks of times {} to {} there",
                said.time_first, said.time_last, info.time_first, info.time_last
            ));
        }
    }

    /// Compares a record with the lengths of both files. One that is not there is told elsewhere, if it is needed.
    fn lengths(&self, number: u32, said: &FileInfo, undo: Option<&UndoFiles>) {
        let blocks = self.files.get(number).map(|file| file.length);
        let undo = undo.and_then(|undo| undo.length(number));
        for (name, used, length) in [("blk", said.size, blocks), ("rev", said.undo_size, undo)] {
            if let Some(length) = length
                && used > length.saturating_add(SLACK)
            {
                self.add(number, format!(
                    "the index says that {used} bytes of {name}{number:05}.dat are in use, and it has {length}"
                ));
            }
        }
    }
}
