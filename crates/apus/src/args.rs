//! Arguments of the commands. Options that Bitcoin Core also has keep Core's spelling.
//!
//! This file holds the options that several commands share: the source of blocks, assumptions about validity, and the
//! settings of a run. `-h` shows only the first paragraph of an option's text.

mod files;
mod indexes;
mod node;
mod sync;
#[cfg(feature = "tables")]
mod tables;
mod values;

pub(crate) use files::{
    HintsArgs, HintsCheckArgs, HintsCommand, HintsConvertArgs, HintsInfoArgs, SnapshotArgs,
    SnapshotCommand, SnapshotInfoArgs, SnapshotVerifyArgs, SourceFormat, TargetFormat,
};
pub(crate) use indexes::{IndexArgs, IndexesArg};
pub(crate) use node::{NodeArgs, PlanArgs, ReindexArgs, VerifyArgs};
pub(crate) use sync::{
    AssumeArgs, AssumeValidArg, BlocksArg, EngineArg, EngineFacts, PeerArgs, SyncArgs, SyncMethod,
    TaskParts,
};
#[cfg(feature = "tables")]
pub(crate) use tables::{ExportArgs, ExportTarget, FindArgs, SetArgs};
pub(crate) use values::{ChallengeArg, FileKind, HintsArg, SNAPSHOT, SinkArg, parse_mib};
#[cfg(feature = "utreexo")]
pub(crate) use values::{ProofsArg, RootsArg};
#[cfg(feature = "cluster")]
pub(crate) use values::{parse_listen, parse_proxy};

use crate::failure::{Failure, IO, WITHOUT_SCRIPTS};
use crate::print;
use apus_chain::{KnownBlock, Network, Params, ScriptVerifier};
use apus_engine::script::hints::{SignatureHintsError, SignatureHintsReader, SignatureHintsWriter};
use apus_engine::script::{SignatureMode, Signatures};
use clap::{Args, ValueEnum};
#[cfg(feature = "web")]
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
#[cfg(feature = "web")]
use std::time::Duration;

/// The source of blocks.
#[derive(Args)]
pub(crate) struct SourceArgs {
    /// Chain; by default the chain of the blocks
    ///
    /// main, test, testnet4, signet or regtest. By default, Apus detects the chain from the blocks.
    #[arg(long, default_value = "main", hide_default_value = true)]
    pub(crate) chain: Network,

    /// Folder with Bitcoin Core's blk*.dat files, opened for reading only
    #[arg(long, value_name = "DIR")]
    pub(crate) blocksdir: PathBuf,
}

/// How Apus connects blocks in order, and what it assumes valid, also under hints.
#[derive(Args)]
pub(crate) struct ConnectArgs {
    #[command(flatten)]
    pub(crate) assume: AssumeArgs,

    /// How to treat the witnesses of blocks whose scripts are assumed valid. By default Apus skips them: it does not
    /// request them from peers, and does not check them against the block's commitment. Apus always checks them if it
    /// passes blocks on (`--blocks keep`, `datadir:DIR`, --listen), or if the engine is utreexo
    #[arg(long, value_enum, hide_short_help = true)]
    pub(crate) witnesses: Option<WitnessesArg>,

    /// Threads that fetch the coins a block spends; 0 looks each coin up when it is needed
    #[arg(long, value_name = "N", hide_short_help = true, default_value_t = 8, value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) prevout_threads: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WitnessesArg {
    Check,
    Skip,
}

/// How Apus proves the hints.
#[derive(Args)]
pub(crate) struct AggregateArgs {
    /// Proof that the hints are right: keyed SHA-256, or MuHash3072 (no key, half as fast)
    #[arg(long, value_enum, hide_short_help = true, default_value_t = AggregateArg::Sha256)]
    pub(crate) aggregate: AggregateArg,
}

/// Options of the progress page.
#[cfg(feature = "web")]
#[derive(Args)]
pub(crate) struct PageArgs {
    /// Serve a progress page at this address
    ///
    /// For example 127.0.0.1:8337, with metrics for Prometheus at /metrics. If other machines can reach the address,
    /// browsers need a token. The address that Apus prints includes it.
    #[arg(long, value_name = "IP:PORT", value_parser = values::parse_web)]
    pub(crate) web: Option<SocketAddr>,

    /// Token that browsers and Prometheus must send: 16 to 128 letters, digits, - and _. By default Apus creates a
    /// random token if the page needs one. To hide the token from other users of this machine, set APUS_WEB_TOKEN in
    /// the environment instead
    #[arg(long, value_name = "TOKEN", hide_env_values = true, hide_short_help = true)]
    pub(crate) web_token: Option<String>,

    /// How long the page stays up after the end: seconds, or `forever` (until Ctrl-C). Even with 0, a page that is open
    /// in a browser shows the result
    #[arg(long, value_name = "SECONDS|forever", hide_short_help = true, default_value = "0", value_parser = parse_stay)]
    pub(crate) web_stay: PageLifetime,
}

/// How long a page stays up after the run.
#[cfg(feature = "web")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageLifetime {
    For(Duration),
    Forever,
}

#[cfg(feature = "web")]
fn parse_stay(text: &str) -> Result<PageLifetime, String> {
    match text {
        "forever" => Ok(PageLifetime::Forever),
        _ => match text.parse::<u32>() {
            Ok(seconds) => Ok(PageLifetime::For(Duration::from_secs(seconds.into()))),
            Err(_) => Err("give a number of seconds, or `forever`".to_owned()),
        },
    }
}

/// Settings that every run has.
#[derive(Args)]
pub(crate) struct RunArgs {
    /// Memory for buffers, in MiB
    #[arg(long, value_name = "MiB", default_value_t = 450, value_parser = values::parse_mib)]
    pub(crate) dbcache: u64,

    /// Worker threads; 0 for one per core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub(crate) par: u16,

    #[command(flatten)]
    pub(crate) signatures: SignatureArgs,

    /// Folder for temporary files and progress
    ///
    /// The default is next to the first output, or in the current folder without an output.
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,

    /// Disk space for temporary files, such as 64G; by default what is free, at most 100G
    ///
    /// With less space, a sync without hints processes the chain in more batches, which costs some time. The default
    /// leaves room for the outputs.
    #[arg(long, value_name = "SIZE", value_parser = values::parse_size)]
    pub(crate) scratch: Option<u64>,

    /// Bytes of blocks in one segment, the unit of work and of saved progress; by default derived from
    /// --dbcache
    #[arg(long, value_name = "BYTES", hide_short_help = true, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) segment_bytes: Option<u64>,

    /// Save finished segments at least every SECONDS: a crash loses at most that much work
    #[arg(long, value_name = "SECONDS", hide_short_help = true, default_value_t = 10, value_parser = clap::value_parser!(u16))]
    pub(crate) checkpoint_seconds: u16,

    /// Progress display: auto, plain, json or none
    ///
    /// Written to standard error.
    #[arg(long, value_enum, hide_possible_values = true, default_value_t = ProgressArg::Auto)]
    pub(crate) progress: ProgressArg,

    /// Write a JSON report to this file
    ///
    /// If the job fails, write a report with the reason.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Append events to this file, one per line
    ///
    /// Each line starts with a timestamp. Apus keeps the lines already in the file.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) log: Option<PathBuf>,

    #[cfg(feature = "web")]
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// How a command checks signatures.
#[derive(Args, Clone)]
pub(crate) struct SignatureArgs {
    /// How to check the signatures of scripts
    #[arg(long = "signatures", value_enum, value_name = "MODE", hide_short_help = true, default_value_t = SignaturesArg::Fast)]
    mode: SignaturesArg,

    /// Hints about signatures, which are then checked faster
    ///
    /// A file that an earlier command wrote: `apus sync --out sighints:FILE`. Wrong hints cost time only: Apus trusts
    /// none.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) sighints: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum SignaturesArg {
    /// Many at once; libsecp256k1 checks what this does not prove
    Fast,
    /// Both ways, compared: the command fails if they differ
    Shadow,
    /// With libsecp256k1 alone
    Libsecp256k1,
}

impl SignatureArgs {
    /// Returns how pools check signatures.
    pub(crate) fn checks(&self, chain: Network) -> Result<Arc<Signatures>, Failure> {
        self.learning(chain, None)
    }

    /// Returns how pools check signatures, and write hints to a file.
    pub(crate) fn learning(
        &self,
        chain: Network,
        file: Option<&Path>,
    ) -> Result<Arc<Signatures>, Failure> {
        self.expect_hints_wanted(file)?;
        let mut signatures = Signatures::new(match self.mode {
            SignaturesArg::Fast => SignatureMode::Fast,
            SignaturesArg::Shadow => SignatureMode::Shadow,
            SignaturesArg::Libsecp256k1 => SignatureMode::Libsecp256k1,
        });
        if let Some(path) = &self.sighints {
            let hints = SignatureHintsReader::open(path, chain);
            signatures = signatures.with_hints(hints.map_err(|error| about_sighints(&error))?);
        }
        if let Some(path) = file {
            if !signatures.proves_without_hints() && self.sighints.is_none() {
                return Err(Failure::usage(format!(
                    "cannot write {}: without AVX2, Apus learns no hints. Write the file on another machine, or \
                     use --signatures shadow, which takes longer",
                    path.display()
                )));
            }
            let writer = SignatureHintsWriter::create_or_continue(path, chain);
            signatures = signatures.learning(writer.map_err(|error| about_sighints(&error))?);
        }
        Ok(Arc::new(signatures))
    }

    /// Refuses files of hints where libsecp256k1 checks all signatures. `file` is the one to write.
    pub(crate) fn expect_hints_wanted(&self, file: Option<&Path>) -> Result<(), Failure> {
        let named = match (self.mode, &self.sighints, file) {
            (SignaturesArg::Libsecp256k1, Some(_), _) => "--sighints",
            (SignaturesArg::Libsecp256k1, None, Some(_)) => "--out sighints:FILE",
            _ => return Ok(()),
        };
        Err(Failure::usage(format!(
            "{named} is useless with --signatures libsecp256k1: leave out one of them"
        )))
    }
}

/// Completes the file of signature hints, if the command writes one: it covers the blocks up to this one. Warns if
/// it is empty.
pub(crate) fn finish_sighints(signatures: &Signatures, stop: KnownBlock) -> Result<(), Failure> {
    let learned = signatures.finish_learned(stop.height, &stop.hash);
    let learned = learned.map_err(|error| about_sighints(&error))?;
    if learned.is_some_and(|learned| learned.signatures == 0) {
        print::aside(
            "warning: the file of signature hints is empty, because no script with an ECDSA signature was run. Only \
             blocks above the assumed-valid block give hints: add --assumevalid 0 for all",
        );
    }
    Ok(())
}

/// Creates the failure for an error about a file of signature hints.
fn about_sighints(error: &SignatureHintsError) -> Failure {
    match error {
        SignatureHintsError::Io { .. } | SignatureHintsError::InUse { .. } => {
            Failure::new(IO, error.to_string())
        }
        SignatureHintsError::Damaged { .. } => Failure::wrong(error),
        _ => Failure::usage(error),
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum AggregateArg {
    Sha256,
    Muhash,
    /// No proof and no output, to measure the cost of a proof
    #[value(hide = true)]
    None,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ProgressArg {
    /// A bar on a terminal, otherwise lines
    Auto,
    /// One line every few seconds
    Plain,
    /// One JSON object per line
    Json,
    None,
}

/// Fails if the engine cannot work with these hints, or without hints.
pub(crate) fn expect_engine_takes(
    engine: Option<EngineArg>,
    hints: Option<&HintsArg>,
) -> Result<(), Failure> {
    match (engine, hints) {
        (Some(EngineArg::Swiftsync), None) => Err(Failure::usage(
            "the engine swiftsync needs --hints: add --hints FILE, or leave out --engine",
        )),
        (Some(engine), Some(_)) if engine != EngineArg::Swiftsync => {
            let EngineFacts { name, options, .. } = engine.facts();
            Err(Failure::usage(format!(
                "the engine {name} takes no hints: leave out --hints, or {options}",
            )))
        }
        _ => Ok(()),
    }
}

/// Returns the interpreter for signet's block solutions; other chains need none here. Fails for signet in a build
/// without scripts.
pub(crate) fn verifier(params: &Params) -> Result<Option<Box<dyn ScriptVerifier>>, Failure> {
    if params.signet_challenge.is_none() {
        return Ok(None);
    }
    apus_sync::script_verifier().map(Some).map_err(|error| {
        Failure::usage(format!("cannot check the signatures of signet blocks: {error}"))
    })
}

/// Fails in a build without a script interpreter.
pub(crate) fn expect_interpreter() -> Result<(), Failure> {
    let missing = apus_sync::script_verifier().map(drop);
    missing.map_err(|error| Failure::usage(format!("{error}{WITHOUT_SCRIPTS}")))
}

/// Whether Apus skips witnesses. `rebuilder` names the part of the run, if any, that rebuilds coins from witnesses.
///
/// # Errors
/// A usage error if the user wants to skip witnesses that the run needs.
pub(crate) fn skips_witnesses(
    args: &ConnectArgs,
    outputs: &[SinkArg],
    peers: Option<&PeerArgs>,
    rebuilder: Option<&'static str>,
) -> Result<bool, Failure> {
    let needing = rebuilder.or_else(|| passed_on_by(outputs, peers));
    match (args.witnesses, needing) {
        (Some(WitnessesArg::Check), _) => Ok(false),
        (Some(WitnessesArg::Skip), Some(what)) => Err(Failure::usage(format!(
            "--witnesses skip drops the witnesses of blocks, but {what} needs them: leave out --witnesses skip or \
             {what}",
        ))),
        (_, needing) => Ok(needing.is_none()),
    }
}

/// Returns the option, if any, that makes Apus pass blocks on.
fn passed_on_by(outputs: &[SinkArg], peers: Option<&PeerArgs>) -> Option<&'static str> {
    if outputs.iter().any(|sink| matches!(sink, SinkArg::Datadir(_))) {
        return Some("--out datadir:DIR");
    }
    match peers {
        Some(args) if args.blocks == BlocksArg::Keep => Some("--blocks keep"),
        Some(args) if args.listen.is_some() => Some("--listen"),
        _ => None,
    }
}
