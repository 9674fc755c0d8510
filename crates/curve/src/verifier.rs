//! [`Verifier`] and [`Kernel`]: which kernels this processor can run, and the entries to them.
//!
//! Invariant: a kernel runs only if the processor has its instructions and it has passed the
//! self-test in this process. No other code in this crate detects instructions.
#![allow(unsafe_code)] // Calls of `target_feature` functions.

use crate::batch::{self, Batch, is_faulty};
use crate::check::{Parity, SignatureCheck};
use crate::field::FieldVector;
use crate::lanes::{self, Room};
use crate::portable::Element;
use crate::self_test;
use std::sync::OnceLock;

/// An implementation of the field arithmetic, from the slowest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kernel {
    /// Plain Rust, one signature at a time; slower than libsecp256k1.
    Portable,
    /// AVX2, four signatures at a time.
    Avx2,
    /// AVX-512 IFMA, eight signatures at a time.
    Avx512Ifma,
}

impl Kernel {
    const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512Ifma];

    /// The kernels that this processor can run and that pass the self-test, the slowest first. The
    /// first call runs the self-test, in some milliseconds.
    pub fn available() -> &'static [Self] {
        static AVAILABLE: OnceLock<Vec<Kernel>> = OnceLock::new();
        AVAILABLE.get_or_init(|| {
            let is_right =
                |kernel: &Kernel| Engine::new(*kernel).is_some_and(|mut engine| engine.is_right());
            Self::ALL.into_iter().filter(is_right).collect()
        })
    }

    /// The fastest kernel that verifies several signatures at once, if there is one.
    pub fn fastest_lanes() -> Option<Self> {
        Self::available().last().copied().filter(|kernel| *kernel != Self::Portable)
    }
}

/// Verifies many signatures at once. It keeps tables and scratch memory between calls, up to 6 MiB;
/// each thread has its own.
pub struct Verifier {
    /// `None` if the kernel is not available.
    engine: Option<Engine>,
    has_lanes: bool,
}

impl Verifier {
    /// Prepares a kernel. If it is not available, the verifier proves nothing.
    pub fn new(kernel: Kernel) -> Self {
        let is_available = Kernel::available().contains(&kernel);
        Self { engine: Engine::new(kernel).filter(|_| is_available), has_lanes: true }
    }

    /// Prepares a kernel for sums only: it proves no signature on its own. [`Kernel::Portable`] is faster
    /// than libsecp256k1 only so.
    pub fn with_sums_only(kernel: Kernel) -> Self {
        Self { has_lanes: false, ..Self::new(kernel) }
    }

    /// Returns whether it proves signatures on their own, too.
    pub fn has_lanes(&self) -> bool {
        self.has_lanes
    }

    /// Returns whether there are enough checks with a known parity of R for a sum.
    pub fn makes_sum(checks: &[SignatureCheck]) -> bool {
        batch::makes_sum(checks)
    }

    /// Appends to `proven`, for each check that is proven valid, the parity of the y of its R. `None` means
    /// nothing: libsecp256k1 has to decide.
    pub fn verify(&mut self, checks: &[SignatureCheck], proven: &mut Vec<Option<Parity>>) {
        let first = proven.len();
        proven.resize(first + checks.len(), None);
        if let Some(engine) = &mut self.engine {
            engine.prove(checks, &mut proven[first..], self.has_lanes);
        }
    }
}

/// What a kernel keeps between calls.
struct Memory<F> {
    lanes: Room<F>,
    batch: Batch<F>,
}

impl<F: FieldVector> Memory<F> {
    fn new() -> Self {
        Self { lanes: Room::new(), batch: Batch::new() }
    }
}

/// Proves signatures whose R has a known parity by one sum, and all others each on its own.
#[inline(always)]
fn prove<F: FieldVector>(
    memory: &mut Memory<F>,
    checks: &[SignatureCheck],
    proven: &mut [Option<Parity>],
    has_lanes: bool,
) {
    batch::prove(&mut memory.batch, checks, proven);
    if has_lanes {
        lanes::prove(&mut memory.lanes, checks, proven);
    }
    if is_faulty() {
        proven.fill(None);
    }
}

/// A kernel that the processor has the instructions of, with its memory.
enum Engine {
    Portable(Memory<Element>),
    #[cfg(target_arch = "x86_64")]
    Avx2(Memory<crate::avx2::FieldAvx2>),
    #[cfg(target_arch = "x86_64")]
    Avx512Ifma(Memory<crate::ifma::FieldIfma>),
}

impl Engine {
    fn new(kernel: Kernel) -> Option<Self> {
        match kernel {
            Kernel::Portable => Some(Self::Portable(Memory::new())),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2"))
                .then(|| Self::Avx2(Memory::new())),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512Ifma => (is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512ifma")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("bmi2"))
            .then(|| Self::Avx512Ifma(Memory::new())),
            #[cfg(not(target_arch = "x86_64"))]
            _ => None,
        }
    }

    /// Whether the kernel passes the self-test.
    fn is_right(&mut self) -> bool {
        self_test::is_passed(|checks, proven| self.prove(checks, proven, true))
            && self_test::is_sum_passed(|checks, proven| self.prove(checks, proven, false))
    }

    fn prove(&mut self, checks: &[SignatureCheck], proven: &mut [Option<Parity>], has_lanes: bool) {
        match self {
            Self::Portable(memory) => prove(memory, checks, proven, has_lanes),
            // SAFETY: `new` has detected the features of both functions.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(memory) => unsafe { prove_avx2(memory, checks, proven, has_lanes) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Ifma(memory) => unsafe { prove_ifma(memory, checks, proven, has_lanes) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi2")]
fn prove_avx2(
    memory: &mut Memory<crate::avx2::FieldAvx2>,
    checks: &[SignatureCheck],
    proven: &mut [Option<Parity>],
    has_lanes: bool,
) {
    prove(memory, checks, proven, has_lanes);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512ifma,avx512vl,avx512dq,bmi2")]
fn prove_ifma(
    memory: &mut Memory<crate::ifma::FieldIfma>,
    checks: &[SignatureCheck],
    proven: &mut [Option<Parity>],
    has_lanes: bool,
) {
    prove(memory, checks, proven, has_lanes);
}
