//! [`HeightRange`]: a half-open run of heights, the unit of work of every engine.

use core::fmt;
use core::ops::Range;

/// Distance from the genesis block, which has height 0.
pub type Height = u32;

/// Heights from `start` up to, not including, `end`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HeightRange {
    /// First height inside.
    pub start: Height,
    /// First height after.
    pub end: Height,
}

impl HeightRange {
    /// The heights `start..end`.
    ///
    /// # Panics
    /// When `end` lies before `start`, which is a mistake of the caller, never of input.
    pub const fn new(start: Height, end: Height) -> Self {
        assert!(start <= end, "a height range cannot end before it starts");
        Self { start, end }
    }

    /// How many heights.
    pub const fn count(self) -> u32 {
        self.end - self.start
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Whether `height` is inside.
    pub const fn contains(self, height: Height) -> bool {
        self.start <= height && height < self.end
    }

    /// The heights one after the other.
    pub const fn heights(self) -> Range<Height> {
        self.start..self.end
    }
}

impl fmt::Display for HeightRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}
