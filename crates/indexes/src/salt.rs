//! [`Salt`]: the key that an index hashes its rows with, so that no one can make many rows alike.

use crate::error::IndexesError;
use apus_chain::{OutPoint, Txid};
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// The two halves of a key of SipHash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Salt {
    k0: u64,
    k1: u64,
}

/// The initial state of SipHash.
const START: [u64; 4] =
    [0x736f_6d65_7073_6575, 0x646f_7261_6e64_6f6d, 0x6c79_6765_6e65_7261, 0x7465_6462_7974_6573];

/// What the finaliser of SipHash-1-3-UJ adds to the state (Core `crypto/siphash.h`).
const UNPADDED: u64 = 0x6465_6464_6170_6e75;

impl Salt {
    /// Length of the stored form in bytes.
    pub const SIZE: usize = 16;

    /// Makes a random salt. Each index of each node needs its own.
    ///
    /// # Errors
    /// [`IndexesError::Random`]
    pub fn random() -> Result<Self, IndexesError> {
        let mut bytes = [0; Self::SIZE];
        getrandom::fill(&mut bytes).map_err(IndexesError::Random)?;
        Ok(Self::from_bytes(&bytes))
    }

    /// Reads the stored form.
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let n = u128::from_le_bytes(*bytes);
        Self { k0: n as u64, k1: (n >> 64) as u64 }
    }

    /// Returns the stored form: both halves, little-endian.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        (u128::from(self.k1) << 64 | u128::from(self.k0)).to_le_bytes()
    }

    /// Computes SipHash-2-4 of the outpoint that an input spends: its txid, then its vout, little-endian (Core
    /// `index/txospenderindex.cpp`, `CreateKeyPrefix`).
    pub fn of_outpoint(self, outpoint: &[u8; OutPoint::SIZE]) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.k0, self.k1);
        hasher.write(outpoint);
        hasher.finish()
    }

    /// Computes SipHash-1-3-UJ of a txid: SipHash-1-3 with the txid as one jumbo block and without padding (Core
    /// `crypto/siphash.h`).
    pub fn of_txid(self, txid: &Txid) -> u64 {
        let (words, _) = txid.0.as_chunks::<8>();
        let d: [u64; 4] = core::array::from_fn(|at| u64::from_le_bytes(words[at]));
        let [s0, s1, s2, s3] = START;
        let mut v = [s0 ^ self.k0, s1 ^ self.k1, s2 ^ self.k0, s3 ^ self.k1];
        v = round([v[0] ^ d[1], v[1] ^ d[2], v[2] ^ d[3], v[3] ^ d[0]]);
        v = [v[0] ^ d[0], v[1] ^ d[1], v[2] ^ d[2] ^ UNPADDED, v[3] ^ d[3]];
        let [a, b, c, d] = round(round(round(v)));
        a ^ b ^ c ^ d
    }
}

/// A round of SipHash.
fn round([mut a, mut b, mut c, mut d]: [u64; 4]) -> [u64; 4] {
    a = a.wrapping_add(b);
    b = b.rotate_left(13) ^ a;
    a = a.rotate_left(32);
    c = c.wrapping_add(d);
    d = d.rotate_left(16) ^ c;
    a = a.wrapping_add(d);
    d = d.rotate_left(21) ^ a;
    c = c.wrapping_add(b);
    b = b.rotate_left(17) ^ c;
    c = c.rotate_left(32);
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The round is SipHash's: with it, SipHash-1-3 of one whole word is that of the other implementation.
    #[test]
    fn rounds_are_those_of_siphash() {
        let (k0, k1, word) =
            (0x0706_0504_0302_0100_u64, 0x0f0e_0d0c_0b0a_0908, 0x1234_5678_9abc_def0);
        let [s0, s1, s2, s3] = START;
        let mut v = [s0 ^ k0, s1 ^ k1, s2 ^ k0, s3 ^ k1];
        for block in [word, 8 << 56] {
            v[3] ^= block;
            v = round(v);
            v[0] ^= block;
        }
        v[2] ^= 0xff;
        let [a, b, c, d] = round(round(round(v)));
        let mut other = siphasher::sip::SipHasher13::new_with_keys(k0, k1);
        other.write(&word.to_le_bytes());
        assert_eq!(a ^ b ^ c ^ d, other.finish());
    }

    #[test]
    fn stored_salts_read_back_and_random_ones_differ() {
        let bytes: [u8; 16] = core::array::from_fn(|at| at as u8);
        let salt = Salt::from_bytes(&bytes);
        assert_eq!(salt, Salt { k0: 0x0706_0504_0302_0100, k1: 0x0f0e_0d0c_0b0a_0908 });
        assert_eq!(salt.to_bytes(), bytes);
        assert_ne!(Salt::random().unwrap(), Salt::random().unwrap());
    }

    /// Computed with another program, in another language.
    #[test]
    fn hashes_are_cores() {
        let salt = Salt { k0: 0x0706_0504_0302_0100, k1: 0x0f0e_0d0c_0b0a_0908 };
        for (txid, expected, of_outpoint) in [
            ([0; 32], 0x6a74_cba0_0ddb_feba, 0x46a7_0401_ada7_64db),
            (core::array::from_fn(|at| at as u8), 0xc67d_87b0_8ca4_b5c6, 0x493c_3534_dadc_0025),
            ([255; 32], 0x7f74_5a47_1ec7_c2f6, 0x8951_72ba_f206_4f9b_u64),
        ] {
            assert_eq!(salt.of_txid(&Txid(txid)), expected);
            let outpoint = [&txid[..], &[1, 2, 3, 4]].concat();
            assert_eq!(salt.of_outpoint(outpoint.first_chunk().unwrap()), of_outpoint);
        }
    }
}
