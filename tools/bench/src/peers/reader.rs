//! [`read`]: the least that fetching a chain from peers can be. Blocks are asked for, read and
//! thrown away.
//!
//! Connections take shares from one queue, many blocks under way on each. In plaintext not even the
//! checksum of a block is looked at; in the encrypted transport messages are decrypted, as their
//! lengths are not known otherwise. Nothing is checked: it shows how fast peers and sockets are.

use crate::error::{BenchError, ErrorKind};
use apus_chain::{BlockHash, HEADER_SIZE, Network, Params};
use apus_hash::sha256d;
use apus_p2p::addresses::NodeAddress;
use apus_p2p::message::{
    CommandName, Inventory, Message, PAYLOAD_BYTES_MAX, PROTOCOL_VERSION, Services, VersionMessage,
    decode, encode,
};
use apus_p2p::transport::{Connection, Dial, TransportChoice, connect};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Blocks asked for at a time.
const SHARE: usize = 16;

/// More are asked for when so few are under way: of mainnet's blocks some 30 MB.
const UNDER_WAY_MIN: usize = 16;

/// Bytes before each payload in plaintext (Core `protocol.h`, `CMessageHeader`).
const V1_HEADER_BYTES: usize = 24;

/// How long a peer may say nothing.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// Blocks are thrown away in pieces of this size.
const PIECE_BYTES: usize = 256 << 10;

/// What came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BlocksReceived {
    /// Blocks.
    pub(super) blocks: u64,
    /// Their bytes.
    pub(super) bytes: u64,
}

/// Reads all blocks above the genesis block that the first peer knows of, from all of them.
///
/// # Errors
/// As soon as one peer fails: its blocks are asked of no other.
pub(super) fn read(
    peers: &[SocketAddr],
    network: Network,
    v2: bool,
) -> Result<BlocksReceived, BenchError> {
    let mut links = peers
        .iter()
        .map(|&address| ReaderLink::open(address, network, v2))
        .collect::<Result<Vec<_>, _>>()?;
    let first =
        links.first_mut().ok_or(BenchError::usage("no peer is named: name at least one"))?;
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

/// A connection that hands out as little as is needed.
struct ReaderLink {
    address: SocketAddr,
    wire: ReaderWire,
}

enum ReaderWire {
    Plain { stream: TcpStream, magic: [u8; 4], piece: Vec<u8> },
    Encrypted(Box<Connection>),
}

/// Something that came.
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
        link.say(&Message::Version(VersionMessage {
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
                ReaderEvent::Other(Message::Version(_)) => link.say(&Message::Verack)?,
                ReaderEvent::Other(Message::Verack) => return Ok(link),
                _ => {}
            }
        }
    }

    fn say(&mut self, message: &Message) -> Result<(), BenchError> {
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
            self.say(&Message::GetHeaders { locator: vec![last], stop: BlockHash([0; 32]) })?;
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
        let (mut told, mut under_way) = (BlocksReceived::default(), 0);
        loop {
            if under_way <= UNDER_WAY_MIN {
                let share = take_share(queue);
                if !share.is_empty() {
                    under_way += share.len();
                    self.say(&Message::GetData(share))?;
                } else if under_way == 0 {
                    return Ok(told);
                }
            }
            match self.next()? {
                ReaderEvent::Block(bytes) => {
                    told.blocks += 1;
                    told.bytes += bytes;
                    // More than was asked for is for the caller to notice.
                    under_way = under_way.saturating_sub(1);
                }
                ReaderEvent::Other(Message::NotFound(_)) => {
                    return Err(failed(self.address, "it has not all blocks that it announced"));
                }
                ReaderEvent::Other(Message::Ping(number)) => self.say(&Message::Pong(number))?,
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
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    let count = SHARE.min(queue.len());
    queue.drain(..count).map(Inventory::witness_block).collect()
}

/// Reads a message; of a block the length alone is kept.
fn next_plain(stream: &mut TcpStream, magic: [u8; 4], piece: &mut [u8]) -> io::Result<ReaderEvent> {
    let broken = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut header = [0; V1_HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let (start, rest) = header.split_at(4);
    let (command, rest) = rest.split_first_chunk().expect("a header is longer");
    let length = rest.first_chunk().map_or(0, |length| u32::from_le_bytes(*length)) as usize;
    if start != magic || length > PAYLOAD_BYTES_MAX {
        return Err(broken(format!("no header of a message: {header:02x?}")));
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
