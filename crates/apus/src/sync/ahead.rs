//! What is known of a run before it begins, for those that watch it.

use super::{Job, JobSource};
use crate::args::{AssumeValidArg, SinkArg, Validation};
use crate::course::{Expected, Way, expected};
use crate::machine::threads;
use crate::watched::About;
use apus_sync::{Stop, UseIndex};

impl Job<'_> {
    /// What those that watch it are told at once.
    pub(super) fn about(&self) -> About {
        let by_index =
            matches!(self.source, JobSource::Files { use_index: UseIndex::Connected { .. }, .. });
        let command = match (self.bridge, self.connect) {
            (Some(_), _) => "utreexo prove",
            (None, None) => "check",
            (None, Some(_)) if by_index => "reindex",
            (None, Some(_)) => "sync",
        };
        About { command, chain: self.chain.name(), threads: threads(self.run.par) }
    }

    /// The phases that it is going to have, as far as that is known.
    pub(super) fn expected(&self) -> Vec<Expected> {
        let kept = self.keeps_blocks();
        let files = matches!(self.source, JobSource::Files { .. });
        let way = match (self.hints, self.engine) {
            (Some(_), _) => {
                Way::Hints { connects: self.connect.is_some() && self.stop != Stop::AtHints }
            }
            (None, Some(apus_sync::Engine::Utxo)) => Way::Order,
            (None, Some(apus_sync::Engine::Utreexo)) => Way::Proofs,
            (None, Some(apus_sync::Engine::MergeSync)) => Way::Join,
            (None, None) if files || kept => Way::Join,
            (None, None) => Way::Order,
        };
        let scripts = self.connect.is_some_and(|args| {
            args.validation == Validation::Full
                || matches!(args.assumevalid, Some(AssumeValidArg(None)))
        });
        let folder = |sink: &SinkArg| matches!(sink, SinkArg::Chainstate(_) | SinkArg::Datadir(_));
        expected(way, scripts, way != Way::Proofs, self.outputs.iter().any(folder))
    }
}
