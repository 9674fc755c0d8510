//! [`ClusterKey`]: the shared secret of the machines of a cluster, which seals all their messages.
//!
//! Sealing encrypts a message, and without the key a message cannot be forged, changed, or moved to another subject
//! (the seal covers the subject). The construction is SIV: the tag is a keyed BLAKE3 of subject and message, and a
//! second key expands the tag to the stream that encrypts the message. So no nonce is needed, and the same message
//! always gives the same bytes. A machine logs in to the server with a third key, whose public half the server knows
//! (an nkey in NATS).

use apus_jobs::WIRE_VERSION;
use nkeys::{KeyPair, KeyPairType};
use std::fmt;

/// First bytes of a sealed message.
const MAGIC: &[u8; 8] = b"APUSSEAL";

/// Offsets of the tag and of the encrypted message.
const TAG: usize = 12;
const HIDDEN: usize = TAG + 32;

/// The shared secret of a cluster.
#[derive(Clone)]
pub struct ClusterKey {
    tag: [u8; 32],
    stream: [u8; 32],
    login: [u8; 32],
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey")
    }
}

/// Failure to open a sealed message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Another version of the program wrote it.
    #[error(
        "the message has version {0}, but this program speaks version {WIRE_VERSION}. Run the same version of Apus \
         on all machines"
    )]
    Version(u32),
    /// The message was sealed with another key, or changed in transit.
    #[error("it is not sealed with the key of this cluster")]
    Foreign,
}

impl ClusterKey {
    /// Derives the keys from 32 secret random bytes.
    pub fn new(secret: &[u8; 32]) -> Self {
        let derive = |what: &str| blake3::derive_key(&format!("apus cluster 2026 {what}"), secret);
        Self { tag: derive("tag"), stream: derive("stream"), login: derive("login") }
    }

    /// Reads the secret from 64 hexadecimal digits, the format of the key file.
    pub fn from_hex(text: &str) -> Option<Self> {
        let (pairs, rest) = text.trim().as_bytes().as_chunks::<2>();
        let mut secret = [0; 32];
        if pairs.len() != secret.len() || !rest.is_empty() {
            return None;
        }
        for (byte, pair) in secret.iter_mut().zip(pairs) {
            let digit = |c: u8| char::from(c).to_digit(16).map(|digit| digit as u8);
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self::new(&secret))
    }

    /// Settings of a NATS server that accepts only clients with the key. They contain no secret.
    pub fn server_settings(&self) -> String {
        let key = self.login().public_key();
        format!("authorization {{ users: [ {{ nkey: {key} }} ] }}\n")
    }

    /// The seed with which a machine logs in to the server.
    pub(crate) fn login_seed(&self) -> String {
        self.login().seed().expect("it has a seed")
    }

    fn login(&self) -> KeyPair {
        KeyPair::new_from_raw(KeyPairType::User, self.login).expect("any 32 bytes are a seed")
    }

    /// Seals a message for a subject.
    pub(crate) fn seal(&self, subject: &str, message: &[u8]) -> Vec<u8> {
        let tag = self.tag_of(subject, message);
        let mut sealed = [MAGIC, &WIRE_VERSION.to_le_bytes()[..], tag.as_bytes(), message].concat();
        self.hide(&tag, &mut sealed[HIDDEN..]);
        sealed
    }

    /// Opens a sealed message of a subject.
    pub(crate) fn open(&self, subject: &str, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let version =
            sealed.get(8..TAG).and_then(<[u8]>::first_chunk).copied().map(u32::from_le_bytes);
        match version {
            // Unsealed messages of older versions begin this way as well.
            Some(version) if sealed.starts_with(b"APUS") && version != WIRE_VERSION => {
                return Err(SealError::Version(version));
            }
            Some(_) if sealed.starts_with(MAGIC) => {}
            _ => return Err(SealError::Foreign),
        }
        let tag =
            sealed.get(TAG..HIDDEN).and_then(<[u8]>::first_chunk).ok_or(SealError::Foreign)?;
        let tag = blake3::Hash::from_bytes(*tag);
        let mut message = sealed[HIDDEN..].to_vec();
        self.hide(&tag, &mut message);
        // This comparison takes constant time.
        if self.tag_of(subject, &message) == tag { Ok(message) } else { Err(SealError::Foreign) }
    }

    fn tag_of(&self, subject: &str, message: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.tag);
        hasher.update(&(subject.len() as u64).to_le_bytes());
        hasher.update(subject.as_bytes()).update(message).finalize()
    }

    /// Encrypts or decrypts a message.
    fn hide(&self, tag: &blake3::Hash, message: &mut [u8]) {
        let mut stream = vec![0; message.len()];
        let mut hasher = blake3::Hasher::new_keyed(&self.stream);
        hasher.update(tag.as_bytes()).finalize_xof().fill(&mut stream);
        message.iter_mut().zip(stream).for_each(|(byte, other)| *byte ^= other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBJECT: &str = "apus.answer.0a.join-5-6";

    #[test]
    fn sealed_messages_are_encrypted_and_opened_by_the_key_alone() {
        let (key, other) = (ClusterKey::new(&[7; 32]), ClusterKey::new(&[8; 32]));
        for message in [&b""[..], b"a", &[0xa7; 1000]] {
            let sealed = key.seal(SUBJECT, message);
            assert_eq!(sealed, key.seal(SUBJECT, message));
            assert_eq!(key.open(SUBJECT, &sealed).as_deref(), Ok(message));
            assert_eq!(other.open(SUBJECT, &sealed), Err(SealError::Foreign));
            assert_eq!(key.open("apus.answer.0a.join-5-7", &sealed), Err(SealError::Foreign));
            assert!(message.len() < 3 || !sealed.windows(3).any(|some| some == &message[..3]));
            for length in 0..sealed.len() {
                assert!(key.open(SUBJECT, &sealed[..length]).is_err(), "{length}");
            }
            for at in 0..sealed.len() {
                let mut changed = sealed.clone();
                changed[at] ^= 1;
                assert!(key.open(SUBJECT, &changed).is_err(), "{at}");
            }
        }
        assert!(!format!("{key:?}").contains('7'));
    }

    #[test]
    fn other_versions_are_named() {
        let key = ClusterKey::new(&[7; 32]);
        for magic in [MAGIC, b"APUSSPEC"] {
            let sealed = [magic, &(WIRE_VERSION - 1).to_le_bytes()[..], &[0; 80]].concat();
            assert_eq!(key.open(SUBJECT, &sealed), Err(SealError::Version(WIRE_VERSION - 1)));
        }
        assert_eq!(key.open(SUBJECT, b"hello"), Err(SealError::Foreign));
    }

    #[test]
    fn a_key_is_read_from_a_file_and_shown_in_no_settings() {
        let text = "0A".repeat(32);
        let key = ClusterKey::from_hex(&format!("{text}\n")).unwrap();
        let same = ClusterKey::new(&[10; 32]);
        assert_eq!(key.open(SUBJECT, &same.seal(SUBJECT, b"it")).as_deref(), Ok(&b"it"[..]));
        for other in ["", "0a", &"0a".repeat(33), &"0g".repeat(32), &"é".repeat(32)] {
            assert!(ClusterKey::from_hex(other).is_none(), "{other}");
        }
        let settings = key.server_settings();
        assert!(settings.starts_with("authorization { users: [ { nkey: U"), "{settings}");
        let seed = key.login_seed();
        assert!(seed.starts_with("SU") && !settings.contains(&seed[2..]));
    }
}
