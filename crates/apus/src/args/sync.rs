//! `apus sync`: its options and its help.

#[cfg(feature = "utreexo")]
use super::values::ProofsArg;
use super::values::{out_help, parse_listen, parse_order, parse_proxy};
use super::{AggregateArgs, ConnectArgs, HintsArg, RunArgs, SinkArg};
#[cfg(feature = "remote-coins")]
use crate::coins::CoinsArgs;
use crate::course::RunWay;
use crate::failure::Failure;
use apus_chain::{BlockHash, Network, Params};
use apus_sync::chain_index::ChainIndex;
use apus_sync::engines::swiftsync::hints::BitOrder;
use apus_sync::{ChainEngine, ConnectOptions, MergeSyncTask, Task};
use clap::{Args, ValueEnum};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

const SYNC_EXAMPLES: &str = "\
Examples:
  A data directory for Bitcoin Core from another's blocks: blocks, undo data,
  index and coins:
    apus sync --blocksdir /mnt/disk/blocks --out datadir:node

  The UTXO set of a node's blocks, as a snapshot that Bitcoin Core's
  dumptxoutset would write:
    apus sync --blocksdir ~/.bitcoin/blocks --hints main.hints \\
         --out snapshot:utxo.dat

  Without hints, every rule checked and every script run:
    apus sync --blocksdir ~/.bitcoin/blocks --assumevalid 0 \\
         --out snapshot:utxo.dat

  The same in one pass, by hints and the undo data of the node, neither of which
  is trusted:
    apus sync --blocksdir ~/.bitcoin/blocks --hints main.hints \\
         --assumevalid 0 --out snapshot:utxo.dat

  On regtest, where no block is assumed valid, with a report for other programs:
    apus sync --blocksdir ~/.bitcoin/regtest/blocks --hints regtest.hints \\
         --assumevalid hints --out snapshot:utxo.dat --report run.json

  A data directory for a new node, without any other: blocks from peers, as fast
  as the line gives them:
    apus sync --hints main.hints --out datadir:node

  Its coins alone, with no disk for blocks:
    apus sync --hints main.hints --out chainstate:node/chainstate

  From one node of yours, and on with it from block to block until Ctrl-C:
    apus sync --connect 192.168.1.10 --hints main.hints --follow \\
         --out snapshot:utxo.dat

  In order, with the coins on a Redis Cluster of three servers, for a machine
  with little memory:
    apus sync --blocksdir ~/.bitcoin/blocks \\
         --coins redis://10.0.0.1:6379,10.0.0.2:6379,10.0.0.3:6379/main \\
         --out snapshot:utxo.dat

  Whether all blocks are valid, by proofs of the coins that they spend, which
  are not trusted:
    apus sync --blocksdir ~/.bitcoin/blocks --proofs proofs \\
         --assumevalid 0 --stopatheight 900000

  The same with proofs from a bridge node, a utreexod with
  --flatutreexoproofindex --prune=0:
    apus sync --blocksdir ~/.bitcoin/blocks --assumevalid 0 \\
         --proofs peer:192.168.1.10:8333

  Hints for others, from a snapshot of your own node at a block that Bitcoin
  Core knows:
    bitcoin-cli -rpcclienttimeout=0 dumptxoutset utxo.dat rollback
    apus sync --blocksdir ~/.bitcoin/blocks --stopatheight HEIGHT \\
         --hints snapshot:utxo.dat --out hints:main.hints

With hints, Apus takes the blocks up to where these stop in any order. It checks
every block rule that needs no spent coins, that each spent coin existed and was
spent exactly once (by the aggregate), BIP-30, and the supply. It assumes
scripts, amounts of each block, and that no coin is spent in a block before its
own. So it refuses hints that reach further than what Core assumes valid: they
must stop at or below the assumed-valid block, on a chain that has it, with
enough work, and with two weeks of work above them. If you take their blocks for
valid for a reason of your own, say so by --assumevalid hints. Blocks above the
hints, and all where there are none, Apus checks by every rule of Core's;
under Core's conditions it does not run the scripts of ancestors of the
assumed-valid block.

A run that was interrupted or killed goes on where it stopped when you give the
same command again.";

#[derive(Args)]
#[command(after_help = "`apus sync --help` has all options, and examples.", after_long_help = SYNC_EXAMPLES)]
pub(crate) struct SyncArgs {
    /// Which chain; that of the blocks if not given
    ///
    /// main, test, testnet4, signet or regtest. If not given, the chain of the blocks that you name; main where they come
    /// from peers.
    #[arg(long, default_value = "main", hide_default_value = true)]
    pub(crate) chain: Network,

    /// Folder of Core's blk*.dat files; else from peers
    ///
    /// Opened for reading only; without it, blocks come from peers.
    #[arg(long, value_name = "DIR")]
    pub(crate) blocksdir: Option<PathBuf>,

    /// Which coins survive: FILE or snapshot:FILE
    ///
    /// A hintsfile of BIP-456, or a UTXO snapshot. With hints a run is several times as fast, and does not check every
    /// rule: see below.
    #[arg(long, value_name = "HINTS")]
    pub(crate) hints: Option<HintsArg>,

    /// Bit order of the hintsfile, where the file itself does not settle it
    #[arg(long, value_name = "msb|lsb", hide_short_help = true, value_parser = parse_order)]
    pub(crate) hints_order: Option<BitOrder>,

    #[cfg(feature = "utreexo")]
    #[command(flatten)]
    pub(crate) proofs: ProofsArgs,

    /// Height of the set; the tip if not given
    ///
    /// Not below that of the hints.
    #[arg(long, value_name = "HEIGHT")]
    pub(crate) stopatheight: Option<u32>,

    /// snapshot:FILE, chainstate:DIR, datadir:DIR and more
    #[arg(long, value_name = "SINK", default_value = "null", long_help = out_help())]
    pub(crate) out: Vec<SinkArg>,

    /// Move a chainstate:DIR that is there to DIR.old
    ///
    /// Or to DIR.old-2 and so on if there is one. They stay until you remove them.
    #[arg(long)]
    pub(crate) replace: bool,

    /// Keep only the last 288 blocks in datadir:DIR
    ///
    /// With their undo data: for a node that runs with -prune.
    #[arg(long)]
    pub(crate) prune: bool,

    /// Also compute the MuHash of the set, which takes up to two microseconds a coin; `chainstate:DIR` and `datadir:DIR` are
    /// read back and compared by it in any case
    #[arg(long, hide_short_help = true)]
    pub(crate) muhash: bool,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// How the set is computed, if not by what is asked: swiftsync if there are hints, utreexo if there are proofs,
    /// utxo if coins are on servers; else mergesync for blocks of a folder, and utxo for those of peers. With `--blocks
    /// keep` mergesync does those of peers as well, up to the last ones, which are utxo's
    #[arg(long, value_enum, hide_short_help = true)]
    engine: Option<EngineArg>,

    #[command(flatten)]
    pub(crate) proof: AggregateArgs,

    #[command(flatten)]
    pub(crate) run: RunArgs,

    #[cfg(feature = "remote-coins")]
    #[command(flatten)]
    pub(crate) coins: CoinsArgs,

    #[command(flatten)]
    pub(crate) peers: PeerArgs,
}

impl SyncArgs {
    /// What computes the set, where that is said: by its name, or by what it alone takes.
    pub(crate) fn engine(&self) -> Option<EngineArg> {
        #[cfg(feature = "remote-coins")]
        let on_servers = self.coins.are_named();
        #[cfg(not(feature = "remote-coins"))]
        let on_servers = false;
        #[cfg(feature = "utreexo")]
        if self.engine.is_none() && !self.proofs.proofs.is_empty() {
            return Some(EngineArg::Utreexo);
        }
        match self.engine {
            None if on_servers => Some(EngineArg::Utxo),
            named => named,
        }
    }

    /// With hints a data directory of blocks from peers has what `--blocks keep` leaves: all blocks, and undo
    /// data of those that were connected.
    pub(crate) fn keep_for_datadir(&mut self) {
        let is_datadir = |sink: &SinkArg| matches!(sink, SinkArg::Datadir(_));
        let of_peers = self.blocksdir.is_none() && self.hints.is_some() && !self.prune;
        if of_peers && self.out.iter().any(is_datadir) {
            self.peers.blocks = BlocksArg::Keep;
        }
    }
}

/// Where proofs come from.
#[cfg(feature = "utreexo")]
#[derive(Args)]
pub(crate) struct ProofsArgs {
    /// Check blocks by proofs of the coins that they spend, and keep no set
    ///
    /// From a folder with files of proofs (docs/utreexo.md), which together are about all blocks up to where the
    /// run ends; or `peer:` and the address of a bridge node of Utreexo that is asked for them, which may be given more
    /// than once.
    #[arg(long, value_name = "DIR|peer:HOST[:PORT]", hide_short_help = true)]
    pub(crate) proofs: Vec<ProofsArg>,
}

#[cfg(feature = "utreexo")]
impl ProofsArgs {
    /// Whether peers are asked for them.
    pub(crate) fn name_peers(&self) -> bool {
        self.proofs.iter().any(|arg| arg.address().is_some())
    }
}

/// How blocks are had from peers.
#[derive(Args)]
pub(crate) struct PeerArgs {
    /// Take blocks from this node alone, HOST or HOST:PORT
    ///
    /// By name or address, and `:PORT` if it is not the usual one; may be given more than once. Without any, peers are
    /// found.
    #[arg(long, value_name = "NODE", conflicts_with = "blocksdir")]
    pub(crate) connect: Vec<String>,

    /// Stay at the tip, through new blocks, until Ctrl-C
    ///
    /// And through reorganisations; what --out names is written when it is interrupted. The progress stays: once what
    /// was written has other names, the same command goes on.
    #[arg(long, conflicts_with_all = ["blocksdir", "stopatheight"])]
    pub(crate) follow: bool,

    /// Go through this SOCKS5 proxy, as of Tor
    ///
    /// For everything: names are not looked up here.
    #[arg(long, value_name = "IP:PORT", value_parser = parse_proxy)]
    pub(crate) proxy: Option<SocketAddr>,

    /// Connections to make, where peers are found
    #[arg(long, value_name = "N", hide_short_help = true, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) maxconnections: u16,

    /// Use the encrypted transport (BIP-324) with peers that have it: 1 or 0
    #[arg(long, value_name = "0|1", hide_short_help = true, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) v2transport: u8,

    /// Hand headers and blocks to peers that connect here, while this run lasts: with --blocks keep
    /// the whole chain, without at most its last blocks. Without --follow the run ends with the
    /// set, and then serves no peer any more
    #[arg(long, value_name = "IP:PORT", hide_short_help = true, conflicts_with = "blocksdir", value_parser = parse_listen)]
    pub(crate) listen: Option<SocketAddr>,

    /// What becomes of the blocks: `keep` leaves them, with an index, in `blocks` beside the folder of
    /// --out chainstate:DIR, so that a node can start there. With hints `--out datadir:DIR` does the same
    #[arg(long, value_enum, hide_short_help = true, default_value_t = BlocksArg::Discard)]
    pub(crate) blocks: BlocksArg,

    /// Give up after so many seconds in which no peer sent anything useful
    #[arg(long, value_name = "SECONDS", hide_short_help = true, default_value_t = 300, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) patience: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineArg {
    /// Blocks in any order, told by hints which coins survive; those above the hints by utxo
    Swiftsync,
    /// Blocks in ascending height, every rule, coins looked up
    Utxo,
    /// Blocks in any order, every rule, without hints: spends are joined with the coins that they
    /// take. Goes over the blocks of --blocksdir twice, and needs room for records beside --out
    Mergesync,
    /// Range by range in any order, every rule, by --proofs: each block is judged by the coins that it
    /// spends, which are proved to be in the Utreexo forest. Says whether the chain is valid, and keeps no
    /// set: --out utreexo:FILE and null alone
    #[cfg(feature = "utreexo")]
    Utreexo,
}

/// How a run computes the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlanWay {
    /// By hints, in any order. The surviving coins are on disk until they are merged.
    Hints,
    /// Without hints, in any order. What blocks make and spend is on disk until it is joined.
    Joins,
    /// In order, by the engine `utxo`. The set is on disk, and as much of it in memory as fits.
    InOrder,
    /// The same with the set on servers.
    InOrderOnServers,
}

/// What the program knows of an engine.
pub(crate) struct EngineFacts {
    /// Its name.
    pub(crate) name: &'static str,
    /// The options that ask for it.
    pub(crate) options: &'static str,
    /// By what `apus plan` foresees it; none where that cannot be.
    pub(crate) plan: Option<PlanWay>,
    /// Which phases its run is going to have.
    pub(crate) phases: RunWay,
    /// What it does with blocks without hints; none for one that needs hints, or that lacks what it works by.
    pub(crate) task: for<'a> fn(TaskParts<'a>) -> Option<Task<'a>>,
}

/// Of what a task without hints is made.
pub(crate) struct TaskParts<'a> {
    pub(crate) connect: ConnectOptions<'a>,
    /// An index from outside that follows the blocks.
    pub(crate) index: Option<&'a dyn ChainIndex>,
    /// The engine that a feature adds, if it is one.
    #[cfg_attr(not(feature = "utreexo"), allow(dead_code, reason = "only Utreexo is one"))]
    pub(crate) outside: Option<&'a dyn ChainEngine>,
}

impl EngineArg {
    /// All that the program knows of it: what it does, says and foresees goes by this.
    pub(crate) fn facts(self) -> EngineFacts {
        match self {
            Self::Swiftsync => EngineFacts {
                name: "swiftsync",
                options: "--engine swiftsync",
                plan: Some(PlanWay::Hints),
                phases: RunWay::Hints { connects: true },
                task: |_| None,
            },
            Self::Utxo => EngineFacts {
                name: "utxo",
                options: "--engine utxo and --coins",
                plan: Some(PlanWay::InOrder),
                phases: RunWay::Order,
                task: |parts| Some(Task::InOrder(parts.connect)),
            },
            Self::Mergesync => EngineFacts {
                name: "mergesync",
                options: "--engine mergesync",
                plan: Some(PlanWay::Joins),
                phases: RunWay::Join,
                task: |TaskParts { connect, index, .. }| {
                    Some(Task::MergeSync(MergeSyncTask { connect, index }))
                },
            },
            #[cfg(feature = "utreexo")]
            Self::Utreexo => EngineFacts {
                name: "utreexo",
                options: "--proofs",
                plan: None,
                phases: RunWay::Proofs,
                task: |parts| {
                    let engine = parts.outside?;
                    Some(Task::By(apus_sync::EngineTask { engine, connect: None }))
                },
            },
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BlocksArg {
    Keep,
    Discard,
}

#[derive(Args, Clone, Copy, Default)]
pub(crate) struct AssumeArgs {
    /// Run no scripts below this block; 0: run all
    ///
    /// What is checked, and what is assumed? Apus checks every rule, but under Core's conditions takes the scripts of
    /// one block's ancestors for valid: of the block with this HASH, or of the one that Core assumes valid (`default`).
    /// With 0 nothing is assumed, and every script is run. `hints` takes blocks under hints for valid where Bitcoin
    /// Core would check them, too: above the assumed-valid block, within the last two weeks, or on a chain with too
    /// little work. Without it such hints are refused; with it the report says which blocks nothing vouches for.
    /// `hints,HASH` says both. If not given, `apus verify` runs every script, `apus snapshot verify` does not ask
    /// whether blocks are valid, and for all else it is `default`.
    #[arg(long, value_name = "HASH|0")]
    pub(crate) assumevalid: Option<AssumeValidArg>,

    /// Old for --assumevalid: 0, or a block
    #[arg(long, hide = true)]
    validation: Option<OldValidation>,

    /// Old for --assumevalid hints
    #[arg(long, hide = true)]
    assume_hinted_valid: bool,
}

/// Values of the option that was there before `--assumevalid` said all.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OldValidation {
    Assumevalid,
    Full,
}

/// What is taken for valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AssumeValidArg {
    block: AssumedBlock,
    /// All that hints cover, too.
    hinted: bool,
}

/// The block whose ancestors' scripts are not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AssumedBlock {
    /// The one that Core assumes valid, if the chain has one.
    Default,
    None,
    Hash(BlockHash),
}

impl AssumeArgs {
    /// What a command assumes that says it in its own way.
    pub(crate) const fn of(assumevalid: AssumeValidArg) -> Self {
        Self { assumevalid: Some(assumevalid), validation: None, assume_hinted_valid: false }
    }

    /// Takes the old options for what they mean. Gives what to say of their new names. Fails where what is given
    /// does not fit together, or is of hints where a run has none.
    pub(crate) fn settle(&mut self, has_hints: bool) -> Result<Vec<String>, Failure> {
        let mut renamed = Vec::new();
        let AssumeValidArg { mut block, mut hinted } = self.assumevalid.unwrap_or_default();
        let is_hash = matches!(block, AssumedBlock::Hash(_));
        if let Some(old) = self.validation.take() {
            match old {
                OldValidation::Full if is_hash => {
                    return Err(Failure::usage(
                        "--validation full assumes no block to be valid: leave out --assumevalid",
                    ));
                }
                OldValidation::Full => block = AssumedBlock::None,
                OldValidation::Assumevalid => {}
            }
            let name = if old == OldValidation::Full { "full" } else { "assumevalid" };
            let new = AssumeValidArg { block, hinted };
            renamed.push(format!("--validation {name} is now --assumevalid {new}"));
            self.assumevalid = Some(new);
        }
        if std::mem::take(&mut self.assume_hinted_valid) {
            hinted = true;
            renamed.push("--assume-hinted-valid is now --assumevalid hints".to_owned());
            self.assumevalid = Some(AssumeValidArg { block, hinted });
        }
        match (hinted, block) {
            (true, AssumedBlock::None) => Err(Failure::usage(ALL_AND_NONE)),
            (true, _) if !has_hints => Err(Failure::usage(
                "--assumevalid hints is about blocks under --hints, which are not given",
            )),
            _ => Ok(renamed),
        }
    }

    /// The block whose ancestors' scripts are not run.
    pub(crate) fn block(&self, params: &Params) -> Option<BlockHash> {
        match self.assumevalid.unwrap_or_default().block {
            AssumedBlock::Default => params.default_assume_valid,
            AssumedBlock::None => None,
            AssumedBlock::Hash(hash) => Some(hash),
        }
    }

    /// Whether blocks under hints are taken for valid, whatever Core would do.
    pub(crate) fn hinted(&self) -> bool {
        self.assumevalid.unwrap_or_default().hinted
    }

    /// Whether it is said that every script is run.
    pub(crate) fn nothing(&self) -> bool {
        self.assumevalid == Some(AssumeValidArg::NOTHING)
    }
}

const ALL_AND_NONE: &str = "--assumevalid 0 runs every script, and --assumevalid hints none up to where the hints \
                            stop: leave out one of them";

impl AssumeValidArg {
    pub(crate) const NOTHING: Self = Self { block: AssumedBlock::None, hinted: false };
}

impl Default for AssumeValidArg {
    fn default() -> Self {
        Self { block: AssumedBlock::Default, hinted: false }
    }
}

impl FromStr for AssumeValidArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut said = Self::default();
        let mut blocks = 0;
        for word in text.split(',') {
            blocks += u32::from(word != "hints");
            match word {
                "hints" => said.hinted = true,
                "default" => said.block = AssumedBlock::Default,
                "0" => said.block = AssumedBlock::None,
                hash => {
                    let hash = hash.parse().map_err(|_| {
                        "neither a block hash of 64 hexadecimal digits nor 0, default or hints"
                            .to_owned()
                    })?;
                    said.block = AssumedBlock::Hash(hash);
                }
            }
        }
        match (blocks, said) {
            (0 | 1, Self { block: AssumedBlock::None, hinted: true }) => {
                Err(ALL_AND_NONE.to_owned())
            }
            (0 | 1, said) => Ok(said),
            _ => Err("one block is enough: those below it are its ancestors".to_owned()),
        }
    }
}

impl fmt::Display for AssumeValidArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.hinted {
            f.write_str("hints,")?;
        }
        match self.block {
            AssumedBlock::Default => f.write_str("default"),
            AssumedBlock::None => f.write_str("0"),
            AssumedBlock::Hash(hash) => hash.fmt(f),
        }
    }
}
