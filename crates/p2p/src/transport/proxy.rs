//! Opens a socket to an address, directly or through a SOCKS5 proxy (RFC 1928).
//!
//! A proxy receives names unresolved, so no other resolver sees them. Tor services are reachable only through
//! a proxy. One deadline covers everything.

use super::error::PeerError;
use super::socket::{Deadline, is_timeout, send};
use crate::addresses::{Host, NodeAddress};
use std::io::{self, IoSlice, Read};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Maximum number of addresses of a name to try.
const RESOLVED_MAX: usize = 4;
/// Longest name that a proxy request can hold, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Constants of RFC 1928 and RFC 1929.
const SOCKS_VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const BY_PASSWORD: u8 = 2;
const PASSWORD_VERSION: u8 = 1;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const DOMAIN_NAME: u8 = 3;
const IPV6: u8 = 4;

/// An address as the user would write it.
fn address_text(address: &NodeAddress) -> String {
    match &address.host {
        Host::Ip(ip) => SocketAddr::new(*ip, address.port).to_string(),
        Host::TorV3(key) => format!("{}:{}", onion_name(key), address.port),
        Host::Name(name) => format!("{name}:{}", address.port),
    }
}

/// Connects to an address within `timeout`.
pub(super) fn open(
    address: &NodeAddress,
    proxy: Option<SocketAddr>,
    timeout: Duration,
) -> Result<TcpStream, PeerError> {
    let deadline = Deadline::new(timeout, "connecting");
    let unreachable =
        |reason: String| PeerError::Connect { address: address_text(address), reason };
    let result = match (proxy, &address.host) {
        (Some(proxy), _) => return through(proxy, address, &deadline),
        (None, Host::Ip(ip)) => direct(SocketAddr::new(*ip, address.port), &deadline),
        (None, Host::Name(name)) if !is_onion(name) => by_name(name, address.port, &deadline),
        (None, Host::Name(_) | Host::TorV3(_)) => {
            return Err(unreachable("a Tor service is reachable only through a proxy".to_owned()));
        }
    };
    result.map_err(|error| match error {
        PeerError::Io(error) => unreachable(error.to_string()),
        other => unreachable(other.to_string()),
    })
}

/// Returns true for a Tor name, which no name server may see (RFC 7686).
fn is_onion(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    name.len() >= 6 && name.as_bytes()[name.len() - 6..].eq_ignore_ascii_case(b".onion")
}

fn direct(address: SocketAddr, deadline: &Deadline) -> Result<TcpStream, PeerError> {
    // Without `From`, because a connection that was never established was not closed.
    TcpStream::connect_timeout(&address, deadline.remaining()?).map_err(PeerError::Io)
}

/// Connects to the first address of a name that answers.
fn by_name(name: &str, port: u16, deadline: &Deadline) -> Result<TcpStream, PeerError> {
    let mut last = PeerError::Io(io::Error::other("the name has no address"));
    for address in resolve(name, port, deadline)?.into_iter().take(RESOLVED_MAX) {
        match direct(address, deadline) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Resolves a name. The system's resolver has no time limit, so a thread waits for it, if need be longer than
/// the caller does.
fn resolve(name: &str, port: u16, deadline: &Deadline) -> Result<Vec<SocketAddr>, PeerError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let host = name.to_owned();
    thread::Builder::new()
        .name("resolve".to_owned())
        .spawn(move || {
            let found = (host.as_str(), port).to_socket_addrs();
            // The caller may have given up already.
            let _ = sender.send(found.map(|found| found.take(RESOLVED_MAX).collect()));
        })
        .map_err(PeerError::Io)?;
    match receiver.recv_timeout(deadline.remaining()?) {
        Ok(found) => found.map_err(PeerError::Io),
        Err(_) => {
            Err(PeerError::Io(io::Error::new(io::ErrorKind::TimedOut, "name resolution timed out")))
        }
    }
}

/// Connects through a proxy.
fn through(
    proxy: SocketAddr,
    address: &NodeAddress,
    deadline: &Deadline,
) -> Result<TcpStream, PeerError> {
    let attempt = || {
        let request = request(address)?;
        let stream = direct(proxy, deadline)?;
        let methods = [SOCKS_VERSION, 2, NO_AUTHENTICATION, BY_PASSWORD];
        send(&stream, &mut [IoSlice::new(&methods)], deadline)?;
        match read_exact::<2>(&stream, deadline)? {
            [SOCKS_VERSION, NO_AUTHENTICATION] => {}
            [SOCKS_VERSION, BY_PASSWORD] => name_connection(&stream, deadline)?,
            [SOCKS_VERSION, _] => return Err(odd("it requires an authentication that Apus lacks")),
            _ => return Err(odd("it is not a SOCKS5 proxy")),
        }
        send(&stream, &mut [IoSlice::new(&request)], deadline)?;
        read_reply(&stream, deadline)?;
        Ok(stream)
    };
    attempt().map_err(|error: PeerError| {
        let reason = match error {
            PeerError::Io(error) => error.to_string(),
            PeerError::Closed => "it closed the connection".to_owned(),
            other => other.to_string(),
        };
        PeerError::Proxy { proxy, address: address_text(address), reason }
    })
}

/// Gives a random name and password, so that Tor uses another circuit for each connection: no exit sees all peers (Core
/// `netbase.cpp`, `-proxyrandomize`).
fn name_connection(stream: &TcpStream, deadline: &Deadline) -> Result<(), PeerError> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| odd(&error.to_string()))?;
    let name = format!("{:016x}", u64::from_le_bytes(random));
    let mut login = vec![PASSWORD_VERSION];
    for _ in ["user", "password"] {
        login.push(name.len() as u8);
        login.extend_from_slice(name.as_bytes());
    }
    send(stream, &mut [IoSlice::new(&login)], deadline)?;
    match read_exact::<2>(stream, deadline)? {
        [_, 0] => Ok(()),
        _ => Err(odd("it requires a user name and password of its own")),
    }
}

fn odd(what: &str) -> PeerError {
    PeerError::Io(io::Error::other(what))
}

/// Encodes the request to connect to an address.
fn request(address: &NodeAddress) -> Result<Vec<u8>, PeerError> {
    let mut request = vec![SOCKS_VERSION, CONNECT, 0];
    let name = match &address.host {
        Host::Ip(IpAddr::V4(ip)) => {
            request.push(IPV4);
            request.extend(ip.octets());
            None
        }
        Host::Ip(IpAddr::V6(ip)) => {
            request.push(IPV6);
            request.extend(ip.octets());
            None
        }
        Host::TorV3(key) => Some(onion_name(key)),
        Host::Name(name) => Some(name.clone()),
    };
    if let Some(name) = name {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(odd("the name is empty or longer than 255 bytes"));
        }
        request.extend([DOMAIN_NAME, name.len() as u8]);
        request.extend(name.as_bytes());
    }
    request.extend(address.port.to_be_bytes());
    Ok(request)
}

/// Reads the answer and not a byte more.
fn read_reply(stream: &TcpStream, deadline: &Deadline) -> Result<(), PeerError> {
    let [version, reply, _, kind] = read_exact(stream, deadline)?;
    if version != SOCKS_VERSION {
        return Err(odd("its answer is not SOCKS5"));
    }
    if reply != 0 {
        return Err(odd(refusal(reply)));
    }
    // Skip the address that it connects from.
    let len = match kind {
        IPV4 => 4,
        IPV6 => 16,
        DOMAIN_NAME => usize::from(read_exact::<1>(stream, deadline)?[0]),
        _ => return Err(odd("its answer has an address of an unknown kind")),
    };
    for _ in 0..len + 2 {
        read_exact::<1>(stream, deadline)?;
    }
    Ok(())
}

/// The meaning of an error code (RFC 1928, section 6).
const fn refusal(reply: u8) -> &'static str {
    match reply {
        1 => "general failure",
        2 => "its rules forbid the connection",
        3 => "the network is unreachable",
        4 => "the host is unreachable",
        5 => "the connection is refused",
        6 => "the connection took too long",
        7 => "it cannot connect",
        8 => "it does not know this kind of address",
        _ => "it refused with an unknown code",
    }
}

fn read_exact<const N: usize>(
    mut stream: &TcpStream,
    deadline: &Deadline,
) -> Result<[u8; N], PeerError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        stream.set_read_timeout(Some(deadline.remaining()?))?;
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(PeerError::Closed),
            Ok(count) => filled += count,
            // The deadline decides when it was too long.
            Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

/// Version of the onion names.
const VERSION: u8 = 3;
/// The alphabet of RFC 4648, in lower case.
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The onion name of a service, from its public key.
fn onion_name(key: &[u8; 32]) -> String {
    let mut message = b".onion checksum".to_vec();
    message.extend(key);
    message.push(VERSION);
    let checksum = sha3_256(&message);
    let mut bytes = key.to_vec();
    bytes.extend([checksum[0], checksum[1], VERSION]);
    // 35 bytes are exactly 56 digits.
    let mut name = String::with_capacity(62);
    for group in bytes.chunks_exact(5) {
        let bits = group.iter().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
        let digit = |place: u32| char::from(BASE32[(bits >> (5 * place)) as usize % 32]);
        name.extend((0..8).rev().map(digit));
    }
    name.push_str(".onion");
    name
}

/// Bytes that SHA3-256 absorbs between two permutations.
const RATE: usize = 136;
/// Constants of Keccak-f\[1600\]'s step iota, one per round.
const ROUND_CONSTANTS: [u64; 24] = round_constants();

/// SHA3-256 of a message shorter than one block.
fn sha3_256(message: &[u8]) -> [u8; 32] {
    assert!(message.len() < RATE, "a message of {} bytes needs another block", message.len());
    let mut block = [0; RATE];
    block[..message.len()].copy_from_slice(message);
    block[message.len()] = 0x06;
    block[RATE - 1] |= 0x80;
    let mut state = [0; 25];
    for (lane, bytes) in state.iter_mut().zip(block.as_chunks::<8>().0) {
        *lane = u64::from_le_bytes(*bytes);
    }
    keccak_f(&mut state);
    let mut digest = [0; 32];
    for (bytes, lane) in digest.as_chunks_mut::<8>().0.iter_mut().zip(state) {
        *bytes = lane.to_le_bytes();
    }
    digest
}

/// The permutation Keccak-f\[1600\] (FIPS 202, section 3.3). Lane (x, y) is `state[x + 5 * y]`.
fn keccak_f(state: &mut [u64; 25]) {
    for constant in ROUND_CONSTANTS {
        // Theta: each lane absorbs the parity of two columns.
        let parity: [u64; 5] =
            std::array::from_fn(|x| (0..5).fold(0, |sum, y| sum ^ state[x + 5 * y]));
        for (at, lane) in state.iter_mut().enumerate() {
            let x = at % 5;
            *lane ^= parity[(x + 4) % 5] ^ parity[(x + 1) % 5].rotate_left(1);
        }
        // Rho and pi: rotate and permute lanes, along one path through all but the first.
        let (mut x, mut y, mut moved) = (1, 0, state[1]);
        for step in 0..24u32 {
            (x, y) = (y, (2 * x + 3 * y) % 5);
            let turned = moved.rotate_left((step + 1) * (step + 2) / 2 % 64);
            moved = std::mem::replace(&mut state[x + 5 * y], turned);
        }
        // Chi: the only nonlinear step.
        for row in state.as_chunks_mut::<5>().0 {
            let old = *row;
            for (x, lane) in row.iter_mut().enumerate() {
                *lane ^= !old[(x + 1) % 5] & old[(x + 2) % 5];
            }
        }
        // Iota.
        state[0] ^= constant;
    }
}

/// The constants come from a shift register (FIPS 202, section 3.2.5).
const fn round_constants() -> [u64; 24] {
    let mut constants = [0; 24];
    let (mut round, mut register) = (0, 1u8);
    while round < 24 {
        let mut j = 0;
        while j < 7 {
            if register & 1 == 1 {
                constants[round] |= 1 << ((1 << j) - 1);
            }
            register = (register << 1) ^ (0x71 * (register >> 7));
            j += 1;
        }
        round += 1;
    }
    constants
}

#[cfg(test)]
mod tests;
