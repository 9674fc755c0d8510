//! [`OutOfLine`]: a field kernel whose operations are functions. Tests compile in a tenth of the
//! time.

use crate::field::{FieldVector, U256};
use crate::words::{Line, MAX_LANES};

/// The kernel `F`.
#[derive(Clone, Copy)]
pub(crate) struct OutOfLine<F>(F);

impl<F: FieldVector> FieldVector for OutOfLine<F> {
    const LANES: usize = F::LANES;

    #[inline(never)]
    fn splat(number: &U256) -> Self {
        Self(F::splat(number))
    }
    #[inline(never)]
    fn load(numbers: &[U256]) -> Self {
        Self(F::load(numbers))
    }
    #[inline(never)]
    fn store(&self, numbers: &mut [U256]) {
        self.0.store(numbers);
    }
    #[inline(never)]
    fn load_points(points: &[&Line; MAX_LANES]) -> (Self, Self) {
        let (x, y) = F::load_points(points);
        (Self(x), Self(y))
    }
    #[inline(never)]
    fn load_xs(points: &[&Line; MAX_LANES]) -> Self {
        Self(F::load_xs(points))
    }
    #[inline(never)]
    fn store_points(x: &Self, y: &Self, points: &mut [Line]) {
        F::store_points(&x.0, &y.0, points);
    }
    #[inline(never)]
    fn mul(&self, other: &Self) -> Self {
        Self(self.0.mul(&other.0))
    }
    #[inline(never)]
    fn square(&self) -> Self {
        Self(self.0.square())
    }
    #[inline(never)]
    fn sum_of_products(a: &Self, b: &Self, c: &Self, d: &Self) -> Self {
        Self(F::sum_of_products(&a.0, &b.0, &c.0, &d.0))
    }
    #[inline(never)]
    fn add(&self, other: &Self) -> Self {
        Self(self.0.add(&other.0))
    }
    #[inline(never)]
    fn sub<const M: u64>(&self, other: &Self) -> Self {
        Self(self.0.sub::<M>(&other.0))
    }
    #[inline(never)]
    fn times<const K: u64>(&self) -> Self {
        Self(self.0.times::<K>())
    }
    #[inline(never)]
    fn carry(&self) -> Self {
        Self(self.0.carry())
    }
    #[inline(never)]
    fn carry_for_52(&self) -> Self {
        Self(self.0.carry_for_52())
    }
    #[inline(never)]
    fn normalize_weak(&self) -> Self {
        Self(self.0.normalize_weak())
    }
    #[inline(never)]
    fn select(mask: u8, zero: &Self, one: &Self) -> Self {
        Self(F::select(mask, &zero.0, &one.0))
    }
}
