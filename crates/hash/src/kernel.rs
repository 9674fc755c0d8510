//! [`Kernel`]: which implementation runs, found once at the first use.
//!
//! Invariant: a kernel is used only where the processor was seen to have its instructions, which the
//! kernels' tokens prove, and to compute what it should. Nothing else in this crate asks what the machine is.

use crate::groups::{Groups, Many, Nothing};
use crate::self_test::SelfTest;
use crate::single::Single;
use std::sync::OnceLock;

/// An implementation of SHA-256, and the instructions that SHA-512/256 may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// All kernels, the fastest first.
const ALL: [Kernel; 5] =
    [Kernel::Avx512, Kernel::Armv8, Kernel::ShaNi, Kernel::Avx2, Kernel::Portable];

impl Kernel {
    /// The kernel that runs in this process: the fastest of the machine, or the one that the
    /// environment variable `APUS_SHA256` names, if the machine has it.
    pub fn current() -> Self {
        Engine::current().kernel
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
        static SEEN: OnceLock<Vec<(Kernel, bool)>> = OnceLock::new();
        let seen = SEEN.get_or_init(|| judged(ALL.into_iter().filter_map(Engine::new)));
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
fn judged(engines: impl Iterator<Item = Engine>) -> Vec<(Kernel, bool)> {
    let test = SelfTest::new(&*Engine::portable().many);
    engines.map(|it| (it.kernel, test.is_passed(it.single, &*it.many))).collect()
}

/// The SHA extensions, if this machine has them right: a lane kernel does without them rather than be wrong with them.
#[cfg(target_arch = "x86_64")]
fn right_sha_extensions() -> Option<crate::shani::ShaNi> {
    static RIGHT: OnceLock<bool> = OnceLock::new();
    let found = crate::shani::ShaNi::detect()?;
    let engine = || Engine::of_single(Kernel::ShaNi, Single::ShaNi(found));
    let is_right = *RIGHT.get_or_init(|| judged([engine()].into_iter()) == [(Kernel::ShaNi, true)]);
    is_right.then_some(found)
}

/// The implementation behind the functions of this crate.
pub(crate) struct Engine {
    kernel: Kernel,
    pub(crate) single: Single,
    pub(crate) many: Box<dyn Many>,
}

impl Engine {
    pub(crate) fn current() -> &'static Self {
        static CURRENT: OnceLock<Engine> = OnceLock::new();
        CURRENT.get_or_init(|| {
            let wanted = std::env::var("APUS_SHA256").ok();
            let kernel = Kernel::choose(wanted.as_deref());
            Self::new(kernel).unwrap_or_else(Self::portable)
        })
    }

    pub(crate) fn portable() -> Self {
        Self::of_single(Kernel::Portable, Single::Portable)
    }

    fn of_single(kernel: Kernel, single: Single) -> Self {
        Self { kernel, single, many: rest(single) }
    }

    /// The engine of `kernel`, if the machine has it.
    pub(crate) fn new(kernel: Kernel) -> Option<Self> {
        match kernel {
            Kernel::Portable => Some(Self::portable()),
            #[cfg(target_arch = "x86_64")]
            Kernel::ShaNi => {
                crate::shani::ShaNi::detect().map(|it| Self::of_single(kernel, Single::ShaNi(it)))
            }
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 | Kernel::Avx512 => {
                let sha = right_sha_extensions();
                Self::with_rest(kernel, sha.map_or(Single::Portable, Single::ShaNi))
            }
            #[cfg(target_arch = "aarch64")]
            Kernel::Armv8 => {
                crate::armv8::Armv8::detect().map(|it| Self::of_single(kernel, Single::Armv8(it)))
            }
            _ => None,
        }
    }

    /// A lane kernel with a given kernel for what is left over. How many lanes it must have to
    /// beat that one is measured by `examples/kernels.rs`.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn with_rest(kernel: Kernel, single: Single) -> Option<Self> {
        let plain = matches!(single, Single::Portable);
        let many: Box<dyn Many> = match kernel {
            Kernel::Avx512 => {
                let least = if plain { 2 } else { 10 };
                Box::new(Groups::new(crate::avx512::Avx512::detect()?, least, rest(single)))
            }
            Kernel::Avx2 => {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_choose_what_the_machine_has_and_nothing_else() {
        let available = Kernel::available();
        assert!(available.contains(&Kernel::Portable));
        for kernel in ALL {
            let expected = if available.contains(&kernel) { kernel } else { available[0] };
            assert_eq!(Kernel::choose(Some(kernel.name())), expected);
        }
        for other in [None, Some(""), Some("AVX2"), Some("sse2")] {
            assert_eq!(Kernel::choose(other), available[0]);
        }
    }

    #[test]
    fn kernels_that_are_wrong_are_told_from_those_that_are_right() {
        let wrong = |kernel| Engine::of_single(kernel, Single::Wrong);
        let engines = [wrong(Kernel::Avx2), Engine::portable(), wrong(Kernel::Armv8)];
        let expected = [(Kernel::Avx2, false), (Kernel::Portable, true), (Kernel::Armv8, false)];
        assert_eq!(judged(engines.into_iter()), expected);
        // Right lanes, whose rest is wrong.
        #[cfg(target_arch = "x86_64")]
        for kernel in [Kernel::Avx2, Kernel::Avx512] {
            let engine = Engine::with_rest(kernel, Single::Wrong);
            assert!(judged(engine.into_iter()).iter().all(|(_, is_right)| !is_right));
        }
        assert_eq!(Kernel::wrong(), []);
        assert!(Kernel::available().contains(&Kernel::Portable));
    }

    #[test]
    fn an_engine_is_what_it_is_called() {
        for kernel in Kernel::available() {
            assert_eq!(Engine::new(kernel).map(|engine| engine.kernel), Some(kernel));
        }
    }
}
