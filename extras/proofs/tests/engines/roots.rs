//! Jobs that write the roots of the forest, which equal those of a library that adds and deletes.

use crate::harness::{Job, World};
use crate::world::Truth;
use apus_proofs::roots::{RootsFile, RootsOutput};
use apus_storage::Storage;
use apus_sync::commitment::SetCommitment;
use apus_testkit::oracle::forest;
use bitcoin::Block;
use std::sync::Arc;

pub(crate) const ROOTS: &str = "set.utreexo";

/// The roots of the forest after a chain, in the format of a roots file.
pub(crate) fn roots(chain: &[Block]) -> Vec<u8> {
    let (leaves, roots) = forest(chain);
    let count = roots.len() as u64;
    [&leaves.to_le_bytes()[..], &count.to_le_bytes(), &roots.concat()].concat()
}

/// The job with roots in place of another commitment.
pub(crate) fn with_roots(job: Job) -> Job {
    let new = |storage: &Arc<dyn Storage>| {
        let file = RootsFile { storage: Arc::clone(storage), name: ROOTS.to_owned() };
        Box::new(RootsOutput::new(Box::leak(Box::new([file])))) as Box<dyn SetCommitment>
    };
    Job { commitment: Some(Arc::new(new)), ..job }
}

/// The expected results of a world if roots are requested.
pub(crate) fn truth(world: &World) -> Truth {
    Truth { commitment: (ROOTS, roots(&world.chain)), ..world.truth.clone() }
}
