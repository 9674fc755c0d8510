//! [`request`]: one that asks for nothing yet, for tests of what takes one.

use super::{Request, Source, Stop};
use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::progress::Silent;
use crate::source::blocksdir::UseIndex;
use apus_chain::{Network, Params};
use apus_storage::Storage;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Over no blocks, by one thread with the least memory.
pub fn request<'a>(workdir: &'a dyn Storage, interrupt: &'a AtomicBool) -> Request<'a> {
    Request {
        params: Params::of(Network::Regtest),
        source: Source::Files { blocksdir: PathBuf::new().into(), use_index: UseIndex::IfPresent },
        hints: None,
        proofs: None,
        engine: None,
        aggregate: AggregateKind::Sha256,
        hinted_validity: crate::HintedValidity::Anchored,
        leave_witnesses: None,
        connect: None,
        stop: Stop::AtTip,
        follow: false,
        threads: 1,
        memory_bytes: 4 << 20,
        segment_bytes: None,
        checkpoint_interval: Duration::ZERO,
        now: 0,
        verifier: None,
        workdir,
        outputs: &[],
        folders: &[],
        muhash: false,
        bridge: None,
        machines: None,
        observer: &Silent,
        interrupt,
    }
}
