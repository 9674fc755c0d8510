//! The aggregate: what proves, without order, that every coin that was said to be spent was spent
//! once and nothing else was.
//!
//! Every outpoint created (and not surviving) goes into one sum, every outpoint spent into
//! another; at the stop height the two are equal if and only if the two multisets are, except with
//! negligible probability. The elements are hashed under a key that the author of the hints cannot
//! know, since otherwise wrong hints could be chosen so that their errors cancel; and they are
//! *added*, never XORed, since three spends of one coin would XOR to the same as one.
//!
//! Two kinds: SHA-256 under a 64-byte key block, summed modulo 2^256 (one compression an element;
//! after BIP-457, with the key always secret), and MuHash3072, which needs no key and costs some
//! fifty times more.

use apus_chain::{BlockHash, MuHash, OutPoint};
use apus_hash::{KeyedHasher, Sha256};

/// Which aggregate a run uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AggregateKind {
    /// Keyed SHA-256, added modulo 2^256.
    Sha256,
    /// MuHash3072, without a key.
    MuHash,
}

/// The node's secret from which the key of a run is made: 32 random bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl core::fmt::Debug for Secret {
    /// Never shows the bytes: a log must not leak the key.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Sets this use of SHA-256 apart from all others; fills the key block after the key.
const DOMAIN: [u8; 32] = *b"apus swiftsync outpoint sum v1\0\0";

/// Adds outpoints to [`Sums`], under the key of one run.
#[derive(Clone)]
pub struct Aggregator {
    kind: AggregateKind,
    hasher: KeyedHasher,
}

impl Aggregator {
    /// The key is SHA-256(secret ‖ stop block ‖ SHA-256 of the hints): another stop block or other
    /// hints get another key, so that nobody can try twice against the same one.
    pub fn new(kind: AggregateKind, secret: &Secret, stop: BlockHash, hints: [u8; 32]) -> Self {
        let mut hash = Sha256::new();
        hash.update(&secret.0);
        hash.update(stop.as_bytes());
        hash.update(&hints);
        let mut block = [0; 64];
        block[..32].copy_from_slice(&hash.finalize());
        block[32..].copy_from_slice(&DOMAIN);
        Self { kind, hasher: KeyedHasher::new(&block) }
    }

    /// Sums of nothing.
    pub fn zero(&self) -> Sums {
        match self.kind {
            AggregateKind::Sha256 => Sums::Sha256 { created: [0; 4], spent: [0; 4] },
            AggregateKind::MuHash => Sums::MuHash(Box::new(MuHash::new())),
        }
    }

    /// Adds outpoints, in wire form, that were created and do not survive.
    pub fn create(&self, sums: &mut Sums, outpoints: &[[u8; OutPoint::SIZE]]) {
        match sums {
            Sums::Sha256 { created, .. } => self.hasher.sum_many(outpoints, created),
            Sums::MuHash(muhash) => outpoints.iter().for_each(|o| muhash.insert(o)),
        }
    }

    /// Adds outpoints, in wire form, that were spent.
    pub fn spend(&self, sums: &mut Sums, outpoints: &[[u8; OutPoint::SIZE]]) {
        match sums {
            Sums::Sha256 { spent, .. } => self.hasher.sum_many(outpoints, spent),
            Sums::MuHash(muhash) => outpoints.iter().for_each(|o| muhash.remove(o)),
        }
    }
}

/// The two sums of some part of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sums {
    /// Modulo 2^256, limbs least significant first.
    Sha256 {
        /// Sum over the outpoints created.
        created: [u64; 4],
        /// Sum over the outpoints spent.
        spent: [u64; 4],
    },
    /// Product of the created over product of the spent.
    MuHash(Box<MuHash>),
}

/// Two partial results cannot be merged since their sums are of different kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("one part was aggregated with SHA-256, the other with MuHash")]
pub struct KindMismatch;

/// Bytes of the encoded form of a SHA-256 aggregate: two sums of 32 bytes.
const SHA256_SIZE: usize = 64;

impl Sums {
    /// Which kind.
    pub fn kind(&self) -> AggregateKind {
        match self {
            Self::Sha256 { .. } => AggregateKind::Sha256,
            Self::MuHash(_) => AggregateKind::MuHash,
        }
    }

    /// Adds another part's sums. Associative and commutative.
    pub fn merge(&mut self, other: &Self) -> Result<(), KindMismatch> {
        match (self, other) {
            (
                Self::Sha256 { created, spent },
                Self::Sha256 { created: other_created, spent: other_spent },
            ) => {
                add_256(created, other_created);
                add_256(spent, other_spent);
            }
            (Self::MuHash(muhash), Self::MuHash(other)) => muhash.combine(other),
            _ => return Err(KindMismatch),
        }
        Ok(())
    }

    /// Whether everything created here was spent here, and nothing else was.
    pub fn is_balanced(&self) -> bool {
        match self {
            Self::Sha256 { created, spent } => created == spent,
            Self::MuHash(muhash) => muhash.is_balanced(),
        }
    }

    /// Appends the encoded form: a byte for the kind, then the sums, little-endian.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Sha256 { created, spent } => {
                out.push(0);
                for limb in created.iter().chain(spent) {
                    out.extend_from_slice(&limb.to_le_bytes());
                }
            }
            Self::MuHash(muhash) => {
                out.push(1);
                out.extend_from_slice(&muhash.to_bytes());
            }
        }
    }

    /// Reads what [`write`](Self::write) wrote.
    pub fn read(reader: &mut apus_chain::Reader<'_>) -> Option<Self> {
        match reader.u8().ok()? {
            0 => {
                let bytes = reader.array::<SHA256_SIZE>().ok()?;
                let mut limbs = [0; 8];
                for (limb, bytes) in limbs.iter_mut().zip(bytes.as_chunks::<8>().0) {
                    *limb = u64::from_le_bytes(*bytes);
                }
                let [a, b, c, d, e, f, g, h] = limbs;
                Some(Self::Sha256 { created: [a, b, c, d], spent: [e, f, g, h] })
            }
            1 => Some(Self::MuHash(Box::new(MuHash::from_bytes(reader.array().ok()?).ok()?))),
            _ => None,
        }
    }
}

/// `sum += addend` modulo 2^256.
fn add_256(sum: &mut [u64; 4], addend: &[u64; 4]) {
    let mut carry = false;
    for (limb, &other) in sum.iter_mut().zip(addend) {
        (*limb, carry) = limb.carrying_add(other, carry);
    }
}
