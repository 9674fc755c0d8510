//! [`Projective`]: points in homogeneous coordinates, `x = X / Z` and `y = Y / Z`, with `Z = 0` at infinity.
//!
//! The formulas are complete: Renes, Costello, Batina, "Complete addition formulas for prime order elliptic
//! curves" (2016), algorithms 7, 8 and 9 for a = 0. On a curve of odd order, such as secp256k1, they
//! have no exceptions: infinity, equal and opposite points come out right. So code that uses them needs no case
//! analysis, and input cannot be chosen to break it.

use crate::field::{FieldVector, ONE, U256};
use crate::words::{Line, MAX_LANES};

/// A vector of points. All coordinates have magnitude 1 and are clean. `B3`, at most 21, is 3b of the curve
/// `y^2 = x^3 + b`: always 21, except in tests on curves with small groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Projective<F, const B3: u64 = 21> {
    pub(crate) x: F,
    pub(crate) y: F,
    pub(crate) z: F,
}

impl<F: FieldVector, const B3: u64> Projective<F, B3> {
    #[inline(always)]
    pub(crate) fn infinity() -> Self {
        let zero = F::splat(&[0; 4]);
        Self { x: zero, y: F::splat(&ONE), z: zero }
    }

    /// Lanes of `mask` from `one`, the rest from `zero`.
    #[inline(always)]
    pub(crate) fn select(mask: u8, zero: &Self, one: &Self) -> Self {
        Self {
            x: F::select(mask, &zero.x, &one.x),
            y: F::select(mask, &zero.y, &one.y),
            z: F::select(mask, &zero.z, &one.z),
        }
    }

    /// Algorithm 7.
    #[inline(always)]
    pub(crate) fn add(&self, other: &Self) -> Self {
        let (t0, t1, t2) = (self.x.mul(&other.x), self.y.mul(&other.y), self.z.mul(&other.z));
        let t3 = Self::cross((&self.x, &self.y), (&other.x, &other.y), &t0.add(&t1));
        let t4 = Self::cross((&self.y, &self.z), (&other.y, &other.z), &t1.add(&t2));
        let y3 = Self::cross((&self.x, &self.z), (&other.x, &other.z), &t0.add(&t2));
        Self::finish(&t0, &t1, &t2, &t3, &t4, &y3)
    }

    /// `(a + b) * (c + d) - minus`, of magnitude 4.
    #[inline(always)]
    fn cross((a, b): (&F, &F), (c, d): (&F, &F), minus: &F) -> F {
        a.add(b).carry().mul(&c.add(d).carry()).sub::<2>(minus)
    }

    /// Algorithm 8: the other points are affine, with clean coordinates of magnitude ≤ 2.
    #[inline(always)]
    pub(crate) fn add_affine(&self, x: &F, y: &F) -> Self {
        let (t0, t1) = (self.x.mul(x), self.y.mul(y));
        let t3 = x.add(y).carry().mul(&self.x.add(&self.y).carry()).sub::<2>(&t0.add(&t1));
        let t4 = y.mul(&self.z).add(&self.y);
        let y3 = x.mul(&self.z).add(&self.x);
        Self::finish(&t0, &t1, &self.z, &t3, &t4, &y3)
    }

    /// What both additions end with: `t0`, `t1` and `t2` are products, the others of magnitude ≤ 4.
    #[inline(always)]
    fn finish(t0: &F, t1: &F, t2: &F, t3: &F, t4: &F, y3: &F) -> Self {
        let (t3, t4) = (t3.carry(), t4.carry());
        let minus_t4 = F::splat(&[0; 4]).sub::<4>(&t4).carry();
        let t0 = t0.times::<3>().carry();
        let t2 = t2.times::<B3>().normalize_weak();
        let z3 = t1.add(&t2).carry();
        let t1 = t1.sub::<1>(&t2).carry();
        let y3 = y3.normalize_weak().times::<B3>().normalize_weak();
        Self {
            x: F::sum_of_products(&t3, &t1, &minus_t4, &y3),
            y: F::sum_of_products(&y3, &t0, &t1, &z3),
            z: F::sum_of_products(&z3, &t4, &t0, &t3),
        }
    }

    /// Algorithm 9.
    #[inline(always)]
    pub(crate) fn double(&self) -> Self {
        let t0 = self.y.square();
        let z3 = t0.times::<8>().normalize_weak();
        let t1 = self.y.mul(&self.z);
        let t2 = self.z.square().times::<B3>().normalize_weak();
        let y3 = t0.add(&t2).carry();
        let t0 = t0.sub::<3>(&t2.times::<3>()).carry();
        let x3 = t0.mul(&self.x.mul(&self.y)).times::<2>().normalize_weak();
        Self { x: x3, y: F::sum_of_products(&t2, &z3, &t0, &y3), z: t1.mul(&z3) }
    }

    /// The points of each lane.
    pub(crate) fn lanes(&self) -> Vec<[U256; 3]> {
        let mut lanes = [[[0; 4]; MAX_LANES]; 3];
        for (lanes, coordinate) in lanes.iter_mut().zip([&self.x, &self.y, &self.z]) {
            coordinate.store(&mut lanes[..F::LANES]);
        }
        (0..F::LANES).map(|i| [lanes[0][i], lanes[1][i], lanes[2][i]]).collect()
    }

    /// The same point in each lane.
    pub(crate) fn splat([x, y, z]: &[U256; 3]) -> Self {
        Self { x: F::splat(x), y: F::splat(y), z: F::splat(z) }
    }

    /// Adds a point of the memory.
    pub(crate) fn add_line(&self, line: &Line) -> Self {
        let (x, y) = F::load_points(&[line; MAX_LANES]);
        self.add_affine(&x, &y)
    }

    /// `factor` times the point.
    pub(crate) fn times(&self, factor: u64) -> Self {
        let mut sum = Self::infinity();
        for bit in (0..64 - factor.leading_zeros()).rev() {
            sum = sum.double();
            if factor >> bit & 1 == 1 {
                sum = sum.add(self);
            }
        }
        sum
    }
}
