//! [`Params`]: the differences between the chains, as plain data.
//!
//! Every value is Core's (`kernel/chainparams.cpp`, and `validation.cpp` for BIP-30). This module only has
//! data and look-ups; other modules apply the rules. Callers may modify a copy, like regtest tests that
//! change activation heights.

mod networks;
#[cfg(test)]
mod tests;

pub use networks::OtherSignet;

use crate::hashes::BlockHash;
use crate::header::{Header, Height};
use crate::script;
use crate::work::U256;
use core::fmt;
use core::str::FromStr;
use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::OnceLock;

/// From this height, BIP-30 is checked again although BIP-34 holds: some coinbases from before BIP-34 happen
/// to begin with heights at or above this one (Core `validation.cpp`, `BIP34_IMPLIES_BIP30_LIMIT`).
pub const BIP34_IMPLIES_BIP30_LIMIT: Height = 1_983_702;

/// A block identified by its height and hash.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KnownBlock {
    /// Its height.
    pub height: Height,
    /// Its hash.
    pub hash: BlockHash,
}

/// A UTXO set that Core accepts as a snapshot (Core `kernel/chainparams.h`, `AssumeutxoData`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssumeUtxo {
    /// Height of the snapshot's base block.
    pub height: Height,
    /// Hash of that block.
    pub block_hash: BlockHash,
    /// `hash_serialized_3` of the set, in internal byte order.
    pub hash_serialized: [u8; 32],
    /// Transactions in the chain up to and including the base block.
    pub chain_tx_count: u64,
}

/// The rules of one chain (Core `consensus/params.h`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    /// Which chain.
    pub network: Network,
    /// The header of the genesis block.
    pub genesis_header: Header,
    /// The hash of the genesis block, `hashGenesisBlock`.
    pub genesis_hash: BlockHash,
    /// The genesis block's only transaction, serialized.
    pub genesis_coinbase: Cow<'static, [u8]>,
    /// The easiest target, `powLimit`.
    pub pow_limit: U256,
    /// Whether blocks more than two spacings late may have the easiest target
    /// (`fPowAllowMinDifficultyBlocks`).
    pub pow_allow_min_difficulty_blocks: bool,
    /// Whether BIP-94 applies: retarget from a period's first block, and no time warp (`enforce_BIP94`).
    pub enforce_bip94: bool,
    /// Whether the difficulty never changes (`fPowNoRetargeting`).
    pub pow_no_retargeting: bool,
    /// Intended duration of a retarget period, `nPowTargetTimespan`.
    pub pow_target_timespan_seconds: NonZeroU32,
    /// Intended time between blocks, `nPowTargetSpacing`.
    pub pow_target_spacing_seconds: NonZeroU32,
    /// Number of blocks between halvings, `nSubsidyHalvingInterval`.
    pub subsidy_halving_interval: NonZeroU32,
    /// First height that requires the height in the coinbase, `BIP34Height`.
    pub bip34_height: Height,
    /// The block at that height on the real chain, `BIP34Hash`; `None` on chains where BIP-34 was
    /// active from the start.
    pub bip34_hash: Option<BlockHash>,
    /// First height with CHECKLOCKTIMEVERIFY, `BIP65Height`.
    pub bip65_height: Height,
    /// First height with strict DER signatures, `BIP66Height`.
    pub bip66_height: Height,
    /// First height with relative lock times (BIP-68, 112, 113), `CSVHeight`.
    pub csv_height: Height,
    /// First height with witness commitments (BIP-141, 143, 147), `SegwitHeight`.
    pub segwit_height: Height,
    /// Minimum work of the real chain, `nMinimumChainWork`.
    pub minimum_chain_work: u128,
    /// Signatures up to this block may be assumed to be valid, `defaultAssumeValid`.
    pub default_assume_valid: Option<BlockHash>,
    /// The time of that block (`chainTxData` is for about the same one), because no correct clock is earlier.
    /// Zero on chains without such a block.
    pub default_assume_valid_time: u32,
    /// The script that a block's solution must satisfy (BIP-325), `signet_challenge`; `None` on
    /// other chains.
    pub signet_challenge: Option<Cow<'static, [u8]>>,
    /// The blocks that overwrite a coinbase (Core `validation.cpp`, `IsBIP30Repeat`).
    pub bip30_repeats: Cow<'static, [KnownBlock]>,
    /// The blocks whose coinbase was later overwritten (Core `validation.cpp`,
    /// `IsBIP30Unspendable`).
    pub bip30_unspendable: Cow<'static, [KnownBlock]>,
    /// Blocks exempt from some script rules, with the flags that still apply
    /// (`script_flag_exceptions`).
    pub script_flag_exceptions: Cow<'static, [(BlockHash, u32)]>,
    /// The snapshots that Core knows, `m_assumeutxo_data`.
    pub assumeutxo: Cow<'static, [AssumeUtxo]>,
}

impl Params {
    /// Returns the rules of `network`.
    pub fn of(network: Network) -> &'static Self {
        match network {
            Network::Main => &networks::MAIN,
            Network::Testnet3 => &networks::TESTNET3,
            Network::Testnet4 => &networks::TESTNET4,
            Network::Signet => &networks::SIGNET,
            Network::Regtest => &networks::REGTEST,
            Network::OwnSignet(_) => Self::known_signet().expect("a custom signet was registered"),
        }
    }

    /// Returns the number of blocks between two retargets (Core `consensus/params.h`,
    /// `DifficultyAdjustmentInterval`). Always at least one.
    pub const fn difficulty_adjustment_interval(&self) -> u32 {
        let blocks = self.pow_target_timespan_seconds.get() / self.pow_target_spacing_seconds.get();
        if blocks == 0 { 1 } else { blocks }
    }

    /// Returns the serialized genesis block.
    pub fn genesis_block(&self) -> Vec<u8> {
        let mut block = self.genesis_header.to_bytes().to_vec();
        block.push(1);
        block.extend_from_slice(&self.genesis_coinbase);
        block
    }

    /// Returns whether this block is one of the two that repeat an unspent coinbase but are valid (Core
    /// `validation.cpp`, `IsBIP30Repeat`).
    pub fn is_bip30_repeat(&self, height: Height, hash: &BlockHash) -> bool {
        self.bip30_repeats.contains(&KnownBlock { height, hash: *hash })
    }

    /// Returns whether a repeat overwrote this block's coinbase, so that it was never spent (Core
    /// `validation.cpp`, `IsBIP30Unspendable`).
    pub fn is_bip30_unspendable(&self, height: Height, hash: &BlockHash) -> bool {
        self.bip30_unspendable.contains(&KnownBlock { height, hash: *hash })
    }

    /// Returns whether the set after the block at `stop` has coins that hints cannot state: those of coinbases that
    /// hints leave out because a later block repeats them (BIP-457). `hash` gives the hashes of the chain's blocks.
    pub fn has_uncounted_coins(
        &self,
        stop: Height,
        hash: impl Fn(Height) -> Option<BlockHash>,
    ) -> bool {
        let has = |it: &KnownBlock| it.height <= stop && hash(it.height) == Some(it.hash);
        self.bip30_unspendable.iter().any(has) && !self.bip30_repeats.iter().all(has)
    }

    /// Returns whether a block must be checked for outputs that already exist (BIP-30; Core
    /// `validation.cpp`, `ConnectBlock`). `at_bip34_height` is the hash at
    /// [`bip34_height`](Self::bip34_height) in the chain *below* this block, `None` if that chain
    /// is shorter.
    pub fn enforces_bip30(
        &self,
        height: Height,
        hash: &BlockHash,
        at_bip34_height: Option<&BlockHash>,
    ) -> bool {
        let on_known_chain =
            at_bip34_height.is_some() && at_bip34_height == self.bip34_hash.as_ref();
        height >= BIP34_IMPLIES_BIP30_LIMIT
            || (!self.is_bip30_repeat(height, hash) && !on_known_chain)
    }

    /// Returns the script rules of a block (Core `validation.cpp`, `GetBlockScriptFlags`), as flags
    /// for a [`ScriptVerifier`](crate::ScriptVerifier).
    pub fn block_script_flags(&self, height: Height, hash: &BlockHash) -> u32 {
        let exempt = self.script_flag_exceptions.iter().find(|(block, _)| block == hash);
        let mut flags = match exempt {
            Some((_, flags)) => *flags,
            None => script::VERIFY_P2SH | script::VERIFY_WITNESS | script::VERIFY_TAPROOT,
        };
        for (from, flag) in [
            (self.bip66_height, script::VERIFY_DERSIG),
            (self.bip65_height, script::VERIFY_CHECKLOCKTIMEVERIFY),
            (self.csv_height, script::VERIFY_CHECKSEQUENCEVERIFY),
            (self.segwit_height, script::VERIFY_NULLDUMMY),
        ] {
            if height >= from {
                flags |= flag;
            }
        }
        flags
    }

    /// Returns the snapshot that Core knows for this base block.
    pub fn assumeutxo_for(&self, block_hash: &BlockHash) -> Option<&AssumeUtxo> {
        self.assumeutxo.iter().find(|known| known.block_hash == *block_hash)
    }
}

/// The custom signet registered in this process.
static OWN_SIGNET: OnceLock<Network> = OnceLock::new();

/// The magic of a custom signet, which follows from its challenge.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SignetMagic([u8; 4]);

impl SignetMagic {
    pub(crate) const fn new(bytes: [u8; 4]) -> Self {
        Self(bytes)
    }

    /// Returns the four bytes.
    pub const fn bytes(self) -> [u8; 4] {
        self.0
    }
}

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
    /// A private chain for tests, mined on demand.
    Regtest,
    /// A custom signet whose challenge is registered
    /// ([`Params::know_signet`](crate::Params::know_signet)).
    OwnSignet(SignetMagic),
}

/// The text is not the name of a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown chain {0:?}: use main, test, testnet4, signet or regtest")]
pub struct UnknownNetwork(pub String);

impl Network {
    /// The built-in networks, the main chain first.
    pub const ALL: [Self; 5] =
        [Self::Main, Self::Testnet3, Self::Testnet4, Self::Signet, Self::Regtest];

    /// Returns the name for Core's `-chain` (Core `util/chaintype.cpp`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Testnet3 => "test",
            Self::Testnet4 => "testnet4",
            Self::Signet | Self::OwnSignet(_) => "signet",
            Self::Regtest => "regtest",
        }
    }

    /// Returns the chain's own folder in a data directory, `None` for the main chain (Core
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

    /// Returns the four bytes before each message and each block on disk (Core
    /// `kernel/chainparams.cpp`).
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

    /// Returns the network with this magic.
    pub fn from_magic(magic: [u8; 4]) -> Option<Self> {
        let own = Self::own_signet().filter(|network| network.magic() == magic);
        own.or_else(|| Self::ALL.into_iter().find(|network| network.magic() == magic))
    }
}

impl Network {
    fn own_signet() -> Option<Self> {
        OWN_SIGNET.get().copied()
    }

    /// Registers this custom signet, so that its magic and its name find it.
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
    /// If a custom signet is registered, `signet` means that one.
    fn from_str(text: &str) -> Result<Self, UnknownNetwork> {
        let mut all = Self::own_signet().into_iter().chain(Self::ALL);
        all.find(|network| network.name() == text).ok_or_else(|| UnknownNetwork(text.to_owned()))
    }
}

/// The maximum height that can be set: Core stores heights in an `int` and reserves the largest
/// value.
const HEIGHT_MAX: Height = i32::MAX as Height - 1;

/// A rule of [`Params`] whose activation height can be changed (Core `consensus/params.h`,
/// `BuriedDeployment`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Deployment {
    /// The height in the coinbase: [`Params::bip34_height`].
    Bip34,
    /// Strict DER signatures: [`Params::bip66_height`].
    Dersig,
    /// CHECKLOCKTIMEVERIFY: [`Params::bip65_height`].
    Cltv,
    /// Relative lock times: [`Params::csv_height`].
    Csv,
    /// Witness commitments: [`Params::segwit_height`].
    Segwit,
}

impl Deployment {
    /// All deployments.
    pub const ALL: [Self; 5] = [Self::Segwit, Self::Bip34, Self::Dersig, Self::Cltv, Self::Csv];

    /// Returns the name that Core uses (Core `deploymentinfo.cpp`, `GetBuriedDeployment`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bip34 => "bip34",
            Self::Dersig => "dersig",
            Self::Cltv => "cltv",
            Self::Csv => "csv",
            Self::Segwit => "segwit",
        }
    }
}

/// Why a deployment's height could not be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ActivationError {
    /// The text has no `@`.
    #[error("{0:?} is not of the form NAME@HEIGHT, such as segwit@100")]
    Form(String),
    /// The name is none of the five.
    #[error("unknown deployment {0:?}: use segwit, bip34, dersig, cltv or csv")]
    Name(String),
    /// The height is too large or not a number.
    #[error("invalid height {0:?}: use a whole number from 0 to {HEIGHT_MAX}")]
    Height(String),
}

/// A deployment and its activation height.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActivationHeight {
    /// The rule.
    pub deployment: Deployment,
    /// The first height at which it is active.
    pub height: Height,
}

impl FromStr for ActivationHeight {
    type Err = ActivationError;

    fn from_str(text: &str) -> Result<Self, ActivationError> {
        let (name, number) =
            text.split_once('@').ok_or_else(|| ActivationError::Form(text.to_owned()))?;
        let wrong = || ActivationError::Height(number.to_owned());
        // Rust would accept a plus sign, but Core does not.
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        let height =
            number.parse().ok().filter(|&height| height <= HEIGHT_MAX).ok_or_else(wrong)?;
        Ok(Self { deployment: name.parse()?, height })
    }
}

impl FromStr for Deployment {
    type Err = ActivationError;

    fn from_str(name: &str) -> Result<Self, ActivationError> {
        let found = Self::ALL.into_iter().find(|deployment| deployment.name() == name);
        found.ok_or_else(|| ActivationError::Name(name.to_owned()))
    }
}

impl Params {
    /// Sets the activation height of a deployment.
    pub fn activate(&mut self, ActivationHeight { deployment, height }: ActivationHeight) {
        *match deployment {
            Deployment::Bip34 => &mut self.bip34_height,
            Deployment::Dersig => &mut self.bip66_height,
            Deployment::Cltv => &mut self.bip65_height,
            Deployment::Csv => &mut self.csv_height,
            Deployment::Segwit => &mut self.segwit_height,
        } = height;
    }
}
