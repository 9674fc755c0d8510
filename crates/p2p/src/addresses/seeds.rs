//! DNS seeds: the names under which operators publish node addresses, and how to query them.

use super::{Host, NodeAddress, Services};
use apus_chain::Network;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of addresses taken from one seed's answer (Core `net.cpp`, `ThreadDNSAddressSeed`).
const RESULTS_MAX: usize = 32;

/// The service filter in a seed's query name: [`Services::NETWORK`] and [`Services::WITNESS`] in hexadecimal.
const SERVICES_PREFIX: &str = "x9";

/// The default port of a network's nodes (Core `kernel/chainparams.cpp`, `nDefaultPort`).
pub const fn default_port(network: Network) -> u16 {
    match network {
        Network::Main => 8333,
        Network::Testnet3 => 18333,
        Network::Testnet4 => 48333,
        Network::Signet | Network::OwnSignet(_) => 38333,
        Network::Regtest => 18444,
    }
}

/// The DNS seeds of a network (Core `kernel/chainparams.cpp`, `vSeeds`). The trailing dot keeps resolvers
/// from appending a domain.
pub const fn dns_seeds(network: Network) -> &'static [&'static str] {
    match network {
        Network::Main => &[
            "seed.bitcoin.sipa.be.",
            "dnsseed.bluematt.me.",
            "seed.bitcoin.jonasschnelli.ch.",
            "seed.btc.petertodd.net.",
            "seed.bitcoin.sprovoost.nl.",
            "dnsseed.emzy.de.",
            "seed.bitcoin.wiz.biz.",
            "seed.mainnet.achownodes.xyz.",
        ],
        Network::Testnet3 => &[
            "testnet-seed.bitcoin.jonasschnelli.ch.",
            "seed.tbtc.petertodd.net.",
            "seed.testnet.bitcoin.sprovoost.nl.",
            "testnet-seed.bluematt.me.",
            "seed.testnet.achownodes.xyz.",
        ],
        Network::Testnet4 => &["seed.testnet4.bitcoin.sprovoost.nl.", "seed.testnet4.wiz.biz."],
        Network::Signet => &["seed.signet.bitcoin.sprovoost.nl.", "seed.signet.achownodes.xyz."],
        Network::Regtest | Network::OwnSignet(_) => &[],
    }
}

/// The seeds as nodes to connect to by name and to ask for addresses. Use this instead of [`resolve_seeds`]
/// if a proxy resolves names, so that no DNS query bypasses the proxy.
pub fn seeds_by_name(network: Network) -> Vec<NodeAddress> {
    let node = |name: &&str| NodeAddress {
        host: Host::Name(name.trim_end_matches('.').to_owned()),
        port: default_port(network),
        services: Services::default(),
        time: 0,
    };
    dns_seeds(network).iter().map(node).collect()
}

/// Queries all seeds of a network at once and waits for at most `wait`. Returns the addresses, at most 32 of
/// each seed, and how many seeds returned any. A query that is still pending then keeps its thread until the
/// resolver gives up.
pub fn resolve_seeds(network: Network, wait: Duration) -> (Vec<SocketAddr>, usize) {
    let port = default_port(network);
    resolve(dns_seeds(network), wait, move |name| {
        let found = (format!("{SERVICES_PREFIX}.{name}").as_str(), port).to_socket_addrs()?;
        Ok(found.take(RESULTS_MAX).collect())
    })
}

fn resolve(
    names: &'static [&'static str],
    wait: Duration,
    resolver: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Clone + Send + 'static,
) -> (Vec<SocketAddr>, usize) {
    let (sender, receiver) = mpsc::channel();
    for name in names {
        let (sender, resolver) = (sender.clone(), resolver.clone());
        let task = move || {
            // The caller no longer listens after the timeout.
            let _ = sender.send(resolver(name).unwrap_or_default());
        };
        // A seed whose thread cannot be spawned counts as one that does not answer.
        let _ = thread::Builder::new().name("dns-seed".to_owned()).spawn(task);
    }
    drop(sender);
    let end = Instant::now() + wait;
    let (mut found, mut answered) = (Vec::new(), 0);
    while let Ok(mut addresses) =
        receiver.recv_timeout(end.saturating_duration_since(Instant::now()))
    {
        addresses.truncate(RESULTS_MAX);
        answered += usize::from(!addresses.is_empty());
        found.append(&mut addresses);
    }
    (found, answered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn addresses(count: u32) -> Vec<SocketAddr> {
        let at = |i: u32| SocketAddr::from((Ipv4Addr::from(0x0100_0000 + i), 8333));
        (0..count).map(at).collect()
    }

    #[test]
    fn late_answers_are_ignored_and_each_seed_is_limited() {
        static NAMES: [&str; 4] = ["slow.", "many.", "few.", "none."];
        let (found, answered) = resolve(&NAMES, Duration::from_millis(300), |name| match name {
            "slow." => {
                thread::sleep(Duration::from_secs(30));
                Ok(addresses(1))
            }
            "many." => Ok(addresses(1000)),
            "few." => Ok(addresses(3)),
            _ => Err(io::Error::other("no such name")),
        });
        assert_eq!((found.len(), answered), (32 + 3, 2));
    }

    #[test]
    fn returns_at_once_when_all_have_answered() {
        static NAMES: [&str; 2] = ["a.", "b."];
        let start = Instant::now();
        let (found, answered) = resolve(&NAMES, Duration::from_secs(60), |_| Ok(addresses(2)));
        assert_eq!((found.len(), answered), (4, 2));
        assert!(start.elapsed() < Duration::from_secs(30));
        assert_eq!(resolve_seeds(Network::Regtest, Duration::from_secs(60)), (vec![], 0));
    }

    #[test]
    fn every_public_network_has_seeds_and_a_distinct_port() {
        let mut ports: Vec<u16> = Network::ALL.into_iter().map(default_port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), Network::ALL.len());
        for network in Network::ALL {
            let names = dns_seeds(network);
            assert_eq!(names.is_empty(), network == Network::Regtest);
            assert!(names.iter().all(|name| name.ends_with('.')));
            for (node, name) in seeds_by_name(network).iter().zip(names) {
                assert_eq!(node.host, Host::Name(name[..name.len() - 1].to_owned()));
                assert_eq!(node.port, default_port(network));
            }
        }
    }
}
