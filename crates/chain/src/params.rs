//! [`Params`]: what differs between the chains, as plain data.
//!
//! Every value is Core's (`kernel/chainparams.cpp`, and `validation.cpp` for BIP-30). The rules
//! that read them live elsewhere; only look-ups in this data are here. A copy may be changed, as
//! tests on regtest do with activation heights.

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

/// Above this height BIP-30 is checked again although BIP-34 holds: coinbases from before BIP-34
/// happen to carry heights from here on (Core `validation.cpp`, `BIP34_IMPLIES_BIP30_LIMIT`).
pub const BIP34_IMPLIES_BIP30_LIMIT: Height = 1_983_702;

/// A block known by its height and hash.
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
    /// The genesis block's header.
    pub genesis_header: Header,
    /// Its hash, `hashGenesisBlock`.
    pub genesis_hash: BlockHash,
    /// The genesis block's only transaction, serialized.
    pub genesis_coinbase: Cow<'static, [u8]>,
    /// The easiest target, `powLimit`.
    pub pow_limit: U256,
    /// Blocks more than two spacings late may have the easiest target
    /// (`fPowAllowMinDifficultyBlocks`).
    pub pow_allow_min_difficulty_blocks: bool,
    /// BIP-94: retarget from a period's first block, and no time warp (`enforce_BIP94`).
    pub enforce_bip94: bool,
    /// The difficulty never changes (`fPowNoRetargeting`).
    pub pow_no_retargeting: bool,
    /// How long a retarget period should take, `nPowTargetTimespan`.
    pub pow_target_timespan_seconds: NonZeroU32,
    /// How long a block should take, `nPowTargetSpacing`.
    pub pow_target_spacing_seconds: NonZeroU32,
    /// Blocks between halvings, `nSubsidyHalvingInterval`.
    pub subsidy_halving_interval: NonZeroU32,
    /// First height with the height in the coinbase, `BIP34Height`.
    pub bip34_height: Height,
    /// The block of that height on the real chain, `BIP34Hash`; none on chains where it was
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
    /// The real chain has at least this much work, `nMinimumChainWork`.
    pub minimum_chain_work: u128,
    /// Signatures up to here may be assumed valid, `defaultAssumeValid`.
    pub default_assume_valid: Option<BlockHash>,
    /// The time of that block (`chainTxData` is about the same one): no right clock is behind it. Zero where there is none.
    pub default_assume_valid_time: u32,
    /// What a block's solution must satisfy (BIP-325), `signet_challenge`; none elsewhere.
    pub signet_challenge: Option<Cow<'static, [u8]>>,
    /// The blocks that overwrite a coinbase (Core `validation.cpp`, `IsBIP30Repeat`).
    pub bip30_repeats: Cow<'static, [KnownBlock]>,
    /// The blocks whose coinbase was overwritten later (Core `validation.cpp`,
    /// `IsBIP30Unspendable`).
    pub bip30_unspendable: Cow<'static, [KnownBlock]>,
    /// Blocks exempt from script rules, and the flags that do hold (`script_flag_exceptions`).
    pub script_flag_exceptions: Cow<'static, [(BlockHash, u32)]>,
    /// The snapshots that Core knows, `m_assumeutxo_data`.
    pub assumeutxo: Cow<'static, [AssumeUtxo]>,
}

impl Params {
    /// The rules of `network`.
    pub fn of(network: Network) -> &'static Self {
        match network {
            Network::Main => &networks::MAIN,
            Network::Testnet3 => &networks::TESTNET3,
            Network::Testnet4 => &networks::TESTNET4,
            Network::Signet => &networks::SIGNET,
            Network::Regtest => &networks::REGTEST,
            Network::OwnSignet(_) => Self::known_signet().expect("its magic is had by knowing it"),
        }
    }

    /// Blocks between two retargets (Core `consensus/params.h`, `DifficultyAdjustmentInterval`).
    /// At least one, whatever the two numbers are.
    pub const fn difficulty_adjustment_interval(&self) -> u32 {
        let blocks = self.pow_target_timespan_seconds.get() / self.pow_target_spacing_seconds.get();
        if blocks == 0 { 1 } else { blocks }
    }

    /// The genesis block, serialized.
    pub fn genesis_block(&self) -> Vec<u8> {
        let mut block = self.genesis_header.to_bytes().to_vec();
        block.push(1);
        block.extend_from_slice(&self.genesis_coinbase);
        block
    }

    /// Whether this block is one of the two that repeat an unspent coinbase and are valid all the
    /// same (Core `validation.cpp`, `IsBIP30Repeat`).
    pub fn is_bip30_repeat(&self, height: Height, hash: &BlockHash) -> bool {
        self.bip30_repeats.contains(&KnownBlock { height, hash: *hash })
    }

    /// Whether this block's coinbase was overwritten by a repeat and so never spent
    /// (Core `validation.cpp`, `IsBIP30Unspendable`).
    pub fn is_bip30_unspendable(&self, height: Height, hash: &BlockHash) -> bool {
        self.bip30_unspendable.contains(&KnownBlock { height, hash: *hash })
    }

    /// Whether a block has to be checked for outputs that exist already (BIP-30; Core
    /// `validation.cpp`, `ConnectBlock`). `at_bip34_height` is the hash at
    /// [`bip34_height`](Self::bip34_height) in the chain *below* this block, none while the chain
    /// below does not reach so high.
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

    /// The script rules of a block (Core `validation.cpp`, `GetBlockScriptFlags`), as the flags
    /// that a [`ScriptVerifier`](crate::ScriptVerifier) takes.
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

    /// The snapshot that Core knows for this base block.
    pub fn assumeutxo_for(&self, block_hash: &BlockHash) -> Option<&AssumeUtxo> {
        self.assumeutxo.iter().find(|known| known.block_hash == *block_hash)
    }
}

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

/// The greatest height that can be asked for: Core keeps heights in an `int` and keeps its greatest
/// value back.
const HEIGHT_MAX: Height = i32::MAX as Height - 1;

/// A rule of [`Params`] whose first height can be moved (Core `consensus/params.h`,
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
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Segwit, Self::Bip34, Self::Dersig, Self::Cltv, Self::Csv];

    /// The name that Core takes (Core `deploymentinfo.cpp`, `GetBuriedDeployment`).
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
    /// No `@` between the two.
    #[error("{0:?} is not of the form NAME@HEIGHT, such as segwit@100")]
    Form(String),
    /// A name that is none of the five.
    #[error(
        "there is no deployment {0:?}; those with a height are segwit, bip34, dersig, cltv, csv"
    )]
    Name(String),
    /// A height that is no number, or too great a one.
    #[error("{0:?} is no height: a whole number from 0 to {HEIGHT_MAX}")]
    Height(String),
}

/// A deployment and the first height at which it is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActivationHeight {
    /// Which rule.
    pub deployment: Deployment,
    /// From which height.
    pub height: Height,
}

impl FromStr for ActivationHeight {
    type Err = ActivationError;

    fn from_str(text: &str) -> Result<Self, ActivationError> {
        let (name, number) =
            text.split_once('@').ok_or_else(|| ActivationError::Form(text.to_owned()))?;
        let wrong = || ActivationError::Height(number.to_owned());
        // Rust would take a plus sign, Core does not.
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
    /// Moves the first height of a deployment.
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
