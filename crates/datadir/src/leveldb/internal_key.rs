//! [`InternalKey`]: a key of the user's with its tag, which tells its versions apart.

use super::{KIND_DELETE, KIND_PUT};
use core::cmp::Reverse;

/// No node has written so often, and LevelDB needs room to go on counting: it has 56 bits.
pub(super) const SEQUENCE_MAX: u64 = 1 << 55;

/// In LevelDB's order: by the user's key, the newest version first.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InternalKey {
    pub(super) user: Vec<u8>,
    /// The sequence number, shifted by 8, and the kind of entry.
    pub(super) tag: Reverse<u64>,
}

impl InternalKey {
    /// The key that is stored as `bytes`; `None` where they have no room for a tag.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (user, tag) = split(bytes)?;
        Some(Self { user: user.to_vec(), tag: Reverse(tag) })
    }

    /// Becomes another, without new memory where its own suffices.
    pub(super) fn set(&mut self, user: &[u8], tag: u64) {
        self.user.clear();
        self.user.extend_from_slice(user);
        self.tag = Reverse(tag);
    }

    /// Whether it stands before another.
    pub(super) fn is_below(&self, user: &[u8], tag: u64) -> bool {
        (&self.user[..], self.tag) < (user, Reverse(tag))
    }

    /// Whether it stands behind another. Of one sequence number there is one kind, whatever a separator says:
    /// `rusty-leveldb` has a put there where the entry is a deletion, and all the same it is found.
    pub(super) fn is_behind(&self, separator: &Self) -> bool {
        (&self.user, Reverse(self.tag.0 >> 8)) > (&separator.user, Reverse(separator.tag.0 >> 8))
    }

    pub(super) fn is(&self, user: &[u8], tag: u64) -> bool {
        self.tag.0 == tag && self.user == user
    }
}

/// The user's key, then the tag.
pub(super) fn split(bytes: &[u8]) -> Option<(&[u8], u64)> {
    let (user, tag) = bytes.split_last_chunk()?;
    Some((user, u64::from_le_bytes(*tag)))
}

/// Whether a tag is of a put or a deletion that LevelDB sees when `last_sequence` is the last.
pub(super) fn is_visible(tag: u64, last_sequence: u64) -> bool {
    matches!(tag as u8, KIND_PUT | KIND_DELETE) && tag >> 8 <= last_sequence
}
