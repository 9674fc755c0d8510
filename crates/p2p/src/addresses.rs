//! Addresses of nodes: where they come from, which to try next, and what is remembered of them.

use crate::message::Services;
use std::net::{IpAddr, SocketAddr};

/// Where a node is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// IPv4 or IPv6.
    Ip(IpAddr),
    /// A Tor version 3 service, by the 32 bytes of its public key (BIP-155).
    TorV3([u8; 32]),
    /// A name, given by the user.
    Name(String),
}

/// A node's address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeAddress {
    /// Its host.
    pub host: Host,
    /// Its port.
    pub port: u16,
    /// What it is said to offer.
    pub services: Services,
    /// When it was last heard of, in seconds since 1970.
    pub time: u32,
}

impl From<SocketAddr> for NodeAddress {
    fn from(address: SocketAddr) -> Self {
        Self {
            host: Host::Ip(address.ip()),
            port: address.port(),
            services: Services::default(),
            time: 0,
        }
    }
}
