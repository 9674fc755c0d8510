//! [`PeerError`]: why a connection ends, and what that says about the peer.

use crate::addresses::Services;
use crate::message::{MessageError, PayloadFlaw};
use apus_chain::Network;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// What a failed connection says about the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerFault {
    /// It broke the protocol: nothing is to be had there.
    Misbehaved,
    /// No connection of use came about: no peer is there, or one that lacks what we need.
    Unreachable,
    /// It was there and is no more; it may well come back.
    Gone,
}

/// Why a connection did not come about or ended.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// No connection to the address.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// The address as the user would write it.
        address: String,
        /// Why not, and what would help where something would.
        reason: String,
    },
    /// The proxy does not connect us.
    #[error("the proxy {proxy} does not connect us to {address}: {reason}")]
    Proxy {
        /// The proxy.
        proxy: SocketAddr,
        /// Where we wanted to go.
        address: String,
        /// What it answered, or what is wrong with the answer.
        reason: String,
    },
    /// The system reports a failure of the connection.
    #[error("the connection broke: {0}")]
    Io(#[source] io::Error),
    /// The peer took too long.
    #[error("{during} took longer than {after:?}")]
    Timeout {
        /// What was waited for.
        during: &'static str,
        /// How long.
        after: Duration,
    },
    /// The peer, or a [`Closer`](crate::transport::Closer), closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer hung up on the encrypted transport's handshake without a word, as peers do that
    /// don't know it. It may answer in plaintext.
    #[error("the peer closed during the v2 handshake: it may know the v1 transport only")]
    ClosedDuringV2Handshake,
    /// Bytes that the protocol does not allow.
    #[error("the peer broke the protocol: {what}")]
    Protocol {
        /// What is wrong with them.
        what: String,
    },
    /// Headers that break a rule.
    #[error("the peer broke the protocol: {what}")]
    Headers {
        /// What is wrong with them.
        what: String,
    },
    /// A message that is longer than any may be. Nothing of it was taken.
    #[error("the peer broke the protocol: {what} of {bytes} bytes, more than {limit}")]
    TooLong {
        /// The message, as far as is known which one it is.
        what: String,
        /// Its bytes, as it says itself.
        bytes: usize,
        /// The most that are taken.
        limit: usize,
    },
    /// A handshake that leads to no connection.
    #[error("no agreement with the peer: {what}")]
    Handshake {
        /// What stands against it.
        what: String,
    },
    /// The peer is in another network.
    #[error("the peer speaks for the network {found}, not for {wanted}")]
    WrongNetwork {
        /// Its network.
        found: Network,
        /// Ours.
        wanted: Network,
    },
    /// The address leads back to this program.
    #[error("the address leads back to ourselves")]
    ConnectedToSelf,
    /// The peer does not offer what is needed.
    #[error("the peer offers services {offered:#x} and lacks some of {wanted:#x}", offered = .offered.0, wanted = .wanted.0)]
    MissingServices {
        /// What it offers.
        offered: Services,
        /// What is needed.
        wanted: Services,
    },
}

impl PeerError {
    /// What this says about the peer.
    #[must_use]
    pub const fn kind(&self) -> PeerFault {
        match self {
            Self::Protocol { .. }
            | Self::Headers { .. }
            | Self::TooLong { .. }
            | Self::Handshake { .. }
            | Self::WrongNetwork { .. } => PeerFault::Misbehaved,
            Self::Connect { .. }
            | Self::Proxy { .. }
            | Self::ClosedDuringV2Handshake
            | Self::ConnectedToSelf
            | Self::MissingServices { .. } => PeerFault::Unreachable,
            Self::Io(_) | Self::Timeout { .. } | Self::Closed => PeerFault::Gone,
        }
    }

    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol { what: what.into() }
    }
}

impl From<MessageError> for PeerError {
    fn from(error: MessageError) -> Self {
        let what = error.to_string();
        match error.flaw {
            PayloadFlaw::OfKnots { .. } => Self::Headers { what },
            _ => Self::Protocol { what },
        }
    }
}

impl From<io::Error> for PeerError {
    /// That the peer is gone has several names.
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected => Self::Closed,
            _ => Self::Io(error),
        }
    }
}
