//! [`PeerError`]: why a connection ended, and what that says about the peer.

use crate::addresses::Services;
use crate::message::{MessageError, PayloadFlaw};
use apus_chain::Network;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// What a failed connection says about the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerFault {
    /// It broke the protocol and is useless.
    Misbehaved,
    /// No useful connection was established: no peer is there, or it lacks required services.
    Unreachable,
    /// It was connected and is gone; it may come back.
    Gone,
}

/// Why a connection failed or ended.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// No connection to the address.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// The address as the user would write it.
        address: String,
        /// The reason, and a remedy if there is one.
        reason: String,
    },
    /// The proxy did not connect.
    #[error("proxy {proxy}: cannot connect to {address}: {reason}")]
    Proxy {
        /// The proxy.
        proxy: SocketAddr,
        /// The target address.
        address: String,
        /// The proxy's error, or the flaw in its answer.
        reason: String,
    },
    /// The system reported a connection failure.
    #[error("connection failed: {0}")]
    Io(#[source] io::Error),
    /// The peer took too long.
    #[error("{during} took longer than {after:?}")]
    Timeout {
        /// The operation that timed out.
        during: &'static str,
        /// The time limit.
        after: Duration,
    },
    /// The peer, or a [`Closer`](crate::transport::Closer), closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer silently closed the connection during the encrypted handshake, as peers without encryption do.
    /// It may accept plaintext.
    #[error("the peer closed the connection during the v2 handshake; it may support only v1")]
    ClosedDuringV2Handshake,
    /// The peer sent bytes that the protocol does not allow.
    #[error("the peer broke the protocol: {what}")]
    Protocol {
        /// The violation.
        what: String,
    },
    /// The peer sent headers that violate a rule.
    #[error("the peer broke the protocol: {what}")]
    Headers {
        /// The violation.
        what: String,
    },
    /// A message exceeds the maximum length. None of it was read.
    #[error("the peer broke the protocol: {what} has {bytes} bytes, more than {limit}")]
    TooLong {
        /// The message, as far as known.
        what: String,
        /// Its announced length, in bytes.
        bytes: usize,
        /// The longest allowed, in bytes.
        limit: usize,
    },
    /// The handshake failed.
    #[error("handshake failed: {what}")]
    Handshake {
        /// The reason.
        what: String,
    },
    /// The peer is on another network.
    #[error("the peer is on network {found}, not {wanted}")]
    WrongNetwork {
        /// Its network.
        found: Network,
        /// Ours.
        wanted: Network,
    },
    /// The address is our own.
    #[error("connected to ourselves")]
    ConnectedToSelf,
    /// The peer lacks required services.
    #[error(
        "the peer offers services {offered:#x} and lacks some of the required {wanted:#x}",
        offered = .offered.0,
        wanted = .wanted.0
    )]
    MissingServices {
        /// The services that it offers.
        offered: Services,
        /// The services required.
        wanted: Services,
    },
}

impl PeerError {
    /// What this error says about the peer.
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
    /// Several kinds of I/O error mean that the peer is gone.
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected => Self::Closed,
            _ => Self::Io(error),
        }
    }
}
