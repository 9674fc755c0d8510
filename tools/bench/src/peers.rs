//! `apus-bench peers`: blocks from nodes on this machine.
//!
//! Nodes hand out a generated chain on ports of 127.0.0.1, over lines as good or bad as is wanted
//! ([`line`](mod@apus_testkit::line)). In turns, each a process of its own: a bare reader (`reader`) that throws all blocks
//! away, `apus sync`, and Bitcoin Core from nothing. All three and the nodes share the machine's
//! cores, so ratios between them say more than times.
//!
//! The sets are compared: with the node's own, and with what the chain's maker said. A difference
//! ends it without numbers.

use crate::chain::BenchChain;
use crate::commands::{Against, ApusProgram, ScratchFolder, own_program, show, write_json};
use crate::error::BenchError;
use crate::machine::BenchMachine;
use crate::run::{OneRun, SetResult, node};
use crate::table::{MeasuredSpread, TextTable, bytes, grouped};
use crate::terminal::{self, watch_signals};
use apus_chain::Network;
use apus_testkit::line::PeerLine;
use clap::Args;
use reader::read;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

mod measure;
mod reader;

use measure::{PeersPlan, measure};

/// Version of the JSON form. New fields do not change it; another meaning of one does.
pub const VERSION: u32 = 1;

/// The program that gets the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockGetter {
    /// A program that reads all blocks and keeps none.
    Reader,
    /// `apus sync`.
    Apus,
    /// `apus sync`, while the first peer's line stalls.
    ApusStalled,
    /// Bitcoin Core.
    Bitcoind,
}

impl fmt::Display for BlockGetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reader => "reader",
            Self::Apus => "apus",
            Self::ApusStalled => "apus, one stalls",
            Self::Bitcoind => "bitcoind",
        })
    }
}

/// What `apus-bench peers` found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeersRecord {
    /// [`VERSION`].
    pub version: u32,
    /// Where.
    pub machine: BenchMachine,
    /// What the nodes say that they are.
    pub bitcoind: String,
    /// Whether they look up every output for BIP-30, as on regtest alone. Older files lack it: theirs did.
    pub bip30_lookups: Option<bool>,
    /// Name of the chain's folder.
    pub chain: String,
    /// Blocks above the genesis block.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Nodes that hand them out.
    pub peers: usize,
    /// Whether in the encrypted transport.
    pub v2transport: bool,
    /// `--dbcache` of Apus and of Bitcoin Core.
    pub dbcache_mib: u64,
    /// What each peer's line is like; none if connected directly.
    pub line: Option<String>,
    /// When the first peer's line stalls, after the beginning of a run in which it does.
    pub stall_after_seconds: Option<f64>,
    /// What Apus writes. Older files lack it: nothing.
    pub output: Option<String>,
    /// How often each was run.
    pub rounds: u32,
    /// What all programs but the reader came to.
    pub set: SetResult,
    /// By program.
    pub measured: Vec<PeersMeasured>,
}

/// What all runs of one came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeersMeasured {
    /// The program.
    pub who: BlockGetter,
    /// One by one.
    pub runs: Vec<OneRun>,
    /// From before the process was started until it was gone.
    pub wall_seconds: MeasuredSpread,
    /// Processor time of all its threads.
    pub cpu_seconds: MeasuredSpread,
    /// Its greatest memory in any run.
    pub rss_peak_bytes: Option<u64>,
    /// Bytes of blocks over the median time.
    pub bytes_per_second: f64,
    /// The part of all lines' rates together that this is, if they have one.
    pub line_share: Option<f64>,
    /// Its time over that of each of the others in the same round.
    pub over: BTreeMap<BlockGetter, MeasuredSpread>,
}

// ---- the command ----

const PEERS_EXAMPLES: &str = "\
Examples:
  How fast eight nodes are read from, beside a program that throws everything
  away and bitcoind:
    apus-bench chain make --blocks 310 --unsigned --out chain
    apus-bench peers --chain-dir chain --against bitcoind

  The same, encrypted, and what the nodes need of the chain kept for the next
  time:
    apus-bench peers --chain-dir chain --v2transport 1 --dir scratch

  Whether lines of 20 Mbit/s with a round trip of 100 ms are full, and what it
  costs if one stalls:
    apus-bench peers --chain-dir chain --line 20mbit,50ms --stall-after 8

Nodes, readers and lines share the cores of this machine. All take turns, round
after round; sets are compared, and a difference ends the command with exit code
4.";

/// Measure getting blocks from nodes on this machine, beside a bare reader and Bitcoin Core
#[derive(Debug, Args)]
#[command(after_help = PEERS_EXAMPLES)]
pub struct PeersArgs {
    /// A generated chain, made by `apus-bench chain make`
    #[arg(long, value_name = "DIR", required_unless_present = "read")]
    chain_dir: Option<PathBuf>,

    /// Nodes that hand it out
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    peers: u16,

    /// Rounds: how often each is run
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Memory for Apus and bitcoind, in MiB
    #[arg(long, value_name = "MiB", default_value_t = 450, value_parser = clap::value_parser!(u64).range(4..=1 << 20))]
    dbcache: u64,

    /// Use the encrypted transport (BIP-324): 1 or 0
    #[arg(long, value_name = "0|1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    v2transport: u8,

    /// The apus to measure; if not given, the one beside this program, or on PATH
    #[arg(long, value_name = "FILE")]
    apus: Option<PathBuf>,

    /// Another program to run from the same nodes
    #[arg(long, value_enum)]
    against: Option<Against>,

    /// The bitcoind to run; if not given, $BITCOIND_EXE, the one on PATH, or in a checkout the one
    /// that scripts/bitcoind fetches
    #[arg(long, value_name = "FILE")]
    bitcoind: Option<PathBuf>,

    /// What each node's line is like: a rate, a latency of each direction and a loss, such as
    /// 20mbit,50ms,1%. If not given, they are connected to directly
    #[arg(long, value_name = "LINE")]
    line: Option<PeerLine>,

    /// Run Apus also so that the first node's line stalls so many seconds after the beginning
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..))]
    stall_after: Option<u16>,

    /// Folder for everything that is made on the way; it is kept, so that the nodes' data need not be
    /// made again. If not given, a temporary one, which is removed
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Read all blocks from these and throw them away: what this command starts itself for
    #[arg(long, value_name = "IP:PORT", hide = true, requires = "told")]
    read: Vec<SocketAddr>,

    /// Where to write how much that was
    #[arg(long, value_name = "FILE", hide = true, requires = "read")]
    told: Option<PathBuf>,
}

/// Measures, writes and shows what it found; or reads blocks alone.
///
/// # Errors
/// Where a program or a node fails, results differ, or it is interrupted.
pub fn command(args: &PeersArgs) -> Result<(), BenchError> {
    if let Some(told) = &args.told {
        return write_json(told, &read(&args.read, Network::Regtest, args.v2transport == 1)?);
    }
    let Some(folder) = &args.chain_dir else {
        return Err(BenchError::usage("--chain-dir is needed"));
    };
    let chain = BenchChain::in_folder(folder)?;
    let bitcoind = node::find(args.bitcoind.as_deref())?;
    let (apus, own) = (ApusProgram::find(args.apus.as_deref())?, own_program()?);
    let interrupt = watch_signals()?;
    let scratch = ScratchFolder::open(args.dir.as_deref(), "apus-bench-peers")?;
    let plan = PeersPlan {
        args,
        program: &apus.program,
        bitcoind: &bitcoind,
        own: &own,
        chain,
        scratch: &scratch.folder,
    };
    let found = measure(&plan, &interrupt, &mut |line: String| terminal::aside(line))?;
    show(args.json.as_deref(), &found, &table(&found))
}

// ---- tables ----

/// What each took, and how they compare.
pub fn table(found: &PeersRecord) -> TextTable {
    let transport = if found.v2transport { "encrypted" } else { "plaintext" };
    let line = found.line.as_ref().map_or_else(String::new, |line| format!(" on lines of {line}"));
    // Files that do not tell are of nodes that looked outputs up.
    let node = match found.bip30_lookups {
        _ if !found.measured.iter().any(|it| it.who == BlockGetter::Bitcoind) => "",
        Some(false) => "; bitcoind without BIP-30 look-ups, as on the main chain",
        Some(true) | None => "; bitcoind with regtest's BIP-30 look-ups",
    };
    let output = found.output.as_deref().map_or("nothing".to_owned(), |it| format!("a {it}"));
    let title = format!(
        "{} blocks, {}, from {} nodes{line}, {transport}, dbcache={}, {} rounds; apus writes {output}{node}",
        grouped(found.blocks),
        bytes(found.bytes as f64),
        found.peers,
        found.dbcache_mib,
        found.rounds,
    );
    let others: Vec<BlockGetter> = found.measured.iter().map(|it| it.who).collect();
    let over: Vec<String> = others.iter().map(|who| format!("over {who}")).collect();
    let mut columns = vec!["who", "s", "least", "greatest", "MB/s", "CPU s", "peak memory"];
    let lines = found.measured.iter().any(|it| it.line_share.is_some());
    columns.extend(lines.then_some("of the lines"));
    columns.extend(over.iter().map(String::as_str));
    let mut table = TextTable::new(title, &columns);
    for it in &found.measured {
        table.row(row(it, lines, &others));
    }
    table
}

fn row(it: &PeersMeasured, lines: bool, others: &[BlockGetter]) -> Vec<String> {
    let mut cells = vec![it.who.to_string()];
    cells.extend(it.wall_seconds.cells(2));
    cells.extend([
        format!("{:.0}", it.bytes_per_second / 1e6),
        format!("{:.2}", it.cpu_seconds.median),
        it.rss_peak_bytes.map_or("-".to_owned(), |peak| bytes(peak as f64)),
    ]);
    let share = it.line_share.map_or("-".to_owned(), |part| format!("{:.1} %", 100.0 * part));
    cells.extend(lines.then_some(share));
    cells.extend(others.iter().map(|other| {
        it.over.get(other).map_or("-".to_owned(), |spread| format!("{:.2}", spread.median))
    }));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::BenchMachine;
    use crate::run::SetResult;
    use crate::table::MeasuredSpread;
    use std::collections::BTreeMap;

    fn found() -> PeersRecord {
        let one = MeasuredSpread { median: 2.0, min: 1.5, max: 4.0 };
        let it = |who, other, share| PeersMeasured {
            who,
            runs: Vec::new(),
            wall_seconds: one,
            cpu_seconds: one,
            rss_peak_bytes: None,
            bytes_per_second: 5e6,
            line_share: share,
            over: BTreeMap::from([(other, MeasuredSpread { median: 1.25, min: 1.0, max: 2.0 })]),
        };
        PeersRecord {
            version: super::VERSION,
            machine: BenchMachine::here(),
            bitcoind: "a node".to_owned(),
            bip30_lookups: Some(true),
            chain: "small".to_owned(),
            blocks: 2_400,
            bytes: 10_000_000,
            peers: 8,
            v2transport: true,
            dbcache_mib: 450,
            line: Some("20mbit,50ms,0%".to_owned()),
            stall_after_seconds: Some(2.0),
            output: Some("chainstate".to_owned()),
            rounds: 3,
            set: SetResult {
                stop_height: 2_400,
                stop_hash: String::new(),
                coins: 1,
                total_amount_sat: 2,
                muhash: None,
                hash_serialized_3: None,
                utreexo: None,
            },
            measured: vec![
                it(BlockGetter::Apus, BlockGetter::ApusStalled, Some(0.953)),
                it(BlockGetter::ApusStalled, BlockGetter::Apus, None),
            ],
        }
    }

    #[test]
    fn ratios_stand_under_their_names() {
        let text = table(&found()).text();
        let mut lines = text.lines();
        let title = lines.next().unwrap();
        assert!(
            title.starts_with("2,400 blocks, 10.0 MB, from 8 nodes on lines of 20mbit"),
            "{title}"
        );
        assert!(
            title.contains("encrypted")
                && title.ends_with("apus writes a chainstate")
                && !title.contains("BIP-30"),
            "{title}"
        );
        let mut with_node = found();
        with_node.measured[0].who = BlockGetter::Bitcoind;
        let title = table(&with_node).title;
        assert!(title.ends_with("with regtest's BIP-30 look-ups"), "{title}");
        assert!(lines.next().unwrap().ends_with("of the lines  over apus  over apus, one stalls"));
        assert!(lines.next().unwrap().contains("95.3 %"));
        assert!(lines.next().unwrap().contains("1.25"));
    }

    #[test]
    fn what_is_written_is_read() {
        let json = serde_json::to_string(&found()).unwrap();
        assert!(json.contains("\"apus_stalled\":{\"median\":1.25"), "{json}");
        assert_eq!(serde_json::from_str::<PeersRecord>(&json).unwrap(), found());
    }
}
