//! [`Network`]: which of Bitcoin's chains, under the names that Core's `-chain` takes.

use std::sync::OnceLock;

/// The signet of one's own that this process knows.
static OWN_SIGNET: OnceLock<Network> = OnceLock::new();

/// The magic of a signet of one's own, which follows from its challenge.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SignetMagic([u8; 4]);

impl SignetMagic {
    pub(crate) const fn new(bytes: [u8; 4]) -> Self {
        Self(bytes)
    }

    /// The four bytes.
    pub const fn bytes(self) -> [u8; 4] {
        self.0
    }
}

use core::fmt;
use core::str::FromStr;

/// One of the chains that Bitcoin Core knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Network {
    /// The Bitcoin main chain.
    Main,
    /// The third test network.
    Testnet3,
    /// The fourth test network (BIP-94).
    Testnet4,
    /// The default signet (BIP-325).
    Signet,
    /// A private chain for tests, mined by hand.
    Regtest,
    /// A signet of one's own, whose challenge is known ([`Params::know_signet`](crate::Params::know_signet)).
    OwnSignet(SignetMagic),
}

/// The text is no network's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown chain {0:?}: use main, test, testnet4, signet or regtest")]
pub struct UnknownNetwork(pub String);

impl Network {
    /// Those that all know, the main chain first.
    pub const ALL: [Self; 5] =
        [Self::Main, Self::Testnet3, Self::Testnet4, Self::Signet, Self::Regtest];

    /// The name that Core's `-chain` takes (Core `util/chaintype.cpp`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Testnet3 => "test",
            Self::Testnet4 => "testnet4",
            Self::Signet | Self::OwnSignet(_) => "signet",
            Self::Regtest => "regtest",
        }
    }

    /// The folder in a data directory that the chain has for itself, none for the main chain (Core
    /// `chainparamsbase.cpp`).
    pub const fn data_folder(self) -> Option<&'static str> {
        match self {
            Self::Main => None,
            Self::Testnet3 => Some("testnet3"),
            Self::Testnet4 => Some("testnet4"),
            Self::Signet | Self::OwnSignet(_) => Some("signet"),
            Self::Regtest => Some("regtest"),
        }
    }

    /// The four bytes before each message and each block on disk (Core `kernel/chainparams.cpp`).
    pub const fn magic(self) -> [u8; 4] {
        match self {
            Self::Main => [0xf9, 0xbe, 0xb4, 0xd9],
            Self::Testnet3 => [0x0b, 0x11, 0x09, 0x07],
            Self::Testnet4 => [0x1c, 0x16, 0x3f, 0x28],
            // The first four bytes of SHA256d of the serialized default challenge (BIP-325).
            Self::Signet => [0x0a, 0x03, 0xcf, 0x40],
            Self::Regtest => [0xfa, 0xbf, 0xb5, 0xda],
            Self::OwnSignet(magic) => magic.bytes(),
        }
    }

    /// The network with this magic.
    pub fn from_magic(magic: [u8; 4]) -> Option<Self> {
        let own = Self::own_signet().filter(|network| network.magic() == magic);
        own.or_else(|| Self::ALL.into_iter().find(|network| network.magic() == magic))
    }
}

impl Network {
    fn own_signet() -> Option<Self> {
        OWN_SIGNET.get().copied()
    }

    /// From now on this signet of one's own is found by its magic and its name.
    pub(crate) fn make_known(self) -> Self {
        *OWN_SIGNET.get_or_init(|| self)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Network {
    type Err = UnknownNetwork;
    /// Where a signet of one's own is known, `signet` is that one.
    fn from_str(text: &str) -> Result<Self, UnknownNetwork> {
        let mut all = Self::own_signet().into_iter().chain(Self::ALL);
        all.find(|network| network.name() == text).ok_or_else(|| UnknownNetwork(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_magics_are_distinct_and_parse_back() {
        for network in Network::ALL {
            // Another test may have made a signet of its own known meanwhile.
            let parsed: Network = network.name().parse().unwrap();
            assert_eq!(parsed.name(), network.name());
            assert_eq!(Network::from_magic(network.magic()), Some(network));
        }
        assert!("mainnet".parse::<Network>().is_err());
    }
}
