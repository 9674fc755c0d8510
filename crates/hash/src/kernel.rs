//! [`Sha256Kernel`]: which implementation runs, found once at the first use.
//!
//! Invariant: a kernel is used only where the processor was seen to have its instructions, which the
//! kernels' tokens prove, and to compute what it should. Nothing else in this crate asks what the machine is.
//!
//! Each kernel has to show in a [`SelfTest`] that it computes SHA-256 on this machine.
//! Bitcoin Core does the same at its start (`SHA256AutoDetect` and `SelfTest` in `src/crypto/sha256.cpp`). An emulator or
//! a hypervisor may offer an instruction that it gets wrong, and a kernel may meet a processor that its authors never
//! had. Wrong ids only make blocks fail. But sums of outpoints that all get one digest agree wherever as many coins are
//! spent as were made, and that would be a wrong set which is taken for right.
//!
//! This doesn't look for mistakes in a kernel, which the tests do, but for machines on which it doesn't work. Kernels of
//! SHA-512 and of MuHash have to show the same, where plain Rust is taken for right.

use crate::groups::{Groups, Many, Nothing, WIDTH_MAX};
use crate::padded::{Message, Padded};
use crate::rounds::INITIAL;
use crate::single::Single;
use std::sync::OnceLock;

/// An implementation of SHA-256, and the instructions that SHA-512/256 may use.
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
    /// The kernel that runs in this process: the fastest of the machine, or the one that the
    /// environment variable `APUS_SHA256` names, if the machine has it.
    pub fn current() -> Self {
        HashEngine::current().kernel
    }

    /// Its name, as in `APUS_SHA256`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::ShaNi => "shani",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Armv8 => "armv8",
        }
    }

    /// The kernels that this machine can run, the fastest first.
    pub fn available() -> Vec<Self> {
        Self::that_are(true)
    }

    /// The kernels that are left alone, since this machine has their instructions and gets them wrong.
    pub fn wrong() -> Vec<Self> {
        Self::that_are(false)
    }

    /// Those of this machine that are right, or wrong. Seen once, which takes some 0.2 ms.
    fn that_are(right: bool) -> Vec<Self> {
        static SEEN: OnceLock<Vec<(Sha256Kernel, bool)>> = OnceLock::new();
        let seen = SEEN.get_or_init(|| judged(ALL.into_iter().filter_map(HashEngine::new)));
        seen.iter().filter(|(_, is_right)| *is_right == right).map(|(kernel, _)| *kernel).collect()
    }

    /// What `APUS_SHA256` and the machine come to.
    ///
    /// # Panics
    /// If the machine computes SHA-256 wrongly even in plain Rust: no hash is of any use then.
    fn choose(wanted: Option<&str>) -> Self {
        let available = Self::available();
        let named = available.iter().find(|kernel| Some(kernel.name()) == wanted);
        *named.or(available.first()).expect("this machine computes SHA-256 wrongly")
    }
}

/// Which engines are right on this machine.
fn judged(engines: impl Iterator<Item = HashEngine>) -> Vec<(Sha256Kernel, bool)> {
    let test = SelfTest::new(&*HashEngine::portable().many);
    engines.map(|it| (it.kernel, test.is_passed(it.single, &*it.many))).collect()
}

/// The SHA extensions, if this machine has them right: a lane kernel does without them rather than be wrong with them.
#[cfg(target_arch = "x86_64")]
fn right_sha_extensions() -> Option<crate::shani::ShaNi> {
    static RIGHT: OnceLock<bool> = OnceLock::new();
    let found = crate::shani::ShaNi::detect()?;
    let engine = || HashEngine::of_single(Sha256Kernel::ShaNi, Single::ShaNi(found));
    let is_right =
        *RIGHT.get_or_init(|| judged([engine()].into_iter()) == [(Sha256Kernel::ShaNi, true)]);
    is_right.then_some(found)
}

/// The implementation behind the functions of this crate.
pub(crate) struct HashEngine {
    kernel: Sha256Kernel,
    pub(crate) single: Single,
    pub(crate) many: Box<dyn Many>,
}

impl HashEngine {
    pub(crate) fn current() -> &'static Self {
        static CURRENT: OnceLock<HashEngine> = OnceLock::new();
        CURRENT.get_or_init(|| {
            let wanted = std::env::var("APUS_SHA256").ok();
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

    /// The engine of `kernel`, if the machine has it.
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

    /// A lane kernel with a given kernel for what is left over. How many lanes it must have to
    /// beat that one is measured by `examples/kernels.rs`.
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

/// The kernels that need few messages.
fn rest(single: Single) -> Box<dyn Many> {
    let one = Box::new(Groups::new(single, 1, Box::new(Nothing)));
    match single {
        #[cfg(target_arch = "x86_64")]
        Single::ShaNi(two) => Box::new(Groups::new(two, 2, one)),
        _ => one,
    }
}

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
    use super::{HashEngine, *};
    use crate::groups::GroupJob;
    use crate::lanes::Columns;

    #[test]
    fn names_choose_what_the_machine_has_and_nothing_else() {
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
    fn kernels_that_are_wrong_are_told_from_those_that_are_right() {
        let wrong = |kernel| HashEngine::of_single(kernel, Single::Wrong);
        let engines =
            [wrong(Sha256Kernel::Avx2), HashEngine::portable(), wrong(Sha256Kernel::Armv8)];
        let expected = [
            (Sha256Kernel::Avx2, false),
            (Sha256Kernel::Portable, true),
            (Sha256Kernel::Armv8, false),
        ];
        assert_eq!(judged(engines.into_iter()), expected);
        // Right lanes, whose rest is wrong.
        #[cfg(target_arch = "x86_64")]
        for kernel in [Sha256Kernel::Avx2, Sha256Kernel::Avx512] {
            let engine = HashEngine::with_rest(kernel, Single::Wrong);
            assert!(judged(engine.into_iter()).iter().all(|(_, is_right)| !is_right));
        }
        assert_eq!(Sha256Kernel::wrong(), []);
        assert!(Sha256Kernel::available().contains(&Sha256Kernel::Portable));
    }

    #[test]
    fn an_engine_is_what_it_is_called() {
        for kernel in Sha256Kernel::available() {
            assert_eq!(HashEngine::new(kernel).map(|engine| engine.kernel), Some(kernel));
        }
    }

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
    fn one_wrong_bit_of_any_operation_is_seen() {
        use Wrong::*;
        let plain = HashEngine::portable();
        for wrong in [Nothing, Single, Double, Pairs, Keyed, Sum] {
            let faulty = Faulty(HashEngine::portable().many, wrong);
            let is_passed = SelfTest::new(&*plain.many).is_passed(plain.single, &faulty);
            assert_eq!(is_passed, wrong == Nothing, "{wrong:?}");
        }
        // Of one message and many, either.
        assert!(!SelfTest::new(&*plain.many).is_passed(crate::single::Single::Wrong, &*plain.many));
    }

    /// Or wrong would be right where all kernels are wrong alike.
    #[test]
    fn plain_hashes_have_to_be_those_of_the_chain() {
        let faulty = || Faulty(HashEngine::portable().many, Wrong::Double);
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
