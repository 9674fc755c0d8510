//! [`divide`]: keys in parts of about as many bytes each.

use super::KeyRange;
use crate::workdir::index::Section;

/// Divides all keys into at most so many parts, by what sections say of the records that there are. How
/// keys are spread makes no difference: who makes transactions can choose how their ids begin.
pub fn divide<'s>(sections: impl Iterator<Item = &'s Section>, parts: u64) -> Vec<KeyRange> {
    divide_sizes(sections.map(|section| (section.prefix, section.bytes)), parts)
}

/// The same by the first bytes of each section and its length alone.
pub fn divide_sizes(sections: impl Iterator<Item = (u64, u32)>, parts: u64) -> Vec<KeyRange> {
    let mut sections: Vec<(u64, u32)> = sections.collect();
    sections.sort_unstable();
    let total: u64 = sections.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
    let each = (total / parts.max(1)).max(1);
    let (mut divided, mut from, mut bytes) = (Vec::new(), 0, 0);
    for (prefix, more) in sections {
        if bytes >= each && prefix > from {
            divided.push(KeyRange { from, until: Some(prefix) });
            (from, bytes) = (prefix, 0);
        }
        bytes += u64::from(more);
    }
    divided.push(KeyRange { from, until: None });
    divided
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_testkit::rng::Rng;

    /// Some sections of records whose keys begin as `key` says.
    fn sections(count: usize, mut key: impl FnMut() -> u64) -> Vec<Section> {
        let section = |key: u64| Section::of(&[&key.to_be_bytes()[..], &[0; 1000]].concat());
        (0..count).map(|_| section(key())).collect()
    }

    #[test]
    fn parts_are_all_keys_and_about_equal() {
        let mut rng = Rng::new(31);
        let spread = sections(400, || rng.next_u64());
        // As if all ids had been ground for.
        let ground = sections(400, || 0xabcd_ef00_0000_0000 | rng.next_u64() >> 40);
        for sections in [spread, ground] {
            for parts in [1, 2, 7, 16] {
                let divided = divide(sections.iter(), parts);
                assert_eq!(divided.len() as u64, parts);
                let mut next = Some(0);
                for keys in &divided {
                    assert_eq!(Some(keys.from), next);
                    let is_of = |section: &&Section| {
                        section.prefix >= keys.from
                            && keys.until.is_none_or(|until| section.prefix < until)
                    };
                    let count = sections.iter().filter(is_of).count() as u64;
                    assert!(count.abs_diff(400 / parts) <= 400 / parts / 8 + parts, "{count}");
                    next = keys.until;
                }
                assert_eq!(next, None);
            }
        }
        assert_eq!(divide([].iter(), 9), [KeyRange::ALL]);
    }

    /// Records of one prefix are in one part.
    #[test]
    fn equal_keys_stay_together() {
        let same = sections(50, || 7);
        assert_eq!(divide(same.iter(), 4).len(), 2);
        assert_eq!(divide(same.iter(), 4)[0], KeyRange { from: 0, until: Some(7) });
    }
}
