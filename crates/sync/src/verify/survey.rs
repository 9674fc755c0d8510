//! Checks of single blocks at the positions in the index: their bytes, their undo data, and, if the undo data
//! is right, every rule. This proves nothing about coins.

use super::Verify;
use super::finding::{FindingKind, Findings, FoundFault};
use super::index::StoredEntry;
use crate::engines::swiftsync::{ConnectByUndo, UndoPassError};
use crate::error::SyncError;
use crate::progress::{Event, Phase, Progress, stop_if_interrupted};
use crate::supply::expect_no_more;
use apus_chain::{BlockBytes, BlockChecker, BlockContext, BlockHash, BlockUndo, Header, UndoError};
use apus_chain::{HeaderChain, Height, KnownBlock, ScriptChecks};
use apus_datadir::{BlockFiles, BlockLocation, BlockReader, RevError, UndoFiles};
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Blocks that a thread takes at once.
const AT_ONCE: usize = 16;

/// Checks blocks of one chain.
pub(super) struct FolderSurvey<'a> {
    request: &'a Verify<'a>,
    files: &'a BlockFiles,
    findings: &'a Findings,
    chain: &'a HeaderChain,
    /// Validates blocks with the coins in their undo data.
    connector: Option<ConnectByUndo<'a>>,
    /// Blocks that the index marks as invalid and that do break a rule.
    confirmed_marks: Mutex<Vec<BlockHash>>,
}

impl<'a> FolderSurvey<'a> {
    /// Makes a survey. With `by_undo`, it also validates the blocks that the node connected.
    pub(super) fn new(
        request: &'a Verify<'a>,
        files: &'a BlockFiles,
        findings: &'a Findings,
        chain: &'a HeaderChain,
        by_undo: bool,
    ) -> Result<Self, SyncError> {
        let mut connector = None;
        if by_undo {
            let checks = ScriptChecks::new(request.env.params, chain, request.assume_valid);
            let assumed = checks.last_assumed().unwrap_or_default();
            let any = assumed < chain.tip_height();
            let scripts = any.then(|| request.env.signatures.pool(0)).transpose()?;
            let (params, sum_key) = (request.env.params, None);
            connector = Some(ConnectByUndo { params, chain, assumed, scripts, sum_key });
        }
        let confirmed_marks = Mutex::default();
        Ok(Self { request, files, findings, chain, connector, confirmed_marks })
    }

    /// Returns the connector that validates blocks, if the survey has one.
    pub(super) fn connector(&self) -> Option<&ConnectByUndo<'a>> {
        self.connector.as_ref()
    }

    /// Returns the checked blocks that are marked as invalid and do break a rule.
    pub(super) fn into_confirmed_marks(self) -> Vec<BlockHash> {
        self.confirmed_marks.into_inner()
    }

    /// Passes a block to `each`, if it is present and obeys its own rules.
    pub(super) fn with_block(
        &self,
        stored: &StoredEntry,
        each: &mut dyn FnMut(&BlockBytes<'_>) -> Result<(), SyncError>,
    ) -> Result<(), SyncError> {
        let (file, offset) = stored.data;
        let Ok(Some(place)) = self.files.locate(file, offset) else { return Ok(()) };
        let (mut checker, mut taken) = (BlockChecker::new(), Ok(()));
        let read = BlockReader::new(self.files, 1).read(&mut [(0, place)], &mut |_, _, raw| {
            if let Ok(block) = checker.check(raw, &self.context(stored)) {
                taken = each(&block);
            }
            ControlFlow::Break(())
        });
        // Unreadable blocks were reported before.
        read.map_or(Ok(()), |()| taken)
    }

    fn context(&self, stored: &StoredEntry) -> BlockContext<'_> {
        let KnownBlock { height, hash } = stored.block;
        BlockContext {
            params: self.request.env.params,
            height,
            hash,
            median_time_past: self.chain.median_time_past(height - 1).unwrap_or_default(),
            verifier: self.request.env.verifier,
        }
    }

    /// Checks `blocks`, which are on this survey's chain, on all threads.
    pub(super) fn look_at(&self, blocks: &mut [StoredEntry]) -> Result<(), SyncError> {
        if blocks.is_empty() {
            return Ok(());
        }
        self.request.env.observer.event(Event::Started(Phase::Survey));
        blocks.sort_unstable_by_key(|stored| stored.data);
        let (blocks, next) = (&*blocks, AtomicUsize::new(0));
        let (bytes, failed) = (AtomicU64::new(0), Mutex::new(None));
        std::thread::scope(|scope| {
            for _ in 0..self.request.env.threads {
                scope.spawn(|| {
                    let mut thread = Thread::new(self);
                    loop {
                        let start = next.fetch_add(AT_ONCE, Ordering::Relaxed).min(blocks.len());
                        let some = &blocks[start..blocks.len().min(start + AT_ONCE)];
                        if some.is_empty() {
                            break;
                        }
                        if let Err(error) = thread.look_at(some, &bytes) {
                            next.store(blocks.len(), Ordering::Relaxed);
                            failed.lock().replace(error);
                            break;
                        }
                        let progress = Progress {
                            blocks: start as u64,
                            blocks_total: blocks.len() as u64,
                            bytes: bytes.load(Ordering::Relaxed),
                            ..Progress::default()
                        };
                        self.request.env.observer.event(Event::Progress(Phase::Survey, progress));
                    }
                });
            }
        });
        let bytes = bytes.into_inner();
        self.request.env.observer.event(Event::Ended { phase: Phase::Survey, bytes });
        failed.into_inner().map_or(Ok(()), Err)
    }

    fn add(&self, kind: FindingKind, stored: &StoredEntry, found: FoundFault) {
        self.findings.add(kind, found.block(stored.block));
    }

    /// Adds a finding about the bytes of a block.
    fn about_block(&self, kind: FindingKind, stored: &StoredEntry, what: impl ToString) {
        let (file, offset) = stored.data;
        self.add(kind, stored, FoundFault::new(what).at(&self.files.path(file), offset));
    }

    /// Finds a block's position and size. If the block is not there, returns `None` and adds a finding.
    fn locate(&self, stored: &StoredEntry) -> Option<BlockLocation> {
        let (file, offset) = stored.data;
        match self.files.locate(file, offset) {
            Ok(Some(place)) => return Some(place),
            Ok(None) => {
                let what = "this is not the start of a block";
                self.about_block(FindingKind::BlockDamaged, stored, what);
            }
            Err(error) => self.about_block(FindingKind::BlockMissing, stored, error),
        }
        None
    }
}

/// The buffers of one thread.
struct Thread<'s, 'a> {
    survey: &'s FolderSurvey<'a>,
    reader: BlockReader<'a>,
    checker: BlockChecker,
    undo: Option<UndoFiles>,
}

impl<'s, 'a> Thread<'s, 'a> {
    fn new(survey: &'s FolderSurvey<'a>) -> Self {
        // Blocks are read one by one, so the block's size, not this limit, determines the length of a read.
        let reader = BlockReader::new(survey.files, 1 << 20);
        Self { survey, reader, checker: BlockChecker::new(), undo: None }
    }

    fn look_at(&mut self, blocks: &[StoredEntry], bytes: &AtomicU64) -> Result<(), SyncError> {
        let Self { survey, reader, checker, undo } = self;
        for stored in blocks {
            stop_if_interrupted(survey.request.env.interrupt)?;
            let Some(place) = survey.locate(stored) else { continue };
            bytes.fetch_add(u64::from(place.size), Ordering::Relaxed);
            let mut looked = Ok(());
            let read = reader.read(&mut [(0, place)], &mut |_, _, raw| {
                looked = survey.look_at_one(stored, raw, checker, undo);
                ControlFlow::Continue(())
            });
            if let Err(error) = read {
                survey.about_block(FindingKind::BlockDamaged, stored, error);
            }
            looked?;
        }
        Ok(())
    }
}

impl FolderSurvey<'_> {
    fn look_at_one(
        &self,
        stored: &StoredEntry,
        raw: &[u8],
        checker: &mut BlockChecker,
        files: &mut Option<UndoFiles>,
    ) -> Result<(), SyncError> {
        let StoredEntry { tx_count, undo, connected, failed, .. } = *stored;
        let checked = checker.check(raw, &self.context(stored));
        let checked = checked.and_then(|block| expect_no_more(&block, raw).map(|()| block));
        let block = match checked {
            Ok(block) => block,
            Err(error) => {
                if error.is_damage() {
                    self.about_block(FindingKind::BlockDamaged, stored, error);
                } else if failed {
                    self.confirm_mark(stored);
                } else {
                    self.about_block(FindingKind::BlockInvalid, stored, error);
                }
                return Ok(());
            }
        };
        let found = block.view().tx_count();
        if found as u64 != u64::from(tx_count) {
            let what =
                format!("the index lists {tx_count} transactions, but the block has {found}");
            self.add(FindingKind::IndexEntry, stored, FoundFault::new(what));
        }
        let Some(undo) = undo else { return Ok(()) };
        let Some(undo) = self.read_undo(stored, &block, undo, files) else { return Ok(()) };
        match &self.connector {
            Some(connector) if connected || failed => {
                self.check_by_undo(connector, stored, &block, &undo)
            }
            _ => Ok(()),
        }
    }

    fn confirm_mark(&self, stored: &StoredEntry) {
        self.confirmed_marks.lock().push(stored.block.hash);
    }

    /// Reads the undo data of a block. If it is unusable, returns `None` and adds a finding.
    fn read_undo(
        &self,
        stored: &StoredEntry,
        block: &BlockBytes<'_>,
        (number, offset): (u32, u64),
        files: &mut Option<UndoFiles>,
    ) -> Option<Vec<u8>> {
        let prev = Header::parse(block.view().header()).prev;
        let dir = self.files.dir();
        let path = dir.join(format!("rev{number:05}.dat"));
        let read = match files {
            Some(files) => files.read(number, offset, &prev),
            none => UndoFiles::open(dir, self.files.magic())
                .and_then(|files| none.insert(files).read(number, offset, &prev)),
        };
        let what = match read {
            Ok(undo) => match BlockUndo::read(&undo) {
                Ok(_) => return Some(undo),
                Err(UndoError::Old { .. }) => {
                    self.findings.old_undo.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
                Err(error) => error.to_string(),
            },
            Err(RevError::Damaged { what, .. }) => what,
            Err(error) => error.to_string(),
        };
        self.add(FindingKind::UndoDamaged, stored, FoundFault::new(what).at(&path, offset));
        None
    }

    fn check_by_undo(
        &self,
        connector: &ConnectByUndo<'_>,
        stored: &StoredEntry,
        block: &BlockBytes<'_>,
        undo: &[u8],
    ) -> Result<(), SyncError> {
        match connector.connect(block, undo) {
            Ok(()) if stored.failed => {
                let what = "the index marks the block as invalid, but the block obeys every rule, if its undo data \
                    is right";
                self.add(FindingKind::MarkedInvalid, stored, FoundFault::new(what));
            }
            Ok(()) => {}
            Err(UndoPassError::Refused { .. }) if stored.failed => self.confirm_mark(stored),
            Err(UndoPassError::Undo { what, .. }) => {
                self.add(FindingKind::UndoWrong, stored, FoundFault::new(what));
            }
            Err(UndoPassError::Refused { error, .. }) => {
                let what = format!("{error}, if its undo data is right");
                self.about_block(FindingKind::BlockInvalid, stored, what);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// Divides stored blocks off a chain among the chains that lead to them: each chain comes with its blocks that
/// are on no earlier one.
pub(super) fn by_chain(
    mut blocks: Vec<StoredEntry>,
    chain_to: &dyn Fn(&StoredEntry) -> Option<HeaderChain>,
) -> Vec<(HeaderChain, Vec<StoredEntry>)> {
    let mut chains = Vec::new();
    blocks.sort_unstable_by_key(|stored| stored.block.height);
    while let Some(highest) = blocks.last().copied() {
        let Some(chain) = chain_to(&highest) else {
            blocks.pop();
            continue;
        };
        let is_on = |stored: &StoredEntry| {
            let height: Height = stored.block.height;
            chain.hash(height) == Some(&stored.block.hash)
        };
        let (on, rest): (Vec<StoredEntry>, Vec<StoredEntry>) = blocks.into_iter().partition(is_on);
        blocks = rest;
        chains.push((chain, on));
    }
    chains
}
