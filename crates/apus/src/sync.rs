//! `apus sync`, and the run that it shares with `hints check`, `snapshot verify` and other commands.

mod indexes;
mod run;

pub(crate) use run::{run, work_path};

use crate::args::{
    AggregateArg, BlocksArg, ConnectArgs, EngineArg, HintsArg, PeerArgs, RunArgs, SinkArg,
    SourceArgs, SyncArgs,
};
use crate::args::{expect_engine_takes, skips_witnesses};
#[cfg(feature = "utreexo")]
use crate::by_proofs;
use crate::coins::RemoteStore;
use crate::estimate::{ExpectedPhase, RunMethod, Writes, expected};
use crate::extra_engine::{BridgeJob, OutsideEngine};
use crate::failure::Failure;
use crate::index::options;
use crate::machine::threads;
use crate::node::start_command;
use crate::print;
use crate::report::{RunReport, TrustedBlock};
use crate::status::RunFacts;
use apus_chain::{Network, Params};
use apus_datadir::BlocksFolder;
use apus_indexes::IndexForm;
use apus_sync::engines::swiftsync::hints::BitOrder;
use apus_sync::{DatadirBlocks, Machines, SpentSource, Stop, UseIndex};
use std::path::{Path, PathBuf};

/// Runs `apus sync`.
pub(crate) fn command(args: &SyncArgs) -> Result<(), Failure> {
    command_on(args, None)
}

/// Runs `apus sync`; `machines`, if given, process its segments.
pub(crate) fn command_on(args: &SyncArgs, machines: Option<&dyn Machines>) -> Result<(), Failure> {
    let (hints, engine) = (args.hints.as_ref(), args.engine());
    expect_purpose(args)?;
    expect_engine_takes(engine, hints)?;
    #[cfg(feature = "utreexo")]
    let engine_by_proofs = by_proofs::by_proofs(args)?;
    #[cfg(feature = "utreexo")]
    let outside = engine_by_proofs.as_ref().map(by_proofs::outside);
    #[cfg(feature = "utreexo")]
    let spent = by_proofs::spent(args)?;
    #[cfg(feature = "utreexo")]
    let spent = spent.as_ref().map(|spent| spent as &dyn SpentSource);
    #[cfg(not(feature = "utreexo"))]
    let (outside, spent) = (None, None);
    if spent.is_some() && machines.is_some() {
        return Err(Failure::usage("other machines read undo data themselves: leave out --spent"));
    }
    expect_peers(args)?;
    expect_folder_options(args, hints.is_some())?;
    #[cfg(feature = "remote-coins")]
    let servers = args.coins.beyond(engine == Some(EngineArg::Utxo))?;
    #[cfg(not(feature = "remote-coins"))]
    let servers = None;
    #[cfg(feature = "remote-coins")]
    let set_stores = args.coins.for_sets(args.out.iter().filter_map(SinkArg::store_url))?;
    #[cfg(not(feature = "remote-coins"))]
    let set_stores = Vec::new();
    let source = match &args.blocksdir {
        Some(blocksdir) => {
            JobSource::Files { blocksdir: blocksdir.into(), use_index: UseIndex::IfPresent }
        }
        None => JobSource::Peers(&args.peers),
    };
    let indexes = args.index.forms()?;
    let report = run(&RunJob {
        indexes: &indexes,
        hints,
        engine,
        outside: outside.as_ref(),
        spent,
        hints_order: args.hints_order,
        aggregate: args.proof.aggregate,
        connect: Some(&args.connect),
        coins: servers.as_ref(),
        set_stores: &set_stores,
        outputs: &args.out,
        replace: args.replace,
        muhash: args.muhash,
        kept: if args.prune { DatadirBlocks::Last } else { DatadirBlocks::All },
        stop: args.stopatheight.map_or(Stop::AtTip, Stop::At),
        machines,
        ..RunJob::new(args.chain, source, &args.run)
    })?;
    let next = args.out.iter().find_map(|sink| match sink {
        SinkArg::Datadir(path) => {
            let command = start_command(path, args.chain, args.prune);
            let command = command + &options(&indexes, args.index.index_for);
            Some(format!("start a node on it:\n  {command}"))
        }
        SinkArg::Chainstate(path) if args.peers.blocks == BlocksArg::Keep => {
            // `expect_folder_options` checked this path before the run.
            let datadir = datadir_around(path, args.chain).ok()?;
            let command = start_command(&datadir, args.chain, false);
            Some(format!("start a node on the data directory:\n  {command}"))
        }
        _ => None,
    });
    tell(&report, next)
}

/// Prints the result of a run, the next step for the user, and last the blocks that the run took on trust or assumed
/// valid.
pub(crate) fn tell(report: &RunReport, next: Option<String>) -> Result<(), Failure> {
    print::result(report)?;
    if let Some(next) = next {
        print::result(format_args!("\nNext: {next}{}", never_rechecked(report)))?;
    }
    if let Some(TrustedBlock { height, hash }) = report.began_with_roots() {
        print::result(format_args!(
            "\n--roots: this run did not validate blocks 1 to {height}. It took the state after block {height} ({hash}) \
             on trust."
        ))?;
    }
    match &report.assume_hinted_valid {
        Some(assumed) => print::result(format_args!("\n{assumed}.")),
        None => Ok(()),
    }
}

/// Returns the warning about a node that starts on a set from hints. Empty if the report has a stronger warning, or
/// needs none.
fn never_rechecked(report: &RunReport) -> &'static str {
    let warns = report.assume_hinted_valid.is_some();
    if warns || report.verified.amounts || report.in_assumeutxo_table {
        return "";
    }
    "\n  A node started on this result never re-checks what is assumed above."
}

/// Returns the data directory of a chainstate with blocks next to it. A node looks for both in fixed places (Core
/// `chainparamsbase.cpp`, and `node/chainstate.cpp`): in any other place it would not find them, and would start from
/// scratch.
fn datadir_around(chainstate: &Path, chain: Network) -> Result<PathBuf, Failure> {
    let layout = chain.data_folder().map_or_else(PathBuf::new, PathBuf::from).join("chainstate");
    let around = std::path::absolute(chainstate).map_err(|error| Failure::io(chainstate, error))?;
    match around.ends_with(&layout) {
        true => Ok(around.ancestors().nth(layout.iter().count()).unwrap_or(&around).to_owned()),
        false => Err(Failure::usage(format!(
            "--blocks keep puts the blocks next to the coins for a node to start on, but on the chain {chain} a \
             node looks for its coins only in DIR/{layout}: name such a folder, as in --out \
             chainstate:node/{layout}",
            layout = layout.display()
        ))),
    }
}

/// Whether a run writes anything besides its result.
fn writes(outputs: &[SinkArg]) -> bool {
    outputs.iter().any(|sink| sink.path().is_some() || matches!(sink, SinkArg::Coins(_)))
}

/// Refuses a command line without source and output: a user who pressed Enter too early must not start a download.
fn expect_purpose(args: &SyncArgs) -> Result<(), Failure> {
    if args.blocksdir.is_some() || !args.peers.connect.is_empty() || writes(&args.out) {
        return Ok(());
    }
    Err(Failure::usage(
        "no source of blocks: add --blocksdir DIR or --connect NODE. Or add --out, and Apus finds peers itself \
         (see `apus sync --help`)",
    ))
}

/// Refuses a proxy that the run would not use.
fn expect_peers(args: &SyncArgs) -> Result<(), Failure> {
    #[cfg(feature = "utreexo")]
    let asks = args.proofs.names_peers();
    #[cfg(not(feature = "utreexo"))]
    let asks = false;
    match args.peers.proxy.is_some() && args.blocksdir.is_some() && !asks {
        false => Ok(()),
        true => Err(Failure::usage(
            "--proxy is for peers, but blocks come from --blocksdir: leave out --proxy, or --blocksdir",
        )),
    }
}

/// Refuses sources from which Apus cannot write a data directory, and options without effect.
fn expect_folder_options(args: &SyncArgs, hints: bool) -> Result<(), Failure> {
    let has = |kind: fn(&SinkArg) -> bool| args.out.iter().filter(|sink| kind(sink)).count();
    let chainstates = has(|sink| matches!(sink, SinkArg::Chainstate(_)));
    let datadirs = has(|sink| matches!(sink, SinkArg::Datadir(_)));
    if datadirs > 1 {
        return Err(Failure::usage(
            "Apus writes one data directory at a time: give --out datadir:DIR once",
        ));
    }
    if args.prune && datadirs == 0 {
        return Err(Failure::usage("--prune needs --out datadir:DIR"));
    }
    if args.replace && !args.out.iter().any(SinkArg::is_replaced) {
        return Err(Failure::usage(
            "--replace needs --out chainstate:DIR, stats:FILE or a table: remove another output yourself",
        ));
    }
    if args.peers.blocks == BlocksArg::Keep && args.blocksdir.is_some() {
        return Err(Failure::usage(
            "--blocks keep is for blocks from peers, but blocks come from --blocksdir: leave out --blocks keep, or \
             --blocksdir",
        ));
    }
    let keeps_there = hints && !args.prune && datadirs > 0;
    if args.peers.blocks == BlocksArg::Keep && chainstates == 0 && !keeps_there {
        return Err(Failure::usage(
            "--blocks keep puts the blocks next to the folder of --out chainstate:DIR: add that option",
        ));
    }
    if args.peers.blocks == BlocksArg::Keep && !keeps_there {
        for sink in &args.out {
            if let SinkArg::Chainstate(path) = sink {
                datadir_around(path, args.chain)?;
            }
        }
    }
    Ok(())
}

/// The source of a run's blocks.
pub(crate) enum JobSource<'a> {
    /// Core's block files.
    Files { blocksdir: BlocksFolder, use_index: UseIndex },
    /// Peers.
    Peers(&'a PeerArgs),
}

/// The settings of a run, for all commands that start one.
pub(crate) struct RunJob<'a> {
    pub(crate) chain: Network,
    pub(crate) source: JobSource<'a>,
    /// `None` if every block is connected in order.
    pub(crate) hints: Option<&'a HintsArg>,
    /// The engine, if a feature adds it.
    pub(crate) outside: Option<&'a OutsideEngine<'a>>,
    /// The source of the coins that blocks under hints spend, if a feature adds it.
    pub(crate) spent: Option<&'a dyn SpentSource>,
    /// The engine for blocks without hints, if the user chose one.
    pub(crate) engine: Option<EngineArg>,
    /// The bit order that the user gave; the file itself may determine it.
    pub(crate) hints_order: Option<BitOrder>,
    pub(crate) aggregate: AggregateArg,
    pub(crate) run: &'a RunArgs,
    /// `None` if the run ends with the hints, and checks only whether they fit the blocks.
    pub(crate) connect: Option<&'a ConnectArgs>,
    /// The store for the coins of connected blocks, if it is not the work folder.
    pub(crate) coins: Option<&'a RemoteStore>,
    /// The stores that the set is written to.
    #[cfg_attr(not(feature = "remote-coins"), allow(dead_code, reason = "there are none"))]
    pub(crate) set_stores: &'a [RemoteStore],
    pub(crate) outputs: &'a [SinkArg],
    /// Whether to move an existing chainstate aside, and to replace files that [may be](SinkArg::is_replaced).
    pub(crate) replace: bool,
    /// Whether to compute the set's MuHash.
    pub(crate) muhash: bool,
    /// The blocks to keep in a data directory.
    pub(crate) kept: DatadirBlocks,
    pub(crate) stop: Stop,
    /// Proofs to make.
    pub(crate) bridge: Option<BridgeJob<'a>>,
    /// Indexes to make in a data directory.
    pub(crate) indexes: &'a [IndexForm],
    /// Other machines that process segments.
    pub(crate) machines: Option<&'a dyn Machines>,
}

impl<'a> RunJob<'a> {
    /// Creates a run over all blocks of a chain that writes nothing and connects no block.
    pub(crate) fn new(chain: Network, source: JobSource<'a>, run: &'a RunArgs) -> Self {
        Self {
            chain,
            source,
            hints: None,
            outside: None,
            spent: None,
            engine: None,
            hints_order: None,
            aggregate: AggregateArg::Sha256,
            run,
            connect: None,
            coins: None,
            set_stores: &[],
            outputs: &[],
            replace: false,
            muhash: false,
            kept: DatadirBlocks::All,
            stop: Stop::AtTip,
            bridge: None,
            indexes: &[],
            machines: None,
        }
    }

    /// Creates a run that only checks hints against the blocks.
    pub(crate) fn proof(
        source: &'a SourceArgs,
        hints: &'a HintsArg,
        hints_order: Option<BitOrder>,
        aggregate: AggregateArg,
        run: &'a RunArgs,
    ) -> Self {
        let use_index = UseIndex::IfPresent;
        let blocks = JobSource::Files { blocksdir: (&source.blocksdir).into(), use_index };
        let job = Self::new(source.chain, blocks, run);
        Self { hints: Some(hints), hints_order, aggregate, stop: Stop::AtHints, ..job }
    }
}

impl RunJob<'_> {
    /// Whether the run stays at the tip of its peers' chain.
    fn follows(&self) -> bool {
        matches!(&self.source, JobSource::Peers(args) if args.follow)
    }

    /// Returns the place of the coins on servers.
    fn coins_place(&self) -> Option<&str> {
        self.coins.map(|store| store.place.as_str())
    }

    /// Whether the run keeps blocks from peers.
    fn keeps_blocks(&self) -> bool {
        matches!(&self.source, JobSource::Peers(args) if args.blocks == BlocksArg::Keep)
    }

    /// Whether the run keeps blocks from peers for a data directory, as [`SyncArgs::keep_for_datadir`] requests.
    fn keeps_for_datadir(&self) -> bool {
        let prunes = self.kept == DatadirBlocks::Last;
        self.keeps_blocks() && self.hints.is_some() && !prunes
    }

    /// Whether the run skips the witnesses of blocks whose scripts are assumed valid.
    fn skips_witnesses(&self, args: &ConnectArgs) -> Result<bool, Failure> {
        let peers = match &self.source {
            JobSource::Peers(args) => Some(*args),
            JobSource::Files { .. } => None,
        };
        let rebuilder = match self.outside {
            _ if self.bridge.is_some() => Some("`apus utreexo prove`"),
            _ if self.spent.is_some() => Some("--spent"),
            outside => outside.map(|outside| outside.option),
        };
        skips_witnesses(args, self.outputs, peers, rebuilder)
    }
}

/// Text about the limits of a [`RunJob::proof`].
pub(crate) const NOT_ASKED: &str = "This does not check whether the blocks are valid: `apus sync --assumevalid 0` \
                                    does, without hints.";

/// Runs a [`RunJob::proof`].
pub(crate) fn prove(job: &RunJob<'_>) -> Result<RunReport, Failure> {
    match job.aggregate {
        AggregateArg::None => Err(Failure::usage("--aggregate none proves nothing: leave it out")),
        _ => run(job),
    }
}

impl RunJob<'_> {
    /// Returns the facts that displays show from the start.
    fn about(&self) -> RunFacts {
        let by_index =
            matches!(self.source, JobSource::Files { use_index: UseIndex::Connected { .. }, .. });
        let command = match (self.bridge, self.connect) {
            (Some(_), _) => "utreexo prove",
            (None, None) => "check",
            (None, Some(_)) if by_index => "reindex",
            (None, Some(_)) => "sync",
        };
        let (chain, on_servers) = (self.chain.name(), self.coins.is_some());
        RunFacts { command, chain, threads: threads(self.run.par), on_servers }
    }

    /// Returns the run's expected phases, as far as known.
    fn expected(&self) -> Vec<ExpectedPhase> {
        let kept = self.keeps_blocks();
        let method = match (self.hints, self.engine) {
            (Some(_), _) => {
                RunMethod::Hints { connects: self.connect.is_some() && self.stop != Stop::AtHints }
            }
            (None, Some(engine)) => engine.facts().phases,
            (None, None) => RunMethod::Join,
        };
        // Without an assumed-valid block, as on regtest, all scripts run. Under hints, that is not known yet.
        let scripts = self.connect.is_some_and(|args| {
            !args.assume.hinted() && args.assume.block(Params::of(self.chain)).is_none()
        });
        expected(method, scripts, method != RunMethod::Proofs, self.writes(kept))
    }

    /// Returns the kind of output; `kept` says whether the run keeps blocks from peers.
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
