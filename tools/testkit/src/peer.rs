//! A peer on a real socket that behaves as the test wants: well, badly, or not at all.
//!
//! It speaks version 1 of the transport through the `bitcoin` crate, which shares no code with the tested one.
//! Each connection gets one [`Behaviour`]; the next connection may get another one, so that a peer can get
//! better or worse.

use crate::rng::Rng;
use bitcoin::consensus::{Decodable, encode::serialize};
use bitcoin::hashes::Hash;
use bitcoin::p2p::address::Address;
use bitcoin::p2p::message::{NetworkMessage, RawNetworkMessage};
use bitcoin::p2p::message_blockdata::{GetHeadersMessage, Inventory};
use bitcoin::p2p::message_network::VersionMessage;
use bitcoin::p2p::{Magic, ServiceFlags};
use bitcoin::{Block, BlockHash};
use std::collections::{BTreeSet, HashMap};
use std::io::{self, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A peer's behaviour on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Behaves correctly.
    Honest,
    /// Accepts the connection and says nothing.
    SilentAtOnce,
    /// Says nothing after the handshake.
    SilentAfterHandshake,
    /// Sends headers and this many blocks, then nothing.
    SilentAfter(u64),
    /// Disconnects after this many blocks.
    GoneAfter(u64),
    /// Sends everything byte by byte, one every 20 ms.
    Drip,
    /// Sends headers correctly, and blocks byte by byte.
    DripBlocks,
    /// Sends random bytes instead of a handshake.
    Garbage,
    /// Sends random bytes after this many blocks.
    GarbageAfter(u64),
    /// Sends a message that claims a length of 4 GB.
    OversizedLength,
    /// Sends a block in a message with a wrong checksum.
    WrongChecksum,
    /// Sends the magic of another network.
    WrongMagic,
    /// Sends a block other than the requested one.
    OtherBlock,
    /// Sends a block with one transaction too many and a right header.
    MutatedTransactions,
    /// Sends a block with a changed witness.
    MutatedWitness,
    /// Sends a block that ends in the middle.
    CutBlock,
    /// Sends blocks that were not requested.
    Unrequested,
    /// Sends every block three times.
    Repeats,
    /// Says that it has none of the blocks.
    NotFound,
    /// Says that it has none of the blocks from this height on.
    NotFoundFrom(usize),
    /// Sends a header without proof of work.
    InvalidHeader,
    /// Sends headers that do not connect.
    BrokenHeaders,
    /// Always sends the same headers.
    SameHeaders,
    /// Never sends a header.
    NoHeaders,
    /// Sends thousands of headers that were not requested, each on its own tip.
    HeaderFlood,
    /// Sends the version message twice.
    TwoVersions,
    /// Sends a version, and then no `verack`.
    NoVerack,
    /// Uses a protocol version from before headers.
    OldVersion,
    /// Offers no blocks in its services.
    NoServices,
    /// Sends the client's own nonce.
    OurNonce,
    /// Sends `verack` before the version, and messages before both.
    OutOfOrder,
    /// Sends pings endlessly.
    PingFlood,
    /// Sends addresses endlessly.
    AddressFlood,
    /// Behaves correctly, but never answers pings.
    NoPong,
}

impl Behaviour {
    /// All behaviours that keep a sync from getting blocks from this peer, or try to.
    pub const BAD: [Self; 32] = [
        Self::SilentAtOnce,
        Self::SilentAfterHandshake,
        Self::SilentAfter(3),
        Self::GoneAfter(2),
        Self::GoneAfter(9),
        Self::Drip,
        Self::DripBlocks,
        Self::Garbage,
        Self::GarbageAfter(4),
        Self::OversizedLength,
        Self::WrongChecksum,
        Self::WrongMagic,
        Self::OtherBlock,
        Self::MutatedTransactions,
        Self::MutatedWitness,
        Self::CutBlock,
        Self::Unrequested,
        Self::Repeats,
        Self::NotFound,
        Self::InvalidHeader,
        Self::BrokenHeaders,
        Self::SameHeaders,
        Self::NoHeaders,
        Self::HeaderFlood,
        Self::TwoVersions,
        Self::NoVerack,
        Self::OldVersion,
        Self::NoServices,
        Self::OurNonce,
        Self::OutOfOrder,
        Self::PingFlood,
        Self::AddressFlood,
    ];
}

/// Counts of a peer's connections and blocks.
#[derive(Debug, Default)]
pub struct PeerCounters {
    /// Connections made to it.
    pub connections: AtomicU64,
    /// Blocks that it sent, intact or not.
    pub blocks: AtomicU64,
    /// Blocks requested from it.
    pub asked: AtomicU64,
    /// Heights of the requested blocks that it has.
    pub heights: Mutex<BTreeSet<usize>>,
}

/// The peer, which ends when dropped.
pub struct FakePeer {
    address: SocketAddr,
    shared: Arc<PeerThreads>,
    ended: Arc<AtomicBool>,
    /// The counts so far.
    pub seen: Arc<PeerCounters>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    thread: Option<JoinHandle<()>>,
}

/// The blocks that a peer has.
struct PeerChain {
    blocks: Vec<Block>,
    by_hash: HashMap<BlockHash, usize>,
}

impl PeerChain {
    fn of(blocks: &[Block]) -> Arc<Self> {
        let by_hash = blocks.iter().enumerate().map(|(at, block)| (block.block_hash(), at));
        Arc::new(Self { by_hash: by_hash.collect(), blocks: blocks.to_vec() })
    }
}

struct PeerThreads {
    chain: Mutex<Arc<PeerChain>>,
    ended: Arc<AtomicBool>,
    seen: Arc<PeerCounters>,
    delay: Duration,
}

impl FakePeer {
    /// Starts a peer with a regtest chain from the genesis block on. The connections get the behaviours in
    /// order; the last one repeats.
    pub fn start(chain: &[Block], behaviours: &[Behaviour]) -> Self {
        Self::slow(chain, behaviours, Duration::ZERO)
    }

    /// Starts a peer that takes this long for each block.
    pub fn slow(chain: &[Block], behaviours: &[Behaviour], delay: Duration) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (ended, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(PeerCounters::default()));
        let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let shared = Arc::new(PeerThreads {
            chain: Mutex::new(PeerChain::of(chain)),
            ended: Arc::clone(&ended),
            seen: Arc::clone(&seen),
            delay,
        });
        let (behaviours, of_thread) = (behaviours.to_vec(), Arc::clone(&streams));
        let of_peer = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                if shared.ended.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let behaviour = behaviours[number.min(behaviours.len() - 1)];
                shared.seen.connections.fetch_add(1, Ordering::Relaxed);
                of_thread.lock().unwrap().push(stream.try_clone().unwrap());
                let shared = Arc::clone(&shared);
                // The thread ends with its socket.
                std::thread::spawn(move || {
                    let _ = stream.set_nodelay(true);
                    let mut talk = Talk { shared: &shared, stream: &stream, behaviour, blocks: 0 };
                    let _ = talk.run();
                    let _ = stream.shutdown(Shutdown::Both);
                });
            }
        });
        Self { address, shared: of_peer, ended, seen, streams, thread: Some(thread) }
    }

    /// Replaces the peer's chain: from now on it lacks the blocks of the old chain that are not on the new one.
    /// It does not announce the change.
    pub fn set_chain(&self, chain: &[Block]) {
        *self.shared.chain.lock().unwrap() = PeerChain::of(chain);
    }

    /// Closes all connections. A peer that reconnects asks for headers again.
    pub fn hang_up(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Waits until a client has requested the block at a height, at most for `patience`.
    pub fn wait_until_asked_for(&self, height: usize, patience: Duration) {
        let began = Instant::now();
        while !self.seen.heights.lock().unwrap().contains(&height) {
            assert!(began.elapsed() < patience, "never asked for block {height}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for FakePeer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(JoinHandle::join);
        self.hang_up();
    }
}

/// One connection.
struct Talk<'a> {
    shared: &'a PeerThreads,
    stream: &'a TcpStream,
    behaviour: Behaviour,
    blocks: u64,
}

const HEADERS_MAX: usize = 2000;

impl PeerThreads {
    fn chain(&self) -> Arc<PeerChain> {
        Arc::clone(&self.chain.lock().unwrap())
    }
}

impl Talk<'_> {
    fn run(&mut self) -> io::Result<()> {
        if self.behaviour == Behaviour::SilentAtOnce {
            return self.wait_for_the_end();
        }
        if self.behaviour == Behaviour::Garbage {
            return self.write(&Rng::new(7).bytes(100_000));
        }
        let mut input = BufReader::with_capacity(1 << 16, self.stream);
        loop {
            let message = RawNetworkMessage::consensus_decode(&mut input)
                .map_err(|error| io::Error::other(error.to_string()))?;
            if *message.magic() != Magic::REGTEST {
                return Ok(());
            }
            self.answer(message.into_payload())?;
        }
    }

    fn wait_for_the_end(&self) -> io::Result<()> {
        while !self.shared.ended.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
            self.stream.set_nonblocking(true)?;
            match self.stream.peek(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(count) if count > 0 => {}
                _ => break,
            }
        }
        Ok(())
    }

    fn answer(&mut self, message: NetworkMessage) -> io::Result<()> {
        match message {
            NetworkMessage::Version(version) => self.shake_hands(&version),
            NetworkMessage::Verack => self.after_handshake(),
            NetworkMessage::Ping(_) if self.behaviour == Behaviour::NoPong => Ok(()),
            NetworkMessage::Ping(nonce) => self.send(NetworkMessage::Pong(nonce)),
            NetworkMessage::GetHeaders(wanted) => self.headers(&wanted),
            NetworkMessage::GetData(wanted) => self.data(&wanted),
            _ => Ok(()),
        }
    }

    fn shake_hands(&mut self, theirs: &VersionMessage) -> io::Result<()> {
        let nowhere = Address::new(&self.shared_address(), ServiceFlags::NONE);
        let services = match self.behaviour {
            Behaviour::NoServices => ServiceFlags::NONE,
            _ => ServiceFlags::NETWORK | ServiceFlags::WITNESS,
        };
        let version = VersionMessage {
            version: if self.behaviour == Behaviour::OldVersion { 209 } else { 70016 },
            services,
            timestamp: 1_700_000_000,
            receiver: nowhere.clone(),
            sender: nowhere,
            nonce: if self.behaviour == Behaviour::OurNonce { theirs.nonce } else { 1 },
            user_agent: "/fake:1/".to_owned(),
            start_height: self.shared.chain().blocks.len() as i32 - 1,
            relay: false,
        };
        if self.behaviour == Behaviour::OutOfOrder {
            self.send(NetworkMessage::Ping(3))?;
            self.send(NetworkMessage::Verack)?;
            self.send(NetworkMessage::Headers(Vec::new()))?;
        }
        self.send(NetworkMessage::Version(version.clone()))?;
        if self.behaviour == Behaviour::TwoVersions {
            self.send(NetworkMessage::Version(version))?;
        }
        match self.behaviour {
            Behaviour::NoVerack => Ok(()),
            _ => self.send(NetworkMessage::Verack),
        }
    }

    fn shared_address(&self) -> SocketAddr {
        self.stream.local_addr().unwrap_or_else(|_| SocketAddr::from(([127, 0, 0, 1], 1)))
    }

    fn after_handshake(&mut self) -> io::Result<()> {
        match self.behaviour {
            Behaviour::OversizedLength => {
                let mut head = Magic::REGTEST.to_bytes().to_vec();
                head.extend_from_slice(b"block\0\0\0\0\0\0\0");
                head.extend_from_slice(&u32::MAX.to_le_bytes());
                head.extend_from_slice(&[0; 4]);
                self.write(&head)
            }
            Behaviour::HeaderFlood => self.flood_headers(),
            Behaviour::PingFlood => {
                for nonce in 0..100_000 {
                    self.send(NetworkMessage::Ping(nonce))?;
                }
                Ok(())
            }
            Behaviour::AddressFlood => {
                let address = Address::new(&self.shared_address(), ServiceFlags::NETWORK);
                for _ in 0..1000 {
                    let many = vec![(1_700_000_000, address.clone()); 1000];
                    self.send(NetworkMessage::Addr(many))?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Sends endless children of the genesis block, each with a proof of work.
    fn flood_headers(&mut self) -> io::Result<()> {
        let mut header = self.shared.chain().blocks[0].header;
        header.prev_blockhash = header.block_hash();
        header.version = bitcoin::block::Version::from_consensus(0x2000_0000);
        for number in 0..300_000_u32 {
            header.time = header.time.wrapping_add(1);
            header.merkle_root = bitcoin::TxMerkleNode::hash(&number.to_le_bytes());
            while header.validate_pow(header.target()).is_err() {
                header.nonce = header.nonce.wrapping_add(1);
            }
            self.send(NetworkMessage::Headers(vec![header]))?;
        }
        Ok(())
    }

    fn headers(&mut self, wanted: &GetHeadersMessage) -> io::Result<()> {
        let all = self.shared.chain();
        let chain = &all.blocks;
        let known = |hash: &BlockHash| all.by_hash.get(hash).copied();
        let common = wanted.locator_hashes.iter().find_map(known).unwrap_or(0);
        let mut headers: Vec<_> =
            chain[common + 1..].iter().take(HEADERS_MAX).map(|block| block.header).collect();
        match self.behaviour {
            Behaviour::SilentAfterHandshake => return Ok(()),
            Behaviour::NoHeaders => headers.clear(),
            Behaviour::SameHeaders => {
                headers = chain[1..].iter().take(2).map(|block| block.header).collect();
            }
            Behaviour::InvalidHeader if !headers.is_empty() => {
                let last = headers.len() - 1;
                while headers[last].validate_pow(headers[last].target()).is_ok() {
                    headers[last].nonce = headers[last].nonce.wrapping_add(1);
                }
            }
            Behaviour::BrokenHeaders if headers.len() > 2 => {
                headers.swap(0, 2);
            }
            _ => {}
        }
        self.send(NetworkMessage::Headers(headers))
    }

    fn data(&mut self, wanted: &[Inventory]) -> io::Result<()> {
        self.shared.seen.asked.fetch_add(wanted.len() as u64, Ordering::Relaxed);
        for item in wanted {
            let (Inventory::WitnessBlock(hash) | Inventory::Block(hash)) = item else { continue };
            std::thread::sleep(self.shared.delay);
            let chain = self.shared.chain();
            let Some(&at) = chain.by_hash.get(hash) else {
                self.send(NetworkMessage::NotFound(vec![*item]))?;
                continue;
            };
            self.shared.seen.heights.lock().unwrap().insert(at);
            self.block(&chain.blocks, at, item)?;
        }
        Ok(())
    }

    fn block(&mut self, chain: &[Block], at: usize, item: &Inventory) -> io::Result<()> {
        let mut block = chain[at].clone();
        let other = (at + 1) % chain.len();
        match self.behaviour {
            Behaviour::SilentAfterHandshake => return Ok(()),
            Behaviour::SilentAfter(count) if self.blocks >= count => return Ok(()),
            Behaviour::GoneAfter(count) if self.blocks >= count => {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Behaviour::GarbageAfter(count) if self.blocks >= count => {
                return self.write(&Rng::new(at as u64).bytes(5000));
            }
            Behaviour::NotFoundFrom(height) if at >= height => {
                return self.send(NetworkMessage::NotFound(vec![*item]));
            }
            Behaviour::NotFound => return self.send(NetworkMessage::NotFound(vec![*item])),
            Behaviour::OtherBlock => block = chain[other].clone(),
            Behaviour::MutatedTransactions => {
                let last = block.txdata[block.txdata.len() - 1].clone();
                block.txdata.push(last);
            }
            Behaviour::MutatedWitness => {
                block.txdata[0].input[0].witness.push([7_u8; 3]);
            }
            Behaviour::CutBlock => return self.raw_block(&cut(&serialize(&block))),
            Behaviour::WrongChecksum => {
                let mut bytes = framed(NetworkMessage::Block(block));
                bytes[20] ^= 1;
                return self.count_and_write(&bytes);
            }
            Behaviour::WrongMagic => {
                let mut bytes = framed(NetworkMessage::Block(block));
                bytes[0] ^= 1;
                return self.count_and_write(&bytes);
            }
            Behaviour::Unrequested => {
                let unasked = chain[other].clone();
                self.send(NetworkMessage::Block(unasked))?;
            }
            Behaviour::Repeats => {
                for _ in 0..2 {
                    self.count_and_write(&framed(NetworkMessage::Block(block.clone())))?;
                }
            }
            _ => {}
        }
        self.count_and_write(&framed(NetworkMessage::Block(block)))
    }

    fn count_and_write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.blocks += 1;
        self.shared.seen.blocks.fetch_add(1, Ordering::Relaxed);
        if self.behaviour == Behaviour::DripBlocks { self.drip(bytes) } else { self.write(bytes) }
    }

    /// Sends a message `block` with any payload and a right checksum.
    fn raw_block(&mut self, payload: &[u8]) -> io::Result<()> {
        let mut bytes = Magic::REGTEST.to_bytes().to_vec();
        bytes.extend_from_slice(b"block\0\0\0\0\0\0\0");
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        let sum = bitcoin::hashes::sha256d::Hash::hash(payload);
        bytes.extend_from_slice(&sum.to_byte_array()[..4]);
        bytes.extend_from_slice(payload);
        self.count_and_write(&bytes)
    }

    fn send(&mut self, message: NetworkMessage) -> io::Result<()> {
        self.write(&framed(message))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.behaviour == Behaviour::Drip {
            return self.drip(bytes);
        }
        let mut stream = self.stream;
        stream.write_all(bytes)
    }

    fn drip(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut stream = self.stream;
        for byte in bytes {
            if self.shared.ended.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            stream.write_all(&[*byte])?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn framed(message: NetworkMessage) -> Vec<u8> {
    serialize(&RawNetworkMessage::new(Magic::REGTEST, message))
}

/// Returns the first two thirds of a message.
fn cut(bytes: &[u8]) -> Vec<u8> {
    bytes[..bytes.len() * 2 / 3].to_vec()
}
