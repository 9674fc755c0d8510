//! Merkle roots as blocks use them, and the flaw that lets two lists share one root.
//!
//! Core `consensus/merkle.cpp`. An odd level repeats its last hash, so a list whose tail is
//! repeated has the same root as without (CVE-2012-2459). Such a list is recognised by two equal
//! neighbours that form a pair.

/// A merkle root and whether the list could be a mutation of a shorter one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merkle {
    /// The root; zero for an empty list.
    pub root: [u8; 32],
    /// Two equal hashes stood side by side as a pair (CVE-2012-2459).
    pub mutated: bool,
}

/// Computes the root of `leaves`. `level` and `above` are scratch space, reused between calls.
pub fn merkle_root(leaves: &[[u8; 32]], scratch: &mut MerkleScratch) -> Merkle {
    let MerkleScratch { level, above } = scratch;
    level.clear();
    level.extend_from_slice(leaves);
    let mut mutated = false;
    while level.len() > 1 {
        mutated |= level.as_chunks::<2>().0.iter().any(|[left, right]| left == right);
        if let (1, Some(&last)) = (level.len() % 2, level.last()) {
            level.push(last);
        }
        let pairs = level.as_flattened().as_chunks::<64>().0;
        above.clear();
        above.resize(pairs.len(), [0; 32]);
        apus_hash::sha256d_pairs(pairs, above);
        core::mem::swap(level, above);
    }
    Merkle { root: level.first().copied().unwrap_or_default(), mutated }
}

/// Working space of [`merkle_root`].
#[derive(Debug, Default)]
pub struct MerkleScratch {
    level: Vec<[u8; 32]>,
    above: Vec<[u8; 32]>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, one pair at a time.
    fn plain(leaves: &[[u8; 32]]) -> [u8; 32] {
        let mut level = leaves.to_vec();
        while level.len() > 1 {
            if level.len() % 2 == 1 {
                level.push(level[level.len() - 1]);
            }
            level = level
                .chunks(2)
                .map(|pair| apus_hash::sha256d(&[pair[0], pair[1]].concat()))
                .collect();
        }
        level.first().copied().unwrap_or_default()
    }

    fn leaf(n: usize) -> [u8; 32] {
        apus_hash::sha256(&n.to_le_bytes())
    }

    proptest! {
        #[test]
        fn equals_the_definition(count in 0usize..200) {
            let leaves: Vec<_> = (0..count).map(leaf).collect();
            let merkle = merkle_root(&leaves, &mut MerkleScratch::default());
            prop_assert_eq!(merkle, Merkle { root: plain(&leaves), mutated: false });
        }

        /// Repeating the tail that an odd level would repeat keeps the root, and is noticed.
        #[test]
        fn a_repeated_tail_is_noticed(count in 1usize..100) {
            let leaves: Vec<_> = (0..count).map(leaf).collect();
            let tail = 1 << count.trailing_zeros();
            // A full binary tree has no odd level: nothing can be repeated without a new root.
            prop_assume!(tail != count);
            let mut longer = leaves.clone();
            longer.extend_from_slice(&leaves[count - tail..]);
            let mut scratch = MerkleScratch::default();
            let honest = merkle_root(&leaves, &mut scratch);
            let forged = merkle_root(&longer, &mut scratch);
            prop_assert_eq!(honest.root, forged.root);
            prop_assert!(!honest.mutated && forged.mutated);
        }
    }
}
