//! [`read`]: the lower bound for fetching a chain from peers: requests blocks, reads and discards them.
//!
//! Connections take shares from one queue and keep many blocks in flight. In plaintext it skips even a
//! block's checksum; in the encrypted transport it must decrypt messages to learn their lengths. It validates
//! nothing: it measures the speed of peers and sockets.

use crate::error::{BenchError, ErrorKind};
use apus_chain::{BlockHash, HEADER_SIZE, Network, Params};
use apus_hash::sha256d;
use apus_p2p::addresses::NodeAddress;
use apus_p2p::message::{
    CommandName, Inventory, Message, PAYLOAD_BYTES_MAX, PROTOCOL_VERSION, Services, VersionMessage,
    decode, encode,
};
use apus_p2p::transport::{Connection, Dial, TransportChoice, connect};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

/// Blocks per request.
const SHARE: usize = 16;

/// Requests more when this few are in flight: about 30 MB of main-chain blocks.
const UNDER_WAY_MIN: usize = 16;

/// Bytes before each payload in plaintext (Core `protocol.h`, `CMessageHeader`).
const V1_HEADER_BYTES: usize = 24;

/// Maximum time without a message from a peer.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// Blocks are discarded in pieces of this size.
const PIECE_BYTES: usize = 256 << 10;

/// The received amounts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BlocksReceived {
    /// Number of blocks.
    pub(super) blocks: u64,
    /// Bytes of these blocks.
    pub(super) bytes: u64,
}

/// Reads all blocks above the genesis block in the first peer's chain, from all peers.
///
/// # Errors
/// If any peer fails: the reader does not request its blocks from other peers.
pub(super) fn read(
    peers: &[SocketAddr],
    network: Network,
    v2: bool,
) -> Result<BlocksReceived, BenchError> {
    let mut links = peers
        .iter()
        .map(|&address| ReaderLink::open(address, network, v2))
        .collect::<Result<Vec<_>, _>>()?;
    let first = links.first_mut().ok_or(BenchError::usage("no peer given: name at least one"))?;
    let genesis = sha256d(&Params::of(network).genesis_block()[..HEADER_SIZE]);
    let queue = Mutex::new(VecDeque::from(first.headers(BlockHash(genesis))?));
    thread::scope(|scope| {
        let readers: Vec<_> =
            links.into_iter().map(|link| scope.spawn(|| link.blocks(&queue))).collect();
        readers.into_iter().try_fold(BlocksReceived::default(), |all, reader| {
            let one = reader.join().expect("a reader does not panic")?;
            Ok(BlocksReceived { blocks: all.blocks + one.blocks, bytes: all.bytes + one.bytes })
        })
    })
}

/// A connection with a minimal implementation of the protocol.
struct ReaderLink {
    address: SocketAddr,
    wire: ReaderWire,
}

enum ReaderWire {
    Plain { stream: TcpStream, magic: [u8; 4], piece: Vec<u8> },
    Encrypted(Box<Connection>),
}

/// A received message.
enum ReaderEvent {
    Block(u64),
    Other(Message),
}

impl ReaderLink {
    fn open(address: SocketAddr, network: Network, v2: bool) -> Result<Self, BenchError> {
        if v2 {
            let dial = Dial { transport: TransportChoice::V2, ..Dial::new(network, 1) };
            let connection = connect(&NodeAddress::from(address), &dial)
                .and_then(|mut it| it.reader.set_tick(SILENCE_MAX).map(|()| it))
                .map_err(|error| failed(address, error))?;
            return Ok(Self { address, wire: ReaderWire::Encrypted(connection.into()) });
        }
        let failed = |error| failed(address, error);
        let stream = TcpStream::connect(address).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(SILENCE_MAX)).map_err(failed)?;
        let magic = network.magic();
        let mut link = Self {
            address,
            wire: ReaderWire::Plain { stream, magic, piece: vec![0; PIECE_BYTES] },
        };
        link.send(&Message::Version(VersionMessage {
            protocol: PROTOCOL_VERSION,
            services: Services::default(),
            time: 0,
            nonce: 1,
            user_agent: String::new(),
            start_height: 0,
            relay: false,
        }))?;
        loop {
            match link.next()? {
                ReaderEvent::Other(Message::Version(_)) => link.send(&Message::Verack)?,
                ReaderEvent::Other(Message::Verack) => return Ok(link),
                _ => {}
            }
        }
    }

    fn send(&mut self, message: &Message) -> Result<(), BenchError> {
        let address = self.address;
        match &mut self.wire {
            ReaderWire::Plain { stream, magic, .. } => {
                let (command, payload) = encode(message, false);
                let mut bytes = Vec::with_capacity(V1_HEADER_BYTES + payload.len());
                bytes.extend(*magic);
                bytes.extend(command.to_bytes());
                bytes.extend((payload.len() as u32).to_le_bytes());
                bytes.extend(&sha256d(&payload)[..4]);
                bytes.extend(&payload[..]);
                stream.write_all(&bytes).map_err(|error| failed(address, error))
            }
            ReaderWire::Encrypted(connection) => {
                connection.writer.write(message).map_err(|error| failed(address, error))
            }
        }
    }

    fn next(&mut self) -> Result<ReaderEvent, BenchError> {
        let address = self.address;
        match &mut self.wire {
            ReaderWire::Plain { stream, magic, piece } => {
                next_plain(stream, *magic, piece).map_err(|error| failed(address, error))
            }
            ReaderWire::Encrypted(connection) => match connection.reader.read() {
                Ok(Some(Message::Block(block))) => Ok(ReaderEvent::Block(block.len() as u64)),
                Ok(Some(message)) => Ok(ReaderEvent::Other(message)),
                Ok(None) => Err(failed(address, io::Error::from(io::ErrorKind::TimedOut))),
                Err(error) => Err(failed(address, error)),
            },
        }
    }

    /// The hashes of all blocks after one.
    fn headers(&mut self, after: BlockHash) -> Result<Vec<BlockHash>, BenchError> {
        let (mut hashes, mut last) = (Vec::new(), after);
        loop {
            self.send(&Message::GetHeaders { locator: vec![last], stop: BlockHash([0; 32]) })?;
            let headers = loop {
                if let ReaderEvent::Other(Message::Headers(headers)) = self.next()? {
                    break headers;
                }
            };
            hashes.extend(headers.iter().map(|header| BlockHash(sha256d(header))));
            match hashes.last() {
                Some(&hash) if hash != last => last = hash,
                _ => return Ok(hashes),
            }
        }
    }

    /// Reads blocks until the queue is empty.
    fn blocks(mut self, queue: &Mutex<VecDeque<BlockHash>>) -> Result<BlocksReceived, BenchError> {
        let (mut received, mut under_way) = (BlocksReceived::default(), 0);
        loop {
            if under_way <= UNDER_WAY_MIN {
                let share = take_share(queue);
                if !share.is_empty() {
                    under_way += share.len();
                    self.send(&Message::GetData(share))?;
                } else if under_way == 0 {
                    return Ok(received);
                }
            }
            match self.next()? {
                ReaderEvent::Block(bytes) => {
                    received.blocks += 1;
                    received.bytes += bytes;
                    // The caller detects surplus blocks.
                    under_way = under_way.saturating_sub(1);
                }
                ReaderEvent::Other(Message::NotFound(_)) => {
                    return Err(failed(self.address, "it lacks blocks that it announced"));
                }
                ReaderEvent::Other(Message::Ping(number)) => self.send(&Message::Pong(number))?,
                ReaderEvent::Other(_) => {}
            }
        }
    }
}

/// A peer hung up, or its transport failed.
fn failed(address: SocketAddr, error: impl Display) -> BenchError {
    BenchError::new(ErrorKind::Io, format_args!("{address}: {error}"))
}

fn take_share(queue: &Mutex<VecDeque<BlockHash>>) -> Vec<Inventory> {
    let mut queue = queue.lock();
    let count = SHARE.min(queue.len());
    queue.drain(..count).map(Inventory::witness_block).collect()
}

/// Reads a message; keeps only the length of a block.
fn next_plain(stream: &mut TcpStream, magic: [u8; 4], piece: &mut [u8]) -> io::Result<ReaderEvent> {
    let broken = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut header = [0; V1_HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let (start, rest) = header.split_at(4);
    let (command, rest) = rest.split_first_chunk().expect("a header is longer");
    let length = rest.first_chunk().map_or(0, |length| u32::from_le_bytes(*length)) as usize;
    if start != magic || length > PAYLOAD_BYTES_MAX {
        return Err(broken(format!("invalid message header: {header:02x?}")));
    }
    let command = CommandName::from_bytes(*command);
    if command == CommandName::new("block") {
        let mut left = length;
        while left > 0 {
            let end = left.min(piece.len());
            match stream.read(&mut piece[..end])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => left -= count,
            }
        }
        return Ok(ReaderEvent::Block(length as u64));
    }
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload)?;
    decode(command, payload).map(ReaderEvent::Other).map_err(|error| broken(error.to_string()))
}
