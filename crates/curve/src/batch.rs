//! [`Batch`]: one sum that proves many signatures.
//!
//! Each signature claims `u1 * G + u2 * P - R = 0` for a point R whose x it gives and whose y has a known parity.
//! The batch computes `Σ a_i * (u1_i * G + u2_i * P_i - R_i)` for secret random factors `a_i` of 128 bits. If all
//! claims are true, the sum is infinity. If one is false, then for any choice of the other factors at most one
//! value of its own factor makes the sum infinity, because the group's order is prime: so a false claim passes
//! with probability at most 2^-128, however the signatures were made (Naccache et al. 1994, "Can D.S.A. be
//! improved?"; BIP-340, batch verification). The factors must be unknown when the signatures are made: they
//! come from the operating system when the batch is complete.
//!
//! Two measures detect faults of this code or of the processor:
//!
//! - *Canary*: the sum includes `k * G` for a random k, and must equal `k * G` as libsecp256k1 computes it. So
//!   arithmetic that collapses to zero, infinity or "equal" does not pass.
//! - *Flipped bit*: the first batch of a verifier, and every 256th after it, is computed again with one bit of one
//!   claim flipped. It must fail. If it passes, nothing is proven any more in this process ([`is_faulty`]).

use crate::check::{Equation, KeyY, Parity, SignatureCheck};
use crate::field::{FieldVector, ONE, U256, from_bytes};
use crate::msm::MultiScalar;
use crate::point::{GENERATOR_MULTIPLES, generator_table, lift, times_lambda};
use crate::portable::Element;
use crate::scalar::{self, Half, Scalar, split};
use crate::words::{Line, MAX_LANES};
use secp256k1::{Secp256k1, SecretKey, SignOnly};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Batches between two that are also computed with a flipped bit.
const FLIPPED_EVERY: u32 = 256;

static FAULTY: AtomicBool = AtomicBool::new(false);

/// Whether a batch with a flipped bit has passed: this processor or this program computes wrongly.
pub fn is_faulty() -> bool {
    FAULTY.load(Ordering::Relaxed)
}

/// An equation with the parity of the y of R.
#[derive(Clone, Copy)]
pub(crate) struct Claim<'a> {
    pub(crate) equation: &'a Equation,
    pub(crate) is_odd: bool,
}

/// Proves batches; keeps its memory between calls.
pub(crate) struct Batch<F> {
    sum: MultiScalar<F>,
    points: Vec<Line>,
    factors: Vec<Half>,
    libsecp256k1: Secp256k1<SignOnly>,
    /// Batches so far.
    count: u32,
}

/// The least number of signatures for which one sum is cheaper than lanes.
const CLAIMS_MIN: usize = 64;

/// The number of parts of a sum that failed.
const PARTS: usize = 8;

/// A sum of up to this many signatures has no parts: lanes prove the valid ones among them.
const PART_MAX: usize = CLAIMS_MIN * PARTS;

/// The most signatures in a sum: about 1 KB each.
const CLAIMS_MAX: usize = 4096;

/// Proves signatures whose R has a known parity, if there are enough, and sets `proven[i]` for each of them if
/// all are valid. If not all are, it tries parts.
#[inline(always)]
pub(crate) fn prove<F: FieldVector>(
    batch: &mut Batch<F>,
    checks: &[SignatureCheck],
    proven: &mut [Option<Parity>],
) {
    let mut places = Vec::new();
    let mut claims = Vec::new();
    for (i, check) in checks.iter().enumerate() {
        if let (Some(equation), Some(parity)) = (&check.equation, check.r_parity) {
            places.push(i);
            claims.push(Claim { equation, is_odd: parity.is_odd() });
        }
    }
    // The whole, and then its parts if it fails: a false claim is to spoil a part only.
    let mut wanted: Vec<Range<usize>> = ranges(0..claims.len(), CLAIMS_MAX).rev().collect();
    while let Some(range) = wanted.pop() {
        let (places, claims) = (&places[range.clone()], &claims[range.clone()]);
        if claims.len() < CLAIMS_MIN {
            continue;
        }
        if batch.prove(claims) {
            places.iter().for_each(|i| proven[*i] = checks[*i].r_parity);
        } else if claims.len() > PART_MAX {
            wanted.extend(ranges(range, claims.len().div_ceil(PARTS)).rev());
        }
    }
}

/// Divides a range into parts of a length.
fn ranges(all: Range<usize>, length: usize) -> impl DoubleEndedIterator<Item = Range<usize>> {
    let end = all.end;
    let parts = (0..all.len().div_ceil(length)).map(move |part| all.start + part * length);
    parts.map(move |start| start..end.min(start + length))
}

/// Whether [`prove`] computes a sum of these checks.
pub(crate) fn makes_sum(checks: &[SignatureCheck]) -> bool {
    let has_claim = |check: &&SignatureCheck| check.equation.is_some() && check.r_parity.is_some();
    checks.iter().filter(has_claim).count() >= CLAIMS_MIN
}

/// What a batch multiplies by its random factors, besides the points.
struct SumParts {
    /// For each claim, the index of its key.
    keys: Vec<usize>,
    /// For each claim, `u1` and `u2`.
    scalars: Vec<[Scalar; 2]>,
}

impl<F: FieldVector> Batch<F> {
    pub(crate) fn new() -> Self {
        Self {
            sum: MultiScalar::new(),
            points: Vec::new(),
            factors: Vec::new(),
            libsecp256k1: Secp256k1::signing_only(),
            count: 0,
        }
    }

    /// Returns whether all claims are proven. `false` means nothing.
    #[inline(always)]
    pub(crate) fn prove(&mut self, claims: &[Claim<'_>]) -> bool {
        if claims.is_empty() {
            return true;
        }
        let Some(mut parts) = self.read(claims) else { return false };
        let Some(random) = random(claims.len()) else { return false };
        if !self.is_zero(&parts, &random).unwrap_or(false) {
            return false;
        }
        self.count = self.count.wrapping_add(1);
        if self.count % FLIPPED_EVERY == 1 {
            let [.., choice, bit] = random[..] else { return false };
            let [u1, u2] = &mut parts.scalars[choice as usize % claims.len()];
            let scalar = if choice >> 63 == 0 { u1 } else { u2 };
            *scalar = scalar.with_flipped_bit(bit);
            let passes = self.is_zero(&parts, &random);
            if passes == Some(true) {
                FAULTY.store(true, Ordering::Relaxed);
            }
            return passes == Some(false);
        }
        true
    }

    /// Fills `points`: the R of all claims, then each key P and `λ * P`, then G and `λ * G`. Returns `None` if
    /// an x is not that of a point.
    #[inline(always)]
    fn read(&mut self, claims: &[Claim<'_>]) -> Option<SumParts> {
        let mut index_of: HashMap<(&U256, KeyY), usize> = HashMap::with_capacity(claims.len());
        let mut keys = Vec::with_capacity(claims.len());
        let mut wanted: Vec<(&U256, KeyY)> = Vec::with_capacity(2 * claims.len());
        wanted.extend(claims.iter().map(|it| (&it.equation.r, KeyY::Parity(it.is_odd))));
        for claim in claims {
            let key = (&claim.equation.x, claim.equation.y);
            let next = index_of.len();
            let index = *index_of.entry(key).or_insert(next);
            if index == next {
                wanted.push(key);
            }
            keys.push(index);
        }
        self.points.clear();
        for wanted in wanted.chunks(2 * F::LANES) {
            let mut xs = [ONE; 2 * MAX_LANES];
            for (x, (wanted, _)) in xs.iter_mut().zip(wanted) {
                *x = **wanted;
            }
            for ((x, y), root) in wanted.iter().zip(lift::<F>(&xs)) {
                let line = Line::new(x, &y.choose(root?)?);
                let is_key = self.points.len() >= claims.len();
                self.points.push(line);
                self.points.extend(is_key.then(|| times_lambda(&line)));
            }
        }
        let multiples = generator_table();
        self.points.extend([multiples[0], multiples[GENERATOR_MULTIPLES]]);
        let scalars = scalars(claims)?;
        Some(SumParts { keys, scalars })
    }

    /// Computes the sum, and returns whether it is the canary alone. `None` if that could not be done.
    #[inline(always)]
    fn is_zero(&mut self, parts: &SumParts, random: &[u64]) -> Option<bool> {
        let (canary, mut of_generator) = self.canary()?;
        let mut of_keys = vec![Scalar::ZERO; parts.keys.iter().max().map_or(0, |last| last + 1)];
        self.factors.clear();
        for ((key, [u1, u2]), random) in
            parts.keys.iter().zip(&parts.scalars).zip(random.chunks_exact(2))
        {
            let magnitude = u128::from(random[0]) | u128::from(random[1]) << 64;
            self.factors.push(Half { is_negative: true, magnitude });
            let factor = Scalar::of_u128(magnitude);
            of_generator = of_generator.add(&factor.mul(u1));
            of_keys[*key] = of_keys[*key].add(&factor.mul(u2));
        }
        for scalar in of_keys.iter().chain([&of_generator]) {
            let (first, second) = split(scalar)?;
            self.factors.extend([first, second]);
        }
        if self.factors.len() != self.points.len() {
            return None;
        }
        let [x, y, z] = self.sum.sum(&self.points, &self.factors);
        let z = Element::splat(&z);
        let is = |sum: &U256, canary: &U256| *sum == Element::splat(canary).mul(&z).number();
        Some(z.number() != [0; 4] && is(&x, &canary.x()) && is(&y, &canary.y()))
    }

    /// Returns `k * G` as libsecp256k1 computes it, and a random k.
    fn canary(&self) -> Option<(Line, Scalar)> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).ok()?;
        let secret = SecretKey::from_slice(&bytes).ok()?;
        let point = secret.public_key(&self.libsecp256k1).serialize_uncompressed();
        let (x, y) = point[1..].split_first_chunk()?;
        let line = Line::new(&from_bytes(x), &from_bytes(y.first_chunk()?));
        Some((line, Scalar::from_bytes(&bytes)?))
    }
}

/// Two random words for each claim, and two more.
fn random(claims: usize) -> Option<Vec<u64>> {
    let mut bytes = vec![0; 16 * (claims + 1)];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// `u1` and `u2` of each claim.
fn scalars(claims: &[Claim<'_>]) -> Option<Vec<[Scalar; 2]>> {
    let of_s = claims.iter().filter_map(|claim| claim.equation.ecdsa_s());
    let mut inverses: Vec<Scalar> = of_s.collect();
    scalar::invert_all(&mut inverses);
    let mut inverses = inverses.into_iter();
    claims.iter().map(|claim| claim.equation.scalars(&mut inverses)).collect()
}
