//! Points of secp256k1, `y^2 = x^3 + 7`, in lanes: Jacobian coordinates for sums, affine ones for
//! tables.
//!
//! Invariant: the coordinates of a [`Jacobian`] are clean and of magnitude 1. Its formulas are
//! incomplete. Where they do not hold (a sum of equal or opposite points, or with infinity), they
//! give Z = 0; and once Z is 0, it stays 0, because the new Z is a multiple of the old one. So a
//! sum with Z ≠ 0 in the end is right, without a case analysis on the way. Names of formulas are
//! those of the Explicit-Formulas Database (hyperelliptic.org/EFD).

use crate::field::{FieldVector, ONE, U256, inverse, square_root};
use crate::portable::Element;
use crate::words::{Line, MAX_LANES};
use std::sync::OnceLock;

/// The generator (SEC 2, section 2.4.1).
pub(crate) const GENERATOR: Line = Line::new(
    &[0x59F2_815B_16F8_1798, 0x029B_FCDB_2DCE_28D9, 0x55A0_6295_CE87_0B07, 0x79BE_667E_F9DC_BBAC],
    &[0x9C47_D08F_FB10_D4B8, 0xFD17_B448_A685_5419, 0x5DA4_FBFC_0E11_08A8, 0x483A_DA77_26A3_C465],
);
/// A cube root of 1 modulo p: `(β * x, y)` is `λ * (x, y)` (libsecp256k1's `secp256k1_const_beta`).
pub(crate) const BETA: U256 =
    [0xC139_6C28_7195_01EE, 0x9CF0_4975_12F5_8995, 0x6E64_479E_AC34_34E9, 0x7AE9_6A2B_657C_0710];

/// For each x of a point of the curve, one of its two y. Two vectors in step, because a root is one
/// long chain of dependent squares.
#[inline(always)]
pub(crate) fn lift<F: FieldVector>(xs: &[U256; 2 * MAX_LANES]) -> [Option<U256>; 2 * MAX_LANES] {
    let (mut roots, mut errors) = ([[0; 4]; 2 * MAX_LANES], [ONE; 2 * MAX_LANES]);
    for at in [0, F::LANES] {
        let lanes = at..at + F::LANES;
        let x = F::load(&xs[lanes.clone()]);
        let right = x.square().mul(&x).add(&F::splat(&[7, 0, 0, 0])).normalize_weak();
        let root = square_root(&right);
        root.store(&mut roots[lanes.clone()]);
        root.square().sub::<1>(&right).store(&mut errors[lanes]);
    }
    let mut ys = [None; 2 * MAX_LANES];
    for ((y, root), error) in ys.iter_mut().zip(roots).zip(errors) {
        *y = (error == [0; 4]).then_some(root);
    }
    ys
}

/// `λ` times a point.
pub(crate) fn times_lambda(point: &Line) -> Line {
    let x = Element::splat(&point.x()).mul(&Element::splat(&BETA));
    Line::new(&x.number(), &point.y())
}

/// The points `(X / Z^2, Y / Z^3)`. See the module.
#[derive(Clone, Copy)]
pub(crate) struct Jacobian<F> {
    pub(crate) x: F,
    pub(crate) y: F,
    pub(crate) z: F,
}

impl<F: FieldVector> Jacobian<F> {
    /// Z = 0 in all lanes.
    #[inline(always)]
    pub(crate) fn zero() -> Self {
        Self { x: F::splat(&ONE), y: F::splat(&ONE), z: F::splat(&[0; 4]) }
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

    /// The formula `dbl-2009-l` with `D = 4 X B`, written with `2B` and `D/2`. Takes 3 squares, 2
    /// products and a sum of two products.
    #[inline(always)]
    pub(crate) fn double(&self) -> Self {
        let b2 = self.y.square().times::<2>().carry_for_52();
        let e = self.x.square().times::<3>().carry();
        let half_d = self.x.mul(&b2);
        let f = e.square();
        let d2 = half_d.times::<4>();
        let x = f.sub::<4>(&d2).normalize_weak();
        // D - X3 = 3D - F, of magnitude 8.
        let w = d2.add(&half_d.times::<2>()).sub::<1>(&f).carry();
        // -8 C = 2B * (-4B); magnitudes 3 * 8 + 2 * 5, limb magnitudes 1 * 1 + 2 * 1.
        let minus_b4 = F::splat(&[0; 4]).sub::<4>(&b2.times::<2>()).carry();
        let y = F::sum_of_products(&e, &w, &b2, &minus_b4);
        let z = self.y.times::<2>().carry_for_52().mul(&self.z);
        Self { x, y, z }
    }

    /// The sum with affine points: `x2` of magnitude 1, clean, and `y2` of magnitude ≤ 2, both
    /// carried for 52. A mixed addition of 8 products and 3 squares (`madd-2004-hmv`), two of the
    /// products in one sum.
    #[inline(always)]
    pub(crate) fn add(&self, x2: &F, y2: &F) -> Self {
        let zz = self.z.square();
        let h = x2.mul(&zz).sub::<1>(&self.x).carry();
        let r = self.z.mul(&zz).mul(y2).sub::<1>(&self.y).carry();
        let z = self.z.mul(&h);
        let hh = h.square();
        let hhh = h.mul(&hh);
        let v = self.x.mul(&hh);
        let x = r.square().sub::<3>(&v.times::<2>().add(&hhh)).normalize_weak();
        // Magnitudes 3 * 3 + 1 * 2, limb magnitudes 1 * 3 + 1 * 2.
        let w = v.sub::<1>(&x).carry_for_52();
        let minus_hhh = F::splat(&[0; 4]).sub::<1>(&hhh).carry_for_52();
        let y = F::sum_of_products(&r, &w, &self.y, &minus_hhh);
        Self { x, y, z }
    }
}

/// The sum of two affine points with different x, given the inverse of `x2 - x1`. Takes x of
/// magnitude 1 and y of magnitude ≤ 2, and gives magnitude 4.
#[inline(always)]
pub(crate) fn add_with_inverse<F: FieldVector>(
    (x1, y1): (&F, &F),
    (x2, y2): (&F, &F),
    inverse: &F,
) -> (F, F) {
    let slope = y2.sub::<2>(y1).carry_for_52().mul(inverse);
    third_point((x1, y1), x2, &slope)
}

/// Twice an affine point, given the inverse of `2 * y`. The same magnitudes.
#[inline(always)]
pub(crate) fn double_with_inverse<F: FieldVector>(x: &F, y: &F, inverse: &F) -> (F, F) {
    let slope = x.square().times::<3>().carry_for_52().mul(inverse);
    third_point((x, y), x, &slope)
}

/// The third point of the line through `(x1, y1)` and another point with `x2`, mirrored.
#[inline(always)]
fn third_point<F: FieldVector>((x1, y1): (&F, &F), x2: &F, slope: &F) -> (F, F) {
    let x = slope.square().sub::<2>(&x1.add(x2));
    let y = x1.sub::<4>(&x).carry_for_52().mul(slope).sub::<2>(y1);
    (x, y)
}

/// Replaces each vector by its inverse, all lanes together (Montgomery's trick). None may have a
/// zero. `room` is scratch memory.
#[inline(always)]
pub(crate) fn invert_all<F: FieldVector>(vectors: &mut [F], room: &mut Vec<F>) {
    room.clear();
    let mut product = F::splat(&ONE);
    for vector in vectors.iter() {
        room.push(product);
        product = product.mul(vector);
    }
    let mut inverse = invert_lanes(&product);
    for (vector, before) in vectors.iter_mut().zip(room.iter()).rev() {
        let inverted = inverse.mul(before);
        inverse = inverse.mul(vector);
        *vector = inverted;
    }
}

/// The inverse of each lane, by one inversion in plain Rust.
#[inline(always)]
fn invert_lanes<F: FieldVector>(vector: &F) -> F {
    let mut numbers = [ONE; MAX_LANES];
    vector.store(&mut numbers[..F::LANES]);
    invert_numbers(&mut numbers[..F::LANES]);
    F::load(&numbers[..F::LANES])
}

/// Replaces each number by its inverse, by one inversion (Montgomery's trick). None may be zero.
pub(crate) fn invert_numbers(numbers: &mut [U256]) {
    let mut before = Vec::with_capacity(numbers.len());
    let mut product = Element::splat(&ONE);
    for number in numbers.iter() {
        before.push(product);
        product = product.mul(&Element::splat(number));
    }
    let mut inverted = inverse(&product);
    for (number, before) in numbers.iter_mut().zip(&before).rev() {
        let next = inverted.mul(&Element::splat(number));
        *number = inverted.mul(before).number();
        inverted = next;
    }
}

/// Bits of a digit of the generator's factors.
pub(crate) const GENERATOR_WIDTH: u32 = 10;
/// The generator's multiples by 1 to this number are in its table.
pub(crate) const GENERATOR_MULTIPLES: usize = 1 << (GENERATOR_WIDTH - 1);

/// The multiples of the generator G, then those of `λ * G`. Computed at the first use, in about a
/// millisecond.
pub(crate) fn generator_table() -> &'static [Line] {
    static TABLE: OnceLock<Vec<Line>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let (gx, gy) = Element::load_points(&[&GENERATOR; MAX_LANES]);
        let first = Jacobian { x: gx, y: gy, z: Element::splat(&ONE) };
        let mut multiples = vec![first, first.double()];
        while let Some(last) = multiples.last().filter(|_| multiples.len() < GENERATOR_MULTIPLES) {
            multiples.push(last.add(&gx, &gy));
        }
        let mut inverses: Vec<Element> = multiples.iter().map(|point| point.z).collect();
        invert_all(&mut inverses, &mut Vec::new());
        let affine = |(point, inverse): (&Jacobian<Element>, &Element)| {
            let square = inverse.square();
            (point.x.mul(&square), point.y.mul(&square.mul(inverse)))
        };
        let points = multiples.iter().zip(&inverses).map(affine);
        let plain: Vec<Line> = points.map(|(x, y)| Line::new(&x.number(), &y.number())).collect();
        let of_lambda: Vec<Line> = plain.iter().map(times_lambda).collect();
        [plain, of_lambda].concat()
    })
}
