//! `--assumevalid`: what is checked, and what is assumed. One question, which four options asked before; two of them
//! still work here, and the engine follows from what is asked.

use crate::failure::Failure;
use apus_chain::{BlockHash, Params};
use clap::{Args, ValueEnum};
use std::fmt;
use std::str::FromStr;

#[derive(Args, Clone, Copy, Default)]
pub(crate) struct AssumeArgs {
    /// Run no scripts below this block; 0: run all
    ///
    /// What is checked, and what is assumed? Apus checks every rule, but under Core's conditions takes the scripts of
    /// one block's ancestors for valid: of the block with this HASH, or of the one that Core assumes valid (`default`).
    /// With 0 nothing is assumed, and every script is run. `hints` takes blocks under hints for valid where Bitcoin
    /// Core would check them, too: above the assumed-valid block, within the last two weeks, or on a chain with too
    /// little work. Without it such hints are refused; with it the report says which blocks nothing vouches for.
    /// `hints,HASH` says both. If not given, `apus verify` runs every script, `apus snapshot verify` does not ask
    /// whether blocks are valid, and for all else it is `default`.
    #[arg(long, value_name = "HASH|0")]
    pub(crate) assumevalid: Option<AssumeValidArg>,

    /// Old for --assumevalid: 0, or a block
    #[arg(long, hide = true)]
    validation: Option<OldValidation>,

    /// Old for --assumevalid hints
    #[arg(long, hide = true)]
    assume_hinted_valid: bool,
}

/// Values of the option that was there before `--assumevalid` said all.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OldValidation {
    Assumevalid,
    Full,
}

/// What is taken for valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AssumeValidArg {
    block: AssumedBlock,
    /// All that hints cover, too.
    hinted: bool,
}

/// The block whose ancestors' scripts are not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AssumedBlock {
    /// The one that Core assumes valid, if the chain has one.
    Default,
    None,
    Hash(BlockHash),
}

impl AssumeArgs {
    /// What a command assumes that says it in its own way.
    pub(crate) const fn of(assumevalid: AssumeValidArg) -> Self {
        Self { assumevalid: Some(assumevalid), validation: None, assume_hinted_valid: false }
    }

    /// Takes the old options for what they mean. Gives what to say of their new names. Fails where what is given
    /// does not fit together, or is of hints where a run has none.
    pub(crate) fn settle(&mut self, has_hints: bool) -> Result<Vec<String>, Failure> {
        let mut renamed = Vec::new();
        let AssumeValidArg { mut block, mut hinted } = self.assumevalid.unwrap_or_default();
        let is_hash = matches!(block, AssumedBlock::Hash(_));
        if let Some(old) = self.validation.take() {
            match old {
                OldValidation::Full if is_hash => {
                    return Err(Failure::usage(
                        "--validation full assumes no block to be valid: leave out --assumevalid",
                    ));
                }
                OldValidation::Full => block = AssumedBlock::None,
                OldValidation::Assumevalid => {}
            }
            let name = if old == OldValidation::Full { "full" } else { "assumevalid" };
            let new = AssumeValidArg { block, hinted };
            renamed.push(format!("--validation {name} is now --assumevalid {new}"));
            self.assumevalid = Some(new);
        }
        if std::mem::take(&mut self.assume_hinted_valid) {
            hinted = true;
            renamed.push("--assume-hinted-valid is now --assumevalid hints".to_owned());
            self.assumevalid = Some(AssumeValidArg { block, hinted });
        }
        match (hinted, block) {
            (true, AssumedBlock::None) => Err(Failure::usage(ALL_AND_NONE)),
            (true, _) if !has_hints => Err(Failure::usage(
                "--assumevalid hints is about blocks under --hints, which are not given",
            )),
            _ => Ok(renamed),
        }
    }

    /// The block whose ancestors' scripts are not run.
    pub(crate) fn block(&self, params: &Params) -> Option<BlockHash> {
        match self.assumevalid.unwrap_or_default().block {
            AssumedBlock::Default => params.default_assume_valid,
            AssumedBlock::None => None,
            AssumedBlock::Hash(hash) => Some(hash),
        }
    }

    /// Whether blocks under hints are taken for valid, whatever Core would do.
    pub(crate) fn hinted(&self) -> bool {
        self.assumevalid.unwrap_or_default().hinted
    }

    /// Whether it is said that every script is run.
    pub(crate) fn nothing(&self) -> bool {
        self.assumevalid == Some(AssumeValidArg::NOTHING)
    }
}

const ALL_AND_NONE: &str = "--assumevalid 0 runs every script, and --assumevalid hints none up to where the hints \
                            stop: leave out one of them";

impl AssumeValidArg {
    pub(crate) const NOTHING: Self = Self { block: AssumedBlock::None, hinted: false };
}

impl Default for AssumeValidArg {
    fn default() -> Self {
        Self { block: AssumedBlock::Default, hinted: false }
    }
}

impl FromStr for AssumeValidArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut said = Self::default();
        let mut blocks = 0;
        for word in text.split(',') {
            blocks += u32::from(word != "hints");
            match word {
                "hints" => said.hinted = true,
                "default" => said.block = AssumedBlock::Default,
                "0" => said.block = AssumedBlock::None,
                hash => {
                    let hash = hash.parse().map_err(|_| {
                        "neither a block hash of 64 hexadecimal digits nor 0, default or hints"
                            .to_owned()
                    })?;
                    said.block = AssumedBlock::Hash(hash);
                }
            }
        }
        match (blocks, said) {
            (0 | 1, Self { block: AssumedBlock::None, hinted: true }) => {
                Err(ALL_AND_NONE.to_owned())
            }
            (0 | 1, said) => Ok(said),
            _ => Err("one block is enough: those below it are its ancestors".to_owned()),
        }
    }
}

impl fmt::Display for AssumeValidArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.hinted {
            f.write_str("hints,")?;
        }
        match self.block {
            AssumedBlock::Default => f.write_str("default"),
            AssumedBlock::None => f.write_str("0"),
            AssumedBlock::Hash(hash) => hash.fmt(f),
        }
    }
}
