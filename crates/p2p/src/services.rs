//! [`Services`]: what a node offers to others, as it says itself or others say of it.

/// What a peer offers (BIP-144, BIP-159, BIP-324 and Core `protocol.h`, `ServiceFlags`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Services(pub u64);

impl Services {
    /// All blocks (`NODE_NETWORK`).
    pub const NETWORK: Self = Self(1);
    /// Blocks with witnesses (`NODE_WITNESS`).
    pub const WITNESS: Self = Self(1 << 3);
    /// The last 288 blocks (`NODE_NETWORK_LIMITED`).
    pub const NETWORK_LIMITED: Self = Self(1 << 10);
    /// The encrypted transport (`NODE_P2P_V2`).
    pub const P2P_V2: Self = Self(1 << 11);

    /// Whether all of `other` are among these.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These and those.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
