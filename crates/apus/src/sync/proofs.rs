//! `--proofs`: the files, or the bridge nodes, that tell what blocks spend.

use crate::args::{EngineArg, ProofsArg, SinkArg, SyncArgs};
use crate::failure::Failure;
use crate::peers::{self, BridgeOptions};
use apus_chain::Network;
use apus_sync::{ProofsInput, UsageError};
use std::path::PathBuf;

/// Where proofs come from. The engine that goes by them needs block files, too, and keeps no set.
pub(super) fn input(args: &SyncArgs) -> Result<Option<ProofsInput>, Failure> {
    let peers = args.proofs.iter().any(|arg| address(arg).is_some());
    if args.peers.proxy.is_some() && args.blocksdir.is_some() && !peers {
        return Err(Failure::usage(
            "--proxy is for peers, and there are none: blocks come from --blocksdir",
        ));
    }
    match (args.engine() == Some(EngineArg::Utreexo), args.proofs.is_empty()) {
        (false, true) => return Ok(None),
        (false, false) => {
            return Err(Failure::usage(
                "proofs are for the engine utreexo alone: leave out --engine, or --proofs",
            ));
        }
        (true, true) => {
            return Err(Failure::usage(
                "the engine utreexo needs the folder of the files of proofs, --proofs DIR, or a bridge node to \
                 ask for them, --proofs peer:HOST:PORT",
            ));
        }
        (true, false) => {}
    }
    if args.blocksdir.is_none() {
        return Err(Failure::usage(
            "the engine utreexo takes blocks of files, range by range: name their folder by --blocksdir DIR",
        ));
    }
    let keeps_set = |sink: &SinkArg| !matches!(sink, SinkArg::Utreexo(_) | SinkArg::Null);
    if args.out.iter().any(keeps_set) {
        return Err(Failure::usage(UsageError::NoSetKept.to_string()));
    }
    named(&args.proofs, args.chain, (&args.peers).into()).map(Some)
}

/// The folder, or the peers, that these name; one at least.
pub(crate) fn named(
    proofs: &[ProofsArg],
    network: Network,
    how: BridgeOptions,
) -> Result<ProofsInput, Failure> {
    if let Some(folder) = folder(proofs)? {
        return Ok(ProofsInput::Folder(folder));
    }
    let named: Vec<&str> = proofs.iter().filter_map(address).collect();
    peers::bridges(network, &named, how).map(ProofsInput::Peers)
}

/// The folder of proofs, if they come from one: then they come from nowhere else.
fn folder(proofs: &[ProofsArg]) -> Result<Option<PathBuf>, Failure> {
    let mut folders = proofs.iter().filter(|arg| address(arg).is_none());
    match folders.next() {
        Some(ProofsArg::Folder(folder)) if proofs.len() == 1 => Ok(Some(folder.clone())),
        Some(ProofsArg::Folder(folder)) => Err(Failure::usage(format!(
            "proofs come from one folder or from peers: leave out --proofs {}, or all others",
            folder.display()
        ))),
        _ => Ok(None),
    }
}

const fn address(arg: &ProofsArg) -> Option<&str> {
    match arg {
        ProofsArg::Peer(address) => Some(address.as_str()),
        ProofsArg::Folder(_) => None,
    }
}
