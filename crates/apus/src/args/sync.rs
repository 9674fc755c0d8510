//! Options and help of `apus sync`.

use super::IndexesArg;
#[cfg(feature = "utreexo")]
use super::values::{ProofsArg, RootsArg};
use super::values::{out_help, parse_listen, parse_order, parse_proxy};
use super::{AggregateArgs, ConnectArgs, HintsArg, RunArgs, SinkArg};
#[cfg(feature = "remote-coins")]
use crate::coins::CoinsArgs;
use crate::estimate::RunMethod;
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
  A data directory for Bitcoin Core, from another node's blocks: blocks, undo
  data, index and coins:
    apus sync --blocksdir /mnt/disk/blocks --out datadir:node

  The UTXO set of a node's blocks, as a snapshot equal to Bitcoin Core's
  dumptxoutset:
    apus sync --blocksdir ~/.bitcoin/blocks --hints main.hints \\
         --out snapshot:utxo.dat

  Without hints, with every rule checked and every script run:
    apus sync --blocksdir ~/.bitcoin/blocks --assumevalid 0 \\
         --out snapshot:utxo.dat

  The same in one pass, with hints and the node's undo data; Apus trusts
  neither:
    apus sync --blocksdir ~/.bitcoin/blocks --hints main.hints \\
         --assumevalid 0 --out snapshot:utxo.dat

  On regtest, where no block is assumed valid, with a report for other programs:
    apus sync --blocksdir ~/.bitcoin/regtest/blocks --hints regtest.hints \\
         --assumevalid hints --out snapshot:utxo.dat --report run.json

  A data directory for a new node, with blocks from peers, as fast as the line
  delivers them:
    apus sync --hints main.hints --out datadir:node

  Only its coins, with no disk for blocks:
    apus sync --hints main.hints --out chainstate:node/chainstate

  From one node of yours, following its new blocks until Ctrl-C:
    apus sync --connect 192.168.1.10 --hints main.hints --follow \\
         --out snapshot:utxo.dat

  In order, with the coins on a Redis Cluster of three servers, for a machine
  with little memory:
    apus sync --blocksdir ~/.bitcoin/blocks \\
         --coins redis://10.0.0.1:6379,10.0.0.2:6379,10.0.0.3:6379/main \\
         --out snapshot:utxo.dat

  The chain in numbers beside the node's new data directory, for a chart of the
  set's growth:
    apus sync --blocksdir ~/.bitcoin/blocks --out datadir:node \\
         --out stats:chain.csv
    apus plot --numbers chain.csv --out growth.svg

  Check whether all blocks are valid, with proofs of the coins that they spend;
  Apus does not trust the proofs:
    apus sync --blocksdir ~/.bitcoin/blocks --proofs proofs \\
         --assumevalid 0 --stopatheight 900000

  The same with proofs from a bridge node, a utreexod with
  --flatutreexoproofindex --prune=0:
    apus sync --blocksdir ~/.bitcoin/blocks --assumevalid 0 \\
         --proofs peer:192.168.1.10:8333

  Without a folder of blocks; the bridge node can give the blocks, too:
    apus sync --connect 192.168.1.20 --assumevalid 0 \\
         --proofs peer:192.168.1.10:8333

  Only the blocks above block 900,000, from the roots that an earlier run wrote
  there; Apus trusts these roots, and checks nothing below:
    apus sync --connect 192.168.1.20 --assumevalid 0 \\
         --proofs peer:192.168.1.10:8333 --roots roots@900000 \\
         --out utreexo:new-roots

  A set from peers with hints and every script run, with the spent coins of a
  bridge node, which Apus does not trust either:
    apus sync --connect 192.168.1.20 --hints main.hints --assumevalid 0 \\
         --spent peer:192.168.1.10:8333 --out datadir:node

  Hints for others, from a snapshot of your own node at a block that Bitcoin
  Core knows:
    bitcoin-cli -rpcclienttimeout=0 dumptxoutset utxo.dat rollback
    apus sync --blocksdir ~/.bitcoin/blocks --stopatheight HEIGHT \\
         --hints snapshot:utxo.dat --out hints:main.hints

With hints, Apus takes the blocks up to the hints' last block in any order. It
checks every block rule that needs no spent coins, that each spent coin existed
and was spent exactly once (by the aggregate), BIP-30, and the supply. It
assumes scripts, the amounts of each block, and that no block spends a coin of a
later block. So it refuses hints that reach further than what Core assumes
valid: they must stop at or below the assumed-valid block, on a chain that
contains it, with enough work, and with two weeks of work above them. If you
have your own reason to trust these blocks, say so with --assumevalid hints.
Apus checks the blocks above the hints, and all blocks without hints, by every
rule of Core's; under Core's conditions it skips the scripts of ancestors of the
assumed-valid block.

Interrupted or killed runs resume: rerun the same command.";

#[derive(Args)]
#[command(after_help = "`apus sync --help` lists all options and shows examples.", after_long_help = SYNC_EXAMPLES)]
pub(crate) struct SyncArgs {
    /// Chain; by default the chain of the blocks
    ///
    /// main, test, testnet4, signet or regtest. By default, Apus detects the chain from the blocks in a folder, and
    /// uses main for blocks from peers.
    #[arg(long, default_value = "main", hide_default_value = true)]
    pub(crate) chain: Network,

    /// Folder of Core's blk*.dat files (default: peers)
    ///
    /// Apus opens the files for reading only. Without this option, Apus downloads blocks from peers.
    #[arg(long, value_name = "DIR")]
    pub(crate) blocksdir: Option<PathBuf>,

    /// Which coins survive: FILE or snapshot:FILE
    ///
    /// A BIP-456 hintsfile, or a UTXO snapshot. Hints make a sync several times as fast, but it does not check every
    /// rule: see below.
    #[arg(long, value_name = "HINTS")]
    pub(crate) hints: Option<HintsArg>,

    /// Bit order of the hintsfile, if Apus cannot detect it
    #[arg(long, value_name = "msb|lsb", hide_short_help = true, value_parser = parse_order)]
    pub(crate) hints_order: Option<BitOrder>,

    #[cfg(feature = "utreexo")]
    #[command(flatten)]
    pub(crate) proofs: ProofsArgs,

    /// Stop at this height; by default at the tip
    ///
    /// With hints, the height must not be below the one where they stop.
    #[arg(long, value_name = "HEIGHT")]
    pub(crate) stopatheight: Option<u32>,

    /// snapshot:FILE, chainstate:DIR, datadir:DIR and more
    #[arg(long, value_name = "SINK", default_value = "null", long_help = out_help())]
    pub(crate) out: Vec<SinkArg>,

    /// Move an existing chainstate:DIR to DIR.old, and replace existing tables and stats:FILE
    ///
    /// Or to DIR.old-2 and so on, if DIR.old exists. Old folders stay until you remove them. An old file stays until the
    /// new one is complete.
    #[arg(long)]
    pub(crate) replace: bool,

    #[command(flatten)]
    pub(crate) index: IndexesArg,

    /// Keep only the last 288 blocks in datadir:DIR
    ///
    /// Apus also keeps their undo data. Start the node with -prune.
    #[arg(long)]
    pub(crate) prune: bool,

    /// Also compute the MuHash of the set, which takes up to two microseconds per coin
    #[arg(long, hide_short_help = true)]
    pub(crate) muhash: bool,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// Engine that computes the set. By default swiftsync with hints, utreexo with proofs, utxo with coins on servers;
    /// otherwise mergesync. From peers, utxo connects the last 288 blocks, which may still change
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
    /// Returns the engine that the user chose, by name or through an option that only one engine has.
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

    /// Turns on `--blocks keep` for a data directory from hints and blocks from peers: it then has all blocks, and the
    /// undo data of the connected ones.
    pub(crate) fn keep_for_datadir(&mut self) {
        let is_datadir = |sink: &SinkArg| matches!(sink, SinkArg::Datadir(_));
        let of_peers = self.blocksdir.is_none() && self.hints.is_some() && !self.prune;
        if of_peers && self.out.iter().any(is_datadir) {
            self.peers.blocks = BlocksArg::Keep;
        }
    }
}

/// The source of proofs.
#[cfg(feature = "utreexo")]
#[derive(Args)]
pub(crate) struct ProofsArgs {
    /// Check blocks with proofs of their spent coins; keep no set
    ///
    /// Either a folder with proof files (docs/utreexo.md), which together cover all blocks up to the end of the run; or
    /// `peer:` and the address of a Utreexo bridge node that serves proofs, which may be repeated; or `peers` for the
    /// bridge nodes among the peers that give the blocks (a folder of that name is `./peers`).
    #[arg(long, value_name = "DIR|peer:HOST[:PORT]|peers", hide_short_help = true)]
    pub(crate) proofs: Vec<ProofsArg>,

    /// Begin above a block, with the roots that an earlier run wrote after it: FILE@HASH or FILE@HEIGHT
    ///
    /// Only with --proofs. FILE is what --out utreexo:FILE wrote, and HASH or HEIGHT names its last block. Apus does
    /// not validate the blocks up to there: use only your own roots, or those of a person you trust.
    #[arg(long, value_name = "FILE@BLOCK", hide_short_help = true)]
    pub(crate) roots: Option<RootsArg>,

    /// Check every rule with --hints and blocks from peers, with spent coins from this Utreexo bridge node
    ///
    /// `peer:` and the address of a bridge node, which may be repeated, or `peers` for the bridge nodes among the peers
    /// that give the blocks. Apus trusts none of them: wrong coins can only make the sync fail. If there are several,
    /// Apus asks two of them about each block, and leaves out one that lies.
    #[arg(long, value_name = "peer:HOST[:PORT]|peers", hide_short_help = true)]
    pub(crate) spent: Vec<ProofsArg>,
}

#[cfg(feature = "utreexo")]
impl ProofsArgs {
    /// Whether proofs or spent coins come from peers.
    pub(crate) fn names_peers(&self) -> bool {
        self.proofs.iter().chain(&self.spent).any(ProofsArg::is_of_peers)
    }
}

/// How to get blocks from peers.
#[derive(Args)]
pub(crate) struct PeerArgs {
    /// Get blocks only from this node, HOST or HOST:PORT
    ///
    /// A host name or an address, with `:PORT` if the port is not the default; may be repeated. Without --connect,
    /// Apus finds peers itself.
    #[arg(long, value_name = "NODE", conflicts_with = "blocksdir")]
    pub(crate) connect: Vec<String>,

    /// Follow new blocks at the tip until Ctrl-C
    ///
    /// Apus also follows reorganisations. On Ctrl-C, Apus writes the outputs and keeps the progress. To continue,
    /// rename the outputs, then rerun the command.
    #[arg(long, conflicts_with_all = ["blocksdir", "stopatheight"])]
    pub(crate) follow: bool,

    /// Connect through this SOCKS5 proxy, such as Tor
    ///
    /// Apus uses the proxy for all connections, and leaves resolving host names to it. Tor gives each connection its own
    /// circuit.
    #[arg(long, value_name = "IP:PORT", value_parser = parse_proxy)]
    pub(crate) proxy: Option<SocketAddr>,

    /// Number of connections, if Apus finds peers
    #[arg(long, value_name = "N", hide_short_help = true, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) maxconnections: u16,

    /// Use the encrypted transport (BIP-324) with peers that support it: 1 or 0
    #[arg(long, value_name = "0|1", hide_short_help = true, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) v2transport: u8,

    /// Serve headers and blocks to peers that connect to this address, until the sync ends. With --blocks keep, serve
    /// the whole chain, except possibly its last blocks. Without --follow the sync ends as soon as the set is
    /// complete
    #[arg(long, value_name = "IP:PORT", hide_short_help = true, conflicts_with = "blocksdir", value_parser = parse_listen)]
    pub(crate) listen: Option<SocketAddr>,

    /// What to do with downloaded blocks: `keep` stores them, with an index, in `blocks` next to the folder of --out
    /// chainstate:DIR, so that a node can start there. With hints, `--out datadir:DIR` stores them in DIR
    #[arg(long, value_enum, hide_short_help = true, default_value_t = BlocksArg::Discard)]
    pub(crate) blocks: BlocksArg,

    /// Give up after this many seconds without a requested header or block from any peer
    #[arg(long, value_name = "SECONDS", hide_short_help = true, default_value_t = 300, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) patience: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineArg {
    /// Processes blocks in any order; hints say which coins survive. The engine utxo connects the blocks above the
    /// hints
    Swiftsync,
    /// Connects blocks in ascending height, looks coins up, and checks every rule
    Utxo,
    /// Processes blocks in any order, without hints, and checks every rule: matches each spend with its coin. Reads the
    /// blocks twice, and needs disk for temporary files
    Mergesync,
    /// Processes block ranges in any order, with --proofs, and checks every rule: validates each block with its spent
    /// coins, after checking the proofs that they are in the Utreexo forest. Keeps no set, so it accepts only --out
    /// utreexo:FILE and null
    #[cfg(feature = "utreexo")]
    Utreexo,
}

/// How a run computes the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncMethod {
    /// Uses hints, and processes blocks in any order. The surviving coins stay on disk until they are merged.
    Hints,
    /// Processes blocks in any order, without hints. Created and spent coins stay on disk until they are joined.
    Joins,
    /// Connects blocks in order with the engine `utxo`. The set is on disk, and cached in memory as far as it fits.
    InOrder,
    /// Connects blocks in order with the engine `utxo`, and keeps the set on servers.
    InOrderOnServers,
}

/// The program's table entry for an engine.
pub(crate) struct EngineFacts {
    /// The engine's name.
    pub(crate) name: &'static str,
    /// The options that select the engine.
    pub(crate) options: &'static str,
    /// The method that `apus plan` estimates for the engine; `None` if it cannot.
    pub(crate) plan: Option<SyncMethod>,
    /// The phases of a run with the engine.
    pub(crate) phases: RunMethod,
    /// Creates the engine's task for blocks without hints; returns `None` if the engine needs hints, or a part is
    /// missing.
    pub(crate) task: for<'a> fn(TaskParts<'a>) -> Option<Task<'a>>,
}

/// The parts of a task without hints.
pub(crate) struct TaskParts<'a> {
    pub(crate) connect: ConnectOptions<'a>,
    /// An external index that is updated with each block.
    pub(crate) index: Option<&'a dyn ChainIndex>,
    /// The engine that a feature adds, if the run uses it.
    #[cfg_attr(not(feature = "utreexo"), allow(dead_code, reason = "only Utreexo adds an engine"))]
    pub(crate) outside: Option<&'a dyn ChainEngine>,
}

impl EngineArg {
    /// Returns the engine's facts. Behaviour, texts and estimates all follow from them.
    pub(crate) fn facts(self) -> EngineFacts {
        match self {
            Self::Swiftsync => EngineFacts {
                name: "swiftsync",
                options: "--engine swiftsync",
                plan: Some(SyncMethod::Hints),
                phases: RunMethod::Hints { connects: true },
                task: |_| None,
            },
            Self::Utxo => EngineFacts {
                name: "utxo",
                options: "--engine utxo and --coins",
                plan: Some(SyncMethod::InOrder),
                phases: RunMethod::Order,
                task: |parts| Some(Task::InOrder(parts.connect)),
            },
            Self::Mergesync => EngineFacts {
                name: "mergesync",
                options: "--engine mergesync",
                plan: Some(SyncMethod::Joins),
                phases: RunMethod::Join,
                task: |TaskParts { connect, index, .. }| {
                    Some(Task::MergeSync(MergeSyncTask { connect, index }))
                },
            },
            #[cfg(feature = "utreexo")]
            Self::Utreexo => EngineFacts {
                name: "utreexo",
                options: "--proofs",
                plan: None,
                phases: RunMethod::Proofs,
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
    /// Skip scripts below this block; 0 skips none
    ///
    /// Apus checks every rule, but under Core's conditions assumes the scripts of one block's ancestors valid: the
    /// ancestors of the block HASH, or of the block that Core assumes valid (`default`). With 0 Apus assumes nothing
    /// and runs every script. `hints` also assumes blocks under hints valid where Bitcoin Core would check them:
    /// above the assumed-valid block, within the last two weeks, or on a chain with too little work. Without `hints`
    /// Apus refuses such hints. With `hints`, the report lists these blocks. `hints,HASH` combines both. By default
    /// `apus verify` runs every script, `apus snapshot verify` does not check whether blocks are valid, and all other
    /// commands take `default`.
    #[arg(long, value_name = "HASH|0")]
    pub(crate) assumevalid: Option<AssumeValidArg>,
}

/// What a run assumes valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AssumeValidArg {
    block: AssumedBlock,
    /// Whether everything under hints is assumed valid, too.
    hinted: bool,
}

/// The block up to which Apus assumes scripts valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AssumedBlock {
    /// The block that Core assumes valid, if the chain has one.
    Default,
    None,
    Hash(BlockHash),
}

impl AssumeArgs {
    /// Creates the assumption for a command without the option.
    pub(crate) const fn of(assumevalid: AssumeValidArg) -> Self {
        Self { assumevalid: Some(assumevalid) }
    }

    /// Fails if the value mentions hints and the run has none.
    pub(crate) fn expect_hints(&self, has_hints: bool) -> Result<(), Failure> {
        match self.hinted() && !has_hints {
            true => Err(Failure::usage("--assumevalid hints needs --hints")),
            false => Ok(()),
        }
    }

    /// The block up to which Apus assumes scripts valid.
    pub(crate) fn block(&self, params: &Params) -> Option<BlockHash> {
        match self.assumevalid.unwrap_or_default().block {
            AssumedBlock::Default => params.default_assume_valid,
            AssumedBlock::None => None,
            AssumedBlock::Hash(hash) => Some(hash),
        }
    }

    /// Whether blocks under hints are assumed valid even if Core would check them.
    pub(crate) fn hinted(&self) -> bool {
        self.assumevalid.unwrap_or_default().hinted
    }

    /// Whether the user asked for every script to run.
    pub(crate) fn nothing(&self) -> bool {
        self.assumevalid == Some(AssumeValidArg::NOTHING)
    }
}

const ALL_AND_NONE: &str = "--assumevalid 0 runs every script, and --assumevalid hints runs none up to where the \
    hints stop: use only one of the two";

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
        let mut parsed = Self::default();
        let mut blocks = 0;
        for word in text.split(',') {
            blocks += u32::from(word != "hints");
            match word {
                "hints" => parsed.hinted = true,
                "default" => parsed.block = AssumedBlock::Default,
                "0" => parsed.block = AssumedBlock::None,
                hash => {
                    let hash = hash.parse().map_err(|_| {
                        "use a block hash of 64 hexadecimal digits, 0, default or hints".to_owned()
                    })?;
                    // As in Core, the hash of no block.
                    parsed.block = match hash {
                        BlockHash::ZERO => AssumedBlock::None,
                        hash => AssumedBlock::Hash(hash),
                    };
                }
            }
        }
        match (blocks, parsed) {
            (0 | 1, Self { block: AssumedBlock::None, hinted: true }) => {
                Err(ALL_AND_NONE.to_owned())
            }
            (0 | 1, parsed) => Ok(parsed),
            _ => Err("give one block: its ancestors are all the blocks below it".to_owned()),
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
