//! [`CompactLeaf`]: the data of a coin that is sent along with the block that spends it (BIP-183, draft).
//!
//! A reader that has the block knows the coin's outpoint, and for four common script forms the spending input
//! reveals the preimage of the script's hash. So the encoding has 4 bytes of height and coinbase flag; 8
//! bytes, the amount in satoshi; one byte, the form of the script; and, for form 0, the script after its
//! length as a CompactSize. Numbers are little-endian.
//!
//! Nothing here is proved: false data yields another coin, whose [`leaf_hash`](crate::leaf_hash) is in no
//! forest. A script may be sent in full although it could be left out; writing produces exactly one encoding.

mod script;

pub use script::{LeafScript, Spender};

use apus_chain::{
    COIN_HEIGHT_MAX, CoinRef, Height, MAX_MONEY, MAX_SCRIPT_SIZE, ReadError, Reader,
    write_compact_size,
};
use script::Form;

/// Why bytes are not leaf data, or a coin cannot have any.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeafDataError {
    /// A field could not be read.
    #[error("invalid leaf data: {0}")]
    Read(#[from] ReadError),
    /// A height above that of any coin.
    #[error("height {height} is too high for a coin: at most {COIN_HEIGHT_MAX}")]
    Height {
        /// The height.
        height: Height,
    },
    /// An amount out of range.
    #[error("an amount of {amount} satoshi is out of range: 0 to {MAX_MONEY}")]
    Amount {
        /// The amount.
        amount: i128,
    },
    /// A script too long for a leaf.
    #[error("a script of {length} bytes is too long for a leaf: at most {MAX_SCRIPT_SIZE}")]
    ScriptTooLong {
        /// Its length.
        length: u64,
    },
    /// A byte that is not a form of script.
    #[error("{form:#04x} at byte {offset} is not a form of script: 0 to 4")]
    Form {
        /// Offset of the byte.
        offset: usize,
        /// The byte.
        form: u8,
    },
    /// The input does not reveal the key or script that a script of that form commits to.
    #[error("the leaf data leave out a script of form {form}, but the input does not reveal it")]
    Spender {
        /// The form.
        form: u8,
    },
}

/// A coin, from its leaf data and the input that spends it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompactLeaf<'a> {
    /// Height of the block that created it.
    pub height: Height,
    /// Whether a coinbase transaction created it.
    pub coinbase: bool,
    /// Amount in satoshi.
    pub amount: u64,
    /// The locking script.
    pub script: LeafScript<'a>,
}

impl<'a> CompactLeaf<'a> {
    /// Reads the leaf data that begin here, for the coin that this input spends.
    pub fn read(reader: &mut Reader<'a>, spender: &Spender<'_>) -> Result<Self, LeafDataError> {
        let code = reader.u32()?;
        let amount = i64::from_le_bytes(*reader.array()?);
        let money = u64::try_from(amount).ok().filter(|amount| *amount <= MAX_MONEY);
        let money = money.ok_or(LeafDataError::Amount { amount: amount.into() })?;
        let script = read_script(reader, spender)?;
        Ok(Self { height: code >> 1, coinbase: code & 1 == 1, amount: money, script })
    }

    /// Borrows the coin.
    pub fn coin(&self) -> CoinRef<'_> {
        CoinRef {
            height: self.height,
            coinbase: self.coinbase,
            amount: self.amount,
            script: &self.script,
        }
    }
}

fn read_script<'a>(
    reader: &mut Reader<'a>,
    spender: &Spender<'_>,
) -> Result<LeafScript<'a>, LeafDataError> {
    let offset = reader.position();
    let form = reader.u8()?;
    if form != 0 {
        let of_form = Form::of_byte(form).ok_or(LeafDataError::Form { offset, form })?;
        return spender.rebuild(of_form).ok_or(LeafDataError::Spender { form });
    }
    let length = reader.compact_u64()?;
    if length > MAX_SCRIPT_SIZE as u64 {
        return Err(LeafDataError::ScriptTooLong { length });
    }
    Ok(LeafScript::whole(reader.take(length as usize)?))
}

/// Appends the leaf data of a coin for a reader that has the spending input. Leaves the script out if
/// rebuilding it from the input gives exactly that script.
pub fn write_compact_leaf(
    out: &mut Vec<u8>,
    coin: CoinRef<'_>,
    spender: &Spender<'_>,
) -> Result<(), LeafDataError> {
    let (height, script) = (coin.height, coin.script);
    if coin.amount > MAX_MONEY {
        return Err(LeafDataError::Amount { amount: coin.amount.into() });
    }
    if height > COIN_HEIGHT_MAX {
        return Err(LeafDataError::Height { height });
    }
    if script.len() > MAX_SCRIPT_SIZE {
        return Err(LeafDataError::ScriptTooLong { length: script.len() as u64 });
    }
    out.extend_from_slice(&(height << 1 | u32::from(coin.coinbase)).to_le_bytes());
    out.extend_from_slice(&coin.amount.to_le_bytes());
    let is_shown = |form: &Form| spender.rebuild(*form).is_some_and(|rebuilt| *rebuilt == *script);
    match Form::of_script(script).filter(is_shown) {
        Some(form) => out.push(form.byte()),
        None => {
            out.push(0);
            write_compact_size(out, script.len() as u64);
            out.extend_from_slice(script);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
