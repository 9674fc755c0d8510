//! The arithmetic of MuHash3072: numbers modulo a prime, and products of many of them.
//!
//! - [`Num3072`]: one number.
//! - [`Product`]: the product of the numbers that many keys stand for, several at once.
//! - [`Kernel`]: what multiplies here; the environment variable `APUS_MUHASH` forces one of
//!   `portable`, `avx2`, `ifma`.
//!
//! Invariant: which kernel multiplies, and how keys are cut into calls, never shows in a product.
//! What an element's key is, and what to do with products, is the caller's business.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod chacha20;
#[cfg(target_arch = "x86_64")]
mod ifma;
mod inverse;
#[cfg(target_arch = "x86_64")]
mod karatsuba;
mod kernel;
mod number;
#[cfg(test)]
mod tests;

pub use kernel::Kernel;
pub use number::Num3072;

use core::fmt;
use kernel::{Lanes, WIDTH_MAX};

/// The product of the numbers of many keys.
///
/// The lanes of a kernel each have a product of their own, and are multiplied with each other only
/// at the end; that costs as much as some forty keys.
pub struct Product {
    kernel: Kernel,
    lanes: Box<dyn Lanes>,
    /// Keys that do not yet fill the lanes; the first `waiting` are meant.
    keys: [[u8; 32]; WIDTH_MAX],
    waiting: usize,
}

impl Product {
    /// The product of no keys: one.
    pub fn new() -> Self {
        Self::with(Kernel::current())
    }

    fn with(kernel: Kernel) -> Self {
        Self { kernel, lanes: kernel.lanes(), keys: [[0; 32]; WIDTH_MAX], waiting: 0 }
    }

    /// Multiplies with the number of each key.
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

    /// The product.
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
