//! Arguments of the commands that users run. Ideas of Bitcoin Core's have Core's spelling.
//!
//! Here are those that several commands share: where blocks are, what of them is assumed, how a run is done. The first
//! paragraph of an option's text is its line in `-h`.

mod files;
mod node;
mod sync;
mod values;

pub(crate) use files::{
    HintsArgs, HintsCheckArgs, HintsCommand, HintsConvertArgs, HintsInfoArgs, SnapshotArgs,
    SnapshotCommand, SnapshotInfoArgs, SnapshotVerifyArgs, SourceFormat, TargetFormat,
};
pub(crate) use node::{NodeArgs, PlanArgs, ReindexArgs, VerifyArgs};
pub(crate) use sync::{
    AssumeArgs, AssumeValidArg, BlocksArg, EngineArg, EngineFacts, PeerArgs, PlanWay, SyncArgs,
    TaskParts,
};
#[cfg(feature = "utreexo")]
pub(crate) use values::ProofsArg;
pub(crate) use values::{ChallengeArg, HintsArg, SNAPSHOT, SinkArg};
#[cfg(feature = "cluster")]
pub(crate) use values::{parse_listen, parse_mib, parse_proxy};

use crate::failure::{Failure, WITHOUT_SCRIPTS};
use apus_chain::{Network, Params, ScriptVerifier};
use clap::{Args, ValueEnum};
#[cfg(feature = "web")]
use std::net::SocketAddr;
use std::path::PathBuf;
#[cfg(feature = "web")]
use std::time::Duration;

/// Where blocks come from.
#[derive(Args)]
pub(crate) struct SourceArgs {
    /// Which chain; that of the blocks if not given
    ///
    /// main, test, testnet4, signet or regtest. If not given, the chain of the blocks that you name.
    #[arg(long, default_value = "main", hide_default_value = true)]
    pub(crate) chain: Network,

    /// Folder with Bitcoin Core's blk*.dat files, opened for reading only
    #[arg(long, value_name = "DIR")]
    pub(crate) blocksdir: PathBuf,
}

/// How blocks are connected in order, and what of them, or of those under hints, is taken for valid.
#[derive(Args)]
pub(crate) struct ConnectArgs {
    #[command(flatten)]
    pub(crate) assume: AssumeArgs,

    /// What becomes of the witnesses of blocks whose scripts are taken for valid. By default they are skipped:
    /// peers are not asked for them, and whether they are those that a block commits to is not checked.
    /// Where blocks are handed on (`--blocks keep`, `datadir:DIR`, --listen), or the engine is utreexo, they
    /// are always checked
    #[arg(long, value_enum, hide_short_help = true)]
    pub(crate) witnesses: Option<WitnessesArg>,

    /// Threads that fetch the coins which a block spends; 0 to look each up where it is needed
    #[arg(long, value_name = "N", hide_short_help = true, default_value_t = 8, value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) prevout_threads: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WitnessesArg {
    Check,
    Skip,
}

/// How hints are proven.
#[derive(Args)]
pub(crate) struct AggregateArgs {
    /// The proof that hints are right: keyed SHA-256, or MuHash3072 (no key, half as fast)
    #[arg(long, value_enum, hide_short_help = true, default_value_t = AggregateArg::Sha256)]
    pub(crate) aggregate: AggregateArg,
}

/// A page about the run.
#[cfg(feature = "web")]
#[derive(Args)]
pub(crate) struct PageArgs {
    /// Show the run to browsers at this address
    ///
    /// As 127.0.0.1:8337; its numbers are for Prometheus at /metrics there. Where other machines can reach it, a token
    /// is needed, which is part of the address that Apus prints.
    #[arg(long, value_name = "IP:PORT", value_parser = values::parse_web)]
    pub(crate) web: Option<SocketAddr>,

    /// The token that browsers and Prometheus have to show, of 16 to 128 letters, digits, - and _; made anew
    /// for each run where it is needed and not given. As APUS_WEB_TOKEN in the environment others cannot see it
    #[arg(long, value_name = "TOKEN", hide_env_values = true, hide_short_help = true)]
    pub(crate) web_token: Option<String>,

    /// How long the page stays after the end of the run, in seconds, or `forever`: until Ctrl-C. With 0 a page that
    /// is open in a browser still gets the end, and goes on showing it
    #[arg(long, value_name = "SECONDS|forever", hide_short_help = true, default_value = "0", value_parser = parse_stay)]
    pub(crate) web_stay: Stay,
}

/// How long a page stays.
#[cfg(feature = "web")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stay {
    For(Duration),
    Forever,
}

#[cfg(feature = "web")]
fn parse_stay(text: &str) -> Result<Stay, String> {
    match text {
        "forever" => Ok(Stay::Forever),
        _ => match text.parse::<u32>() {
            Ok(seconds) => Ok(Stay::For(Duration::from_secs(seconds.into()))),
            Err(_) => Err("give a number of seconds, or `forever`".to_owned()),
        },
    }
}

/// How a run is done.
#[derive(Args)]
pub(crate) struct RunArgs {
    /// Memory for buffers, in MiB
    #[arg(long, value_name = "MiB", default_value_t = 450, value_parser = values::parse_mib)]
    pub(crate) dbcache: u64,

    /// Worker threads; 0 for one on each core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub(crate) par: u16,

    /// Folder for progress
    ///
    /// If not given, it is beside what is written first, or in the current folder where nothing is.
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,

    /// Bytes of blocks in one segment, the unit of work and of progress kept; chosen from --dbcache
    /// if not given
    #[arg(long, value_name = "BYTES", hide_short_help = true, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) segment_bytes: Option<u64>,

    /// The longest that finished segments wait until they are made durable, in seconds: what a
    /// crash costs
    #[arg(long, value_name = "SECONDS", hide_short_help = true, default_value_t = 10, value_parser = clap::value_parser!(u16))]
    pub(crate) checkpoint_seconds: u16,

    /// How progress is shown: auto, plain, json or none
    ///
    /// On standard error.
    #[arg(long, value_enum, hide_possible_values = true, default_value_t = ProgressArg::Auto)]
    pub(crate) progress: ProgressArg,

    /// Write the report as JSON
    ///
    /// Also of a run that fails: it says why then.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Add what happens to this file, a line each
    ///
    /// With its time, after what is in it already.
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,

    #[cfg(feature = "web")]
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum AggregateArg {
    Sha256,
    Muhash,
    /// No proof at all, to measure what one costs; nothing is written
    #[value(hide = true)]
    None,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ProgressArg {
    /// A bar on a terminal, lines elsewhere
    Auto,
    /// A line every few seconds
    Plain,
    /// One JSON object a line
    Json,
    None,
}

/// Engine and hints must fit together.
pub(crate) fn expect_engine_takes(
    engine: Option<EngineArg>,
    hints: Option<&HintsArg>,
) -> Result<(), Failure> {
    match (engine, hints) {
        (Some(EngineArg::Swiftsync), None) => Err(Failure::usage(
            "the engine swiftsync needs --hints; without any, leave out --engine",
        )),
        (Some(engine), Some(_)) if engine != EngineArg::Swiftsync => {
            let EngineFacts { name, options, .. } = engine.facts();
            Err(Failure::usage(format!(
                "the engine {name} has no use for hints: leave out --hints, or {options}",
            )))
        }
        _ => Ok(()),
    }
}

/// Undo data for all blocks are there only without hints.
pub(crate) fn expect_undo_data(
    outputs: &[SinkArg],
    hints: bool,
    prune: bool,
) -> Result<(), Failure> {
    let datadir = outputs.iter().any(|sink| matches!(sink, SinkArg::Datadir(_)));
    match datadir && hints && !prune {
        false => Ok(()),
        true => Err(Failure::usage(
            "with hints a run does not see spent coins, of which undo data consist: leave out \
             --hints, or give --prune for a data directory with the last blocks alone",
        )),
    }
}

/// Scripts are run for signet's block solutions alone; without an interpreter signet cannot be.
pub(crate) fn verifier(params: &Params) -> Result<Option<Box<dyn ScriptVerifier>>, Failure> {
    if params.signet_challenge.is_none() {
        return Ok(None);
    }
    apus_sync::script_verifier().map(Some).map_err(|error| {
        Failure::usage(format!(
            "signet blocks are signed, and their signatures cannot be checked: {error}"
        ))
    })
}

/// Fails in a build that runs no scripts.
pub(crate) fn expect_interpreter() -> Result<(), Failure> {
    let missing = apus_sync::script_verifier().map(drop);
    missing.map_err(|error| Failure::usage(format!("{error}{WITHOUT_SCRIPTS}")))
}

/// Whether witnesses are left alone. `makes` is what of the run makes up coins from them, if anything does.
///
/// # Errors
/// A usage error where the user wants to skip those of blocks that need them.
pub(crate) fn leave_witnesses(
    args: &ConnectArgs,
    outputs: &[SinkArg],
    peers: Option<&PeerArgs>,
    makes: Option<&'static str>,
) -> Result<bool, Failure> {
    let needing = makes.or_else(|| handed_on(outputs, peers));
    match (args.witnesses, needing) {
        (Some(WitnessesArg::Check), _) => Ok(false),
        (Some(WitnessesArg::Skip), Some(what)) => Err(Failure::usage(format!(
            "--witnesses skip leaves blocks without their witnesses, which {what} needs: leave out one of \
             them",
        ))),
        (_, needing) => Ok(needing.is_none()),
    }
}

/// By which option blocks are handed on, if they are.
fn handed_on(outputs: &[SinkArg], peers: Option<&PeerArgs>) -> Option<&'static str> {
    if outputs.iter().any(|sink| matches!(sink, SinkArg::Datadir(_))) {
        return Some("--out datadir:DIR");
    }
    match peers {
        Some(args) if args.blocks == BlocksArg::Keep => Some("--blocks keep"),
        Some(args) if args.listen.is_some() => Some("--listen"),
        _ => None,
    }
}
