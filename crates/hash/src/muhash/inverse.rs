//! Inverses modulo the prime by divsteps (Bernstein and Yang, "Fast constant-time gcd computation
//! and modular inversion", 2019), though not in constant time: nothing here is secret.
//!
//! A divstep takes two numbers `f` (odd) and `g` a bit closer to one and zero. Which steps come
//! next depends on the lowest bits alone, so 62 of them are found in one register and then done to
//! the long numbers as one matrix. Invariant: with the number `x` to invert, `f` is `d x` and `g`
//! is `e x` modulo the prime, all the time.

/// 2^3072 less the modulus (Core `crypto/muhash.cpp`, `MAX_PRIME_DIFF`).
pub(super) const PRIME_DIFF: u64 = 1_103_717;

/// Divsteps in a matrix, and bits of a limb.
pub(super) const STEPS: u32 = 62;
const MASK: i64 = (1 << STEPS) - 1;

/// Limbs of a number.
pub(super) const LIMBS: usize = 50;

/// A number, least significant limb first. Limbs are below 2^62 and not negative, except the last,
/// which has the sign.
pub(super) type Signed = [i64; LIMBS];

/// The prime, 2^3072 less a small number, has two limbs that are not zero, if they are signed.
const FIRST: i64 = -(PRIME_DIFF as i64);
const LAST: i64 = 1 << (3072 - STEPS * (LIMBS as u32 - 1));

/// The number that gives one when multiplied with `FIRST`, modulo 2^62.
const FIRST_INVERSE: i64 = {
    // Each round doubles how many of the lowest bits are right; an odd number is its own inverse
    // in the lowest three.
    let mut inverse = FIRST;
    let mut bits = 3;
    while bits < STEPS {
        inverse = inverse.wrapping_mul(2i64.wrapping_sub(FIRST.wrapping_mul(inverse)));
        bits *= 2;
    }
    inverse & MASK
};

/// What 62 divsteps do, times 2^62. The sizes of a row's two numbers are together at most 2^62.
struct Matrix([[i64; 2]; 2]);

/// The number that gives one when multiplied with `x` modulo the prime; zero for zero. `x` must be
/// below the prime.
pub(super) fn inverse(x: Signed) -> Signed {
    let (mut d, mut e) = ([0; LIMBS], [0; LIMBS]);
    e[0] = 1;
    let (mut f, mut g) = ([0; LIMBS], x);
    (f[0], f[LIMBS - 1]) = (FIRST, LAST);
    let mut delta = 1;
    while g != [0; LIMBS] {
        let matrix = divsteps(&mut delta, f[0], g[0]);
        apply(&matrix, &mut f, &mut g);
        apply_modulo(&matrix, &mut d, &mut e);
    }
    // By now f is one or minus one, or, if x was zero, still the prime and d zero.
    if f[LIMBS - 1] < 0 {
        d = d.map(|limb| -limb);
    }
    carry(&mut d);
    // Between minus and plus two primes.
    while d[LIMBS - 1] < 0 {
        d[0] += FIRST;
        d[LIMBS - 1] += LAST;
        carry(&mut d);
    }
    d
}

/// The matrix of the next 62 divsteps, from the lowest limbs.
fn divsteps(delta: &mut i64, mut f: i64, mut g: i64) -> Matrix {
    let ([mut u, mut v], [mut q, mut r]) = ([1i64, 0i64], [0i64, 1i64]);
    let mut left = STEPS;
    loop {
        // Steps while g is even halve it, which is doubling what f is made of.
        let even = g.trailing_zeros().min(left);
        g >>= even;
        (u, v) = (u << even, v << even);
        *delta += i64::from(even);
        left -= even;
        if left == 0 {
            return Matrix([[u, v], [q, r]]);
        }
        if *delta > 0 {
            *delta = -*delta;
            (f, g) = (g, f.wrapping_neg());
            (u, v, q, r) = (q, r, -u, -v);
        }
        g = g.wrapping_add(f);
        (q, r) = (q + u, r + v);
    }
}

/// `(f, g) = matrix (f, g)`, which can be divided by 2^62.
fn apply(Matrix([[u, v], [q, r]]): &Matrix, f: &mut Signed, g: &mut Signed) {
    let (mut f_sum, mut g_sum) = (0i128, 0i128);
    for i in 0..LIMBS {
        f_sum += product(*u, f[i]) + product(*v, g[i]);
        g_sum += product(*q, f[i]) + product(*r, g[i]);
        if i > 0 {
            (f[i - 1], g[i - 1]) = (f_sum as i64 & MASK, g_sum as i64 & MASK);
        }
        (f_sum, g_sum) = (f_sum >> STEPS, g_sum >> STEPS);
    }
    (f[LIMBS - 1], g[LIMBS - 1]) = (f_sum as i64, g_sum as i64);
}

/// `(d, e) = matrix (d, e)` modulo the prime. Both are more than minus two primes and less than
/// one, before and after: one that is negative is taken one prime higher, so that the sums are
/// less than 2^62 primes either way; then as many are taken away as make the lowest limb zero,
/// which are none up to 2^62.
fn apply_modulo(Matrix([[u, v], [q, r]]): &Matrix, d: &mut Signed, e: &mut Signed) {
    let sign = |number: &Signed| number[LIMBS - 1] >> 63;
    let primes = |a: i64, b: i64| {
        let more = (sign(d) & a) + (sign(e) & b);
        let lowest = a.wrapping_mul(d[0]).wrapping_add(b.wrapping_mul(e[0]));
        more - (lowest.wrapping_mul(FIRST_INVERSE).wrapping_add(more) & MASK)
    };
    let (d_primes, e_primes) = (primes(*u, *v), primes(*q, *r));
    let (mut d_sum, mut e_sum) = (product(d_primes, FIRST), product(e_primes, FIRST));
    for i in 0..LIMBS {
        d_sum += product(*u, d[i]) + product(*v, e[i]);
        e_sum += product(*q, d[i]) + product(*r, e[i]);
        if i == LIMBS - 1 {
            d_sum += product(d_primes, LAST);
            e_sum += product(e_primes, LAST);
        }
        if i > 0 {
            (d[i - 1], e[i - 1]) = (d_sum as i64 & MASK, e_sum as i64 & MASK);
        }
        (d_sum, e_sum) = (d_sum >> STEPS, e_sum >> STEPS);
    }
    (d[LIMBS - 1], e[LIMBS - 1]) = (d_sum as i64, e_sum as i64);
}

#[inline(always)]
fn product(a: i64, b: i64) -> i128 {
    i128::from(a) * i128::from(b)
}

/// Brings all limbs but the last into their range.
fn carry(number: &mut Signed) {
    let mut carry = 0;
    let (last, limbs) = number.split_last_mut().expect("there are limbs");
    for limb in limbs {
        let sum = *limb + carry;
        *limb = sum & MASK;
        carry = sum >> STEPS;
    }
    *last += carry;
}
