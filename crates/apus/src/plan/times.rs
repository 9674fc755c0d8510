//! How long each way to a set takes, by how long this machine is at checking some of its blocks.

use super::Way;
use super::needs::Needs;
use super::sample::{Sample, Takes, Time};
use crate::args::SinkArg;
use crate::machine::threads;

/// What all work on a block takes, in times what its check takes: from runs without AVX-512, and from those of record with
/// it, less the MuHash that they computed; rounded up.
const WITH_HINTS: f64 = 1.7;
const WITHOUT_HINTS: f64 = 3.3;

/// The same of the engine `utxo` where coins are in memory, and the part of it that the thread does which connects.
const IN_ORDER: f64 = 8.0;
const IN_ORDER_ALONE: f64 = 5.0;

/// The same beside, where every coin is looked up in the store on disk; of all threads, and of the one that connects.
/// From runs with `--dbcache 16` on a fast and on a slow machine: in times what a check takes they agree within a fifth,
/// in seconds one took twice as long as the other. It holds where the system has the store's files in memory.
const FETCH: f64 = 27.0;
const FETCH_ALONE: f64 = 10.0;

/// The same of what is copied into a data directory, with undo data, and read back.
const DATADIR: f64 = 4.5;

/// What a coin takes of one core, in seconds, that is written into a chainstate and read back. In a snapshot it takes
/// so little that the times above have room for it.
const COIN_SECONDS: f64 = 0.75e-6;

/// What a coin takes of one core, in seconds, that goes into a MuHash.
const MUHASH_SECONDS: f64 = 1.0e-6;

/// What the scripts of an input take of one core, in seconds, where they run; nearly all of it is a
/// signature: 36 and 46 microseconds in the runs of record of the profiles `connect` and `undo-full`.
pub(super) const SCRIPTS_SECONDS: f64 = 40e-6;

/// Of each thread beside the first so much is gained: memory and disk are shared.
pub(super) const GAIN: f64 = 0.8;

/// How long a run takes that runs the `scripts` of its blocks or leaves them out, and that computes the set's `muhash`
/// whatever it writes; none where that cannot be foreseen.
pub(super) fn time(
    sample: &Sample,
    needs: &Needs<'_>,
    scripts: bool,
    muhash: bool,
) -> Option<Time> {
    let written = seconds_of_outputs(sample, needs, muhash);
    let in_any_order = |work, passes| Takes { work, alone: 0.0, scripts, passes, written };
    let takes = match needs.way {
        Way::Hints => in_any_order(WITH_HINTS, 1.0),
        Way::Joins => in_any_order(WITHOUT_HINTS, 2.0),
        Way::InOrder => {
            let looked_up = needs.share_looked_up();
            let alone = IN_ORDER_ALONE + looked_up * FETCH_ALONE;
            Takes { alone, ..in_any_order(IN_ORDER + looked_up * FETCH, 1.0) }
        }
        // The servers and the lines to them decide.
        Way::InOrderOnServers => return None,
    };
    Some(sample.time(needs.blocks.bytes, takes, needs.threads, threads(0)))
}

/// Processor time of the outputs and of the set's MuHash, in seconds of one core.
fn seconds_of_outputs(sample: &Sample, needs: &Needs<'_>, muhash: bool) -> f64 {
    let all = needs.set.coins as f64;
    let coins = all * COIN_SECONDS;
    let hashed = if muhash { all * MUHASH_SECONDS } else { 0.0 };
    let each = needs.outputs.iter().map(|sink| match sink {
        SinkArg::Chainstate(_) => coins,
        SinkArg::Datadir(_) if needs.prune => coins,
        SinkArg::Datadir(_) => coins + DATADIR * sample.check_seconds_of(needs.blocks.bytes),
        SinkArg::Snapshot(_) | SinkArg::Hints(_) | SinkArg::Utreexo(_) | SinkArg::Null => 0.0,
    });
    each.sum::<f64>() + hashed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Blocks, Set};
    use std::path::{Path, PathBuf};

    #[test]
    fn a_muhash_is_computed_where_it_is_asked_for() {
        let chainstate = || SinkArg::Chainstate(PathBuf::from("chainstate"));
        let snapshot = || SinkArg::Snapshot(PathBuf::from("utxo.dat"));
        let seconds = |outputs: &[SinkArg], muhash| {
            let needs = Needs {
                blocks: Blocks::default(),
                way: Way::Hints,
                set: Set { coins: 1_000_000 },
                outputs,
                prune: true,
                workdir: Path::new("work"),
                memory_bytes: 0,
                threads: 1,
            };
            seconds_of_outputs(&Sample::default(), &needs, muhash)
        };
        let (written, muhash) = (1e6 * COIN_SECONDS, 1e6 * MUHASH_SECONDS);
        assert_eq!(seconds(&[snapshot()], false), 0.0);
        assert_eq!(seconds(&[snapshot()], true), muhash);
        assert_eq!(seconds(&[snapshot(), chainstate()], false), written);
        assert_eq!(seconds(&[snapshot(), chainstate()], true), written + muhash);
    }
}
