//! [`MessageReader`]: messages from a peer, in either transport.

use super::buffers::Buffers;
use super::incoming::{Body, Incoming};
use super::v1::{HEADER_BYTES, V1Reader};
use super::v2::{LENGTH_BYTES, V2Reader};
use crate::message::{Command, Message, decode};
use crate::peer_error::PeerError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long [`MessageReader::read`] waits unless told otherwise.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// What the bytes mean.
pub(crate) enum Decoder {
    V1(V1Reader),
    V2(Box<V2Reader>),
}

/// The receiving half of a connection.
///
/// It never waits long: a message may come over many calls of [`MessageReader::read`].
pub struct MessageReader {
    incoming: Incoming,
    decoder: Decoder,
    /// The message under way, once its length is known.
    body: Option<Body>,
    tick: Duration,
    /// Whether an error was told: nothing that comes after it can be trusted.
    over: bool,
}

impl MessageReader {
    pub(crate) const fn new(incoming: Incoming, decoder: Decoder, tick: Duration) -> Self {
        Self { incoming, decoder, body: None, tick, over: false }
    }

    /// Sets how long [`MessageReader::read`] waits, from a millisecond to a day.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn set_tick(&mut self, tick: Duration) -> Result<(), PeerError> {
        self.tick = tick;
        self.incoming.set_tick(tick)
    }

    /// Takes memory for blocks from there, where [`BlockBytes`](super::BlockBytes) leave theirs.
    pub fn use_buffers(&mut self, buffers: &Arc<Buffers>) {
        self.incoming.use_buffers(buffers);
    }

    /// All bytes received so far, those of an unfinished message among them.
    #[must_use]
    pub fn bytes_received(&self) -> u64 {
        self.incoming.received().load(Ordering::Relaxed)
    }

    /// The counter behind [`MessageReader::bytes_received`], for other threads to watch.
    #[must_use]
    pub fn bytes_received_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(self.incoming.received())
    }

    /// The next message, or `None` if it is not all there within the tick (200 ms if not set): then
    /// the next call goes on with it.
    ///
    /// # Errors
    /// When the connection is over or the peer broke the protocol. Nothing can be read after that.
    pub fn read(&mut self) -> Result<Option<Message>, PeerError> {
        if self.over {
            return Err(PeerError::Closed);
        }
        let result = self.read_for_a_tick();
        self.over = result.is_err();
        result
    }

    fn read_for_a_tick(&mut self) -> Result<Option<Message>, PeerError> {
        let start = Instant::now();
        let mut late = false;
        loop {
            if let Some((command, payload)) = self.take_message()? {
                return Ok(Some(decode(command, payload)?));
            }
            if late {
                return Ok(None);
            }
            let more = match &mut self.body {
                Some(body) => body.wait(&mut self.incoming)?,
                None => self.incoming.wait()?,
            };
            // A peer that sends a byte now and then must not hold us here.
            late = !more || start.elapsed() >= self.tick;
        }
    }

    /// The next message that is all here.
    fn take_message(&mut self) -> Result<Option<(Command, Vec<u8>)>, PeerError> {
        loop {
            if self.body.is_none() {
                let Some(length) = self.take_length()? else { return Ok(None) };
                self.body = Some(Body::new(length));
            }
            let Some(mut body) = self.body.take() else { return Ok(None) };
            if !body.take_from(&mut self.incoming) {
                self.body = Some(body);
                return Ok(None);
            }
            let message = match &mut self.decoder {
                Decoder::V1(decoder) => Some(decoder.payload(body.into_bytes())?),
                Decoder::V2(decoder) => decoder.packet(body.into_bytes())?,
            };
            if message.is_some() {
                return Ok(message);
            }
        }
    }

    /// Takes what stands before a payload, if it is here: the payload's length.
    fn take_length(&mut self) -> Result<Option<usize>, PeerError> {
        match &mut self.decoder {
            Decoder::V1(decoder) => self
                .incoming
                .take::<HEADER_BYTES>()
                .map(|header| decoder.header(&header))
                .transpose(),
            Decoder::V2(decoder) => self
                .incoming
                .take::<LENGTH_BYTES>()
                .map(|length| decoder.length(length))
                .transpose(),
        }
    }
}

impl fmt::Debug for MessageReader {
    /// Without keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageReader")
            .field("bytes_received", &self.bytes_received())
            .finish_non_exhaustive()
    }
}
