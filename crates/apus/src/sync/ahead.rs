//! What is known of a run before it begins, for those that watch it.

use super::{Job, JobSource};
use crate::args::SinkArg;
use crate::course::{Expected, Way, Writes, expected};
use crate::machine::threads;
use crate::watched::About;
use apus_chain::Params;
use apus_sync::{DatadirBlocks, Stop, UseIndex};

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
        let (chain, on_servers) = (self.chain.name(), self.coins.is_some());
        About { command, chain, threads: threads(self.run.par), on_servers }
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
        // Without a block up to which they are taken for valid, as on regtest, all are run. Under hints that depends on
        // what is at hand.
        let scripts = self.connect.is_some_and(|args| {
            !args.assume.hinted() && args.assume.block(Params::of(self.chain)).is_none()
        });
        expected(way, scripts, way != Way::Proofs, self.writes(kept))
    }

    /// What it writes, where blocks of peers may be `kept` beside it.
    fn writes(&self, kept: bool) -> Writes {
        let has = |is: fn(&SinkArg) -> bool| self.outputs.iter().any(is);
        let datadir = has(|sink| matches!(sink, SinkArg::Datadir(_)));
        match (datadir, self.kept) {
            (true, DatadirBlocks::All) => Writes::AllBlocks,
            (true, DatadirBlocks::Last) => Writes::LastBlocks,
            _ if kept => Writes::CoinsBesideBlocks,
            _ if has(|sink| matches!(sink, SinkArg::Chainstate(_))) => Writes::Coins,
            _ => Writes::Files,
        }
    }
}
