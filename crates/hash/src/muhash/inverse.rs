//! Computes inverses modulo the prime with divsteps (Bernstein and Yang, "Fast constant-time gcd computation
//! and modular inversion", 2019), but not in constant time: nothing here is secret.
//!
//! A divstep brings two numbers `f` (odd) and `g` a bit closer to one and zero. Only the lowest bits decide
//! about the next steps, so the code finds 62 of them in one register and then applies them to the long
//! numbers as one matrix. Invariant: with the number `x` to invert, `f` is `d x` and `g` is `e x` modulo the
//! prime.

/// 2^3072 minus the modulus (Core `crypto/muhash.cpp`, `MAX_PRIME_DIFF`).
pub(super) const PRIME_DIFF: u64 = 1_103_717;

/// The number of divsteps per matrix, and of bits in a limb.
pub(super) const STEPS: u32 = 62;
const MASK: i64 = (1 << STEPS) - 1;

/// The number of limbs of a number.
pub(super) const LIMBS: usize = 50;

/// A number, least significant limb first. Limbs are below 2^62 and not negative, except the last,
/// which carries the sign.
pub(super) type SignedNumber = [i64; LIMBS];

/// The lowest limb of the prime, which is 2^3072 minus a small number: with signed limbs, it has only two
/// nonzero limbs.
const FIRST: i64 = -(PRIME_DIFF as i64);
const LAST: i64 = 1 << (3072 - STEPS * (LIMBS as u32 - 1));

/// The inverse of `FIRST` modulo 2^62.
const FIRST_INVERSE: i64 = {
    // Each round doubles the number of correct low bits; an odd number is its own inverse in the
    // lowest three.
    let mut inverse = FIRST;
    let mut bits = 3;
    while bits < STEPS {
        inverse = inverse.wrapping_mul(2i64.wrapping_sub(FIRST.wrapping_mul(inverse)));
        bits *= 2;
    }
    inverse & MASK
};

/// The effect of 62 divsteps, times 2^62. The sizes of a row's two numbers add up to at most 2^62.
struct Matrix([[i64; 2]; 2]);

/// Computes the inverse of `x` modulo the prime; zero for zero. `x` must be below the prime.
pub(super) fn inverse(x: SignedNumber) -> SignedNumber {
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
    // Now f is one or minus one; but if x was zero, f still is the prime and d is zero.
    if f[LIMBS - 1] < 0 {
        d = d.map(|limb| -limb);
    }
    carry(&mut d);
    // d is between minus two and plus two primes.
    while d[LIMBS - 1] < 0 {
        d[0] += FIRST;
        d[LIMBS - 1] += LAST;
        carry(&mut d);
    }
    d
}

/// Computes the matrix of the next 62 divsteps from the lowest limbs.
fn divsteps(delta: &mut i64, mut f: i64, mut g: i64) -> Matrix {
    let ([mut u, mut v], [mut q, mut r]) = ([1i64, 0i64], [0i64, 1i64]);
    let mut left = STEPS;
    loop {
        // While g is even, a step halves it, which is the same as doubling f's row.
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

/// `(f, g) = matrix (f, g) / 2^62`, which divides exactly.
fn apply(Matrix([[u, v], [q, r]]): &Matrix, f: &mut SignedNumber, g: &mut SignedNumber) {
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

/// `(d, e) = matrix (d, e) / 2^62` modulo the prime. Before and after, both are between minus two primes and
/// one prime. First, adding one prime to a negative number keeps the sums below 2^62 primes in absolute
/// value. Then subtracting up to 2^62 primes makes the lowest 62 bits zero.
fn apply_modulo(Matrix([[u, v], [q, r]]): &Matrix, d: &mut SignedNumber, e: &mut SignedNumber) {
    let sign = |number: &SignedNumber| number[LIMBS - 1] >> 63;
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

/// Normalizes all limbs but the last.
fn carry(number: &mut SignedNumber) {
    let mut carry = 0;
    let (last, limbs) = number.split_last_mut().expect("there are limbs");
    for limb in limbs {
        let sum = *limb + carry;
        *limb = sum & MASK;
        carry = sum >> STEPS;
    }
    *last += carry;
}
