//! Multiplies long numbers with Karatsuba's method, written once for every kind of lane.
//!
//! A number is an array of limbs; a limb is a vector register with one limb of a different number in each
//! lane. A product is an array of *columns*, one for each power of the base: sums of 64 bits without carries.
//! Columns are added and subtracted modulo 2^64, so intermediate overflows do no harm if the columns of the
//! whole product fit; the kernels explain why theirs do. Limbs are also added without carrying, so the base
//! must leave room for sums of as many limbs as a row has base products.
//!
//! With halves `a0 + a1 x` and `b0 + b1 x`, and the products `low = a0 b0`, `high = a1 b1` and
//! `middle = (a0 + a1)(b0 + b1)`, the result is `low + (middle - low - high) x + high x^2`: three products, but
//! the school method has four.

/// Splits an array into halves.
#[inline(always)]
pub(super) fn halves<T, const N: usize, const H: usize>(whole: &[T; N]) -> [&[T; H]; 2] {
    const { assert!(N == 2 * H) };
    let (halves, _) = whole.as_chunks();
    [&halves[0], &halves[1]]
}

/// Splits a mutable array into halves.
#[inline(always)]
pub(super) fn halves_mut<T, const N: usize, const H: usize>(
    whole: &mut [T; N],
) -> [&mut [T; H]; 2] {
    const { assert!(N == 2 * H) };
    let (low, high) = whole.split_at_mut(H);
    [&mut low.as_chunks_mut().0[0], &mut high.as_chunks_mut().0[0]]
}

/// Defines products of `$base` limbs, and of 2, 4 and 8 times as many. These must be in scope: `zero`, `add`,
/// `sub` and, for the school method:
///
/// - `Rows`: the sums of rows in the next `$base` columns, with `begin` to create one,
/// - `row::<I>`: adds row `I`, `a` times one limb, and returns column `I`, which is then complete,
/// - `end`: returns the last `$base` columns, once all rows are added.
macro_rules! define_products {
    ($register:ty, $base:literal: [$($row:literal)*], #[$attribute:meta]) => {
        /// Computes one limb of a sum of numbers.
        #[inline]
        #[$attribute]
        fn total<const TERMS: usize, const N: usize>(
            terms: &[&[$register; N]; TERMS],
            limb: usize,
        ) -> $register {
            let mut total = terms[0][limb];
            for term in &terms[1..] {
                total = add(total, term[limb]);
            }
            total
        }

        /// Multiplies two sums of numbers with the school method.
        #[inline(never)]
        #[$attribute]
        fn product_1<const TERMS: usize>(
            a: [&[$register; $base]; TERMS],
            b: [&[$register; $base]; TERMS],
            out: &mut [$register; 2 * $base],
        ) {
            let (mut rows, mut factor) = (begin(), [zero(); $base]);
            for (limb, factor) in factor.iter_mut().enumerate() {
                *factor = total(&a, limb);
            }
            $(out[$row] = row::<$row>(&mut rows, &factor, total(&b, $row));)*
            out[$base..].copy_from_slice(&end(&rows));
        }

        /// Computes the middle of a product and adds it to the columns of `low` and `high`. It adds each
        /// column as soon as it is complete, between multiplications that do not depend on it.
        #[inline(never)]
        #[$attribute]
        fn middle_2<const TERMS: usize>(
            a: [&[$register; 2 * $base]; TERMS],
            b: [&[$register; 2 * $base]; TERMS],
            low: &mut [$register; 2 * $base],
            high: &mut [$register; 2 * $base],
        ) {
            let (mut rows, mut factor) = (begin(), [zero(); $base]);
            for (limb, factor) in factor.iter_mut().enumerate() {
                *factor = add(total(&a, limb), total(&a, $base + limb));
            }
            $(
                let other = add(total(&b, $row), total(&b, $base + $row));
                let column = row::<$row>(&mut rows, &factor, other);
                let inner = sub(low[$base + $row], high[$row]);
                low[$base + $row] = add(column, sub(inner, low[$row]));
                high[$row] = sub(zero(), add(inner, high[$base + $row]));
            )*
            for (high, column) in high.iter_mut().zip(end(&rows)) {
                *high = add(*high, column);
            }
        }

        /// Multiplies two sums of numbers with twice as many limbs.
        #[$attribute]
        fn product_2<const TERMS: usize>(
            a: [&[$register; 2 * $base]; TERMS],
            b: [&[$register; 2 * $base]; TERMS],
            out: &mut [$register; 4 * $base],
        ) {
            use $crate::muhash::karatsuba::{halves, halves_mut};
            let [low, high] = halves_mut(out);
            product_1(a.map(|a| halves(a)[0]), b.map(|b| halves(b)[0]), low);
            product_1(a.map(|a| halves(a)[1]), b.map(|b| halves(b)[1]), high);
            middle_2(a, b, low, high);
        }

        /// Adds the middle of a product to the columns of `low` and `high`.
        #[inline]
        #[$attribute]
        fn add_middle(low: &mut [$register], high: &mut [$register], middle: &[$register]) {
            let half = low.len() / 2;
            let (low, low_end) = low.split_at_mut(half);
            let (high, high_end) = high.split_at_mut(half);
            let (middle, middle_end) = middle.split_at(half);
            for i in 0..half {
                let inner = sub(low_end[i], high[i]);
                low_end[i] = add(sub(middle[i], low[i]), inner);
                high[i] = sub(sub(middle_end[i], high_end[i]), inner);
            }
        }

        /// Multiplies numbers with four times as many limbs.
        #[$attribute]
        fn product_4(
            a: &[$register; 4 * $base],
            b: &[$register; 4 * $base],
            out: &mut [$register; 8 * $base],
            middle: &mut [$register; 4 * $base],
        ) {
            use $crate::muhash::karatsuba::{halves, halves_mut};
            let ([a0, a1], [b0, b1]) = (halves(a), halves(b));
            let [low, high] = halves_mut(out);
            product_2([a0], [b0], low);
            product_2([a1], [b1], high);
            // Computes the sums on the fly: the limbs are few enough to load them twice.
            product_2([a0, a1], [b0, b1], middle);
            add_middle(low, high, middle);
        }

        $crate::muhash::karatsuba::define_longer!(
            product_8, product_4, [$register; 4 * $base], $register, 8 * $base, #[$attribute]
        );
    };
}
pub(super) use define_products;

/// Defines the product of numbers of `$limbs` limbs, based on the product of half as many. It needs the
/// scratch space of that one and `$limbs` more columns.
macro_rules! define_longer {
    ($name:ident, $shorter:ident, $room:ty, $register:ty, $limbs:expr, #[$attribute:meta]) => {
        #[$attribute]
        fn $name(
            a: &[$register; $limbs],
            b: &[$register; $limbs],
            out: &mut [$register; 2 * $limbs],
            (room, middle): &mut ($room, [$register; $limbs]),
        ) {
            use $crate::muhash::karatsuba::{halves, halves_mut};
            let ([a0, a1], [b0, b1]) = (halves(a), halves(b));
            let [low, high] = halves_mut(out);
            // The space for the product holds the sums first.
            let [a_sum, b_sum] = halves_mut(low);
            for (sum, [first, second]) in [(&mut *a_sum, [a0, a1]), (&mut *b_sum, [b0, b1])] {
                for (limb, sum) in sum.iter_mut().enumerate() {
                    *sum = add(first[limb], second[limb]);
                }
            }
            $shorter(a_sum, b_sum, middle, room);
            $shorter(a0, b0, low, room);
            $shorter(a1, b1, high, room);
            add_middle(low, high, middle);
        }
    };
}
pub(super) use define_longer;
