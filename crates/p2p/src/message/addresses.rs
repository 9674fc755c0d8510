//! Lists of nodes' addresses: `addr`, and `addrv2` of BIP-155.
//!
//! Addresses in networks that this program cannot reach are read and left out, as BIP-155 allows.
//! Whether an address makes sense is not looked at here.

use super::Services;
use super::codec::{ADDRESSES_MAX, MessageError, malformed};
use crate::addresses::{Host, NodeAddress};
use apus_chain::{ReadError, Reader, write_compact_size};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of an entry of `addr`: time, services, IPv6 address, port.
const ADDR_BYTES: usize = 30;
/// Least bytes of an entry of `addrv2`: time, services, network, length, port.
const ADDRV2_BYTES_LEAST: usize = 9;
/// Greatest length of an address (BIP-155).
const ADDRV2_BYTES_MAX: u64 = 512;

/// Networks of BIP-155 that this program can reach.
const IPV4: u8 = 1;
const IPV6: u8 = 2;
const TORV3: u8 = 4;

/// Ranges of IPv6 that stand for something else in `addr`: Tor's old addresses (OnionCat), and what
/// Core uses for itself (Core `netaddress.h`, `TORV2_IN_IPV6_PREFIX`, `INTERNAL_IN_IPV6_PREFIX`).
const EMBEDDED: [[u8; 6]; 2] =
    [[0xfd, 0x87, 0xd8, 0x7e, 0xeb, 0x43], [0xfd, 0x6b, 0x88, 0xc0, 0x87, 0x24]];

/// The address that 16 bytes of `addr` stand for, if it can be reached.
fn ip_of(bytes: [u8; 16]) -> Option<IpAddr> {
    let embedded = EMBEDDED.iter().any(|prefix| bytes.starts_with(prefix));
    (!embedded).then(|| Ipv6Addr::from(bytes).to_canonical())
}

pub(super) fn read_addr(reader: &mut Reader<'_>) -> Result<Vec<NodeAddress>, ReadError> {
    let count = reader.compact_max(ADDRESSES_MAX as u64)? as usize;
    let mut addresses = Vec::with_capacity(count.min(reader.remaining() / ADDR_BYTES));
    for _ in 0..count {
        let time = reader.u32()?;
        let services = Services(reader.u64()?);
        let ip = ip_of(*reader.array()?);
        let port = u16::from_be_bytes(*reader.array()?);
        addresses.extend(ip.map(|ip| NodeAddress { host: Host::Ip(ip), port, services, time }));
    }
    Ok(addresses)
}

pub(super) fn write_addr(addresses: &[NodeAddress], out: &mut Vec<u8>) {
    debug_assert!(addresses.len() <= ADDRESSES_MAX, "{} addresses in a message", addresses.len());
    let with_ip = |address: &NodeAddress| match address.host {
        Host::Ip(ip) => Some(ip),
        Host::TorV3(_) | Host::Name(_) => None,
    };
    let count = addresses.iter().filter_map(with_ip).count();
    write_compact_size(out, count as u64);
    for address in addresses {
        let Some(ip) = with_ip(address) else { continue };
        out.extend(address.time.to_le_bytes());
        out.extend(address.services.0.to_le_bytes());
        out.extend(match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        });
        out.extend(address.port.to_be_bytes());
    }
}

pub(super) fn read_addrv2(reader: &mut Reader<'_>) -> Result<Vec<NodeAddress>, MessageError> {
    let count = malformed("addrv2", reader.compact_max(ADDRESSES_MAX as u64))? as usize;
    let mut addresses = Vec::with_capacity(count.min(reader.remaining() / ADDRV2_BYTES_LEAST));
    for _ in 0..count {
        addresses.extend(read_entry(reader)?);
    }
    Ok(addresses)
}

/// One entry; none if it is in a network that this program cannot reach.
fn read_entry(reader: &mut Reader<'_>) -> Result<Option<NodeAddress>, MessageError> {
    let fields = |reader: &mut Reader<'_>| {
        let (time, services) = (reader.u32()?, Services(reader.compact_u64()?));
        let (network, len) = (reader.u8()?, reader.compact_max(ADDRV2_BYTES_MAX)?);
        Ok((time, services, network, len as usize))
    };
    let (time, services, network, len) = malformed("addrv2", fields(reader))?;
    let bytes = malformed("addrv2", reader.take(len))?;
    let port = u16::from_be_bytes(*malformed("addrv2", reader.array())?);
    let host = match network {
        IPV4 => Some(Host::Ip(Ipv4Addr::from(sized(network, bytes)?).into())),
        IPV6 => ipv6(sized(network, bytes)?).map(Host::Ip),
        TORV3 => Some(Host::TorV3(sized(network, bytes)?)),
        _ => None,
    };
    Ok(host.map(|host| NodeAddress { host, port, services, time }))
}

fn sized<const N: usize>(network: u8, bytes: &[u8]) -> Result<[u8; N], MessageError> {
    let wrong = MessageError::AddressLength { network, found: bytes.len(), needed: N };
    bytes.try_into().map_err(|_| wrong)
}

/// Under its own network an IPv6 address stands for nothing else; one that does is left out (Core
/// `netaddress.h`, `UnserializeV2Stream`).
fn ipv6(bytes: [u8; 16]) -> Option<IpAddr> {
    ip_of(bytes).filter(IpAddr::is_ipv6)
}

pub(super) fn write_addrv2(addresses: &[NodeAddress], out: &mut Vec<u8>) {
    debug_assert!(addresses.len() <= ADDRESSES_MAX, "{} addresses in a message", addresses.len());
    let expressible = |address: &&NodeAddress| !matches!(address.host, Host::Name(_));
    write_compact_size(out, addresses.iter().filter(expressible).count() as u64);
    for address in addresses.iter().filter(expressible) {
        out.extend(address.time.to_le_bytes());
        write_compact_size(out, address.services.0);
        match &address.host {
            Host::Ip(ip) => match ip.to_canonical() {
                IpAddr::V4(ip) => write_host(IPV4, &ip.octets(), out),
                IpAddr::V6(ip) => write_host(IPV6, &ip.octets(), out),
            },
            Host::TorV3(key) => write_host(TORV3, key, out),
            Host::Name(_) => {}
        }
        out.extend(address.port.to_be_bytes());
    }
}

fn write_host(network: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(network);
    write_compact_size(out, bytes.len() as u64);
    out.extend(bytes);
}
