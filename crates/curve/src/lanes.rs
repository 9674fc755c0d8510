//! The verification of many signatures, one in each lane, generic over the field kernel.
//!
//! Each lane computes `u1 * G + u2 * P` by itself: both factors are split for the endomorphism, P
//! has a table of 16 affine multiples for signed digits of five bits, and G has tables of its own.
//! Only inversions are common to all lanes. In the end, a lane's result has to have the x that the
//! signature says, exactly.
//!
//! Invariants: a key becomes a point only if its y passed the curve's equation. So the points of a
//! table differ, have no y = 0, and the denominators of a table are never zero. The final Z may be
//! zero, see [`crate::point`]; such a lane counts as not proven, and does not spoil the common
//! inversion.

use crate::check::{Equation, Factors, Parity, SignatureCheck};
use crate::field::{FieldVector, ONE, U256};
use crate::point::{
    BETA, GENERATOR, GENERATOR_MULTIPLES, GENERATOR_WIDTH, Jacobian, add_with_inverse,
    double_with_inverse, generator_table, invert_all, lift,
};
use crate::scalar::{self, Scalar, signed_digits, split};
use crate::words::{Line, MAX_LANES};

/// Bits of a digit of the key's factors.
const WIDTH: usize = 5;
/// Multiples of a key in its table: by 1 to 16.
const MULTIPLES: usize = 1 << (WIDTH - 1);
/// Digits of a half of 128 bits, with a last carry.
const DIGITS: usize = 128 / WIDTH + 1;
const GENERATOR_DIGITS: usize = 128 / GENERATOR_WIDTH as usize + 1;
/// The position of the uppermost digit.
const TOP: usize = WIDTH * (DIGITS - 1);
/// Signatures that share the inversions and the tables' memory (256 KiB).
const TOGETHER: usize = 256;

/// Scratch memory.
pub(crate) struct Room<F> {
    /// Multiples of keys: by group, then by multiple, then by lane.
    table: Vec<Line>,
    denominators: Vec<F>,
    products: Vec<F>,
    tasks: Vec<Task>,
}

impl<F> Room<F> {
    pub(crate) fn new() -> Self {
        Self { table: vec![], denominators: vec![], products: vec![], tasks: vec![] }
    }
}

/// A sum to compute, and what it must give.
struct Task {
    /// Its place among the checks.
    check: usize,
    key: Line,
    /// Digits of both halves of u2.
    key_digits: [[i16; DIGITS]; 2],
    /// Digits of both halves of u1.
    generator_digits: [[i16; GENERATOR_DIGITS]; 2],
    r: U256,
    /// Whether R must have an even y.
    has_even_y: bool,
}

/// Sets `proven[i]` to the parity of R for each check that is proven valid. Checks that are already proven stay so.
#[inline(always)]
pub(crate) fn prove<F: FieldVector>(
    room: &mut Room<F>,
    checks: &[SignatureCheck],
    proven: &mut [Option<Parity>],
) {
    let mut tasks = core::mem::take(&mut room.tasks);
    for (checks, proven) in checks.chunks(TOGETHER).zip(proven.chunks_mut(TOGETHER)) {
        tasks.clear();
        prepare::<F>(checks, proven, &mut tasks);
        if !tasks.is_empty() {
            fill_tables(room, &tasks);
            let sums = sums(room, &tasks);
            compare(room, &tasks, &sums, proven);
        }
    }
    room.tasks = tasks;
}

/// Makes a task for each open check whose key is on the curve.
#[inline(always)]
fn prepare<F: FieldVector>(
    checks: &[SignatureCheck],
    proven: &[Option<Parity>],
    tasks: &mut Vec<Task>,
) {
    let all = || {
        let open =
            checks.iter().zip(proven).enumerate().filter(|(_, (_, proven))| proven.is_none());
        open.filter_map(|(i, (check, _))| Some((i, check.equation.as_ref()?)))
    };
    let mut inverses: Vec<Scalar> = all().filter_map(|(_, it)| it.ecdsa_s()).collect();
    scalar::invert_all(&mut inverses);
    let mut inverses = inverses.into_iter();

    let mut group: [Option<(usize, &Equation)>; 2 * MAX_LANES] = [None; 2 * MAX_LANES];
    let mut equations = all();
    loop {
        let mut count = 0;
        while count < 2 * F::LANES
            && let Some(next) = equations.next()
        {
            group[count] = Some(next);
            count += 1;
        }
        if count == 0 {
            return;
        }
        let mut xs = [ONE; 2 * MAX_LANES];
        for (x, (_, equation)) in xs.iter_mut().zip(group[..count].iter().flatten()) {
            *x = equation.x;
        }
        let ys = lift::<F>(&xs);
        for ((i, equation), y) in group[..count].iter().flatten().zip(&ys) {
            let scalars = equation.scalars(&mut inverses);
            tasks.extend(y.zip(scalars).and_then(|(y, scalars)| task(*i, equation, y, scalars)));
        }
    }
}

/// `y` is one of the two y of the key's x.
fn task(check: usize, equation: &Equation, y: U256, [u1, u2]: [Scalar; 2]) -> Option<Task> {
    let y = equation.y.choose(y)?;
    let mut task = Task {
        check,
        key: Line::new(&equation.x, &y),
        key_digits: [[0; DIGITS]; 2],
        generator_digits: [[0; GENERATOR_DIGITS]; 2],
        r: equation.r,
        has_even_y: matches!(equation.factors, Factors::Schnorr { .. }),
    };
    let (first, second) = split(&u2)?;
    signed_digits(&first, WIDTH as u32, &mut task.key_digits[0]);
    signed_digits(&second, WIDTH as u32, &mut task.key_digits[1]);
    let (first, second) = split(&u1)?;
    signed_digits(&first, GENERATOR_WIDTH, &mut task.generator_digits[0]);
    signed_digits(&second, GENERATOR_WIDTH, &mut task.generator_digits[1]);
    Some(task)
}

/// The place in the table of a group's lane 0 for the multiple by `times`.
#[inline(always)]
fn place<F: FieldVector>(group: usize, times: usize) -> usize {
    (group * MULTIPLES + times - 1) * F::LANES
}

/// A group's multiples by `times`.
#[inline(always)]
fn multiples<F: FieldVector>(table: &[Line], group: usize, times: usize) -> [&Line; MAX_LANES] {
    let lines = &table[place::<F>(group, times)..][..F::LANES];
    let mut all = [&lines[0]; MAX_LANES];
    for (out, line) in all.iter_mut().zip(lines) {
        *out = line;
    }
    all
}

/// Computes the multiples of each key by 2 to 16, in steps: 2 from 1; 3 and 4 from 2 and the lower
/// ones; and so on. Each step has one common inversion. Lanes without a task have multiples of G.
#[inline(always)]
fn fill_tables<F: FieldVector>(room: &mut Room<F>, tasks: &[Task]) {
    let groups = tasks.len().div_ceil(F::LANES);
    let Room { table, denominators, products, .. } = room;
    table.clear();
    table.resize(groups * MULTIPLES * F::LANES, GENERATOR);
    for (i, task) in tasks.iter().enumerate() {
        table[place::<F>(i / F::LANES, 1) + i % F::LANES] = task.key;
    }
    let mut known = 1;
    while known < MULTIPLES {
        denominators.clear();
        for group in 0..groups {
            let (high_x, high_y) = F::load_points(&multiples::<F>(table, group, known));
            for times in 1..known {
                let x = F::load_xs(&multiples::<F>(table, group, times));
                denominators.push(x.sub::<1>(&high_x).carry_for_52());
            }
            denominators.push(high_y.times::<2>().carry_for_52());
        }
        invert_all(denominators, products);
        for (group, inverses) in denominators.chunks_exact(known).enumerate() {
            let (high_x, high_y) = F::load_points(&multiples::<F>(table, group, known));
            for times in 1..known {
                let (x, y) = F::load_points(&multiples::<F>(table, group, times));
                let (x, y) = add_with_inverse((&high_x, &high_y), (&x, &y), &inverses[times - 1]);
                F::store_points(&x, &y, &mut table[place::<F>(group, known + times)..][..F::LANES]);
            }
            let (x, y) = double_with_inverse(&high_x, &high_y, &inverses[known - 1]);
            F::store_points(&x, &y, &mut table[place::<F>(group, 2 * known)..][..F::LANES]);
        }
        known *= 2;
    }
}

/// One digit of each lane: the multiples to add.
struct Summands<'a> {
    lines: [&'a Line; MAX_LANES],
    /// Lanes whose digit is not zero.
    present: u8,
    negative: u8,
}

impl<'a> Summands<'a> {
    #[inline(always)]
    fn new(none: &'a Line) -> Self {
        Self { lines: [none; MAX_LANES], present: 0, negative: 0 }
    }

    #[inline(always)]
    fn set(&mut self, lane: usize, digit: i16, multiple: impl FnOnce(usize) -> &'a Line) {
        if digit != 0 {
            self.present |= 1 << lane;
            self.negative |= u8::from(digit < 0) << lane;
            self.lines[lane] = multiple(usize::from(digit.unsigned_abs()));
        }
    }
}

/// The sum of each task, by groups.
#[inline(always)]
fn sums<F: FieldVector>(room: &Room<F>, tasks: &[Task]) -> Vec<Jacobian<F>> {
    let generator = generator_table();
    let mut sums = Vec::with_capacity(tasks.len().div_ceil(F::LANES));
    for (group, tasks) in tasks.chunks(F::LANES).enumerate() {
        let mut sum = Sum { point: Jacobian::zero(), started: 0 };
        let beta = F::splat(&BETA);
        for position in (0..=TOP).rev() {
            sum.point = sum.point.double();
            // Halves 0 and 1 of the key's digits, then of the generator's.
            let of_key = position % WIDTH == 0;
            let of_generator = position % GENERATOR_WIDTH as usize == 0;
            let first = if of_key { 0 } else { 2 };
            let end = if of_generator { 4 } else { 2 };
            for source in first..end {
                let mut summands = Summands::new(&GENERATOR);
                for (lane, task) in tasks.iter().enumerate() {
                    if source < 2 {
                        let digit = task.key_digits[source][position / WIDTH];
                        let line = |times| &room.table[place::<F>(group, times) + lane];
                        summands.set(lane, digit, line);
                    } else {
                        let digits = &task.generator_digits[source - 2];
                        let digit = digits[position / GENERATOR_WIDTH as usize];
                        let first = (source - 2) * GENERATOR_MULTIPLES;
                        summands.set(lane, digit, |times| &generator[first + times - 1]);
                    }
                }
                let (mut x, y) = F::load_points(&summands.lines);
                if source == 1 {
                    x = x.mul(&beta);
                }
                sum.add(&x, &y.negate_where(summands.negative).carry_for_52(), summands.present);
            }
        }
        sums.push(sum.finish());
    }
    sums
}

/// A sum that starts, in each lane, with the first summand.
struct Sum<F> {
    point: Jacobian<F>,
    /// Lanes that have a summand.
    started: u8,
}

impl<F: FieldVector> Sum<F> {
    /// Adds points in lanes of `present`.
    #[inline(always)]
    fn add(&mut self, x: &F, y: &F, present: u8) {
        let sum = self.point.add(x, y);
        let going = present & self.started;
        // Usually all lanes.
        if going.count_ones() as usize == F::LANES {
            self.point = sum;
            return;
        }
        self.point = Jacobian::select(going, &self.point, &sum);
        let starting = present & !self.started;
        if starting != 0 {
            let first = Jacobian { x: *x, y: y.normalize_weak(), z: F::splat(&ONE) };
            self.point = Jacobian::select(starting, &self.point, &first);
            self.started |= present;
        }
    }

    /// The sum; Z = 0 in lanes without a summand.
    #[inline(always)]
    fn finish(self) -> Jacobian<F> {
        Jacobian::select(self.started, &Jacobian::zero(), &self.point)
    }
}

/// Compares each sum's affine coordinates with what its signature says.
#[inline(always)]
fn compare<F: FieldVector>(
    room: &mut Room<F>,
    tasks: &[Task],
    sums: &[Jacobian<F>],
    proven: &mut [Option<Parity>],
) {
    let Room { denominators, products, .. } = room;
    denominators.clear();
    let mut numbers = [[0; 4]; MAX_LANES];
    for sum in sums {
        sum.z.store(&mut numbers[..F::LANES]);
        for z in &mut numbers {
            *z = if *z == [0; 4] { ONE } else { *z };
        }
        denominators.push(F::load(&numbers[..F::LANES]));
    }
    invert_all(denominators, products);
    let (mut xs, mut ys) = ([[0; 4]; MAX_LANES], [[0; 4]; MAX_LANES]);
    for ((sum, inverse), tasks) in sums.iter().zip(&*denominators).zip(tasks.chunks(F::LANES)) {
        let square = inverse.square();
        sum.z.store(&mut numbers[..F::LANES]);
        sum.x.mul(&square).store(&mut xs[..F::LANES]);
        sum.y.mul(&square.mul(inverse)).store(&mut ys[..F::LANES]);
        for (lane, task) in tasks.iter().enumerate() {
            let is_finite = numbers[lane] != [0; 4];
            let parity = Parity::of(&ys[lane]);
            let has_right_y = !task.has_even_y || parity == Parity::Even;
            let is_proven = is_finite && xs[lane] == task.r && has_right_y;
            proven[task.check] = is_proven.then_some(parity);
        }
    }
}
