//! Sums of many points, each times a number of up to 128 bits: Pippenger's bucket method.
//!
//! Each factor is written in signed digits of `c` bits. For each position of a digit, a *window*, points with the
//! same digit go into one *bucket*, and the window's sum is that of all buckets, each times its digit. Nearly all
//! the work is to add up the buckets, and a bucket may be added up in any order. So all buckets of some windows
//! are added up in rounds: each round adds the points of a bucket in pairs. The affine addition of a pair takes
//! one inversion, and all pairs of a chunk share one ("Montgomery's trick"), so that a pair costs 6
//! multiplications, where projective formulas take 11 or more.
//!
//! Affine addition has an exception: both points have the same `x`. The shared inversion finds it, because a
//! product is zero then. The pair's bucket is added up again by complete formulas.

use crate::complete::Projective;
use crate::field::{FieldVector, ONE, U256, inverse};
use crate::point::{GENERATOR, add_with_inverse, generator_table, invert_numbers};
use crate::portable::{self, Element};
use crate::scalar::{Half, signed_digits};
use crate::words::{Line, MAX_LANES};

/// A point and its sign: twice its index, plus 1 if it is negated.
type Entry = u32;

/// The bucket of each entry, while it waits to be added: all entries of a bucket are neighbours.
type Bucket = u32;

/// Vectors of pairs that go in step, so that one fills the processor while the other waits.
const VECTORS: usize = 2;

/// Vectors of pairs that share an inversion: what they need stays in the nearest cache.
const CHUNK: usize = 256;

/// Windows are added up together while they have fewer points than this, 2 MB.
const POINTS_AT_ONCE: usize = 1 << 15;

/// Two different points, G and 2 G, for lanes without a pair.
fn padding() -> [Line; 2] {
    let multiples = generator_table();
    [multiples[0], multiples[1]]
}

/// The width of digits that costs the fewest additions for this number of points, in bits.
fn digit_bits(points: usize) -> u32 {
    match points {
        0..200 => 5,
        200..400 => 6,
        400..800 => 7,
        800..2_200 => 8,
        2_200..6_000 => 9,
        6_000..14_000 => 10,
        _ => 11,
    }
}

/// Adds up products; keeps its memory between calls. `B3` is that of [`Projective`].
pub(crate) struct MultiScalar<F, const B3: u64 = 21> {
    digits: Vec<i16>,
    /// The points, then the sums of pairs, then padding.
    points: Vec<Line>,
    /// By bucket, as long as it has several entries.
    entries: Vec<(Entry, Bucket)>,
    differences: Vec<F>,
    products: Vec<F>,
}

/// Where the digits of all factors are.
#[derive(Clone, Copy)]
struct Digits {
    bits: u32,
    windows: usize,
    /// Number of points.
    count: usize,
}

impl Digits {
    fn buckets(self) -> usize {
        1 << (self.bits - 1)
    }
}

impl<F: FieldVector, const B3: u64> MultiScalar<F, B3> {
    pub(crate) const fn new() -> Self {
        Self {
            digits: Vec::new(),
            points: Vec::new(),
            entries: Vec::new(),
            differences: Vec::new(),
            products: Vec::new(),
        }
    }

    /// Returns the sum of all points, each times its factor, in homogeneous coordinates: `z` is 0 at infinity.
    /// Inlined into functions that enable the instructions of `F`.
    #[inline(always)]
    pub(crate) fn sum(&mut self, points: &[Line], factors: &[Half]) -> [U256; 3] {
        let count = points.len().min(factors.len());
        if count == 0 {
            return [[0; 4], ONE, [0; 4]];
        }
        let bits = digit_bits(count);
        // One bit more than factors have, for the carry.
        let windows = 129usize.div_ceil(bits as usize);
        let digits = Digits { bits, windows, count };
        self.write_digits(digits, factors);
        let at_once = (POINTS_AT_ONCE / count).clamp(1, windows);
        self.points.clear();
        self.points.extend_from_slice(points);
        let mut sums = Vec::with_capacity(windows);
        for first in (0..windows).step_by(at_once) {
            let group = first..windows.min(first + at_once);
            self.add_windows(digits, group, &mut sums);
        }
        let mut sum = Projective::<Element, B3>::infinity();
        for window in sums.iter().rev() {
            for _ in 0..bits {
                sum = sum.double();
            }
            sum = sum.add(window);
        }
        [sum.x, sum.y, sum.z].map(|it| it.number())
    }

    /// Writes the digits of each factor, from `-2^(bits - 1)` to `2^(bits - 1)`, window by window.
    fn write_digits(&mut self, Digits { bits, windows, count }: Digits, factors: &[Half]) {
        self.digits.clear();
        self.digits.resize(windows * count, 0);
        let mut own = vec![0; windows];
        for (i, factor) in factors.iter().enumerate().take(count) {
            signed_digits(factor, bits, &mut own);
            for (window, digit) in own.iter().enumerate() {
                self.digits[window * count + i] = *digit;
            }
        }
    }

    /// Adds up some windows.
    #[inline(always)]
    fn add_windows(
        &mut self,
        digits: Digits,
        windows: core::ops::Range<usize>,
        sums: &mut Vec<Projective<Element, B3>>,
    ) {
        let all = self.sort_entries(digits, windows.clone());
        let mut again = Vec::new();
        while self.entries.windows(2).any(|pair| pair[0].1 == pair[1].1) {
            self.add_pairs(&mut again);
        }
        self.add_again(&all, again);
        let mut entries = self.entries.as_slice();
        for window in 0..windows.len() {
            let end = ((window + 1) * digits.buckets()) as Bucket;
            let own = entries.partition_point(|(_, bucket)| *bucket < end);
            let first = (window * digits.buckets()) as Bucket;
            sums.push(self.window_sum(&entries[..own], first, digits.buckets()));
            entries = &entries[own..];
        }
        self.points.truncate(digits.count);
    }

    /// Makes the entries of some windows, sorted by bucket, and returns a copy. Bucket `b` of a window has the
    /// points with digit `b + 1`.
    fn sort_entries(
        &mut self,
        digits: Digits,
        windows: core::ops::Range<usize>,
    ) -> Vec<(Entry, Bucket)> {
        let own = &self.digits[windows.start * digits.count..windows.end * digits.count];
        let bucket = |window: usize, digit: i16| {
            window * digits.buckets() + usize::from(digit.unsigned_abs()) - 1
        };
        let mut ends = vec![0usize; windows.len() * digits.buckets() + 1];
        for (window, own) in own.chunks_exact(digits.count).enumerate() {
            for digit in own.iter().filter(|digit| **digit != 0) {
                ends[bucket(window, *digit) + 1] += 1;
            }
        }
        let mut total = 0;
        for end in &mut ends {
            total += *end;
            *end = total;
        }
        self.entries.clear();
        self.entries.resize(total, (0, 0));
        for (window, own) in own.chunks_exact(digits.count).enumerate() {
            for (i, digit) in own.iter().enumerate().filter(|(_, digit)| **digit != 0) {
                let bucket = bucket(window, *digit);
                let entry = (i as Entry) << 1 | Entry::from(*digit < 0);
                self.entries[ends[bucket]] = (entry, bucket as Bucket);
                ends[bucket] += 1;
            }
        }
        self.entries.clone()
    }

    /// Adds all pairs of each bucket once. Buckets with an exceptional pair are added to `again`.
    #[inline(always)]
    fn add_pairs(&mut self, again: &mut Vec<Bucket>) {
        let mut pairs: Vec<[Entry; 2]> = Vec::with_capacity(self.entries.len() / 2 + 1);
        let mut buckets: Vec<Bucket> = Vec::with_capacity(self.entries.len() / 2 + 1);
        let first_sum = self.points.len();
        let (mut read, mut kept) = (0, 0);
        while let Some((entry, bucket)) = self.entries.get(read).copied() {
            let next = self.entries.get(read + 1).filter(|next| next.1 == bucket);
            self.entries[kept] = match next.copied() {
                Some((other, _)) => {
                    pairs.push([entry, other]);
                    buckets.push(bucket);
                    read += 1;
                    (((first_sum + pairs.len() - 1) << 1) as Entry, bucket)
                }
                None => (entry, bucket),
            };
            kept += 1;
            read += 1;
        }
        self.entries.truncate(kept);
        // The padding lies behind all sums. The last vector writes as many sums as it has lanes.
        let sums = pairs.len();
        let step = VECTORS * F::LANES;
        let padded = sums.next_multiple_of(step);
        let padding = first_sum + padded;
        pairs.resize(padded, [padding, padding + 1].map(|at| (at << 1) as Entry));
        self.points.resize(padding, GENERATOR);
        self.points.extend_from_slice(&self::padding());
        for (chunk, pairs) in pairs.chunks(CHUNK * F::LANES).enumerate() {
            let from = chunk * CHUNK * F::LANES;
            let mut exceptional = |pair: usize| again.extend(buckets.get(from + pair).copied());
            self.add_chunk(pairs, first_sum + from, &mut exceptional);
        }
        self.points.truncate(first_sum + sums);
    }

    /// Adds pairs that share an inversion. Writes the sums from `sums` on. Where both points of a pair have the
    /// same `x`, the sum is any point.
    #[inline(always)]
    fn add_chunk(&mut self, pairs: &[[Entry; 2]], sums: usize, exceptional: &mut dyn FnMut(usize)) {
        let one = F::splat(&ONE);
        self.differences.clear();
        self.products.clear();
        let mut running = [one; VECTORS];
        for vector in pairs.chunks_exact(F::LANES) {
            let (x1, x2) = (self.xs(vector, 0), self.xs(vector, 1));
            self.differences.push(x2.sub::<1>(&x1).carry_for_52());
        }
        for (i, difference) in self.differences.iter().enumerate() {
            let running = &mut running[i % VECTORS];
            self.products.push(*running);
            *running = running.mul(difference);
        }
        let mut lanes = stored(&running);
        if lanes[..VECTORS * F::LANES].contains(&[0; 4]) {
            running = self.without_zeros(exceptional);
            lanes = stored(&running);
        }
        invert_numbers(&mut lanes[..VECTORS * F::LANES]);
        for (running, lanes) in running.iter_mut().zip(lanes.chunks(F::LANES)) {
            *running = F::load(lanes);
        }
        for (i, vector) in pairs.chunks_exact(F::LANES).enumerate().rev() {
            let running = &mut running[i % VECTORS];
            let inverse = running.mul(&self.products[i]);
            *running = running.mul(&self.differences[i]);
            let ((x1, y1), (x2, y2)) = (self.signed(vector, 0), self.signed(vector, 1));
            let (x3, y3) = add_with_inverse((&x1, &y1), (&x2, &y2), &inverse);
            let start = sums + i * F::LANES;
            F::store_points(&x3, &y3, &mut self.points[start..start + F::LANES]);
        }
    }

    /// Puts 1 in place of each difference that is 0, reports these pairs, and returns the products anew.
    #[inline(always)]
    fn without_zeros(&mut self, exceptional: &mut dyn FnMut(usize)) -> [F; VECTORS] {
        let mut running = [F::splat(&ONE); VECTORS];
        for (i, difference) in self.differences.iter_mut().enumerate() {
            let mut lanes = [[0; 4]; MAX_LANES];
            difference.store(&mut lanes[..F::LANES]);
            for (lane, number) in lanes[..F::LANES].iter_mut().enumerate() {
                if *number == [0; 4] {
                    *number = ONE;
                    exceptional(i * F::LANES + lane);
                }
            }
            *difference = F::load(&lanes[..F::LANES]);
            let running = &mut running[i % VECTORS];
            self.products[i] = *running;
            *running = running.mul(difference);
        }
        running
    }

    /// The points of one side of some pairs.
    #[inline(always)]
    fn lines(&self, pairs: &[[Entry; 2]], side: usize) -> [&Line; MAX_LANES] {
        let mut lines = [&GENERATOR; MAX_LANES];
        for (line, pair) in lines.iter_mut().zip(pairs) {
            *line = &self.points[(pair[side] >> 1) as usize];
        }
        lines
    }

    #[inline(always)]
    fn xs(&self, pairs: &[[Entry; 2]], side: usize) -> F {
        F::load_xs(&self.lines(pairs, side))
    }

    /// The coordinates of one side, `y` of magnitude 2 after its sign is applied.
    #[inline(always)]
    fn signed(&self, pairs: &[[Entry; 2]], side: usize) -> (F, F) {
        let (x, y) = F::load_points(&self.lines(pairs, side));
        let mut mask = 0;
        for (lane, pair) in pairs.iter().enumerate() {
            mask |= ((pair[side] & 1) as u8) << lane;
        }
        (x, y.negate_where(mask))
    }

    /// Adds up some buckets again, from all their entries, by formulas without exceptions.
    fn add_again(&mut self, all: &[(Entry, Bucket)], mut again: Vec<Bucket>) {
        again.sort_unstable();
        again.dedup();
        for bucket in again {
            let first = all.partition_point(|entry| entry.1 < bucket);
            let mut sum = Projective::<Element, B3>::infinity();
            for (entry, _) in all[first..].iter().take_while(|entry| entry.1 == bucket) {
                let line = self.points[(entry >> 1) as usize];
                sum = sum.add_line(&if entry & 1 == 1 { negated(&line) } else { line });
            }
            let at = self.entries.partition_point(|entry| entry.1 < bucket);
            match affine(&sum) {
                Some(line) => {
                    self.entries[at].0 = (self.points.len() << 1) as Entry;
                    self.points.push(line);
                }
                None => drop(self.entries.remove(at)),
            }
        }
    }

    /// The sum of a window's buckets, `b + 1` times bucket `b`: each lane takes a range of buckets, and adds a
    /// running sum from the last one down.
    #[inline(always)]
    fn window_sum(
        &self,
        entries: &[(Entry, Bucket)],
        first: Bucket,
        buckets: usize,
    ) -> Projective<Element, B3> {
        let each = buckets / F::LANES;
        let mut entry_of = vec![Entry::MAX; buckets];
        for (entry, bucket) in entries {
            entry_of[(bucket - first) as usize] = *entry;
        }
        let mut running = Projective::<F, B3>::infinity();
        let mut sum = Projective::<F, B3>::infinity();
        for bucket in (0..each).rev() {
            let mut pairs = [[0; 2]; MAX_LANES];
            let mut mask = 0;
            for (lane, pair) in pairs.iter_mut().enumerate().take(F::LANES) {
                let entry = entry_of[lane * each + bucket];
                if entry != Entry::MAX {
                    (pair[0], mask) = (entry, mask | 1 << lane);
                }
            }
            let (x, y) = self.signed(&pairs[..F::LANES], 0);
            let next = running.add_affine(&x, &y.carry());
            running = Projective::select(mask, &running, &next);
            sum = sum.add(&running);
        }
        // A lane's buckets count from its first one, so `lane * each` times its running sum is missing.
        let mut total = Projective::<Element, B3>::infinity();
        for (lane, (sum, running)) in sum.lanes().iter().zip(running.lanes()).enumerate() {
            let missing = Projective::splat(&running).times((lane * each) as u64);
            total = total.add(&Projective::splat(sum)).add(&missing);
        }
        total
    }
}

/// The lanes of some vectors.
#[inline(always)]
fn stored<F: FieldVector>(vectors: &[F; VECTORS]) -> [U256; VECTORS * MAX_LANES] {
    let mut lanes = [[0; 4]; VECTORS * MAX_LANES];
    for (vector, lanes) in vectors.iter().zip(lanes.chunks_mut(F::LANES)) {
        vector.store(lanes);
    }
    lanes
}

/// The point `(x, -y)`.
pub(crate) fn negated(line: &Line) -> Line {
    Line::new(&line.x(), &portable::negated(&line.y()))
}

/// Affine coordinates; `None` at infinity.
fn affine<const B3: u64>(point: &Projective<Element, B3>) -> Option<Line> {
    let z = inverse(&point.z);
    let is_infinity = z.number() == [0; 4];
    let line = Line::new(&point.x.mul(&z).number(), &point.y.mul(&z).number());
    (!is_infinity).then_some(line)
}
