//! Whether a node that starts on these blocks could go back from the chain's tip.

use super::BlocksDir;
use crate::error::SourceError;
use apus_chain::{BlockHash, BlockUndo, Height};
use apus_datadir::{IndexEntry, UndoFiles, read_index};
use std::ops::ControlFlow;

impl BlocksDir {
    /// Reads the undo data of the last `count` blocks, by the node's own index. What is wrong with
    /// the first that is of no use, for people; nothing where all are sound.
    pub(super) fn look_at_undo(&self, count: u32) -> Result<Option<String>, SourceError> {
        let tip = self.chain.tip_height();
        let lowest = (tip + 1).saturating_sub(count).max(1);
        let mut entries: Vec<IndexEntry> = Vec::new();
        read_index(self.files.dir(), &mut |entry| {
            let known = self.chain.hash(entry.height) == Some(&entry.hash);
            if entry.height >= lowest && known {
                entries.push(entry);
            }
            ControlFlow::Continue(())
        })?;
        entries.sort_unstable_by_key(|entry| entry.height);
        let mut files = match UndoFiles::open(self.files.dir(), self.files.magic()) {
            Ok(files) => files,
            Err(error) => return Ok(Some(error.to_string())),
        };
        Ok(entries.iter().rev().find_map(|entry| self.undo_error(&mut files, entry)))
    }

    fn undo_error(&self, files: &mut UndoFiles, entry: &IndexEntry) -> Option<String> {
        let (file, offset) = entry.undo?;
        let height: Height = entry.height;
        let prev: &BlockHash = self.chain.hash(height - 1)?;
        let wrong = match files.read(file, offset, prev) {
            Err(error) => error.to_string(),
            Ok(undo) => BlockUndo::read(&undo).err()?.to_string(),
        };
        Some(format!("the undo data of block {height} is of no use: {wrong}"))
    }
}
