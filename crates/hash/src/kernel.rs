//! [`Sha256Kernel`]: the selected implementation of SHA-256, chosen at the first use.
//!
//! Invariant: a kernel runs only if its token has proved that the processor has its instructions, and a
//! self-test has proved that it computes the right values. No other code in this crate detects the machine's
//! instructions.
//!
//! Each kernel must pass a [`SelfTest`] of SHA-256 on this machine. Bitcoin Core does the same at startup
//! (`SHA256AutoDetect` and `SelfTest` in `src/crypto/sha256.cpp`). An emulator or a hypervisor may implement
//! an instruction wrongly, and a kernel may run on a processor that its authors never had. Wrong ids only
//! make blocks fail. But if all outpoints had the same digest, sums of outpoints would agree whenever the
//! number of spent coins equals the number of created ones, and a wrong set would pass as right.
//!
//! The self-test does not search for bugs in a kernel (the tests do that), but for machines on which a kernel
//! does not work. The SHA-512 and MuHash kernels must pass the same kind of test. All these tests trust plain
//! Rust.

use crate::groups::{Groups, Many, Nothing, WIDTH_MAX};
use crate::padded::{Message, PaddedMessage};
use crate::rounds::INITIAL;
use crate::single::Single;
use std::sync::OnceLock;

/// An implementation of SHA-256. It also decides which instructions SHA-512/256 may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sha256Kernel {
    /// Plain Rust, one message at a time.
    Portable,
    /// The SHA extensions of x86-64, two messages interleaved.
    ShaNi,
    /// AVX2, eight messages in lanes.
    Avx2,
    /// AVX-512, sixteen messages in lanes.
    Avx512,
    /// The SHA-2 instructions of ARMv8.
    Armv8,
}

/// All kernels, the fastest first.
const ALL: [Sha256Kernel; 5] = [
    Sha256Kernel::Avx512,
    Sha256Kernel::Armv8,
    Sha256Kernel::ShaNi,
    Sha256Kernel::Avx2,
    Sha256Kernel::Portable,
];

impl Sha256Kernel {
    /// Returns the kernel of this process: the one named in the environment variable `APUS_SHA256_KERNEL` if the
    /// machine supports it, else the machine's fastest.
    pub fn current() -> Self {
        HashEngine::current().kernel
    }

    /// The kernel's name, as in `APUS_SHA256_KERNEL`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::ShaNi => "shani",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Armv8 => "armv8",
        }
    }

    /// Returns the kernels that this machine can run, the fastest first.
    pub fn available() -> Vec<Self> {
        Self::with_test_result(true)
    }

    /// Returns the disabled kernels: this machine has their instructions but computes them wrongly.
    pub fn wrong() -> Vec<Self> {
        Self::with_test_result(false)
    }

    /// Returns this machine's kernels that pass the self-test (`right`) or fail it. Runs the test once, in
    /// about 0.2 ms.
    fn with_test_result(right: bool) -> Vec<Self> {
        static SEEN: OnceLock<Vec<(Sha256Kernel, bool)>> = OnceLock::new();
        let seen = SEEN.get_or_init(|| self_test(ALL.into_iter().filter_map(HashEngine::new)));
        seen.iter().filter(|(_, is_right)| *is_right == right).map(|(kernel, _)| *kernel).collect()
    }

    /// Chooses the kernel `wanted`, the value of `APUS_SHA256_KERNEL`, if it is available, else the fastest.
    ///
    /// # Panics
    /// If the machine computes SHA-256 wrongly even in plain Rust, where no hash can be trusted.
    fn choose(wanted: Option<&str>) -> Self {
        let available = Self::available();
        let named = available.iter().find(|kernel| Some(kernel.name()) == wanted);
        *named.or(available.first()).expect("this machine computes SHA-256 wrongly")
    }
}

/// Runs the self-test on each engine.
fn self_test(engines: impl Iterator<Item = HashEngine>) -> Vec<(Sha256Kernel, bool)> {
    let test = SelfTest::new(&*HashEngine::portable().many);
    engines.map(|it| (it.kernel, test.is_passed(it.single, &*it.many))).collect()
}

/// The SHA extensions, if they pass the self-test. Otherwise, a lane kernel leaves its remaining messages to
/// the portable kernel.
#[cfg(target_arch = "x86_64")]
fn right_sha_extensions() -> Option<crate::shani::ShaNi> {
    static RIGHT: OnceLock<bool> = OnceLock::new();
    let found = crate::shani::ShaNi::detect()?;
    let engine = || HashEngine::of_single(Sha256Kernel::ShaNi, Single::ShaNi(found));
    let is_right =
        *RIGHT.get_or_init(|| self_test([engine()].into_iter()) == [(Sha256Kernel::ShaNi, true)]);
    is_right.then_some(found)
}

/// The implementation of this crate's functions.
pub(crate) struct HashEngine {
    kernel: Sha256Kernel,
    pub(crate) single: Single,
    pub(crate) many: Box<dyn Many>,
}

impl HashEngine {
    pub(crate) fn current() -> &'static Self {
        static CURRENT: OnceLock<HashEngine> = OnceLock::new();
        CURRENT.get_or_init(|| {
            let wanted = std::env::var("APUS_SHA256_KERNEL").ok();
            let kernel = Sha256Kernel::choose(wanted.as_deref());
            Self::new(kernel).unwrap_or_else(Self::portable)
        })
    }

    pub(crate) fn portable() -> Self {
        Self::of_single(Sha256Kernel::Portable, Single::Portable)
    }

    fn of_single(kernel: Sha256Kernel, single: Single) -> Self {
        Self { kernel, single, many: rest(single) }
    }

    /// Returns the engine of `kernel`, if the machine supports it.
    pub(crate) fn new(kernel: Sha256Kernel) -> Option<Self> {
        match kernel {
            Sha256Kernel::Portable => Some(Self::portable()),
            #[cfg(target_arch = "x86_64")]
            Sha256Kernel::ShaNi => {
                crate::shani::ShaNi::detect().map(|it| Self::of_single(kernel, Single::ShaNi(it)))
            }
            #[cfg(target_arch = "x86_64")]
            Sha256Kernel::Avx2 | Sha256Kernel::Avx512 => {
                let sha = right_sha_extensions();
                Self::with_rest(kernel, sha.map_or(Single::Portable, Single::ShaNi))
            }
            #[cfg(target_arch = "aarch64")]
            Sha256Kernel::Armv8 => {
                crate::armv8::Armv8::detect().map(|it| Self::of_single(kernel, Single::Armv8(it)))
            }
            _ => None,
        }
    }

    /// Combines a lane kernel with a single kernel for the remaining messages. `examples/kernels.rs` measures
    /// how many lanes it needs to beat the single kernel.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn with_rest(kernel: Sha256Kernel, single: Single) -> Option<Self> {
        let plain = matches!(single, Single::Portable);
        let many: Box<dyn Many> = match kernel {
            Sha256Kernel::Avx512 => {
                let least = if plain { 2 } else { 10 };
                Box::new(Groups::new(crate::avx512::Avx512::detect()?, least, rest(single)))
            }
            Sha256Kernel::Avx2 => {
                let least = if plain { 2 } else { 8 };
                Box::new(Groups::new(crate::avx2::Avx2::detect()?, least, rest(single)))
            }
            _ => return None,
        };
        Some(Self { kernel, single, many })
    }
}

/// The kernels for a few messages.
fn rest(single: Single) -> Box<dyn Many> {
    let one = Box::new(Groups::new(single, 1, Box::new(Nothing)));
    match single {
        #[cfg(target_arch = "x86_64")]
        Single::ShaNi(two) => Box::new(Groups::new(two, 2, one)),
        _ => one,
    }
}

/// Enough messages for each kernel of an engine: groups of sixteen, of eight, of two, and one.
const MESSAGES: usize = 25;

/// The header of the main chain's first block (Core `src/kernel/chainparams.cpp`): version, null
/// hash, merkle root, time, bits, nonce.
const GENESIS: &[u8; 80] =
    b"\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
      \x3b\xa3\xed\xfd\x7a\x7b\x12\xb2\x7a\xc7\x2c\x3e\x67\x76\x8f\x61\x7f\xc8\x1b\xc3\x88\x8a\x51\x32\x3a\x9f\xb8\xaa\
      \x4b\x1e\x5e\x4a\x29\xab\x5f\x49\xff\xff\0\x1d\x1d\xac\x2b\x7c";

/// The hash of [`GENESIS`].
const GENESIS_HASH: &[u8; 32] =
    b"\x6f\xe2\x8c\x0a\xb6\xf1\xb3\x72\xc1\xa6\xa2\x46\xae\x63\xf7\x4f\x93\x1e\x83\x65\xe1\x5a\x08\x9c\x68\xd6\x19\
      \0\0\0\0\0";

/// The values that kernels must compute.
pub(crate) struct SelfTest {
    /// `None` if the plain kernel is wrong; then all kernels count as wrong.
    expected: Option<Digests>,
}

impl SelfTest {
    /// Computes the expected values with the plain kernel.
    pub(crate) fn new(plain: &dyn Many) -> Self {
        Self { expected: hashes_genesis(plain).then(|| Digests::of(plain)) }
    }

    /// Returns whether a kernel computes the hash of the genesis block, both for one message and for many,
    /// and agrees with the plain kernel on all other messages.
    pub(crate) fn is_passed(&self, single: Single, many: &dyn Many) -> bool {
        let blocks = [[0x5a; 64], [0xc3; 64]];
        let after = |single: Single| {
            let mut state = INITIAL;
            single.compress(&mut state, &blocks);
            state
        };
        after(single) == after(Single::Portable)
            && hashes_genesis(many)
            && self.expected.as_ref().is_some_and(|expected| *expected == Digests::of(many))
    }
}

fn hashes_genesis(many: &dyn Many) -> bool {
    let mut hash = [[0; 32]];
    many.double(&[PaddedMessage::new(&Message::from(&GENESIS[..]))], &mut hash);
    hash == [*GENESIS_HASH]
}

/// The values that a kernel computes for a fixed set of messages.
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
        // All messages differ; they get longer, from one to five blocks.
        let bytes: [u8; 8 * MESSAGES + 64] =
            core::array::from_fn(|i| (i * i / 7 + i * 151 + i / 256) as u8);
        let message = |i| PaddedMessage::new(&message(&bytes, i));
        let messages: [PaddedMessage<'_>; MESSAGES] = core::array::from_fn(message);
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

/// A message in three pieces, like a transaction without its witness.
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
    use super::{HashEngine, *};
    use crate::groups::GroupJob;
    use crate::lanes::Columns;

    #[test]
    fn names_choose_only_supported_kernels() {
        let available = Sha256Kernel::available();
        assert!(available.contains(&Sha256Kernel::Portable));
        for kernel in ALL {
            let expected = if available.contains(&kernel) { kernel } else { available[0] };
            assert_eq!(Sha256Kernel::choose(Some(kernel.name())), expected);
        }
        for other in [None, Some(""), Some("AVX2"), Some("sse2")] {
            assert_eq!(Sha256Kernel::choose(other), available[0]);
        }
    }

    #[test]
    fn wrong_kernels_fail_the_self_test() {
        let wrong = |kernel| HashEngine::of_single(kernel, Single::Wrong);
        let engines =
            [wrong(Sha256Kernel::Avx2), HashEngine::portable(), wrong(Sha256Kernel::Armv8)];
        let expected = [
            (Sha256Kernel::Avx2, false),
            (Sha256Kernel::Portable, true),
            (Sha256Kernel::Armv8, false),
        ];
        assert_eq!(self_test(engines.into_iter()), expected);
        // The lanes are right, but the fallback kernel is wrong.
        #[cfg(target_arch = "x86_64")]
        for kernel in [Sha256Kernel::Avx2, Sha256Kernel::Avx512] {
            let engine = HashEngine::with_rest(kernel, Single::Wrong);
            assert!(self_test(engine.into_iter()).iter().all(|(_, is_right)| !is_right));
        }
        assert_eq!(Sha256Kernel::wrong(), []);
        assert!(Sha256Kernel::available().contains(&Sha256Kernel::Portable));
    }

    #[test]
    fn an_engine_has_the_kernel_it_was_made_for() {
        for kernel in Sha256Kernel::available() {
            assert_eq!(HashEngine::new(kernel).map(|engine| engine.kernel), Some(kernel));
        }
    }

    /// The faulty operation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Wrong {
        Nothing,
        Single,
        Double,
        Pairs,
        Keyed,
        Sum,
    }

    /// The plain kernel, with one wrong bit in the last message.
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

        fn single(&self, messages: &[PaddedMessage<'_>], out: &mut [[u8; 32]]) {
            self.0.single(messages, out);
            self.spoil(Wrong::Single, out);
        }

        fn double(&self, messages: &[PaddedMessage<'_>], out: &mut [[u8; 32]]) {
            self.0.double(messages, out);
            self.spoil(Wrong::Double, out);
        }

        fn finish(&self, jobs: &mut [GroupJob<'_>]) {
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
    fn one_wrong_bit_in_any_operation_is_detected() {
        use Wrong::*;
        let plain = HashEngine::portable();
        for wrong in [Nothing, Single, Double, Pairs, Keyed, Sum] {
            let faulty = Faulty(HashEngine::portable().many, wrong);
            let is_passed = SelfTest::new(&*plain.many).is_passed(plain.single, &faulty);
            assert_eq!(is_passed, wrong == Nothing, "{wrong:?}");
        }
        // A faulty kernel for one message is detected, too.
        assert!(!SelfTest::new(&*plain.many).is_passed(crate::single::Single::Wrong, &*plain.many));
    }

    /// Otherwise, kernels that are all wrong in the same way would pass.
    #[test]
    fn plain_hashes_must_match_the_chain() {
        let faulty = || Faulty(HashEngine::portable().many, Wrong::Double);
        assert!(!SelfTest::new(&faulty()).is_passed(Single::Portable, &faulty()));
    }

    #[test]
    fn messages_get_longer_and_have_any_number_of_blocks() {
        let bytes = [0; 8 * MESSAGES];
        let blocks = |i| <PaddedMessage<'_>>::new(&message(&bytes, i)).blocks();
        assert!((0..MESSAGES).is_sorted_by_key(blocks));
        assert_eq!((blocks(0), blocks(MESSAGES - 1)), (1, 5));
    }
}
