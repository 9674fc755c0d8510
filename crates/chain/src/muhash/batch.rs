//! [`MuHashBatch`]: a MuHash of elements that come one at a time and are hashed many at once.
//!
//! Invariant: what [`MuHashBatch::finish`] gives is, byte for byte, what inserting and removing the
//! same elements one by one gives. It is for sets that grow by hundreds of elements: finishing
//! costs as much as a few dozen of them.

use super::MuHash;

/// Elements on their way into a [`MuHash`]. Takes a few ten kilobytes, however many they are.
#[derive(Clone, Debug, Default)]
pub struct MuHashBatch {
    hash: MuHash,
}

impl MuHashBatch {
    /// A batch of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an element.
    pub fn insert(&mut self, element: &[u8]) {
        self.hash.insert(element);
    }

    /// Takes an element away.
    pub fn remove(&mut self, element: &[u8]) {
        self.hash.remove(element);
    }

    /// The hash of all that was inserted and removed.
    pub fn finish(self) -> MuHash {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Elements of any length in any order of insertions and removals, in batches cut anywhere.
        #[test]
        fn batches_give_what_single_steps_give(
            steps in vec((any::<bool>(), vec(any::<u8>(), 0..100)), 0..150),
            cut in any::<proptest::sample::Index>(),
        ) {
            let mut expected = MuHash::new();
            for (insert, element) in &steps {
                if *insert { expected.insert(element) } else { expected.remove(element) }
            }
            let (first, second) = steps.split_at(cut.index(steps.len() + 1));
            let mut hash = MuHash::new();
            for part in [first, second] {
                let mut batch = MuHashBatch::new();
                for (insert, element) in part {
                    if *insert { batch.insert(element) } else { batch.remove(element) }
                }
                hash.combine(&batch.finish());
            }
            prop_assert_eq!(hash.to_bytes(), expected.to_bytes());

            let elements = |wanted: bool| -> Vec<&[u8]> {
                let chosen = steps.iter().filter(|(insert, _)| *insert == wanted);
                chosen.map(|(_, element)| &element[..]).collect()
            };
            let mut hash = MuHash::new();
            hash.insert_many(&elements(true));
            hash.remove_many(&elements(false));
            prop_assert_eq!(hash.to_bytes(), expected.to_bytes());
        }
    }
}
