//! [`sort_by_number`]: sorts many records that begin with mostly distinct numbers, such as
//! transaction ids.
//!
//! A comparison sort mispredicts about twenty branches for each of 400,000 ids. This sort uses the
//! highest bits in which the numbers differ, as many as needed to distinguish most records, and
//! moves records to their places by eleven bits at a time, lowest first (Knuth, *The Art of
//! Computer Programming*, volume 3, 5.2.5). Records that are still equal are compared. So it takes
//! less than half as long, and for numbers chosen to be equal it is the comparison sort of `std`.
//! Libraries for radix sort process all 64 bits.

use core::cmp::Ordering;

/// Bits per digit. That many counters and write positions fit in the nearest caches.
const DIGIT_BITS: u32 = 11;
const DIGIT_VALUES: usize = 1 << DIGIT_BITS;

/// More digits are not worth their passes.
const DIGITS_MAX: usize = 4;

/// Below this number, comparing is faster than counting.
const RECORDS_MIN: usize = 256;

/// Sorts records by `compare`, which must put lower numbers first. `spare` is scratch memory; its
/// contents are overwritten.
pub fn sort_by_number<T: Copy>(
    records: &mut Vec<T>,
    spare: &mut Vec<T>,
    number: impl Fn(&T) -> u64,
    mut compare: impl FnMut(&T, &T) -> Ordering,
) {
    if records.len() < RECORDS_MIN || u32::try_from(records.len()).is_err() {
        return records.sort_unstable_by(compare);
    }
    let digits = digits(records, &number);
    let mut counts = [[0; DIGIT_VALUES]; DIGITS_MAX];
    for record in &*records {
        let number = number(record);
        let of_digits = digits.iter().zip(&mut counts);
        of_digits.for_each(|(shift, counts)| counts[value(number, *shift)] += 1);
    }
    spare.clear();
    spare.extend_from_slice(records);
    for (shift, counts) in digits.iter().zip(&mut counts).rev() {
        counts_to_starts(counts);
        for record in &*records {
            let place = &mut counts[value(number(record), *shift)];
            spare[*place as usize] = *record;
            *place += 1;
        }
        core::mem::swap(records, spare);
    }
    let last = digits.last().copied().unwrap_or(0);
    let alike = |one: &T, other: &T| number(one) >> last == number(other) >> last;
    for alike in records.chunk_by_mut(alike).filter(|alike| alike.len() > 1) {
        alike.sort_unstable_by(&mut compare);
    }
}

/// Returns the shifts of the digits that distinguish most records, highest first. Bits above and
/// between them are equal in all numbers.
fn digits<T>(records: &[T], number: impl Fn(&T) -> u64) -> Vec<u32> {
    let first = records.first().map_or(0, &number);
    let mut differ = records.iter().fold(0, |differ, record| differ | (number(record) ^ first));
    let (mut digits, mut bits) = (Vec::with_capacity(DIGITS_MAX), 0);
    while differ != 0 && bits < records.len().ilog2() && digits.len() < DIGITS_MAX {
        let shift = (u64::BITS - differ.leading_zeros()).saturating_sub(DIGIT_BITS);
        bits += (differ >> shift).count_ones();
        digits.push(shift);
        differ &= (1 << shift) - 1;
    }
    digits
}

fn value(number: u64, shift: u32) -> usize {
    (number >> shift) as usize % DIGIT_VALUES
}

/// Turns the counts into the start positions.
fn counts_to_starts(counts: &mut [u32; DIGIT_VALUES]) {
    let mut before = 0;
    for count in counts {
        before += core::mem::replace(count, before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Random numbers, and adversarial ones.
    fn numbers() -> impl Strategy<Value = Vec<u64>> {
        let place = (0u64..5_000, 0u64..3_000).prop_map(|(height, place)| height << 32 | place);
        let ground = any::<u16>().prop_map(|low| 0xabcd_ef01_2345_0000 | u64::from(low));
        let far = prop_oneof![0u64..4, u64::MAX - 3..=u64::MAX];
        // With the largest counts, one digit distinguishes too few records.
        let count = RECORDS_MIN - 2..12_000;
        prop_oneof![
            vec(any::<u64>(), count.clone()),
            vec(place, count.clone()),
            vec(ground, count.clone()),
            vec(far, count.clone()),
            vec(Just(7u64), count),
        ]
    }

    proptest! {
        /// Sorts correctly with any duplicates and any data after the number.
        #[test]
        fn records_are_in_order(numbers in numbers(), tie: u32) {
            let tie = |at: usize| (at as u32).wrapping_mul(tie | 1) % 977;
            let mut records: Vec<(u64, u32)> =
                numbers.iter().enumerate().map(|(at, number)| (*number, tie(at))).collect();
            let mut sorted = records.clone();
            sorted.sort();
            let mut spare = vec![(1, 1); 3];
            sort_by_number(&mut records, &mut spare, |record| record.0, Ord::cmp);
            prop_assert_eq!(records, sorted);
        }
    }

    #[test]
    fn digits_are_where_numbers_differ() {
        let of = |numbers: &[u64]| digits(numbers, |number| *number);
        assert_eq!(of(&[5; 300]), [0u32; 0]);
        assert_eq!(of(&[4, 5].repeat(300)), [0]);
        // One digit covers one varying bit, and more are needed.
        let far: Vec<u64> = (0..600).map(|at| (at % 2) << 63 | (at & 0xff)).collect();
        assert_eq!(of(&far), [53, 0]);
        let even: Vec<u64> = (0..600u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        assert_eq!(of(&even), [53]);
    }
}
