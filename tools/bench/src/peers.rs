//! `apus-bench peers`: blocks from nodes on this machine.
//!
//! Nodes serve a generated chain on ports of 127.0.0.1, over simulated links of configurable quality
//! ([`line`](mod@apus_testkit::line)). In turn, each in a separate process, these run: a bare reader
//! (`reader`) that discards all blocks, `apus sync`, and Bitcoin Core from scratch. All three and the nodes
//! share the machine's cores, so their ratios mean more than their times.
//!
//! The resulting sets must match the node's own and the chain maker's numbers. If they differ, no numbers are
//! reported.

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

/// Version of the JSON form. New fields keep it; changed meanings increment it.
pub const VERSION: u32 = 1;

/// The program that gets the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockGetter {
    /// A program that reads all blocks and discards them.
    Reader,
    /// `apus sync`.
    Apus,
    /// `apus sync`, while the first peer's link stalls.
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

/// The results of `apus-bench peers`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeersRecord {
    /// [`VERSION`].
    pub version: u32,
    /// The machine that ran the benchmark.
    pub machine: BenchMachine,
    /// The nodes' version string.
    pub bitcoind: String,
    /// Whether they look up every output for BIP-30, as nodes do on regtest only. Older files lack it: their
    /// nodes did.
    pub bip30_lookups: Option<bool>,
    /// Name of the chain's folder.
    pub chain: String,
    /// Blocks above the genesis block.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Number of nodes that serve them.
    pub peers: usize,
    /// Whether the transport is encrypted.
    pub v2transport: bool,
    /// `--dbcache` of Apus and of Bitcoin Core.
    pub dbcache_mib: u64,
    /// Quality of each peer's link; `None` if connected directly.
    pub line: Option<String>,
    /// Time from the start of a run until the first peer's link stalls, in runs with a stall.
    pub stall_after_seconds: Option<f64>,
    /// The output of Apus. Older files lack it: they had none.
    pub output: Option<String>,
    /// Number of rounds.
    pub rounds: u32,
    /// The set that all programs but the reader produced.
    pub set: SetResult,
    /// Results by program.
    pub measured: Vec<PeersMeasured>,
}

/// All runs of one program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeersMeasured {
    /// The program.
    pub who: BlockGetter,
    /// The individual runs.
    pub runs: Vec<OneRun>,
    /// Wall time from before the process starts until it is gone.
    pub wall_seconds: MeasuredSpread,
    /// Processor time of all its threads.
    pub cpu_seconds: MeasuredSpread,
    /// Its peak memory in any run.
    pub rss_peak_bytes: Option<u64>,
    /// Bytes of blocks over the median time.
    pub bytes_per_second: f64,
    /// This rate as a share of all links' combined rate, if they have one.
    pub line_share: Option<f64>,
    /// Ratio of its time to that of each other program in the same round.
    pub over: BTreeMap<BlockGetter, MeasuredSpread>,
}

// ---- the command ----

const PEERS_EXAMPLES: &str = "\
Examples:
  Sync from eight nodes, compared with a reader that discards everything and
  with bitcoind:
    apus-bench chain make --blocks 310 --unsigned --out chain
    apus-bench peers --chain-dir chain --against bitcoind

  The same, encrypted, keeping the nodes' data for the next time:
    apus-bench peers --chain-dir chain --v2transport 1 --dir scratch

  Use of links of 20 Mbit/s with a round trip of 100 ms, and the cost of a
  stalled link:
    apus-bench peers --chain-dir chain --line 20mbit,50ms --stall-after 8

Nodes, readers and links share the cores of this machine. Programs run in turn,
round after round. All sets must agree: a difference ends the command with exit
code 4.";

/// Measure getting blocks from nodes on this machine, compared with a bare reader and Bitcoin Core
#[derive(Debug, Args)]
#[command(after_help = PEERS_EXAMPLES)]
pub struct PeersArgs {
    /// A generated chain, made by `apus-bench chain make`
    #[arg(long, value_name = "DIR", required_unless_present = "read")]
    chain_dir: Option<PathBuf>,

    /// Number of nodes that serve it
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    peers: u16,

    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Memory for Apus and bitcoind, in MiB
    #[arg(long, value_name = "MiB", default_value_t = 450, value_parser = clap::value_parser!(u64).range(4..=1 << 20))]
    dbcache: u64,

    /// Use the encrypted transport (BIP-324): 1 or 0
    #[arg(long, value_name = "0|1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    v2transport: u8,

    /// The apus to measure; default: the one next to this program, or on PATH
    #[arg(long, value_name = "FILE")]
    apus: Option<PathBuf>,

    /// Another program to run from the same nodes
    #[arg(long, value_enum)]
    against: Option<Against>,

    /// The bitcoind to run; default: $BITCOIND_EXE, the one on PATH, or in a checkout the one that
    /// scripts/bitcoind fetches
    #[arg(long, value_name = "FILE")]
    bitcoind: Option<PathBuf>,

    /// Simulated link of each node: a rate, a latency in each direction and a loss, such as 20mbit,50ms,1%.
    /// Default: a direct connection
    #[arg(long, value_name = "LINE")]
    line: Option<PeerLine>,

    /// Also run Apus with the first node's link stalling after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..))]
    stall_after: Option<u16>,

    /// Folder for intermediate files; it is kept, so that the nodes' data is reused. Default: a temporary
    /// folder, which is removed
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Write all results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Read all blocks from these peers and discard them (used by this command itself)
    #[arg(long, value_name = "IP:PORT", hide = true, requires = "counts")]
    read: Vec<SocketAddr>,

    /// File for the counts of the blocks read
    #[arg(long, value_name = "FILE", hide = true, requires = "read")]
    counts: Option<PathBuf>,
}

/// Measures, writes and shows the results; or only reads blocks.
///
/// # Errors
/// If a program or a node fails, results differ, or the command is interrupted.
pub fn command(args: &PeersArgs) -> Result<(), BenchError> {
    if let Some(counts) = &args.counts {
        return write_json(counts, &read(&args.read, Network::Regtest, args.v2transport == 1)?);
    }
    let Some(folder) = &args.chain_dir else {
        return Err(BenchError::usage("--chain-dir is required"));
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

/// The cost of each program, and their ratios.
pub fn table(found: &PeersRecord) -> TextTable {
    let transport = if found.v2transport { "encrypted" } else { "plaintext" };
    let line =
        found.line.as_ref().map_or_else(String::new, |line| format!(" over links of {line}"));
    // In files without this field, the nodes looked outputs up.
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
    columns.extend(lines.then_some("of the links"));
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
    fn ratios_are_under_their_names() {
        let text = table(&found()).text();
        let mut lines = text.lines();
        let title = lines.next().unwrap();
        assert!(
            title.starts_with("2,400 blocks, 10.0 MB, from 8 nodes over links of 20mbit"),
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
        assert!(lines.next().unwrap().ends_with("of the links  over apus  over apus, one stalls"));
        assert!(lines.next().unwrap().contains("95.3 %"));
        assert!(lines.next().unwrap().contains("1.25"));
    }

    #[test]
    fn written_records_can_be_read() {
        let json = serde_json::to_string(&found()).unwrap();
        assert!(json.contains("\"apus_stalled\":{\"median\":1.25"), "{json}");
        assert_eq!(serde_json::from_str::<PeersRecord>(&json).unwrap(), found());
    }
}
