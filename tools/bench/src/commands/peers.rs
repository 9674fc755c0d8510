//! `apus-bench peers`: blocks from nodes on this machine.

use super::{Against, ApusProgram, ScratchFolder, own_program, write_json};
use crate::terminal::{self, watch_signals};
use apus_bench::BenchError;
use apus_bench::peers::line::PeerLine;
use apus_bench::peers::reader::read;
use apus_bench::peers::{self, PeersPlan};
use apus_bench::run::{BenchChain, node};
use apus_chain::Network;
use clap::Args;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

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

#[derive(Args)]
#[command(after_help = PEERS_EXAMPLES)]
pub(crate) struct PeersArgs {
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

pub(crate) fn command(args: &PeersArgs) -> Result<(), BenchError> {
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
    let reader = |peers: &[SocketAddr], told: &Path| {
        let mut command = Command::new(&own);
        command.args(["peers", "--v2transport", &args.v2transport.to_string()]);
        peers.iter().for_each(|peer| {
            command.args(["--read", &peer.to_string()]);
        });
        command.arg("--told").arg(told);
        command
    };
    let plan = PeersPlan {
        program: &apus.program,
        bitcoind: &bitcoind,
        chain,
        peers: args.peers.into(),
        v2transport: args.v2transport == 1,
        dbcache_mib: args.dbcache,
        rounds: args.rounds,
        against: args.against.is_some(),
        line: args.line,
        stall_after: args.stall_after.map(|seconds| Duration::from_secs(seconds.into())),
        scratch: &scratch.folder,
        reader: &reader,
    };
    let found = peers::measure(&plan, &interrupt, &mut |line: String| terminal::aside(line))?;
    if let Some(path) = &args.json {
        write_json(path, &found)?;
    }
    terminal::result(peers::table(&found).text())
}
