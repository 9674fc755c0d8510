//! [`may_have()`]: what the filters of a table say of a key (LevelDB `table/filter_block.cc`, `util/bloom.cc`).

use super::bytes::little;

/// The name under which a table's list of further blocks has them.
pub(super) const NAME: &[u8] = b"filter.leveldb.BuiltinBloomFilter2";

/// Whether a look-up of a user's key goes on to the block that begins at `offset`. What is no filter holds nothing
/// back, as in LevelDB.
pub(super) fn may_have(filters: &[u8], offset: u64, key: &[u8]) -> bool {
    filter_of(filters, offset).is_none_or(|filter| matches(filter, key))
}

/// The filter of the block there. They come one after the other, then where each begins, where that list begins, and
/// of how many bytes of the table one is, as a power of two.
fn filter_of(filters: &[u8], offset: u64) -> Option<&[u8]> {
    let (log2, rest) = filters.split_last()?;
    let (places, end) = rest.split_last_chunk::<4>()?;
    let end = little(end) as usize;
    let count = places.len().checked_sub(end)? / 4;
    let number = offset.checked_shr((*log2).into()).unwrap_or(0);
    let number = usize::try_from(number).ok().filter(|number| *number < count)?;
    // Behind the last one stands where the list begins, which is where it ends.
    let place = |number: usize| Some(little(rest.get(end + 4 * number..)?.get(..4)?) as usize);
    filters[..end].get(place(number)?..place(number + 1)?)
}

fn matches(filter: &[u8], key: &[u8]) -> bool {
    let Some((probes, bits)) = filter.split_last().filter(|(_, bits)| !bits.is_empty()) else {
        return false;
    };
    // Kept for other filters.
    if *probes > 30 {
        return true;
    }
    let (first, count) = (hash(key), bits.len() as u64 * 8);
    let step = first.rotate_right(17);
    (0..u32::from(*probes)).all(|probe| {
        let bit = u64::from(first.wrapping_add(step.wrapping_mul(probe))) % count;
        bits[(bit / 8) as usize] >> (bit % 8) & 1 == 1
    })
}

/// LevelDB's own, of four bytes at a time (`util/hash.cc`).
fn hash(key: &[u8]) -> u32 {
    const FACTOR: u32 = 0xc6a4_a793;
    let mut words = key.chunks_exact(4);
    let start = 0xbc9f_1d34 ^ (key.len() as u32).wrapping_mul(FACTOR);
    let hash = words.by_ref().fold(start, |hash, word| {
        let hash = hash.wrapping_add(little(word)).wrapping_mul(FACTOR);
        hash ^ hash >> 16
    });
    match words.remainder() {
        [] => hash,
        rest => {
            let hash = hash.wrapping_add(little(rest)).wrapping_mul(FACTOR);
            hash ^ hash >> 24
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of LevelDB's own test (`util/hash_test.cc` has another seed; `bloom_test.cc`): an empty filter has nothing,
    /// and of a broken one nothing is concluded.
    #[test]
    fn filters_that_say_little() {
        assert!(!matches(&[], b"hello"));
        assert!(!matches(&[6], b"hello"));
        assert!(matches(&[0, 31], b"hello"));
        assert!(!matches(&[0, 6], b"hello"));
        assert!(matches(&[0xff, 6], b"hello"));
        assert!(may_have(&[], 0, b"hello"));
        assert!(may_have(&[9, 0, 0, 0, 11], 0, b"hello"));
    }
}
