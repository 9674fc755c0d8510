//! Addresses of nodes: where they come from, which to try next, and what is remembered of them.
//!
//! Without sockets and clock, but for [`resolve_seeds`], which asks the resolver of the system.

mod book;
mod file;
mod group;
mod parse;
mod seeds;

pub use book::{AddressBook, Reach};
pub use file::{AddressFileError, FILE_BYTES_MAX, Restored};
pub use parse::{ParseAddressError, parse_address};
pub use seeds::{default_port, dns_seeds, resolve_seeds, seeds_by_name};

use crate::services::Services;
use std::fmt;
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

impl fmt::Display for Host {
    /// IPv6 in brackets, a Tor service by its key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V4(ip)) => ip.fmt(f),
            Self::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
            Self::TorV3(key) => {
                f.write_str("tor:")?;
                key.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}
