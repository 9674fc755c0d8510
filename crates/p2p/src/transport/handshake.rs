//! The version handshake: `version` and `verack` from both sides (Core `net_processing.cpp`).
//!
//! Afterwards both know what the other is. Transactions and compact blocks are never agreed on. All
//! of it ends by one deadline, and after a bounded number of messages that are none of its own.

use super::{Dial, MessageReader, MessageWriter};
use crate::deadline::Deadline;
use crate::message::{Message, PROTOCOL_VERSION, Version};
use crate::peer_error::PeerError;
use std::time::{SystemTime, UNIX_EPOCH};

/// Oldest protocol that is spoken with (Core `node/protocol_version.h`, `MIN_PEER_PROTO_VERSION`).
const PROTOCOL_VERSION_MIN: i32 = 31_800;
/// First protocol whose peers are told of `addrv2` (Core `net_processing.cpp`, on `version`).
const ADDRV2_PROTOCOL_VERSION: u32 = 70_016;
/// Most messages without a place in the handshake; Core ignores them without a limit.
const IGNORED_MAX: u32 = 100;

/// Which side asked for the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// We did.
    Outbound,
    /// The peer did.
    Inbound,
}

/// What the peer said of itself.
#[derive(Debug)]
pub(crate) struct Agreed {
    pub(crate) version: Version,
    pub(crate) wants_addrv2: bool,
}

/// Shakes hands. The side that asked for the connection speaks first.
pub(crate) fn shake(
    reader: &mut MessageReader,
    writer: &mut MessageWriter,
    side: Side,
    dial: &Dial,
    deadline: &Deadline,
) -> Result<Agreed, PeerError> {
    let mut write = |message: &Message| {
        writer.set_timeout(deadline.remaining()?);
        writer.write(message)
    };
    if side == Side::Outbound {
        write(&our_version(dial))?;
    }
    let mut version: Option<Version> = None;
    let (mut wants_addrv2, mut ignored) = (false, 0);
    loop {
        deadline.remaining()?;
        match (reader.read()?, &version) {
            (None, _) => {}
            (Some(Message::Version(theirs)), None) => {
                check(&theirs, side, dial)?;
                if side == Side::Inbound {
                    write(&our_version(dial))?;
                }
                if theirs.protocol >= ADDRV2_PROTOCOL_VERSION {
                    write(&Message::SendAddrV2)?;
                }
                write(&Message::Verack)?;
                version = Some(theirs);
            }
            (Some(Message::SendAddrV2), Some(_)) => wants_addrv2 = true,
            (Some(Message::Verack), Some(version)) => {
                return Ok(Agreed { version: version.clone(), wants_addrv2 });
            }
            (Some(_), _) => ignored += 1,
        }
        if ignored > IGNORED_MAX {
            let what = format!("more than {IGNORED_MAX} other messages before `verack`");
            return Err(PeerError::Handshake { what });
        }
    }
}

fn our_version(dial: &Dial) -> Message {
    // A clock before 1970 is told as 1970.
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Message::Version(Version {
        protocol: PROTOCOL_VERSION,
        services: dial.services,
        time: time.cast_signed(),
        nonce: dial.our_nonce,
        user_agent: dial.user_agent.clone(),
        start_height: dial.start_height,
        relay: false,
    })
}

fn check(theirs: &Version, side: Side, dial: &Dial) -> Result<(), PeerError> {
    if theirs.nonce == dial.our_nonce {
        return Err(PeerError::ConnectedToSelf);
    }
    // As in Core a version above 2^31 is a negative one.
    let protocol = theirs.protocol.cast_signed();
    if protocol < PROTOCOL_VERSION_MIN {
        return Err(PeerError::Handshake {
            what: format!("protocol version {protocol} is older than {PROTOCOL_VERSION_MIN}"),
        });
    }
    if side == Side::Outbound && !theirs.services.has(dial.required_services) {
        let (offered, wanted) = (theirs.services, dial.required_services);
        return Err(PeerError::MissingServices { offered, wanted });
    }
    Ok(())
}
