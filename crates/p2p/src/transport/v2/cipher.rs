//! The ciphers of BIP-324: one for contents, one for lengths. Both change their keys by themselves.
//!
//! They are ChaCha20 and Poly1305 as others wrote them; what is here is which nonce is next and when
//! a key ends. A mistake in that is never silent: no peer would understand the second packet. Whole
//! blocks go through the first, so it is the fastest that a crate has (decision 0016).

use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use ring::aead;

/// A key.
pub(super) type KeyBytes = [u8; 32];

/// Bytes that prove the contents.
pub(super) const TAG_BYTES: usize = 16;

/// Packets under one key (BIP-324, `REKEY_INTERVAL`).
const REKEY_INTERVAL: u64 = 224;

/// The packet is not what its sender encrypted, or not the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unproved;

/// Contents and their proof (BIP-324, `FSChaCha20Poly1305`).
pub(super) struct PacketCipher {
    key: aead::LessSafeKey,
    /// Packets so far.
    count: u64,
}

impl PacketCipher {
    pub(super) fn new(key: &KeyBytes) -> Option<Self> {
        Some(Self { key: packet_key(key)?, count: 0 })
    }

    /// Encrypts `contents` in place; returns what proves them, and `aad`, to the other side.
    pub(super) fn seal(
        &mut self,
        aad: &[u8],
        contents: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], Unproved> {
        let (nonce, aad) = (self.nonce((self.count % REKEY_INTERVAL) as u32), aead::Aad::from(aad));
        let tag =
            self.key.seal_in_place_separate_tag(nonce, aad, contents).map_err(|_| Unproved)?;
        self.next()?;
        tag.as_ref().try_into().map_err(|_| Unproved)
    }

    /// Decrypts a packet, which ends in its tag, in place, and cuts the tag off.
    pub(super) fn open(&mut self, aad: &[u8], packet: &mut Vec<u8>) -> Result<(), Unproved> {
        let (nonce, aad) = (self.nonce((self.count % REKEY_INTERVAL) as u32), aead::Aad::from(aad));
        let length = self.key.open_in_place(nonce, aad, packet).map_err(|_| Unproved)?.len();
        packet.truncate(length);
        self.next()
    }

    /// The packet's number under this key, or what no packet has, and the number of the key.
    fn nonce(&self, packet: u32) -> aead::Nonce {
        let mut nonce = [0; aead::NONCE_LEN];
        nonce[..4].copy_from_slice(&packet.to_le_bytes());
        nonce[4..].copy_from_slice(&(self.count / REKEY_INTERVAL).to_le_bytes());
        aead::Nonce::assume_unique_for_key(nonce)
    }

    /// The next key is what the last one makes of zeros.
    fn next(&mut self) -> Result<(), Unproved> {
        if self.count % REKEY_INTERVAL == REKEY_INTERVAL - 1 {
            let (nonce, mut key) = (self.nonce(u32::MAX), KeyBytes::default());
            let aad = aead::Aad::empty();
            // Its tag is not sent.
            let sealed = self.key.seal_in_place_separate_tag(nonce, aad, &mut key);
            let _tag = sealed.map_err(|_| Unproved)?;
            self.key = packet_key(&key).ok_or(Unproved)?;
        }
        self.count += 1;
        Ok(())
    }
}

fn packet_key(key: &KeyBytes) -> Option<aead::LessSafeKey> {
    aead::UnboundKey::new(&aead::CHACHA20_POLY1305, key).ok().map(aead::LessSafeKey::new)
}

/// Bytes of an encrypted length.
pub(crate) const LENGTH_BYTES: usize = 3;

/// Lengths (BIP-324, `FSChaCha20`): nothing proves them but the packet after.
pub(super) struct LengthCipher {
    key: KeyBytes,
    /// Lengths so far.
    count: u64,
}

impl LengthCipher {
    pub(super) const fn new(key: KeyBytes) -> Self {
        Self { key, count: 0 }
    }

    /// Encrypts or decrypts the next length.
    pub(super) fn apply(&mut self, mut length: [u8; LENGTH_BYTES]) -> [u8; LENGTH_BYTES] {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&(self.count / REKEY_INTERVAL).to_le_bytes());
        // One stream for all lengths under a key, and then for the next key.
        let mut stream = ChaCha20::new(&self.key.into(), &nonce.into());
        stream.seek(self.count % REKEY_INTERVAL * LENGTH_BYTES as u64);
        stream.apply_keystream(&mut length);
        self.count += 1;
        if self.count.is_multiple_of(REKEY_INTERVAL) {
            let mut key = KeyBytes::default();
            stream.apply_keystream(&mut key);
            self.key = key;
        }
        length
    }
}
