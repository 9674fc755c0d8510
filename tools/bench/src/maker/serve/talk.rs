//! One connection of a [`PeerServer`](super::PeerServer): a thread reads requests, another one answers.
//!
//! Blocks are sent in the order of the requests. While one is being made, everything else is still answered,
//! so that a client that waits does not take the peer for a dead one.

use super::Shared;
use apus_chain::{BlockHash, HEADER_SIZE, Height, Network};
use apus_p2p::message::{HEADERS_MAX, INVENTORY_MAX, Inventory, InventoryKind, Message, Services};
use apus_p2p::transport::{Dial, MessageReader, MessageWriter, PeerError, accept};
use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

/// How long to wait for a block before looking for other requests.
const PATIENCE: Duration = Duration::from_millis(100);
/// Messages that may wait for an answer.
const WAITING: usize = 64;
/// Distinguishes this peer from its clients, which draw a number at random.
const NONCE: u64 = 0x6170_7573_6265_6e63;

/// Serves a client until one side ends it.
pub(super) fn talk(shared: &Shared, stream: TcpStream) {
    let dial = Dial {
        services: Services::NETWORK.with(Services::WITNESS),
        start_height: shared.headers.tip().cast_signed(),
        user_agent: concat!("/apus-bench:", env!("CARGO_PKG_VERSION"), "/").to_owned(),
        ..Dial::new(Network::Regtest, NONCE)
    };
    // A client that cannot even shake hands gets no answer.
    let Ok(connection) = accept(stream, &dial) else { return };
    let closer = connection.closer();
    shared.connections.lock().push(closer.clone());
    let (reader, mut writer) = (connection.reader, connection.writer);
    let (requests, received) = sync_channel(WAITING);
    std::thread::scope(|scope| {
        scope.spawn(move || read_all(shared, reader, &requests));
        // An error means that the client has gone.
        let _ = answer_all(shared, &mut writer, &received);
        closer.close();
    });
}

/// Passes on all messages until the connection ends.
fn read_all(shared: &Shared, mut reader: MessageReader, requests: &SyncSender<Message>) {
    while !shared.ended.load(Ordering::Relaxed)
        && let Ok(message) = reader.read()
    {
        if let Some(message) = message
            && requests.send(message).is_err()
        {
            return;
        }
    }
}

fn answer_all(
    shared: &Shared,
    writer: &mut MessageWriter,
    requests: &Receiver<Message>,
) -> Result<(), PeerError> {
    let mut wanted: VecDeque<(Height, bool)> = VecDeque::new();
    while !shared.ended.load(Ordering::Relaxed) {
        let request = match wanted.is_empty() {
            true => requests.recv().map_err(|_| PeerError::Closed).map(Some)?,
            false => match requests.try_recv() {
                Err(TryRecvError::Disconnected) => return Ok(()),
                request => request.ok(),
            },
        };
        if let Some(request) = request {
            answer(shared, writer, request, &mut wanted)?;
            continue;
        }
        if let Some(&(height, whole)) = wanted.front()
            && let Some(block) = shared.window.block(height, PATIENCE)
        {
            wanted.pop_front();
            match whole {
                true => writer.write_block(&block.bytes)?,
                false => writer.write_block(&block.stripped())?,
            }
        }
    }
    Ok(())
}

/// Answers a message, or adds the blocks that it asks for to those wanted.
fn answer(
    shared: &Shared,
    writer: &mut MessageWriter,
    request: Message,
    wanted: &mut VecDeque<(Height, bool)>,
) -> Result<(), PeerError> {
    match request {
        Message::Ping(nonce) => writer.write(&Message::Pong(nonce)),
        Message::GetHeaders { locator, stop } => {
            writer.write(&Message::Headers(following(shared, &locator, &stop)))
        }
        Message::GetData(items) => {
            let mut missing = Vec::new();
            for item in items {
                match named(shared, &item) {
                    Some(block) if wanted.len() < INVENTORY_MAX => wanted.push_back(block),
                    _ => missing.push(item),
                }
            }
            if missing.is_empty() { Ok(()) } else { writer.write(&Message::NotFound(missing)) }
        }
        _ => Ok(()),
    }
}

/// The height of a block that is asked for, and whether with its witnesses.
fn named(shared: &Shared, item: &Inventory) -> Option<(Height, bool)> {
    let height = *shared.headers.heights.get(&BlockHash(item.hash))?;
    let whole = match item.kind {
        InventoryKind::WitnessBlock => true,
        InventoryKind::Block => false,
        InventoryKind::Other(_) => return None,
    };
    // Everyone has the genesis block.
    (height > 0).then_some((height, whole))
}

/// The headers after the first block of the locator that is known (Core `net_processing.cpp`).
fn following(shared: &Shared, locator: &[BlockHash], stop: &BlockHash) -> Vec<[u8; HEADER_SIZE]> {
    let height = |hash: &BlockHash| shared.headers.heights.get(hash).map(|it| *it as usize);
    let from = locator.iter().find_map(height).unwrap_or(0) + 1;
    let stop = height(stop).map_or(usize::MAX, |stop| stop + 1);
    let to = (from + HEADERS_MAX).min(stop).min(shared.headers.raw.len());
    shared.headers.raw.get(from..to).unwrap_or_default().to_vec()
}
