//! The plaintext transport: a header of 24 bytes before each payload.
//!
//! Magic of the network (4), command (12), length of the payload (4), first four bytes of the
//! payload's SHA256d (4) (Core `protocol.h`, `CMessageHeader`). A header that is not ours, too long
//! a payload or a wrong checksum of anything but a block end the connection; Core only drops a
//! message with the last.

use crate::message::{COMMAND_BYTES, Command, PAYLOAD_BYTES_MAX};
use crate::peer_error::PeerError;
use apus_chain::Network;
use apus_hash::sha256d;

/// Bytes before each payload.
pub(crate) const HEADER_BYTES: usize = 24;
/// Bytes that begin every connection in plaintext: magic and the command `version`.
pub(crate) const PREFIX_BYTES: usize = 16;

const BLOCK: Command = Command::new("block");

/// Reads messages out of headers and payloads.
#[derive(Debug)]
pub(crate) struct V1Reader {
    network: Network,
    command: Command,
    checksum: [u8; 4],
}

impl V1Reader {
    pub(crate) const fn new(network: Network) -> Self {
        Self { network, command: Command::NONE, checksum: [0; 4] }
    }

    /// Takes a header; returns how many bytes of payload follow.
    pub(crate) fn header(&mut self, header: &[u8; HEADER_BYTES]) -> Result<usize, PeerError> {
        let (magic, rest) = split::<4>(header);
        let (command, rest) = split::<COMMAND_BYTES>(rest);
        let (len, rest) = split::<4>(rest);
        let (checksum, _) = split::<4>(rest);
        check_magic(magic, self.network)?;
        let command = Command::from_bytes(command);
        let len = u32::from_le_bytes(len) as usize;
        if len > PAYLOAD_BYTES_MAX {
            let what = format!("message `{command}`");
            return Err(PeerError::TooLong { what, bytes: len, limit: PAYLOAD_BYTES_MAX });
        }
        (self.command, self.checksum) = (command, checksum);
        Ok(len)
    }

    /// Takes the payload that belongs to the last header.
    ///
    /// That of a block is not held against its checksum: every byte of a block is proved by its
    /// header, which the consumer checks in any case, and hashing it once more would be a seventh
    /// of all work.
    pub(crate) fn payload(&self, payload: Vec<u8>) -> Result<(Command, Vec<u8>), PeerError> {
        if self.command != BLOCK && checksum(&payload) != self.checksum {
            return Err(PeerError::protocol(format!(
                "message `{}` of {} bytes has a wrong checksum",
                self.command,
                payload.len()
            )));
        }
        Ok((self.command, payload))
    }
}

/// The header of a message.
pub(crate) fn header(network: Network, command: Command, payload: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&network.magic());
    header[4..16].copy_from_slice(&command.to_bytes());
    header[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[20..].copy_from_slice(&checksum(payload));
    header
}

/// Whether these are the first bytes of a connection in plaintext (BIP-324, "V1 prefix"). In
/// another network's plaintext they are an error: no key looks like that.
pub(crate) fn is_v1(first: &[u8; PREFIX_BYTES], network: Network) -> Result<bool, PeerError> {
    let (magic, command) = split::<4>(first);
    if command != Command::new("version").to_bytes() {
        return Ok(false);
    }
    check_magic(magic, network).map(|()| true)
}

fn check_magic(found: [u8; 4], wanted: Network) -> Result<(), PeerError> {
    if found == wanted.magic() {
        return Ok(());
    }
    Err(match Network::from_magic(found) {
        Some(found) => PeerError::WrongNetwork { found, wanted },
        None => PeerError::protocol(format!(
            "a message begins with {:08x}, not with {:08x}",
            u32::from_be_bytes(found),
            u32::from_be_bytes(wanted.magic())
        )),
    })
}

fn checksum(payload: &[u8]) -> [u8; 4] {
    split::<4>(&sha256d(payload)).0
}

/// The first `N` bytes and the others. For slices that are known to be as long.
fn split<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    let (first, rest) = bytes.split_first_chunk().expect("a header's fields fit the header");
    (*first, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Fault;
    use proptest::prelude::*;

    const NETWORK: Network = Network::Regtest;

    fn read(header: &[u8; 24], payload: &[u8]) -> Result<(Command, Vec<u8>), PeerError> {
        let mut reader = V1Reader::new(NETWORK);
        assert_eq!(reader.header(header)?, payload.len());
        reader.payload(payload.to_vec())
    }

    #[test]
    fn verack_of_the_main_chain() {
        // As in every capture of the network's traffic.
        let known = *b"\xf9\xbe\xb4\xd9verack\0\0\0\0\0\0\0\0\0\0\x5d\xf6\xe0\xe2";
        assert_eq!(header(Network::Main, Command::new("verack"), b""), known);
    }

    #[test]
    fn what_is_not_ours_ends_the_connection() {
        let good = header(NETWORK, Command::new("ping"), b"12345678");
        assert!(read(&good, b"12345678").is_ok());
        assert!(matches!(read(&good, b"12345679"), Err(PeerError::Protocol { .. })));

        let other = header(Network::Main, Command::new("ping"), b"12345678");
        let error = read(&other, b"12345678").unwrap_err();
        assert!(matches!(error, PeerError::WrongNetwork { found: Network::Main, .. }), "{error}");
        assert_eq!(error.kind(), Fault::Misbehaved);

        let mut noise = good;
        noise[0] ^= 1;
        assert!(matches!(read(&noise, b"12345678"), Err(PeerError::Protocol { .. })));
    }

    #[test]
    fn a_block_is_proved_by_its_header() {
        let good = header(NETWORK, BLOCK, b"block");
        assert_eq!(read(&good, b"blocK").unwrap(), (BLOCK, b"blocK".to_vec()));
        for other in ["blocks", "cmpctblock", "headers", "version", "inv"] {
            let good = header(NETWORK, Command::new(other), b"block");
            assert!(read(&good, b"blocK").is_err(), "{other}");
        }
    }

    #[test]
    fn four_million_bytes_and_no_more() {
        let mut bytes = header(NETWORK, Command::new("block"), b"");
        let mut reader = V1Reader::new(NETWORK);
        bytes[16..20].copy_from_slice(&4_000_000u32.to_le_bytes());
        assert_eq!(reader.header(&bytes).unwrap(), 4_000_000);
        for len in [4_000_001, u32::MAX] {
            bytes[16..20].copy_from_slice(&len.to_le_bytes());
            assert!(matches!(reader.header(&bytes), Err(PeerError::TooLong { .. })));
        }
    }

    #[test]
    fn a_connection_in_plaintext_is_known_by_its_first_bytes() {
        let first = |network, command| {
            *header(network, Command::new(command), b"").first_chunk::<16>().unwrap()
        };
        assert!(is_v1(&first(NETWORK, "version"), NETWORK).unwrap());
        assert!(!is_v1(&first(NETWORK, "verack"), NETWORK).unwrap());
        assert!(!is_v1(&[7; 16], NETWORK).unwrap());
        let other = is_v1(&first(Network::Signet, "version"), NETWORK);
        assert!(matches!(other, Err(PeerError::WrongNetwork { found: Network::Signet, .. })));
    }

    proptest! {
        #[test]
        fn a_header_reads_back(name in "[a-z0-9]{1,12}", payload: Vec<u8>) {
            let command = Command::new(&name);
            let (back, bytes) = read(&header(NETWORK, command, &payload), &payload).unwrap();
            prop_assert_eq!((back, bytes), (command, payload));
        }

        #[test]
        fn no_header_makes_a_panic(header: [u8; 20]) {
            let mut bytes = [0; 24];
            bytes[..4].copy_from_slice(&NETWORK.magic());
            bytes[4..].copy_from_slice(&header);
            let _ = V1Reader::new(NETWORK).header(&bytes);
        }
    }
}
