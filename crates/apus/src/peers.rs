//! Peers of a run: starts them with the command line's options, and describes them in reports, events and progress
//! lines.

use crate::args::{PeerArgs, RunArgs};
use crate::failure::Failure;
use crate::report::{self, bytes};
use apus_chain::{Network, Params};
use apus_p2p::addresses::{NodeAddress, dns_seeds, parse_address};
use apus_p2p::download::Limit;
use apus_p2p::headers::HeaderList;
use apus_p2p::network::{NetworkOptions, NetworkStatus, PeerStatus};
use apus_p2p::transport::TransportChoice;
use apus_storage::Storage;
use apus_sync::MemoryParts;
use apus_sync::peers::{BlocksFolderOptions, Peers};
use serde_json::{Value, json};
use std::time::Duration;

/// Maximum number of peers in a progress line.
const NAMED: usize = 3;

/// The program's user agent.
pub(crate) const USER_AGENT: &str = concat!("/apus:", env!("CARGO_PKG_VERSION"), "/");

/// Starts the search for peers.
pub(crate) fn start<'a>(
    args: &PeerArgs,
    params: &Params,
    run: &RunArgs,
    workdir: &'a dyn Storage,
    keep: Option<&BlocksFolderOptions>,
) -> Result<Peers<'a>, Failure> {
    let connect = node_addresses(&args.connect, params.network)?;
    if connect.is_empty() && args.listen.is_none() && dns_seeds(params.network).is_empty() {
        return Err(Failure::usage(format!(
            "{} has no published addresses of nodes: add --connect NODE",
            params.network
        )));
    }
    let options = NetworkOptions {
        params: params.clone(),
        connect,
        addresses: Vec::new(),
        proxy: args.proxy,
        listen: args.listen,
        outbound: args.maxconnections.into(),
        transport: transport(args.v2transport),
        user_agent: USER_AGENT.to_owned(),
        bytes_max: MemoryParts::with_peers(run.dbcache << 20).incoming_bytes,
        patience: patience(args),
        headers: HeaderList::default(),
        blocks: None,
    };
    Ok(Peers::start(options, workdir, keep)?)
}

/// Parses the addresses that `--connect` names.
pub(crate) fn node_addresses(
    connect: &[String],
    network: Network,
) -> Result<Vec<NodeAddress>, Failure> {
    let parse = |node: &String| {
        parse_address(node, network)
            .map_err(|error| Failure::usage(format!("--connect {node}: {error}")))
    };
    connect.iter().map(parse).collect()
}

/// Returns the transports that `--v2transport` allows.
pub(crate) fn transport(v2transport: u8) -> TransportChoice {
    match v2transport {
        0 => TransportChoice::V1,
        _ => TransportChoice::Auto,
    }
}

/// Returns the idle timeout: how long all peers may send nothing useful.
pub(crate) fn patience(args: &PeerArgs) -> Duration {
    Duration::from_secs(args.patience.into())
}

/// Returns the peers' part of a report.
pub(crate) fn report(status: &NetworkStatus) -> report::PeersReport {
    let peer = |peer: &PeerStatus| report::PeerReport {
        address: peer.address.clone(),
        user_agent: peer.user_agent.clone(),
        encrypted: peer.encrypted,
        inbound: peer.inbound,
        blocks_given: peer.blocks,
        bytes_given: peer.bytes,
    };
    let totals = &status.totals;
    report::PeersReport {
        taken_bytes: totals.bytes,
        unneeded_bytes: totals.duplicate_bytes + totals.no_room_bytes,
        damaged_copies: totals.damaged,
        dropped_peers: totals.dropped,
        connected: status.peers.iter().map(peer).collect(),
    }
}

/// Formats a peer for programs.
pub(crate) fn json(peer: &PeerStatus) -> Value {
    json!({
        "address": peer.address, "user_agent": peer.user_agent, "inbound": peer.inbound,
        "encrypted": peer.encrypted, "rate": peer.rate, "bytes": peer.bytes,
        "in_flight": peer.in_flight, "stalled": peer.stalled
    })
}

/// Describes the connected peers, their speed, and the run's limit, briefly.
pub(crate) fn line(status: &NetworkStatus) -> String {
    let connected = status.peers.iter().filter(|peer| !peer.inbound).count();
    let mut parts = vec![format!("{connected} peer{}", if connected == 1 { "" } else { "s" })];
    let mut fastest: Vec<_> = status.peers.iter().filter(|peer| peer.rate > 0).collect();
    fastest.sort_by_key(|peer| std::cmp::Reverse(peer.rate));
    if let Some(lost) = status.last_lost.as_ref().filter(|_| connected == 0) {
        parts.push(format!("({lost})"));
    }
    if !fastest.is_empty() {
        let total = status.rate.max(1);
        let of = |peer: &&PeerStatus| {
            format!("{} {}/s {} %", peer.address, bytes(peer.rate), 100 * peer.rate / total)
        };
        let named: Vec<String> = fastest.iter().take(NAMED).map(of).collect();
        let more = if fastest.len() > NAMED { ", ..." } else { "" };
        parts.push(format!("({}{more})", named.join(", ")));
    }
    parts.push(
        match status.limited_by {
            Some(Limit::Line) => "limited by the download",
            Some(Limit::Consumer) => "limited by this machine",
            Some(Limit::Peers) => "waiting for a peer that has the blocks",
            None => "",
        }
        .to_owned(),
    );
    parts.retain(|part| !part.is_empty());
    parts.join(" ")
}
