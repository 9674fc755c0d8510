//! A quick check of the index's block positions: magic, header and number of transactions at each. It takes
//! minutes where reading the blocks takes hours, so it soon finds a folder that obviously does not match its
//! index.

use super::Verify;
use super::finding::{FindingKind, Findings, FoundFault};
use super::index::StoredEntry;
use crate::error::SyncError;
use crate::progress::{Event, Phase, Progress, stop_if_interrupted};
use apus_chain::{BlockHash, HEADER_SIZE, Height, Params, Reader};
use apus_datadir::{BlockFiles, BlockLocation, BlockReader};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Bytes of magic, size, header and the longest compact size.
const HEAD_BYTES: u32 = RECORD_HEAD + HEADER_SIZE as u32 + 9;
const RECORD_HEAD: u32 = 8;

/// Blocks between two checks for an interrupt.
const AT_ONCE: usize = 1 << 14;

/// The result of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heads {
    /// Every block is at its position, and its number of transactions matches.
    Right,
    /// Some position has other data.
    Wrong,
    /// Some positions could not be read: the result is unknown.
    Unread,
}

/// Checks the heads of blocks, and sorts the blocks by position.
pub(super) fn look_at_heads(
    request: &Verify<'_>,
    files: &BlockFiles,
    findings: &Findings,
    blocks: &mut [StoredEntry],
) -> Result<Heads, SyncError> {
    request.env.observer.event(Event::Started(Phase::Headers));
    blocks.sort_unstable_by_key(|stored| stored.data);
    let reader = BlockReader::new(files, 1 << 20);
    let index = files.home().join("index");
    let mut look = Look { files, findings, index, reader, heads: Heads::Right, before: None };
    let blocks_total = blocks.len() as u64;
    for (turn, some) in (0u64..).zip(blocks.chunks(AT_ONCE)) {
        stop_if_interrupted(request.env.interrupt)?;
        look.at(some);
        if look.heads != Heads::Right {
            break;
        }
        let blocks = turn * AT_ONCE as u64 + some.len() as u64;
        let progress = Progress { blocks, blocks_total, ..Progress::default() };
        request.env.observer.event(Event::Progress(Phase::Headers, progress));
    }
    request.env.observer.event(Event::Ended { phase: Phase::Headers, bytes: 0 });
    Ok(look.heads)
}

struct Look<'a> {
    files: &'a BlockFiles,
    findings: &'a Findings,
    index: PathBuf,
    reader: BlockReader<'a>,
    heads: Heads,
    /// File, end offset and height of the previous block.
    before: Option<(u32, u64, Height)>,
}

impl Look<'_> {
    fn at(&mut self, blocks: &[StoredEntry]) {
        let Self { files, findings, index, reader, heads, before } = self;
        let mut wanted = Vec::with_capacity(blocks.len());
        for (key, stored) in (0..).zip(blocks) {
            let (file, offset) = stored.data;
            let Some(offset) = offset.checked_sub(u64::from(RECORD_HEAD)) else {
                *heads = Heads::Wrong;
                return;
            };
            wanted.push((key, BlockLocation { file, offset, size: HEAD_BYTES }));
        }
        let read = reader.read(&mut wanted, &mut |key, place, bytes| {
            let stored = &blocks[key as usize];
            let Some((size, tx_count)) = read_head(bytes, files.magic(), &stored.block.hash) else {
                *heads = Heads::Wrong;
                return ControlFlow::Break(());
            };
            let found = |what: String| FoundFault::new(what).block(stored.block).of(index);
            let listed = stored.tx_count;
            if tx_count != u64::from(listed) {
                let what =
                    format!("the index lists {listed} transactions, but the block has {tx_count}");
                findings.add(FindingKind::IndexEntry, found(what));
            }
            if let Some((file, end, height)) = *before
                && file == place.file
                && place.offset < end
            {
                let what = format!("its position overlaps block {height}");
                findings.add(FindingKind::IndexEntry, found(what));
            }
            let end = place.offset + u64::from(RECORD_HEAD) + u64::from(size);
            *before = Some((place.file, end, stored.block.height));
            ControlFlow::Continue(())
        });
        if read.is_err() {
            *heads = Heads::Unread;
        }
    }
}

/// Reads the size of a record and the number of transactions of its block, if it is the requested block.
fn read_head(bytes: &[u8], magic: [u8; 4], hash: &BlockHash) -> Option<(u32, u64)> {
    let mut reader = Reader::new(bytes);
    let (found, size) = (*reader.array::<4>().ok()?, *reader.array::<4>().ok()?);
    let header = reader.array::<HEADER_SIZE>().ok()?;
    let is_it = found == magic && apus_hash::sha256d(header) == hash.0;
    let tx_count = reader.compact_size().ok()?;
    is_it.then_some((u32::from_le_bytes(size), tx_count as u64))
}

/// Returns whether the genesis block is at a position.
pub(super) fn is_genesis(files: &BlockFiles, params: &Params, (file, offset): (u32, u64)) -> bool {
    let (genesis, mut is_it) = (params.genesis_block(), false);
    let Ok(Some(place)) = files.locate(file, offset) else { return false };
    let _ = BlockReader::new(files, 1 << 12).read(&mut [(0, place)], &mut |_, _, bytes| {
        is_it = bytes == genesis;
        ControlFlow::Break(())
    });
    is_it
}
