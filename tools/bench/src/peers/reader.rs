//! [`read`]: the least that fetching a chain from peers can be. Blocks are asked for, read and
//! thrown away.
//!
//! Connections take shares from one queue, many blocks under way on each. In plaintext not even the
//! checksum of a block is looked at; in the encrypted transport messages are decrypted, as their
//! lengths are not known otherwise. Nothing is checked: it shows how fast peers and sockets are.

use apus_chain::{BlockHash, HEADER_SIZE, Network, Params};
use apus_hash::sha256d;
use apus_p2p::addresses::NodeAddress;
use apus_p2p::message::{
    CommandName, Inventory, Message, PAYLOAD_BYTES_MAX, PROTOCOL_VERSION, Services, VersionMessage,
    decode, encode,
};
use apus_p2p::transport::{Connection, Dial, PeerError, TransportChoice, connect};
use apus_sync::ErrorKind;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
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
pub struct Told {
    /// Blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Why not everything could be read.
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    /// The system, or a peer that hung up.
    #[error("{address}: {source}")]
    Io {
        /// The peer.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The encrypted transport failed.
    #[error("{address}: {source}")]
    Peer {
        /// The peer.
        address: SocketAddr,
        /// Why.
        source: Box<PeerError>,
    },
    /// There are no peers to read from.
    #[error("no peer is named: name at least one")]
    NoPeers,
}

impl ReaderError {
    /// What it means.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoPeers => ErrorKind::Usage,
            Self::Io { .. } | Self::Peer { .. } => ErrorKind::Io,
        }
    }
}

/// Reads all blocks above the genesis block that the first peer knows of, from all of them.
///
/// # Errors
/// As soon as one peer fails: its blocks are asked of no other.
pub fn read(peers: &[SocketAddr], network: Network, v2: bool) -> Result<Told, ReaderError> {
    let mut links = peers
        .iter()
        .map(|&address| Link::open(address, network, v2))
        .collect::<Result<Vec<_>, _>>()?;
    let first = links.first_mut().ok_or(ReaderError::NoPeers)?;
    let genesis = sha256d(&Params::of(network).genesis_block()[..HEADER_SIZE]);
    let queue = Mutex::new(VecDeque::from(first.headers(BlockHash(genesis))?));
    thread::scope(|scope| {
        let readers: Vec<_> =
            links.into_iter().map(|link| scope.spawn(|| link.blocks(&queue))).collect();
        readers.into_iter().try_fold(Told::default(), |all, reader| {
            let one = reader.join().expect("a reader does not panic")?;
            Ok(Told { blocks: all.blocks + one.blocks, bytes: all.bytes + one.bytes })
        })
    })
}

/// A connection that hands out as little as is needed.
struct Link {
    address: SocketAddr,
    wire: Wire,
}

enum Wire {
    Plain { stream: TcpStream, magic: [u8; 4], piece: Vec<u8> },
    Encrypted(Box<Connection>),
}

/// Something that came.
enum Came {
    Block(u64),
    Other(Message),
}

impl Link {
    fn open(address: SocketAddr, network: Network, v2: bool) -> Result<Self, ReaderError> {
        if v2 {
            let dial = Dial { transport: TransportChoice::V2, ..Dial::new(network, 1) };
            let connection = connect(&NodeAddress::from(address), &dial)
                .and_then(|mut it| it.reader.set_tick(SILENCE_MAX).map(|()| it))
                .map_err(|error| ReaderError::Peer { address, source: error.into() })?;
            return Ok(Self { address, wire: Wire::Encrypted(connection.into()) });
        }
        let failed = |source| ReaderError::Io { address, source };
        let stream = TcpStream::connect(address).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(SILENCE_MAX)).map_err(failed)?;
        let magic = network.magic();
        let mut link =
            Self { address, wire: Wire::Plain { stream, magic, piece: vec![0; PIECE_BYTES] } };
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
                Came::Other(Message::Version(_)) => link.say(&Message::Verack)?,
                Came::Other(Message::Verack) => return Ok(link),
                _ => {}
            }
        }
    }

    fn say(&mut self, message: &Message) -> Result<(), ReaderError> {
        let address = self.address;
        match &mut self.wire {
            Wire::Plain { stream, magic, .. } => {
                let (command, payload) = encode(message, false);
                let mut bytes = Vec::with_capacity(V1_HEADER_BYTES + payload.len());
                bytes.extend(*magic);
                bytes.extend(command.to_bytes());
                bytes.extend((payload.len() as u32).to_le_bytes());
                bytes.extend(&sha256d(&payload)[..4]);
                bytes.extend(&payload[..]);
                stream.write_all(&bytes).map_err(|source| ReaderError::Io { address, source })
            }
            Wire::Encrypted(connection) => connection
                .writer
                .write(message)
                .map_err(|error| ReaderError::Peer { address, source: error.into() }),
        }
    }

    fn next(&mut self) -> Result<Came, ReaderError> {
        let address = self.address;
        match &mut self.wire {
            Wire::Plain { stream, magic, piece } => next_plain(stream, *magic, piece)
                .map_err(|source| ReaderError::Io { address, source }),
            Wire::Encrypted(connection) => match connection.reader.read() {
                Ok(Some(Message::Block(block))) => Ok(Came::Block(block.len() as u64)),
                Ok(Some(message)) => Ok(Came::Other(message)),
                Ok(None) => {
                    Err(ReaderError::Io { address, source: io::ErrorKind::TimedOut.into() })
                }
                Err(error) => Err(ReaderError::Peer { address, source: error.into() }),
            },
        }
    }

    /// The hashes of all blocks after one.
    fn headers(&mut self, after: BlockHash) -> Result<Vec<BlockHash>, ReaderError> {
        let (mut hashes, mut last) = (Vec::new(), after);
        loop {
            self.say(&Message::GetHeaders { locator: vec![last], stop: BlockHash([0; 32]) })?;
            let headers = loop {
                if let Came::Other(Message::Headers(headers)) = self.next()? {
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
    fn blocks(mut self, queue: &Mutex<VecDeque<BlockHash>>) -> Result<Told, ReaderError> {
        let (mut told, mut under_way) = (Told::default(), 0);
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
                Came::Block(bytes) => {
                    told.blocks += 1;
                    told.bytes += bytes;
                    // More than was asked for is for the caller to notice.
                    under_way = under_way.saturating_sub(1);
                }
                Came::Other(Message::NotFound(_)) => {
                    let source = io::Error::other("it has not all blocks that it told of");
                    return Err(ReaderError::Io { address: self.address, source });
                }
                Came::Other(Message::Ping(number)) => self.say(&Message::Pong(number))?,
                Came::Other(_) => {}
            }
        }
    }
}

fn take_share(queue: &Mutex<VecDeque<BlockHash>>) -> Vec<Inventory> {
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    let count = SHARE.min(queue.len());
    queue.drain(..count).map(Inventory::witness_block).collect()
}

/// Reads a message; of a block the length alone is kept.
fn next_plain(stream: &mut TcpStream, magic: [u8; 4], piece: &mut [u8]) -> io::Result<Came> {
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
        return Ok(Came::Block(length as u64));
    }
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload)?;
    decode(command, payload).map(Came::Other).map_err(|error| broken(error.to_string()))
}
