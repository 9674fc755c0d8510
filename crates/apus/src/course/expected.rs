//! Which phases a run is going to have, and what each costs beside the others.

use apus_sync::Phase;

/// A phase that is to come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Expected {
    pub(crate) phase: Phase,
    /// Of the time that blocks under hints take, for each byte of the chain.
    pub(crate) cost: f64,
    /// Whether it only comes if the run tells, before it takes blocks, how much of it there is.
    pub(crate) if_told: bool,
}

impl Expected {
    /// A phase of which only its name is known.
    pub(crate) fn of(phase: Phase) -> Self {
        Self { phase, cost: cost(phase), if_told: false }
    }
}

/// What the run goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Hints, and then by connecting blocks where that is asked for.
    Hints {
        /// Whether blocks above may be connected.
        connects: bool,
    },
    /// Blocks alone, joined.
    Join,
    /// Blocks alone, in ascending height.
    Order,
    /// Proofs.
    Proofs,
    /// A node's own coins and undo data, of a node that is verified.
    Node,
}

/// Costs beside those of blocks under hints, from runs on a chain of today's shape (`bench/runs`): two threads, no
/// script run. They stand for what they are beside each other until a run has shown what it takes here.
fn cost(phase: Phase) -> f64 {
    match phase {
        Phase::Headers | Phase::Hints | Phase::Undo => 0.01,
        Phase::Spends => 0.05,
        Phase::Blocks => 1.0,
        Phase::Join => 0.65,
        Phase::Connect => 0.45,
        Phase::Forest => 0.05,
        Phase::Coins => 0.12,
        Phase::Index => 0.05,
        Phase::Check => 0.25,
        Phase::Survey | Phase::Caches => 0.5,
    }
}

/// Connecting a block in its order, its coins looked up.
const IN_ORDER: f64 = 4.5;

/// The same with all its scripts run.
const WITH_SCRIPTS: f64 = 65.0;

/// Judging a range by proofs.
const BY_PROOFS: f64 = 2.9;

/// The phases of a run. `scripts` says whether those of all blocks are run, `folder` whether one for a node is written.
pub(crate) fn expected(way: Way, scripts: bool, coins: bool, folder: bool) -> Vec<Expected> {
    let at = |phase, cost| Expected { phase, cost, if_told: false };
    let scripts_or = |cost| if scripts { WITH_SCRIPTS } else { cost };
    let mut all = vec![Expected::of(Phase::Headers)];
    match way {
        Way::Hints { connects } => {
            all.push(Expected::of(Phase::Hints));
            all.push(at(Phase::Blocks, scripts_or(1.0)));
            if connects {
                // Above hints nothing is assumed valid.
                all.push(Expected { if_told: true, ..at(Phase::Connect, WITH_SCRIPTS) });
            }
        }
        Way::Join => {
            all.extend([Expected::of(Phase::Blocks), Expected::of(Phase::Join)]);
            all.push(at(Phase::Connect, scripts_or(cost(Phase::Connect))));
        }
        Way::Order => all.push(at(Phase::Connect, scripts_or(IN_ORDER))),
        Way::Proofs => {
            all.push(Expected::of(Phase::Hints));
            all.push(at(Phase::Blocks, scripts_or(BY_PROOFS)));
        }
        Way::Node => {}
    }
    if way == Way::Node {
        all.insert(0, at(Phase::Hints, 0.15));
        all.push(at(Phase::Blocks, scripts_or(1.0)));
    }
    if coins {
        all.push(Expected::of(Phase::Coins));
    }
    if folder {
        all.push(Expected::of(Phase::Check));
    }
    all
}
