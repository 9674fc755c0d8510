//! [`SelfTest`]: whether a kernel computes SHA-256 on this machine, which each has to show before it is used.
//!
//! Bitcoin Core does the same at its start (`SHA256AutoDetect` and `SelfTest` in `src/crypto/sha256.cpp`). An emulator or
//! a hypervisor may offer an instruction that it gets wrong, and a kernel may meet a processor that its authors never
//! had. Wrong ids only make blocks fail. But sums of outpoints that all get one digest agree wherever as many coins are
//! spent as were made, and that would be a wrong set which is taken for right.
//!
//! This doesn't look for mistakes in a kernel, which the tests do, but for machines on which it doesn't work. Beside the kernels of
//! SHA-512 and of MuHash the same is asked of them, where plain Rust is taken for right.

use crate::groups::{Many, WIDTH_MAX};
use crate::message::{Message, Padded};
use crate::rounds::INITIAL;
use crate::single::Single;

/// So many messages that each kernel of an engine gets some: groups of sixteen, of eight, of two, and one.
const MESSAGES: usize = 25;

/// The header of the main chain's first block (Core `src/kernel/chainparams.cpp`): version, the hash of no block, merkle
/// root, time, bits, nonce.
const GENESIS: &[u8; 80] =
    b"\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
      \x3b\xa3\xed\xfd\x7a\x7b\x12\xb2\x7a\xc7\x2c\x3e\x67\x76\x8f\x61\x7f\xc8\x1b\xc3\x88\x8a\x51\x32\x3a\x9f\xb8\xaa\
      \x4b\x1e\x5e\x4a\x29\xab\x5f\x49\xff\xff\0\x1d\x1d\xac\x2b\x7c";

/// Its hash.
const GENESIS_HASH: &[u8; 32] =
    b"\x6f\xe2\x8c\x0a\xb6\xf1\xb3\x72\xc1\xa6\xa2\x46\xae\x63\xf7\x4f\x93\x1e\x83\x65\xe1\x5a\x08\x9c\x68\xd6\x19\
      \0\0\0\0\0";

/// What kernels have to compute.
pub(crate) struct SelfTest {
    /// None where the plain kernel is wrong: then all are.
    expected: Option<Digests>,
}

impl SelfTest {
    /// By the plain kernel.
    pub(crate) fn new(plain: &dyn Many) -> Self {
        Self { expected: knows_genesis(plain).then(|| Digests::of(plain)) }
    }

    /// Whether a kernel for one message and those for many know the hash of the genesis block, and do all else as the plain
    /// ones.
    pub(crate) fn is_passed(&self, single: Single, many: &dyn Many) -> bool {
        let blocks = [[0x5a; 64], [0xc3; 64]];
        let after = |single: Single| {
            let mut state = INITIAL;
            single.compress(&mut state, &blocks);
            state
        };
        after(single) == after(Single::Portable)
            && knows_genesis(many)
            && self.expected.as_ref().is_some_and(|expected| *expected == Digests::of(many))
    }
}

fn knows_genesis(many: &dyn Many) -> bool {
    let mut hash = [[0; 32]];
    many.double(&[Padded::new(&Message::from(&GENESIS[..]))], &mut hash);
    hash == [*GENESIS_HASH]
}

/// What kernels make of messages that are always the same.
#[derive(PartialEq, Eq)]
struct Digests {
    single: [[u8; 32]; MESSAGES],
    double: [[u8; 32]; MESSAGES],
    pairs: [[u8; 32]; MESSAGES],
    keyed: [[u8; 32]; MESSAGES],
    sum: [u64; 8],
}

impl Digests {
    fn of(many: &dyn Many) -> Self {
        // No two messages are alike; they become longer, and have one to five blocks.
        let bytes: [u8; 8 * MESSAGES + 64] =
            core::array::from_fn(|i| (i * i / 7 + i * 151 + i / 256) as u8);
        let message = |i| Padded::new(&message(&bytes, i));
        let messages: [Padded<'_>; MESSAGES] = core::array::from_fn(message);
        let pairs: [[u8; 64]; MESSAGES] = core::array::from_fn(|i| array_at(&bytes, 3 * i));
        let outpoints: [[u8; 36]; MESSAGES] = core::array::from_fn(|i| array_at(&bytes, 5 * i));
        let mut all = Self {
            single: [[0; 32]; MESSAGES],
            double: [[0; 32]; MESSAGES],
            pairs: [[0; 32]; MESSAGES],
            keyed: [[0; 32]; MESSAGES],
            sum: [0; 8],
        };
        let width = many.width().clamp(1, WIDTH_MAX);
        for (at, messages) in (0..).step_by(width).zip(messages.chunks(width)) {
            many.single(messages, &mut all.single[at..at + messages.len()]);
            many.double(messages, &mut all.double[at..at + messages.len()]);
        }
        many.pairs(&pairs, &mut all.pairs);
        many.keyed(&INITIAL, &outpoints, &mut all.keyed);
        many.keyed_sum(&INITIAL, &outpoints, &mut all.sum);
        all
    }
}

/// In three pieces, as a transaction without its witness is.
fn message(bytes: &[u8], i: usize) -> Message<'_> {
    Message([&bytes[i..2 * i], &bytes[2 * i..8 * i], &bytes[i..5 * i]])
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::Job;
    use crate::kernel::Engine;
    use crate::lanes::Columns;

    /// What is done wrong.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Wrong {
        Nothing,
        Single,
        Double,
        Pairs,
        Keyed,
        Sum,
    }

    /// The plain kernel, but for one bit of the last message.
    struct Faulty(Box<dyn Many>, Wrong);

    impl Faulty {
        fn spoil(&self, at: Wrong, out: &mut [[u8; 32]]) {
            if let Some(last) = out.last_mut().filter(|_| self.1 == at) {
                last[31] ^= 1;
            }
        }
    }

    impl Many for Faulty {
        fn width(&self) -> usize {
            self.0.width()
        }

        fn single(&self, messages: &[Padded<'_>], out: &mut [[u8; 32]]) {
            self.0.single(messages, out);
            self.spoil(Wrong::Single, out);
        }

        fn double(&self, messages: &[Padded<'_>], out: &mut [[u8; 32]]) {
            self.0.double(messages, out);
            self.spoil(Wrong::Double, out);
        }

        fn finish(&self, jobs: &mut [Job<'_>]) {
            self.0.finish(jobs);
        }

        fn pairs(&self, pairs: &[[u8; 64]], out: &mut [[u8; 32]]) {
            self.0.pairs(pairs, out);
            self.spoil(Wrong::Pairs, out);
        }

        fn keyed(&self, midstate: &[u32; 8], messages: &[[u8; 36]], out: &mut [[u8; 32]]) {
            self.0.keyed(midstate, messages, out);
            self.spoil(Wrong::Keyed, out);
        }

        fn keyed_sum(&self, midstate: &[u32; 8], messages: &[[u8; 36]], columns: &mut Columns) {
            self.0.keyed_sum(midstate, messages, columns);
            columns[7] ^= u64::from(self.1 == Wrong::Sum);
        }
    }

    #[test]
    fn one_wrong_bit_of_any_operation_is_seen() {
        use Wrong::*;
        let plain = Engine::portable();
        for wrong in [Nothing, Single, Double, Pairs, Keyed, Sum] {
            let faulty = Faulty(Engine::portable().many, wrong);
            let is_passed = SelfTest::new(&*plain.many).is_passed(plain.single, &faulty);
            assert_eq!(is_passed, wrong == Nothing, "{wrong:?}");
        }
        // Of one message and many, either.
        assert!(!SelfTest::new(&*plain.many).is_passed(crate::single::Single::Wrong, &*plain.many));
    }

    /// Or wrong would be right where all kernels are wrong alike.
    #[test]
    fn plain_hashes_have_to_be_those_of_the_chain() {
        let faulty = || Faulty(Engine::portable().many, Wrong::Double);
        assert!(!SelfTest::new(&faulty()).is_passed(Single::Portable, &faulty()));
    }

    #[test]
    fn messages_become_longer_and_have_any_number_of_blocks() {
        let bytes = [0; 8 * MESSAGES];
        let blocks = |i| <Padded<'_>>::new(&message(&bytes, i)).blocks();
        assert!((0..MESSAGES).is_sorted_by_key(blocks));
        assert_eq!((blocks(0), blocks(MESSAGES - 1)), (1, 5));
    }
}
