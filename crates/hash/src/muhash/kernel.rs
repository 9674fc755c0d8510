//! [`Kernel`]: which implementation multiplies, found once at the first use.
//!
//! Invariant: a kernel is used only where the processor was seen to have its instructions, which the
//! kernels' tokens prove, and to multiply as plain Rust does.

use super::number::Num3072;
use std::sync::OnceLock;

/// An implementation of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Plain Rust, one number at a time.
    Portable,
    /// AVX2, four numbers in lanes.
    Avx2,
    /// AVX-512 with 52-bit multiplication, eight numbers in lanes.
    Ifma,
}

/// All kernels, the fastest first.
const ALL: [Kernel; 3] = [Kernel::Ifma, Kernel::Avx2, Kernel::Portable];

/// The most keys that a kernel takes at once.
pub(super) const WIDTH_MAX: usize = 16;

/// Running products, one in each lane.
pub(super) trait Lanes: Send + Sync {
    /// How many keys are best given at once, at most [`WIDTH_MAX`].
    fn width(&self) -> usize;
    /// Multiplies with the numbers of at most [`width`](Self::width) keys.
    fn multiply(&mut self, keys: &[[u8; 32]]);
    /// The product of all lanes.
    fn product(&self) -> Num3072;
}

/// Implements [`Lanes`] for the `State` in scope, whose functions need the instructions that the
/// token stands for. Only the token makes one.
#[cfg(target_arch = "x86_64")]
macro_rules! forward_lanes {
    ($token:ident) => {
        impl $token {
            /// Running products of nothing.
            pub(super) fn lanes(self) -> Box<dyn Lanes> {
                // SAFETY: the token exists only where `detect` found the instructions.
                Box::new(Running(Box::new(unsafe { State::new() })))
            }
        }

        struct Running(Box<State>);

        impl Lanes for Running {
            fn width(&self) -> usize {
                key_stream::KEYS
            }

            fn multiply(&mut self, keys: &[[u8; 32]]) {
                // SAFETY: a token made this.
                unsafe { self.0.multiply(keys) }
            }

            fn product(&self) -> Num3072 {
                // SAFETY: a token made this.
                unsafe { self.0.product() }
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use forward_lanes;

impl Kernel {
    /// The kernel that runs in this process: the fastest of the machine, or the one that the
    /// environment variable `APUS_MUHASH` names, if the machine has it.
    pub fn current() -> Self {
        static CURRENT: OnceLock<Kernel> = OnceLock::new();
        *CURRENT.get_or_init(|| Self::choose(std::env::var("APUS_MUHASH").ok().as_deref()))
    }

    /// Its name, as in `APUS_MUHASH`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Ifma => "ifma",
        }
    }

    /// The kernels that this machine can run, and gets right, the fastest first.
    pub fn available() -> Vec<Self> {
        right_of(ALL.into_iter().filter_map(|kernel| Some((kernel, kernel.detect()?))))
    }

    /// What `APUS_MUHASH` and the machine come to.
    fn choose(wanted: Option<&str>) -> Self {
        let available = Self::available();
        let named = available.iter().find(|kernel| Some(kernel.name()) == wanted);
        *named.or(available.first()).unwrap_or(&Self::Portable)
    }

    /// Products of nothing, if the machine has the kernel.
    fn detect(self) -> Option<Box<dyn Lanes>> {
        match self {
            Self::Portable => Some(Box::new(Num3072::ONE)),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => super::avx2::Avx2::detect().map(|it| it.lanes()),
            #[cfg(target_arch = "x86_64")]
            Self::Ifma => super::ifma::Ifma::detect().map(|it| it.lanes()),
            #[cfg(not(target_arch = "x86_64"))]
            _ => None,
        }
    }

    /// Products of nothing.
    pub(super) fn lanes(self) -> Box<dyn Lanes> {
        self.detect().unwrap_or_else(|| Box::new(Num3072::ONE))
    }
}

/// Those kernels whose products are right.
fn right_of(kernels: impl Iterator<Item = (Kernel, Box<dyn Lanes>)>) -> Vec<Kernel> {
    kernels.filter_map(|(kernel, mut lanes)| is_right(&mut *lanes).then_some(kernel)).collect()
}

/// Whether products of nothing become what they do in plain Rust: where a processor or an emulator gets an instruction
/// wrong, products of other sets might be the same.
fn is_right(lanes: &mut dyn Lanes) -> bool {
    // Each lane gets one, then some get another.
    let keys: [[u8; 32]; 2 * WIDTH_MAX - 1] =
        core::array::from_fn(|i| core::array::from_fn(|at| (37 * i + 101 * at + i * at) as u8));
    keys.chunks(lanes.width()).for_each(|keys| lanes.multiply(keys));
    let mut plain = Num3072::ONE;
    Lanes::multiply(&mut plain, &keys);
    lanes.product() == plain
}

impl Lanes for Num3072 {
    fn width(&self) -> usize {
        1
    }

    fn multiply(&mut self, keys: &[[u8; 32]]) {
        keys.iter().for_each(|key| Num3072::multiply(self, &Num3072::of_key(key)));
    }

    fn product(&self) -> Num3072 {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The plain kernel, but for one key.
    struct Faulty(Num3072);

    impl Lanes for Faulty {
        fn width(&self) -> usize {
            1
        }

        fn multiply(&mut self, keys: &[[u8; 32]]) {
            let wrong = keys[0][0] == 37;
            Lanes::multiply(&mut self.0, if wrong { &[[1; 32]] } else { keys });
        }

        fn product(&self) -> Num3072 {
            self.0.clone()
        }
    }

    #[test]
    fn a_wrong_factor_is_seen() {
        let faulty: Box<dyn Lanes> = Box::new(Faulty(Num3072::ONE));
        let kernels = [(Kernel::Ifma, faulty), (Kernel::Portable, Kernel::Portable.lanes())];
        assert_eq!(right_of(kernels.into_iter()), [Kernel::Portable]);
        assert!(ALL.into_iter().filter_map(Kernel::detect).all(|mut lanes| is_right(&mut *lanes)));
    }

    #[test]
    fn names_choose_what_the_machine_has_and_nothing_else() {
        let available = Kernel::available();
        assert!(available.contains(&Kernel::Portable));
        for kernel in ALL {
            let expected = if available.contains(&kernel) { kernel } else { available[0] };
            assert_eq!(Kernel::choose(Some(kernel.name())), expected);
        }
        for other in [None, Some(""), Some("AVX2"), Some("avx512")] {
            assert_eq!(Kernel::choose(other), available[0]);
        }
    }
}
