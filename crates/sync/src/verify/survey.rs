//! A look at blocks one by one, where the index says that they lie: their bytes, their undo data, and the
//! rules, if the undo data are right. It proves nothing about coins.

use super::Verify;
use super::finding::{FindingKind, Findings, FoundFault};
use super::index::Stored;
use crate::engines::swiftsync::{FullyError, JudgeByUndo};
use crate::error::SyncError;
use crate::progress::{Event, Phase, Progress, stop_if_interrupted};
use crate::supply::expect_no_more;
use apus_chain::{BlockBytes, BlockChecker, BlockContext, BlockHash, BlockUndo, Header};
use apus_chain::{HeaderChain, Height, KnownBlock, ScriptChecks};
use apus_datadir::{BlockFiles, BlockLocation, BlockReader, RevError, UndoFiles};
use apus_engine::script::ScriptPool;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Blocks that a thread takes at a time.
const AT_ONCE: usize = 16;

/// Looks at blocks of one chain.
pub(super) struct FolderSurvey<'a> {
    request: &'a Verify<'a>,
    files: &'a BlockFiles,
    findings: &'a Findings,
    chain: &'a HeaderChain,
    /// By the coins that undo data name.
    judge: Option<JudgeByUndo<'a>>,
    /// Blocks that the index marks as invalid, and that break a rule.
    marked_rightly: Mutex<Vec<BlockHash>>,
}

impl<'a> FolderSurvey<'a> {
    /// Whether blocks that the node connected are judged `by_undo` as well.
    pub(super) fn new(
        request: &'a Verify<'a>,
        files: &'a BlockFiles,
        findings: &'a Findings,
        chain: &'a HeaderChain,
        by_undo: bool,
    ) -> Result<Self, SyncError> {
        let mut judge = None;
        if by_undo {
            let checks = ScriptChecks::new(request.params, chain, request.assume_valid);
            let assumed = checks.last_assumed().unwrap_or_default();
            let any = assumed < chain.tip_height();
            let scripts = any.then(|| ScriptPool::new(0)).transpose()?;
            judge = Some(JudgeByUndo { params: request.params, chain, assumed, scripts });
        }
        let marked_rightly = Mutex::default();
        Ok(Self { request, files, findings, chain, judge, marked_rightly })
    }

    /// What judges blocks by coins.
    pub(super) fn judge(&self) -> Option<&JudgeByUndo<'a>> {
        self.judge.as_ref()
    }

    /// Blocks that were looked at, are marked as invalid, and break a rule.
    pub(super) fn into_marked_rightly(self) -> Vec<BlockHash> {
        self.marked_rightly.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a block to `each`, if it is there and obeys its own rules.
    pub(super) fn with_block(
        &self,
        stored: &Stored,
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
        // What cannot be read was found before.
        read.map_or(Ok(()), |()| taken)
    }

    fn context(&self, stored: &Stored) -> BlockContext<'_> {
        let KnownBlock { height, hash } = stored.block;
        BlockContext {
            params: self.request.params,
            height,
            hash,
            median_time_past: self.chain.median_time_past(height - 1).unwrap_or_default(),
            verifier: self.request.verifier,
        }
    }

    /// Looks at `blocks`, which are of its chain, on all threads.
    pub(super) fn look_at(&self, blocks: &mut [Stored]) -> Result<(), SyncError> {
        if blocks.is_empty() {
            return Ok(());
        }
        self.request.observer.event(Event::Started(Phase::Survey));
        blocks.sort_unstable_by_key(|stored| stored.data);
        let (blocks, next) = (&*blocks, AtomicUsize::new(0));
        let (bytes, failed) = (AtomicU64::new(0), Mutex::new(None));
        std::thread::scope(|scope| {
            for _ in 0..self.request.threads {
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
                            failed.lock().unwrap_or_else(PoisonError::into_inner).replace(error);
                            break;
                        }
                        let progress = Progress {
                            blocks: start as u64,
                            blocks_total: blocks.len() as u64,
                            bytes: bytes.load(Ordering::Relaxed),
                            ..Progress::default()
                        };
                        self.request.observer.event(Event::Progress(Phase::Survey, progress));
                    }
                });
            }
        });
        let bytes = bytes.into_inner();
        self.request.observer.event(Event::Ended { phase: Phase::Survey, bytes });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn add(&self, kind: FindingKind, stored: &Stored, found: FoundFault) {
        self.findings.add(kind, found.block(stored.block));
    }

    /// Something about the bytes of a block.
    fn about_block(&self, kind: FindingKind, stored: &Stored, what: impl ToString) {
        let (file, offset) = stored.data;
        self.add(kind, stored, FoundFault::new(what).at(&self.files.path(file), offset));
    }

    /// Where a block lies with its size; nothing, and a finding, where none does.
    fn locate(&self, stored: &Stored) -> Option<BlockLocation> {
        let (file, offset) = stored.data;
        match self.files.locate(file, offset) {
            Ok(Some(place)) => return Some(place),
            Ok(None) => {
                let what = "no record of a block lies there";
                self.about_block(FindingKind::BlockDamaged, stored, what);
            }
            Err(error) => self.about_block(FindingKind::BlockMissing, stored, error),
        }
        None
    }
}

/// What one thread looks with.
struct Thread<'s, 'a> {
    survey: &'s FolderSurvey<'a>,
    reader: BlockReader<'a>,
    checker: BlockChecker,
    undo: Option<UndoFiles>,
}

impl<'s, 'a> Thread<'s, 'a> {
    fn new(survey: &'s FolderSurvey<'a>) -> Self {
        // One block at a time is read, whose size decides.
        let reader = BlockReader::new(survey.files, 1 << 20);
        Self { survey, reader, checker: BlockChecker::new(), undo: None }
    }

    fn look_at(&mut self, blocks: &[Stored], bytes: &AtomicU64) -> Result<(), SyncError> {
        let Self { survey, reader, checker, undo } = self;
        for stored in blocks {
            stop_if_interrupted(survey.request.interrupt)?;
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
        stored: &Stored,
        raw: &[u8],
        checker: &mut BlockChecker,
        files: &mut Option<UndoFiles>,
    ) -> Result<(), SyncError> {
        let Stored { tx_count, undo, connected, failed, .. } = *stored;
        let checked = checker.check(raw, &self.context(stored));
        let checked = checked.and_then(|block| expect_no_more(&block, raw).map(|()| block));
        let block = match checked {
            Ok(block) => block,
            Err(error) => {
                if error.is_damage() {
                    self.about_block(FindingKind::BlockDamaged, stored, error);
                } else if failed {
                    self.mark_is_right(stored);
                } else {
                    self.about_block(FindingKind::BlockInvalid, stored, error);
                }
                return Ok(());
            }
        };
        let found = block.view().tx_count();
        if found as u64 != u64::from(tx_count) {
            let what = format!("it says {tx_count} transactions, and the block has {found}");
            self.add(FindingKind::IndexEntry, stored, FoundFault::new(what));
        }
        let Some(undo) = undo else { return Ok(()) };
        let Some(undo) = self.read_undo(stored, &block, undo, files) else { return Ok(()) };
        match &self.judge {
            Some(judge) if connected || failed => self.judge_by(judge, stored, &block, &undo),
            _ => Ok(()),
        }
    }

    fn mark_is_right(&self, stored: &Stored) {
        let mut all = self.marked_rightly.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(stored.block.hash);
    }

    /// Reads the undo data of a block; nothing, and a finding, where they are of no use.
    fn read_undo(
        &self,
        stored: &Stored,
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
                Err(error) => error.to_string(),
            },
            Err(RevError::Damaged { what, .. }) => what,
            Err(error) => error.to_string(),
        };
        self.add(FindingKind::UndoDamaged, stored, FoundFault::new(what).at(&path, offset));
        None
    }

    fn judge_by(
        &self,
        judge: &JudgeByUndo<'_>,
        stored: &Stored,
        block: &BlockBytes<'_>,
        undo: &[u8],
    ) -> Result<(), SyncError> {
        match judge.judge(block, undo) {
            Ok(()) if stored.failed => {
                let what = "the index marks it as invalid, and it obeys every rule, if its undo data are right";
                self.add(FindingKind::MarkedInvalid, stored, FoundFault::new(what));
            }
            Ok(()) => {}
            Err(FullyError::Refused { .. }) if stored.failed => self.mark_is_right(stored),
            Err(FullyError::Undo { what, .. }) => {
                self.add(FindingKind::UndoWrong, stored, FoundFault::new(what));
            }
            Err(FullyError::Refused { error, .. }) => {
                let what = format!("{error}, if its undo data are right");
                self.about_block(FindingKind::BlockInvalid, stored, what);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// Stored blocks that are beside a chain, divided by chains that lead to them: each with the blocks of it that
/// are on none before.
pub(super) fn by_chain(
    mut blocks: Vec<Stored>,
    chain_to: &dyn Fn(&Stored) -> Option<HeaderChain>,
) -> Vec<(HeaderChain, Vec<Stored>)> {
    let mut chains = Vec::new();
    blocks.sort_unstable_by_key(|stored| stored.block.height);
    while let Some(highest) = blocks.last().copied() {
        let Some(chain) = chain_to(&highest) else {
            blocks.pop();
            continue;
        };
        let is_on = |stored: &Stored| {
            let height: Height = stored.block.height;
            chain.hash(height) == Some(&stored.block.hash)
        };
        let (on, rest): (Vec<Stored>, Vec<Stored>) = blocks.into_iter().partition(is_on);
        blocks = rest;
        chains.push((chain, on));
    }
    chains
}
