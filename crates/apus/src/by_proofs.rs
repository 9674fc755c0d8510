//! `--proofs`: the engine utreexo, which validates blocks with proofs of their spent coins. `--spent`: these coins alone,
//! for the engine swiftsync.

use crate::args::{AggregateArg, EngineArg, PeerArgs, ProofsArg, RootsArg, SinkArg, SyncArgs};
use crate::extra_engine::OutsideEngine;
use crate::failure::Failure;
use crate::files::expect_apart;
use crate::peers;
use crate::report::ForestReport;
use apus_chain::{Network, Params};
use apus_p2p::addresses::parse_address;
use apus_p2p::transport::TransportChoice;
use apus_proofs::{BridgePeers, ByProofs, ProofsError, ProofsInput, SpentPeers, TrustedRoots};
use apus_utreexo::Roots;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Creates the engine, if a run uses proofs. It keeps no set.
pub(crate) fn by_proofs(args: &SyncArgs) -> Result<Option<ByProofs>, Failure> {
    let proofs = &args.proofs.proofs;
    if args.proofs.roots.is_some() && args.engine() != Some(EngineArg::Utreexo) {
        return Err(Failure::usage(
            "only a run with proofs can begin with roots: add --proofs, or leave out --roots",
        ));
    }
    match (args.engine() == Some(EngineArg::Utreexo), proofs.is_empty()) {
        (false, true) => return Ok(None),
        (false, false) => {
            return Err(Failure::usage(
                "only the engine utreexo takes proofs: leave out --engine or --proofs",
            ));
        }
        (true, true) => {
            return Err(Failure::usage(
                "the engine utreexo needs proofs: give their folder with --proofs DIR, a bridge node with --proofs \
                 peer:HOST:PORT, or --proofs peers for bridges among the peers that give the blocks",
            ));
        }
        (true, false) => {}
    }
    if args.peers.follow {
        return Err(Failure::usage("the engine utreexo ends at the tip: leave out --follow"));
    }
    let keeps_set = |sink: &SinkArg| {
        !matches!(sink, SinkArg::Utreexo(_) | SinkArg::SignatureHints(_) | SinkArg::Null)
    };
    if args.out.iter().any(keeps_set) {
        return Err(Failure::usage(ProofsError::NoSetKept.to_string()));
    }
    expect_with_peers(proofs, args.blocksdir.is_some())?;
    let proofs = named(proofs, args.chain, (&args.peers).into())?;
    let engine = ByProofs::new(proofs, args.connect.assume.block(Params::of(args.chain)));
    Ok(Some(engine.starting_with(trusted_roots(args)?)))
}

/// Reads the roots that a run begins with, if the user names any.
fn trusted_roots(args: &SyncArgs) -> Result<Option<TrustedRoots>, Failure> {
    /// The roots of the largest forest are shorter.
    const BYTES_MAX: u64 = 4096;
    let Some(RootsArg { path, block }) = &args.proofs.roots else { return Ok(None) };
    for written in args.out.iter().filter_map(SinkArg::path).chain(args.run.report.as_deref()) {
        expect_apart(&[path, written])?;
    }
    let file = File::open(path).map_err(|error| Failure::opening(path, &error))?;
    let mut bytes = Vec::new();
    let read = file.take(BYTES_MAX).read_to_end(&mut bytes);
    read.map_err(|error| Failure::io(path, error))?;
    let roots = Roots::read(&bytes).map_err(|error| {
        let path = path.display();
        Failure::wrong(format!("{path} is not a file of Utreexo roots, or it is damaged: {error}"))
    })?;
    Ok(Some(TrustedRoots { roots, block: *block, origin: path.display().to_string() }))
}

/// Refuses bridges among the peers if the blocks come from files.
pub(crate) fn expect_with_peers(proofs: &[ProofsArg], has_files: bool) -> Result<(), Failure> {
    match proofs.iter().any(|arg| matches!(arg, ProofsArg::Peers)) && has_files {
        false => Ok(()),
        true => Err(Failure::usage(
            "--proofs peers is for bridges among the peers that give the blocks, but blocks come from --blocksdir: \
             name a bridge node, --proofs peer:HOST:PORT, or leave out --blocksdir",
        )),
    }
}

/// Returns the bridges that give spent coins, if a run names any.
pub(crate) fn spent(args: &SyncArgs) -> Result<Option<SpentPeers>, Failure> {
    let spent = &args.proofs.spent;
    if spent.is_empty() {
        return Ok(None);
    }
    let refused = |what: &str| Err(Failure::usage(format!("--spent {what}")));
    if let Some(ProofsArg::Folder(folder)) = spent.iter().find(|arg| !arg.is_of_peers()) {
        return refused(&format!(
            "peer:{0} names a bridge node: write peer:, not {0}",
            folder.display()
        ));
    }
    if args.hints.is_none() || args.blocksdir.is_some() {
        return refused(
            "is for blocks from peers with --hints: block files come with undo data, and without hints none are needed",
        );
    }
    if args.connect.assume.hinted() || !matches!(args.proof.aggregate, AggregateArg::Sha256) {
        return refused(
            "checks every rule, which needs the sums of coins: leave out --assumevalid hints and --aggregate",
        );
    }
    bridges("--spent", args.chain, spent, (&args.peers).into()).map(SpentPeers).map(Some)
}

/// Describes the engine for a run.
pub(crate) fn outside(engine: &ByProofs) -> OutsideEngine<'_> {
    let folder = match engine.proofs() {
        ProofsInput::Folder(folder) => Some(folder.as_path()),
        ProofsInput::Peers(_) => None,
    };
    let forest = Box::new(|| engine.roots().as_ref().map(ForestReport::of));
    OutsideEngine { engine, folder, option: "--proofs", forest }
}

/// Returns the folder or the peers that the arguments name; they must name at least one.
pub(crate) fn named(
    proofs: &[ProofsArg],
    network: Network,
    how: BridgePeersOptions,
) -> Result<ProofsInput, Failure> {
    if let Some(folder) = folder(proofs)? {
        return Ok(ProofsInput::Folder(folder));
    }
    bridges("--proofs", network, proofs, how).map(ProofsInput::Peers)
}

/// Returns the folder of proofs, if the arguments name one. Fails if they also name other sources.
fn folder(proofs: &[ProofsArg]) -> Result<Option<PathBuf>, Failure> {
    let mut folders = proofs.iter().filter(|arg| !arg.is_of_peers());
    match folders.next() {
        Some(ProofsArg::Folder(folder)) if proofs.len() == 1 => Ok(Some(folder.clone())),
        Some(ProofsArg::Folder(folder)) => Err(Failure::usage(format!(
            "proofs come from one folder or from peers: leave out --proofs {}, or all the others",
            folder.display()
        ))),
        _ => Ok(None),
    }
}

/// Returns the bridge nodes that an option names; none if it stands for those among the peers.
fn bridges(
    option: &str,
    network: Network,
    args: &[ProofsArg],
    how: BridgePeersOptions,
) -> Result<BridgePeers, Failure> {
    let named: Vec<&str> = args.iter().filter_map(ProofsArg::address).collect();
    if !named.is_empty() && named.len() < args.len() {
        return Err(Failure::usage(format!(
            "{option} peers stands for the bridges among the peers that give the blocks: leave it out, or leave out \
             {option} peer:{}",
            named.join(&format!(" and {option} peer:"))
        )));
    }
    let parse = |node: &&str| {
        parse_address(node, network)
            .map_err(|error| Failure::usage(format!("{option} peer:{node}: {error}")))
    };
    Ok(BridgePeers {
        addresses: named.iter().map(parse).collect::<Result<_, _>>()?,
        proxy: how.proxy,
        transport: how.transport,
        patience: how.patience,
    })
}

/// Options for connections to bridge nodes.
#[derive(Clone, Copy)]
pub(crate) struct BridgePeersOptions {
    pub(crate) proxy: Option<SocketAddr>,
    pub(crate) transport: TransportChoice,
    pub(crate) patience: Duration,
}

impl From<&PeerArgs> for BridgePeersOptions {
    fn from(args: &PeerArgs) -> Self {
        Self {
            proxy: args.proxy,
            transport: peers::transport(args.v2transport),
            patience: peers::patience(args),
        }
    }
}

/// A worker's sources of proofs.
#[cfg(feature = "cluster")]
#[derive(Clone, Copy)]
pub(crate) struct WorkerProofs<'a> {
    pub(crate) named: &'a [ProofsArg],
    pub(crate) how: BridgePeersOptions,
}

#[cfg(feature = "cluster")]
impl WorkerProofs<'_> {
    /// Returns the engine for segments of a chain with proofs.
    pub(crate) fn segments(
        &self,
        chain: Option<Network>,
    ) -> Result<apus_proofs::ProvenSegments, Failure> {
        // The caller later refuses a run of an unknown chain, with its name.
        let chain = chain.filter(|_| !self.named.is_empty());
        let proofs = chain.map(|chain| named(self.named, chain, self.how)).transpose()?;
        Ok(apus_proofs::ProvenSegments { proofs })
    }
}
