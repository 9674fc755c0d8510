//! [`Entries`]: some entries on their way into a table.
//!
//! They lie where each key and value can be copied in steps of a fixed size, and they lie there a
//! moment: a processor that reads bytes right after it wrote them in pieces of other sizes waits
//! until they are in its cache, for each of ten million coins. Nothing is looked at here.

use super::block_writer::{VALUE_STEP, Value};
use super::key::TaggedKey;
use crate::obfuscation::Obfuscation;

/// How many entries gather.
const ENTRIES: usize = 64;

/// At how many bytes of values they are enough, whatever their number.
const BYTES: usize = 16 << 10;

#[derive(Default)]
pub(super) struct Entries {
    keys: Vec<TaggedKey>,
    values: Vec<u8>,
    /// Where each value ends, and what is to be applied to it. As many as there are entries.
    ends: Vec<(usize, Obfuscation)>,
}

impl Entries {
    pub(super) fn new() -> Self {
        Self { keys: vec![TaggedKey::default(); ENTRIES], ..Self::default() }
    }

    /// Where the key of the next entry is to be made.
    #[inline]
    pub(super) fn key(&mut self) -> &mut TaggedKey {
        &mut self.keys[self.ends.len()]
    }

    /// Appends the entry whose [key](Self::key) was made. True where no further one may come before they
    /// are [cleared](Self::clear).
    #[inline]
    pub(super) fn push(&mut self, value: &[u8], obfuscation: Obfuscation) -> bool {
        self.values.extend_from_slice(value);
        self.ends.push((self.values.len(), obfuscation));
        self.ends.len() == ENTRIES || self.values.len() >= BYTES
    }

    /// All of them in order.
    pub(super) fn each(&mut self) -> impl Iterator<Item = (&TaggedKey, Value<'_>)> {
        // So that behind the last one there is a step too.
        self.values.resize(self.values.len() + VALUE_STEP, 0);
        let (mut start, values) = (0, &self.values[..]);
        self.keys.iter().zip(&self.ends).map(move |(key, &(end, obfuscation))| {
            let bytes = &values[start..];
            let value = Value { bytes, length: end - start, obfuscation };
            start = end;
            (key, value)
        })
    }

    pub(super) fn clear(&mut self) {
        self.values.clear();
        self.ends.clear();
    }
}
