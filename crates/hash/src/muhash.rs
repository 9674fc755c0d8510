//! The arithmetic of MuHash3072: numbers modulo a prime, and products of many of them.
//!
//! - [`Num3072`]: one number.
//! - [`Product`]: the product of many keys' numbers, several at once.
//! - [`MuHashKernel`]: the kernel that multiplies, chosen once at the first use; the environment
//!   variable `APUS_MUHASH_KERNEL` forces one of `portable`, `avx2`, `ifma`.
//!
//! Invariant: a product does not depend on the kernel, or on how the keys were divided among calls. A kernel
//! runs only after its token has proved that the processor has its instructions, and a self-test has proved
//! that it multiplies like plain Rust. The caller decides how an element becomes a key, and uses the
//! products.
//!
//! The block function of ChaCha20 (RFC 8439 section 2.3) expands a hash to the size of a number. It computes
//! one block, or the same block of several keys in the lanes of vector registers. It is not used as a cipher:
//! nothing here is secret.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod ifma;
mod inverse;
#[cfg(target_arch = "x86_64")]
mod karatsuba;
mod number;
#[cfg(test)]
mod tests;

pub use number::Num3072;

use core::fmt;

use std::sync::OnceLock;

/// The product of many keys' numbers.
///
/// Each lane of a kernel has its own product. They are multiplied with each other only at the end, which
/// costs as much as about forty keys.
pub struct Product {
    kernel: MuHashKernel,
    lanes: Box<dyn ProductLanes>,
    /// Keys that are too few to fill the lanes; the first `waiting` are valid.
    keys: [[u8; 32]; WIDTH_MAX],
    waiting: usize,
}

impl Product {
    /// Starts with the empty product, one.
    pub fn new() -> Self {
        Self::with(MuHashKernel::current())
    }

    fn with(kernel: MuHashKernel) -> Self {
        Self { kernel, lanes: kernel.lanes(), keys: [[0; 32]; WIDTH_MAX], waiting: 0 }
    }

    /// Multiplies by the number of each key.
    pub fn multiply(&mut self, mut keys: &[[u8; 32]]) {
        let width = self.lanes.width();
        if self.waiting > 0 {
            let (now, later) = keys.split_at(keys.len().min(width - self.waiting));
            self.keys[self.waiting..][..now.len()].copy_from_slice(now);
            self.waiting += now.len();
            if self.waiting < width {
                return;
            }
            self.lanes.multiply(&self.keys[..width]);
            keys = later;
        }
        let groups = keys.chunks_exact(width);
        let rest = groups.remainder();
        groups.for_each(|keys| self.lanes.multiply(keys));
        self.keys[..rest.len()].copy_from_slice(rest);
        self.waiting = rest.len();
    }

    /// Returns the product.
    pub fn finish(mut self) -> Num3072 {
        if self.waiting > 0 {
            self.lanes.multiply(&self.keys[..self.waiting]);
        }
        self.lanes.product()
    }
}

impl Default for Product {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Product").field("kernel", &self.kernel).finish_non_exhaustive()
    }
}

/// An implementation of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MuHashKernel {
    /// Plain Rust, one number at a time.
    Portable,
    /// AVX2, four numbers in lanes.
    Avx2,
    /// AVX-512 with 52-bit multiplication, eight numbers in lanes.
    Ifma,
}

/// All kernels, the fastest first.
const ALL: [MuHashKernel; 3] = [MuHashKernel::Ifma, MuHashKernel::Avx2, MuHashKernel::Portable];

/// The maximum number of keys that a kernel takes at once.
const WIDTH_MAX: usize = 16;

/// Running products, one per lane.
trait ProductLanes: Send + Sync {
    /// The best number of keys for one call, at most [`WIDTH_MAX`].
    fn width(&self) -> usize;
    /// Multiplies by the numbers of at most [`width`](Self::width) keys.
    fn multiply(&mut self, keys: &[[u8; 32]]);
    /// Returns the product of all lanes.
    fn product(&self) -> Num3072;
}

/// Implements [`ProductLanes`] for the `State` in scope, whose functions need the instructions that the token
/// proves. Only a token can create it.
#[cfg(target_arch = "x86_64")]
macro_rules! forward_lanes {
    ($token:ident, $state:ident) => {
        impl $token {
            /// Starts running products, all one.
            pub(super) fn lanes(self) -> Box<dyn ProductLanes> {
                // SAFETY: the token exists only if `detect` found the instructions.
                Box::new(RunningProducts(Box::new(unsafe { $state::new() })))
            }
        }

        struct RunningProducts(Box<$state>);

        impl ProductLanes for RunningProducts {
            fn width(&self) -> usize {
                KEYS
            }

            fn multiply(&mut self, keys: &[[u8; 32]]) {
                // SAFETY: a token created this.
                unsafe { self.0.multiply(keys) }
            }

            fn product(&self) -> Num3072 {
                // SAFETY: a token created this.
                unsafe { self.0.product() }
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
use forward_lanes;

impl MuHashKernel {
    /// Returns the kernel of this process: the one named in the environment variable `APUS_MUHASH_KERNEL` if the
    /// machine supports it, else the machine's fastest.
    pub fn current() -> Self {
        static CURRENT: OnceLock<MuHashKernel> = OnceLock::new();
        *CURRENT.get_or_init(|| Self::choose(std::env::var("APUS_MUHASH_KERNEL").ok().as_deref()))
    }

    /// The kernel's name, as in `APUS_MUHASH_KERNEL`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Ifma => "ifma",
        }
    }

    /// Returns the kernels that this machine supports and computes correctly, the fastest first.
    pub fn available() -> Vec<Self> {
        right_of(ALL.into_iter().filter_map(|kernel| Some((kernel, kernel.detect()?))))
    }

    /// Chooses the kernel `wanted`, the value of `APUS_MUHASH_KERNEL`, if it is available, else the
    /// fastest.
    fn choose(wanted: Option<&str>) -> Self {
        let available = Self::available();
        let named = available.iter().find(|kernel| Some(kernel.name()) == wanted);
        *named.or(available.first()).unwrap_or(&Self::Portable)
    }

    /// Starts empty products, if the machine supports the kernel.
    fn detect(self) -> Option<Box<dyn ProductLanes>> {
        match self {
            Self::Portable => Some(Box::new(Num3072::ONE)),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::Avx2Products::detect().map(|it| it.lanes()),
            #[cfg(target_arch = "x86_64")]
            Self::Ifma => ifma::Ifma::detect().map(|it| it.lanes()),
            #[cfg(not(target_arch = "x86_64"))]
            _ => None,
        }
    }

    /// Starts empty products.
    fn lanes(self) -> Box<dyn ProductLanes> {
        self.detect().unwrap_or_else(|| Box::new(Num3072::ONE))
    }
}

/// Returns the kernels that pass the self-test.
fn right_of(
    kernels: impl Iterator<Item = (MuHashKernel, Box<dyn ProductLanes>)>,
) -> Vec<MuHashKernel> {
    kernels.filter_map(|(kernel, mut lanes)| is_right(&mut *lanes).then_some(kernel)).collect()
}

/// Returns whether a kernel, given empty products, agrees with plain Rust. If a processor or an emulator
/// computed an instruction wrongly, different sets might have the same product.
fn is_right(lanes: &mut dyn ProductLanes) -> bool {
    // Each lane gets one key, then some get a second one.
    let keys: [[u8; 32]; 2 * WIDTH_MAX - 1] =
        core::array::from_fn(|i| core::array::from_fn(|at| (37 * i + 101 * at + i * at) as u8));
    keys.chunks(lanes.width()).for_each(|keys| lanes.multiply(keys));
    let mut plain = Num3072::ONE;
    ProductLanes::multiply(&mut plain, &keys);
    lanes.product() == plain
}

impl ProductLanes for Num3072 {
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

/// Length of a block in bytes.
const BLOCK_BYTES: usize = 64;

type Row = [u32; 4];

/// The first four words of every state: `expand 32-byte k`.
const CONSTANTS: Row = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// Computes one block of the key stream.
fn block(key: &[u8; 32], counter: u32, nonce: [u32; 3]) -> [u8; BLOCK_BYTES] {
    let start = [CONSTANTS, words(key, 0), words(key, 16), [counter, nonce[0], nonce[1], nonce[2]]];
    let mut state = start;
    for _ in 0..10 {
        quarter_rounds(&mut state);
        // Rotating the rows turns the diagonals of the state into columns, and back.
        let [a, b, c, d] = state;
        state = [a, turn::<1>(b), turn::<2>(c), turn::<3>(d)];
        quarter_rounds(&mut state);
        let [a, b, c, d] = state;
        state = [a, turn::<3>(b), turn::<2>(c), turn::<1>(d)];
    }
    let mut out = [0; BLOCK_BYTES];
    for (row, (bytes, first)) in state.iter().zip(out.chunks_exact_mut(16).zip(start)) {
        for (word, bytes) in add(*row, first).iter().zip(bytes.chunks_exact_mut(4)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
    out
}

fn words(key: &[u8; 32], at: usize) -> Row {
    core::array::from_fn(|i| {
        let at = at + 4 * i;
        u32::from_le_bytes([key[at], key[at + 1], key[at + 2], key[at + 3]])
    })
}

#[inline(always)]
fn add(a: Row, b: Row) -> Row {
    core::array::from_fn(|i| a[i].wrapping_add(b[i]))
}

#[inline(always)]
fn xor_turned<const BITS: u32>(a: Row, b: Row) -> Row {
    core::array::from_fn(|i| (a[i] ^ b[i]).rotate_left(BITS))
}

#[inline(always)]
fn turn<const BY: usize>(row: Row) -> Row {
    core::array::from_fn(|i| row[(i + BY) % 4])
}

/// The quarter round on all four columns at once.
#[inline(always)]
fn quarter_rounds([a, b, c, d]: &mut [Row; 4]) {
    *a = add(*a, *b);
    *d = xor_turned::<16>(*d, *a);
    *c = add(*c, *d);
    *b = xor_turned::<12>(*b, *c);
    *a = add(*a, *b);
    *d = xor_turned::<8>(*d, *a);
    *c = add(*c, *d);
    *b = xor_turned::<7>(*b, *c);
}

/// Arranges the words of at most `N` keys for the lane kernels: each word for all lanes. A lane without a key
/// has zeros.
#[cfg(target_arch = "x86_64")]
fn words_of_keys<const N: usize>(keys: &[[u8; 32]]) -> [[u32; N]; 8] {
    let mut words = [[0; N]; 8];
    for (lane, key) in keys.iter().enumerate() {
        for (words, bytes) in words.iter_mut().zip(key.as_chunks().0) {
            words[lane] = u32::from_le_bytes(*bytes);
        }
    }
    words
}

/// Defines `key_stream`, the block function in lanes, for vectors of 32-bit words. `constant`,
/// `add_32`, `xor` and `rotate_left` must be in scope.
///
/// Each step runs for all four columns of the state before the next step begins: a step depends on the
/// previous one, and four independent columns keep the processor busy.
#[cfg(target_arch = "x86_64")]
macro_rules! define_key_stream {
    ($register:ty, #[$attribute:meta]) => {
        /// `a += b`, `d = (d ^ a) <<< BITS`, for four columns.
        #[inline]
        #[$attribute]
        fn step<const BITS: i32>(
            state: &mut [$register; 16],
            a: [usize; 4],
            b: [usize; 4],
            d: [usize; 4],
        ) {
            for i in 0..4 {
                state[a[i]] = add_32(state[a[i]], state[b[i]]);
            }
            for i in 0..4 {
                state[d[i]] = xor(state[d[i]], state[a[i]]);
            }
            for i in 0..4 {
                state[d[i]] = rotate_left::<BITS>(state[d[i]]);
            }
        }

        /// The quarter rounds of four columns or four diagonals.
        #[inline]
        #[$attribute]
        fn round(state: &mut [$register; 16], b: [usize; 4], c: [usize; 4], d: [usize; 4]) {
            let a = [0, 1, 2, 3];
            step::<16>(state, a, b, d);
            step::<12>(state, c, d, b);
            step::<8>(state, a, b, d);
            step::<7>(state, c, d, b);
        }

        /// Computes block `counter` of each lane's key stream, as words; the nonce is zero.
        #[inline]
        #[$attribute]
        fn key_stream(key: &[$register; 8], counter: u32, out: &mut [$register; 16]) {
            let mut start = [constant(0); 16];
            for (word, value) in start.iter_mut().zip($crate::muhash::CONSTANTS) {
                *word = constant(value);
            }
            start[4..12].copy_from_slice(key);
            start[12] = constant(counter);
            let mut state = start;
            for _ in 0..10 {
                round(&mut state, [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]);
                round(&mut state, [5, 6, 7, 4], [10, 11, 8, 9], [15, 12, 13, 14]);
            }
            for (i, out) in out.iter_mut().enumerate() {
                *out = add_32(state[i], start[i]);
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
use define_key_stream;
