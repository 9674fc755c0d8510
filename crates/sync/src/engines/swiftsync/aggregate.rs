//! The aggregate: proves, without any order, that every coin that the hints declare spent was spent once, and
//! that nothing else was.
//!
//! Every outpoint created (and not surviving) goes into one sum, every outpoint spent into another; at the
//! stop height the two sums are equal if and only if the two multisets are, except with negligible
//! probability. The elements are hashed under a key that the author of the hints cannot know, because
//! otherwise wrong hints could be chosen so that their errors cancel. The hashes are *added*, never XORed,
//! because three spends of one coin would XOR to the same value as one.
//!
//! If the spent coins are known from undo data, the elements are whole coins: see [`AggregateKind::Coins`].
//!
//! There are two kinds for outpoints: SHA-256 under a 64-byte key block, summed modulo 2^256 (one compression
//! an element; after BIP-457, with the key always secret), and MuHash3072, which needs no key and takes about
//! fifteen times as long.

mod coins;

use apus_chain::{BlockHash, CoinRef, MuHash, MuHashBatch, OutPoint, Txid, write_coin};
use apus_hash::{KeyedHasher, Sha256};
use coins::CoinSums;

/// The kind of aggregate that a sync uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AggregateKind {
    /// Keyed SHA-256, added modulo 2^256.
    Sha256,
    /// MuHash3072, without a key.
    MuHash,
    /// No sums, so no proof: shows how fast a sync would be if the proof were free.
    None,
    /// Keyed SHA-256 of whole coins, added modulo 2^256: for syncs with undo data.
    Coins,
}

impl AggregateKind {
    /// The kind's code in encoded forms.
    pub const fn code(self) -> u8 {
        match self {
            Self::Sha256 => 0,
            Self::MuHash => 1,
            Self::None => 2,
            Self::Coins => 3,
        }
    }

    /// The reverse of [`code`](Self::code).
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Sha256),
            1 => Some(Self::MuHash),
            2 => Some(Self::None),
            3 => Some(Self::Coins),
            _ => None,
        }
    }

    /// The kind's name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::MuHash => "muhash",
            Self::None => "none",
            Self::Coins => "coins",
        }
    }
}

/// The secret from which the key of a sync is derived: 32 random bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl core::fmt::Debug for Secret {
    /// Never shows the bytes: a log must not leak the key.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Separates this use of SHA-256 from all others; fills the key block after the key.
const DOMAIN: [u8; 32] = *b"apus swiftsync outpoint sum v1\0\0";

/// Adds outpoints to [`Sums`], under the key of one sync.
#[derive(Clone)]
pub struct Aggregator {
    kind: AggregateKind,
    key: [u8; 32],
    hasher: KeyedHasher,
}

impl Aggregator {
    /// The key is SHA-256(secret ‖ stop block ‖ SHA-256 of the hints): another stop block or other hints get
    /// another key, so that their author cannot try twice against the same one.
    pub fn new(kind: AggregateKind, secret: &Secret, stop: BlockHash, hints: [u8; 32]) -> Self {
        let mut hash = Sha256::new();
        hash.update(&secret.0);
        hash.update(stop.as_bytes());
        hash.update(&hints);
        let (key, mut block) = (hash.finalize(), [0; 64]);
        block[..32].copy_from_slice(&key);
        block[32..].copy_from_slice(&DOMAIN);
        Self { kind, key, hasher: KeyedHasher::new(&block) }
    }

    /// Returns empty sums.
    pub fn zero(&self) -> Sums {
        match self.kind {
            AggregateKind::Sha256 => Sums::Sha256 { created: [0; 4], spent: [0; 4] },
            AggregateKind::MuHash => Sums::MuHash(Box::new(MuHash::new())),
            AggregateKind::None => Sums::None,
            AggregateKind::Coins => Sums::Coins { created: [0; 4], spent: [0; 4] },
        }
    }

    /// Starts a batch.
    pub fn begin(&self) -> OutpointBatch {
        match self.kind {
            AggregateKind::Sha256 => OutpointBatch(RunningSums::Sha256 {
                hasher: self.hasher.clone(),
                created: Adder::new(),
                spent: Adder::new(),
            }),
            AggregateKind::MuHash => OutpointBatch(RunningSums::MuHash(Box::default())),
            AggregateKind::None => OutpointBatch(RunningSums::None),
            AggregateKind::Coins => {
                OutpointBatch(RunningSums::Coins(Box::new(CoinSums::new(&self.key))))
            }
        }
    }
}

/// A batch of outpoints for [`Sums`]. Hashing many at once is several times faster than one by one.
pub struct OutpointBatch(RunningSums);

enum RunningSums {
    Sha256 { hasher: KeyedHasher, created: Adder, spent: Adder },
    MuHash(Box<MuHashBatch>),
    None,
    Coins(Box<CoinSums>),
}

/// One running sum and the elements waiting to be added.
struct Adder {
    /// The first `count` are waiting.
    pending: Box<[[u8; OutPoint::SIZE]; OUTPOINTS_AT_ONCE]>,
    count: usize,
    sum: [u64; 4],
}

/// Size of a batch: enough to fill all lanes of a kernel many times, and small enough for the L1 cache.
const OUTPOINTS_AT_ONCE: usize = 256;

impl Adder {
    fn new() -> Self {
        let pending = Box::new([[0; OutPoint::SIZE]; OUTPOINTS_AT_ONCE]);
        Self { pending, count: 0, sum: [0; 4] }
    }

    #[inline]
    fn add(&mut self, hasher: &KeyedHasher, outpoint: &[u8; OutPoint::SIZE]) {
        self.add_written(hasher, |bytes| *bytes = *outpoint);
    }

    /// Adds an outpoint; `write` writes all of its bytes.
    #[inline]
    fn add_written(&mut self, hasher: &KeyedHasher, write: impl FnOnce(&mut [u8; OutPoint::SIZE])) {
        write(&mut self.pending[self.count]);
        self.count += 1;
        if self.count == OUTPOINTS_AT_ONCE {
            self.flush(hasher);
        }
    }

    fn flush(&mut self, hasher: &KeyedHasher) {
        hasher.sum_many(&self.pending[..self.count], &mut self.sum);
        self.count = 0;
    }
}

impl OutpointBatch {
    /// Adds a coin created as output `vout` of the transaction `txid` that does not survive; only the
    /// outpoint, unless whole coins are summed. The bytes are written where they will be hashed: copying them
    /// before all writes are complete would stall the processor.
    #[inline]
    pub fn create_coin(&mut self, txid: &[u8; 32], vout: u32, coin: CoinRef<'_>) {
        let outpoint = || OutPoint { txid: Txid(*txid), vout }.to_bytes();
        match &mut self.0 {
            RunningSums::Coins(sums) => sums.created.add(&outpoint(), |out| write_coin(out, coin)),
            RunningSums::Sha256 { hasher, created, .. } => created.add_written(hasher, |bytes| {
                bytes[..32].copy_from_slice(txid);
                bytes[32..].copy_from_slice(&vout.to_le_bytes());
            }),
            _ => self.create(&outpoint()),
        }
    }

    /// Adds a spent coin in its stored form; only the outpoint, unless whole coins are summed.
    #[inline]
    pub fn spend_coin(&mut self, outpoint: &[u8; OutPoint::SIZE], coin: &[u8]) {
        match &mut self.0 {
            RunningSums::Coins(sums) => sums.spent.add(outpoint, |out| out.extend_from_slice(coin)),
            _ => self.spend(outpoint),
        }
    }

    /// Adds an outpoint, in wire form, that was created and does not survive.
    ///
    /// # Panics
    /// If whole coins are summed, which is a mistake of the caller.
    #[inline]
    pub fn create(&mut self, outpoint: &[u8; OutPoint::SIZE]) {
        match &mut self.0 {
            RunningSums::Coins(_) => panic!("a coin is more than its outpoint"),
            RunningSums::Sha256 { hasher, created, .. } => created.add(hasher, outpoint),
            RunningSums::MuHash(muhash) => muhash.insert(outpoint),
            RunningSums::None => {}
        }
    }

    /// Adds an outpoint, in wire form, that was spent.
    ///
    /// # Panics
    /// If whole coins are summed, which is a mistake of the caller.
    #[inline]
    pub fn spend(&mut self, outpoint: &[u8; OutPoint::SIZE]) {
        match &mut self.0 {
            RunningSums::Coins(_) => panic!("a coin is more than its outpoint"),
            RunningSums::Sha256 { hasher, spent, .. } => spent.add(hasher, outpoint),
            RunningSums::MuHash(muhash) => muhash.remove(outpoint),
            RunningSums::None => {}
        }
    }

    /// Returns the sums of everything added.
    pub fn finish(self) -> Sums {
        match self.0 {
            RunningSums::Sha256 { hasher, mut created, mut spent } => {
                created.flush(&hasher);
                spent.flush(&hasher);
                Sums::Sha256 { created: created.sum, spent: spent.sum }
            }
            RunningSums::MuHash(muhash) => Sums::MuHash(Box::new(muhash.finish())),
            RunningSums::None => Sums::None,
            RunningSums::Coins(sums) => {
                let CoinSums { created, spent } = *sums;
                Sums::Coins { created: created.finish(), spent: spent.finish() }
            }
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
    /// No sums.
    None,
    /// Sums of whole coins, modulo 2^256.
    Coins {
        /// Sum over the coins created.
        created: [u64; 4],
        /// Sum over the coins spent.
        spent: [u64; 4],
    },
}

/// Two partial results cannot be merged because their sums are of different kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the parts were aggregated in different ways")]
pub struct KindMismatch;

/// Bytes of the encoded form of a SHA-256 aggregate: two sums of 32 bytes.
const SHA256_SIZE: usize = 64;

impl Sums {
    /// Returns the kind of the sums.
    pub fn kind(&self) -> AggregateKind {
        match self {
            Self::Sha256 { .. } => AggregateKind::Sha256,
            Self::MuHash(_) => AggregateKind::MuHash,
            Self::None => AggregateKind::None,
            Self::Coins { .. } => AggregateKind::Coins,
        }
    }

    /// Adds another part's sums. Associative and commutative.
    pub fn merge(&mut self, other: &Self) -> Result<(), KindMismatch> {
        match (self, other) {
            (
                Self::Sha256 { created, spent },
                Self::Sha256 { created: other_created, spent: other_spent },
            )
            | (
                Self::Coins { created, spent },
                Self::Coins { created: other_created, spent: other_spent },
            ) => {
                add_256(created, other_created);
                add_256(spent, other_spent);
            }
            (Self::MuHash(muhash), Self::MuHash(other)) => muhash.combine(other),
            (Self::None, Self::None) => {}
            _ => return Err(KindMismatch),
        }
        Ok(())
    }

    /// Whether the whole coins spent here are those spent there. Other kinds of sums do not show that.
    pub fn spends_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Coins { spent, .. }, Self::Coins { spent: there, .. }) => spent == there,
            _ => false,
        }
    }

    /// Whether exactly the coins created here were spent here. Without sums the answer is `true`, and proves
    /// nothing.
    pub fn is_balanced(&self) -> bool {
        match self {
            Self::Sha256 { created, spent } | Self::Coins { created, spent } => created == spent,
            Self::MuHash(muhash) => muhash.is_balanced(),
            Self::None => true,
        }
    }

    /// Appends the encoded form: a byte for the kind, then the sums, little-endian.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(self.kind().code());
        match self {
            Self::Sha256 { created, spent } | Self::Coins { created, spent } => {
                for limb in created.iter().chain(spent) {
                    out.extend_from_slice(&limb.to_le_bytes());
                }
            }
            Self::MuHash(muhash) => out.extend_from_slice(&muhash.to_bytes()),
            Self::None => {}
        }
    }

    /// Reads what [`write`](Self::write) wrote.
    pub fn read(reader: &mut apus_chain::Reader<'_>) -> Option<Self> {
        match AggregateKind::from_code(reader.u8().ok()?)? {
            kind @ (AggregateKind::Sha256 | AggregateKind::Coins) => {
                let bytes = reader.array::<SHA256_SIZE>().ok()?;
                let mut limbs = [0; 8];
                for (limb, bytes) in limbs.iter_mut().zip(bytes.as_chunks::<8>().0) {
                    *limb = u64::from_le_bytes(*bytes);
                }
                let [a, b, c, d, e, f, g, h] = limbs;
                let (created, spent) = ([a, b, c, d], [e, f, g, h]);
                Some(match kind {
                    AggregateKind::Coins => Self::Coins { created, spent },
                    _ => Self::Sha256 { created, spent },
                })
            }
            AggregateKind::MuHash => {
                Some(Self::MuHash(Box::new(MuHash::from_bytes(reader.array().ok()?).ok()?)))
            }
            AggregateKind::None => Some(Self::None),
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

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::Reader;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The kinds of aggregates that are proofs.
    const KINDS: [AggregateKind; 2] = [AggregateKind::Sha256, AggregateKind::MuHash];
    const SECRET: [u8; 32] = [1; 32];
    const STOP: BlockHash = BlockHash([2; 32]);
    const HINTS: [u8; 32] = [3; 32];

    #[test]
    fn empty_sums_merge_only_with_their_kind() {
        let nothing = |kind| aggregator(kind).zero();
        let kinds = [AggregateKind::Sha256, AggregateKind::MuHash, AggregateKind::None];
        for (kind, name) in kinds.into_iter().zip(["sha256", "muhash", "none"]) {
            assert_eq!((kind.name(), nothing(kind).kind()), (name, kind));
            for other in kinds {
                let merged = nothing(kind).merge(&nothing(other));
                assert_eq!(merged, if kind == other { Ok(()) } else { Err(KindMismatch) });
            }
        }
    }

    fn aggregator(kind: AggregateKind) -> Aggregator {
        Aggregator::new(kind, &Secret(SECRET), STOP, HINTS)
    }

    fn name(txid: u8, vout: u32) -> [u8; OutPoint::SIZE] {
        OutPoint { txid: Txid([txid; 32]), vout }.to_bytes()
    }

    fn sums(
        aggregator: &Aggregator,
        created: &[[u8; OutPoint::SIZE]],
        spent: &[[u8; OutPoint::SIZE]],
    ) -> Sums {
        let mut adding = aggregator.begin();
        created.iter().for_each(|outpoint| adding.create(outpoint));
        spent.iter().for_each(|outpoint| adding.spend(outpoint));
        adding.finish()
    }

    fn bytes(sums: &Sums) -> Vec<u8> {
        let mut bytes = Vec::new();
        sums.write(&mut bytes);
        bytes
    }

    /// Computed with another implementation, from the definition: SHA-256 of the key block and the outpoint
    /// as a little-endian number; the key block is SHA-256(secret ‖ stop ‖ hints) ‖ domain.
    const A: [u64; 4] = [
        0x12ce_0439_11b9_f86b,
        0x4dd2_1538_892e_f3a4,
        0x665c_c0ae_937e_9bc4,
        0x7917_6246_906c_4b98,
    ];
    const A_AND_B: [u64; 4] = [
        0x9eb9_cc5a_5ab6_6346,
        0xa04b_6dce_622e_835a,
        0xd1a8_bab6_3171_982b,
        0xfda7_4fb3_64e1_e6a6,
    ];
    /// Three times the first exceeds 2^256.
    const A_THREE_TIMES: [u64; 4] = [
        0x386a_0cab_352d_e941,
        0xe976_3fa9_9b8c_daec,
        0x3316_420b_ba7b_d34c,
        0x6b46_26d3_b144_e2c9,
    ];
    const ZERO: [u64; 4] = [0; 4];

    fn known_aggregator() -> Aggregator {
        let mut secret = [0; 32];
        (0..).zip(&mut secret).for_each(|(value, byte)| *byte = value);
        let stop = BlockHash([0xaa; 32]);
        Aggregator::new(AggregateKind::Sha256, &Secret(secret), stop, [0xbb; 32])
    }

    #[test]
    fn sums_match_known_values() {
        let aggregator = known_aggregator();
        let (a, b) = (name(1, 0), name(2, 0x0102_0304));
        assert_eq!(sums(&aggregator, &[a], &[]), Sums::Sha256 { created: A, spent: ZERO });
        assert_eq!(sums(&aggregator, &[], &[a]), Sums::Sha256 { created: ZERO, spent: A });
        let both = Sums::Sha256 { created: A_AND_B, spent: A };
        assert_eq!(sums(&aggregator, &[b, a], &[a]), both);
    }

    #[test]
    fn sums_wrap_at_two_to_the_256() {
        let aggregator = known_aggregator();
        let a = name(1, 0);
        let wrapped = Sums::Sha256 { created: A_THREE_TIMES, spent: A_THREE_TIMES };
        assert_eq!(sums(&aggregator, &[a; 3], &[a; 3]), wrapped);
        let mut merged = sums(&aggregator, &[a; 2], &[a]);
        merged.merge(&sums(&aggregator, &[a], &[a; 2])).unwrap();
        assert_eq!(merged, wrapped);
        let mut sum = [u64::MAX; 4];
        add_256(&mut sum, &[1, 0, 0, 0]);
        assert_eq!(sum, ZERO, "a carry passes through every limb");
    }

    #[test]
    fn another_secret_stop_block_or_hints_give_another_key() {
        let of = |secret, stop, hints| {
            let kind = AggregateKind::Sha256;
            let aggregator = Aggregator::new(kind, &Secret(secret), BlockHash(stop), hints);
            bytes(&sums(&aggregator, &[name(1, 0)], &[]))
        };
        let mut all = vec![of([1; 32], [2; 32], [3; 32])];
        for place in [0, 31] {
            let other = |byte: u8| {
                let mut bytes = [byte; 32];
                bytes[place] ^= 0x80;
                bytes
            };
            all.push(of(other(1), [2; 32], [3; 32]));
            all.push(of([1; 32], other(2), [3; 32]));
            all.push(of([1; 32], [2; 32], other(3)));
        }
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 7);
    }

    #[test]
    fn numbers_of_outputs_do_not_cancel() {
        // 0 + 3 = 1 + 2, and A:1 + B:0 = A:0 + B:1: forgeries that work if nothing is hashed.
        for kind in KINDS {
            let aggregator = aggregator(kind);
            let balanced =
                |created: &[_], spent: &[_]| sums(&aggregator, created, spent).is_balanced();
            assert!(!balanced(&[name(1, 0), name(1, 3)], &[name(1, 1), name(1, 2)]));
            assert!(!balanced(&[name(1, 1), name(2, 0)], &[name(1, 0), name(2, 1)]));
            assert!(balanced(&[name(1, 1), name(2, 0)], &[name(2, 0), name(1, 1)]));
        }
    }

    #[test]
    fn sums_balance_only_with_equal_counts() {
        for kind in KINDS {
            for created in 0..5 {
                for spent in 0..5 {
                    let sums = sums(
                        &aggregator(kind),
                        &vec![name(1, 0); created],
                        &vec![name(1, 0); spent],
                    );
                    assert_eq!(sums.is_balanced(), created == spent, "{created} {spent}");
                }
            }
        }
    }

    #[test]
    fn sums_of_different_kinds_do_not_merge() {
        let [mut sha256, mut muhash] = KINDS.map(|kind| aggregator(kind).zero());
        assert_eq!(sha256.merge(&muhash), Err(KindMismatch));
        assert_eq!(muhash.merge(&sha256), Err(KindMismatch));
        assert_eq!([sha256.kind(), muhash.kind()], KINDS);
    }

    #[test]
    fn disabled_sums_do_not_merge_with_real_ones() {
        let none = sums(&aggregator(AggregateKind::None), &[name(1, 0)], &[name(2, 0)]);
        assert_eq!(none.kind(), AggregateKind::None);
        assert_eq!(bytes(&none), [2]);
        for kind in KINDS {
            assert_eq!(aggregator(kind).zero().merge(&none), Err(KindMismatch));
            assert_eq!(AggregateKind::from_code(kind.code()), Some(kind));
        }
        assert_eq!(AggregateKind::from_code(2), Some(AggregateKind::None));
        assert_eq!(AggregateKind::from_code(3), Some(AggregateKind::Coins));
        assert_eq!(AggregateKind::from_code(4), None);
    }

    #[test]
    fn a_secret_is_not_shown() {
        let shown = format!("{:?}", Secret([0xab; 32]));
        assert!(!shown.contains("171") && !shown.contains("ab"), "{shown}");
    }

    #[test]
    fn damaged_encodings_are_refused() {
        let read = |bytes: &[u8]| Sums::read(&mut Reader::new(bytes));
        for kind in KINDS {
            let good = bytes(&sums(&aggregator(kind), &[name(1, 0)], &[name(1, 1)]));
            for length in 0..good.len() {
                assert_eq!(read(&good[..length]), None);
            }
            for unknown in 4..=255 {
                assert_eq!(read(&[&[unknown], &good[1..]].concat()), None);
            }
        }
        // A zero would turn every later product into zero.
        assert_eq!(read(&[&[1][..], &[0; MuHash::SIZE]].concat()), None);
        assert_eq!(read(&[&[1][..], &[0xff; MuHash::SIZE]].concat()), None);
    }

    fn any_names() -> impl Strategy<Value = Vec<[u8; OutPoint::SIZE]>> {
        // Only a few different outpoints, so that they collide.
        vec((0u8..3, 0u32..3), 0..8)
            .prop_map(|names| names.into_iter().map(|(txid, vout)| name(txid, vout)).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn balanced_exactly_when_the_multisets_are_equal(
            created in any_names(),
            spent in any_names(),
            muhash: bool,
        ) {
            let sums = sums(&aggregator(KINDS[usize::from(muhash)]), &created, &spent);
            let (mut created, mut spent) = (created, spent);
            created.sort_unstable();
            spent.sort_unstable();
            prop_assert_eq!(sums.is_balanced(), created == spent);
        }

        #[test]
        fn merging_is_adding(
            parts in vec((any_names(), any_names()), 3),
            muhash: bool,
        ) {
            let aggregator = aggregator(KINDS[usize::from(muhash)]);
            let [a, b, c] = [0, 1, 2].map(|i| sums(&aggregator, &parts[i].0, &parts[i].1));
            let merged = |first: &Sums, second: &Sums| {
                let mut sums = first.clone();
                sums.merge(second).unwrap();
                sums
            };
            let (created, spent): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
            let whole = sums(&aggregator, &created.concat(), &spent.concat());
            for other in [merged(&merged(&a, &b), &c), merged(&c, &merged(&b, &a))] {
                prop_assert_eq!(bytes(&other), bytes(&whole));
            }
        }

        #[test]
        fn encoding_round_trips(created in any_names(), spent in any_names(), muhash: bool) {
            let sums = sums(&aggregator(KINDS[usize::from(muhash)]), &created, &spent);
            let written = [&bytes(&sums)[..], b"tail"].concat();
            let mut reader = Reader::new(&written);
            prop_assert_eq!(Sums::read(&mut reader), Some(sums));
            prop_assert_eq!(reader.remaining(), 4);
        }

        #[test]
        fn accepted_bytes_are_canonical(
            kind in 0u8..4,
            rest in vec(any::<u8>(), 0..2 * MuHash::SIZE),
        ) {
            let any = [&[kind], &rest[..]].concat();
            let mut reader = Reader::new(&any);
            if let Some(sums) = Sums::read(&mut reader) {
                prop_assert_eq!(&bytes(&sums)[..], &any[..reader.position()]);
            }
        }
    }
}
