//! Syncs by Apus, from files or peers, by hints. The program's own tests have the other engines.

use crate::Chain;
use apus_chain::{BlockHash, Network, Params};
use apus_engine::script::Signatures;
use apus_storage::DirStorage;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::engines::swiftsync::hints::HintsOptions;
use apus_sync::{
    HintedTask, HintedValidity, HintsInput, Outcome, Request, RunEnv, SilentObserver, Source, Stop,
    Task, UseIndex,
};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub(crate) fn display(hash: &[u8; 32]) -> String {
    hash.iter().rev().map(|byte| format!("{byte:02x}")).collect()
}

impl Chain {
    pub(crate) fn files(&self) -> Source<'static> {
        Source::Files {
            blocksdir: self.path().join("blocks").into(),
            use_index: UseIndex::IfPresent,
        }
    }

    /// The result of SwiftSync for all its block files.
    pub(crate) fn synced(&self) -> Outcome {
        self.synced_from(self.files(), None, tempfile::tempdir().unwrap().path())
    }

    /// The result of SwiftSync for its blocks, without the witnesses up to a block.
    pub(crate) fn synced_from(
        &self,
        source: Source<'_>,
        leave_witnesses: Option<BlockHash>,
        work: &Path,
    ) -> Outcome {
        let task = Task::Hinted(HintedTask {
            hints: HintsInput::File(self.path().join("chain.hints"), HintsOptions::default()),
            aggregate: AggregateKind::Sha256,
            validity: HintedValidity::Assumed,
            spent: None,
            connect: None,
        });
        run(source, task, leave_witnesses, self.manifest.height, work)
    }
}

fn run(
    source: Source<'_>,
    task: Task<'_>,
    leave_witnesses: Option<BlockHash>,
    height: u32,
    work: &Path,
) -> Outcome {
    apus_sync::run(&Request {
        source,
        task,
        leave_witnesses,
        stop: Stop::At(height),
        follow: false,
        commitment: None,
        outputs: &[],
        folders: &[],
        sets: &[],
        muhash: true,
        env: RunEnv {
            params: Params::of(Network::Regtest),
            threads: 2,
            memory_bytes: 64 << 20,
            segment_bytes: None,
            scratch: None,
            checkpoint_interval: Duration::ZERO,
            now: 4_000_000_000,
            signatures: Signatures::libsecp256k1(),
            verifier: None,
            workdir: &DirStorage::new(work),
            is_shared: false,
            given: None,
            observer: &SilentObserver,
            interrupt: &AtomicBool::new(false),
        },
    })
    .unwrap()
}
