//! [`Params`]: what differs between the chains, as plain data.
//!
//! Every value is Core's (`kernel/chainparams.cpp`, and `validation.cpp` for BIP-30). The rules
//! that read them live elsewhere; only look-ups in this data are here. A copy may be changed, as
//! tests on regtest do with activation heights.

mod networks;
mod own_signet;

pub use own_signet::OtherSignet;

use crate::hashes::BlockHash;
use crate::header::Header;
use crate::height::Height;
use crate::network::Network;
use crate::verify;
use crate::work::U256;
use std::borrow::Cow;
use std::num::NonZeroU32;

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
            None => verify::VERIFY_P2SH | verify::VERIFY_WITNESS | verify::VERIFY_TAPROOT,
        };
        for (from, flag) in [
            (self.bip66_height, verify::VERIFY_DERSIG),
            (self.bip65_height, verify::VERIFY_CHECKLOCKTIMEVERIFY),
            (self.csv_height, verify::VERIFY_CHECKSEQUENCEVERIFY),
            (self.segwit_height, verify::VERIFY_NULLDUMMY),
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

#[cfg(test)]
mod tests;
