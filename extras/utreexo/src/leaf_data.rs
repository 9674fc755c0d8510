//! [`CompactLeaf`]: what is sent of a coin beside the block that spends it (BIP-183, draft).
//!
//! A reader that has the block knows the coin's name, and in four usual forms of script the input that spends it shows
//! what the script has a hash of. So there go 4 bytes, height and coinbase mark; 8 bytes, the amount in satoshi;
//! one byte, the form of the script; and the script after its length as a CompactSize where the form is 0. Numbers
//! are little-endian.
//!
//! Nothing here is proved: a reader that is lied to gets another coin, whose [`leaf_hash`](crate::leaf_hash) is
//! in no forest. A script may come whole although it could be left out; written it is in one form.

mod script;

pub use script::{LeafScript, Spender};

use apus_chain::{
    COIN_HEIGHT_MAX, CoinRef, Height, MAX_MONEY, MAX_SCRIPT_SIZE, ReadError, Reader,
    write_compact_size,
};
use script::Form;

/// Why bytes are no leaf data, or a coin has none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeafDataError {
    /// A field could not be read.
    #[error("the bytes are no leaf data: {0}")]
    Read(#[from] ReadError),
    /// A height that no coin has.
    #[error("the height {height} is above that of any coin: at most {COIN_HEIGHT_MAX}")]
    Height {
        /// The height.
        height: Height,
    },
    /// An amount that no coin has.
    #[error("an amount of {amount} satoshi is no coin's: from 0 to {MAX_MONEY}")]
    Amount {
        /// The amount.
        amount: i128,
    },
    /// A script that makes no leaf.
    #[error("a script of {length} bytes has no leaf: at most {MAX_SCRIPT_SIZE}")]
    ScriptTooLong {
        /// Its length.
        length: u64,
    },
    /// A byte that stands for no form of script.
    #[error("the byte {form:#04x} at byte {offset} is no form of script: 0 to 4")]
    Form {
        /// Where it stands.
        offset: usize,
        /// The byte.
        form: u8,
    },
    /// The input does not show what a script of that form is made of.
    #[error("the input does not show the script of the form {form} that leaf data leave out")]
    Spender {
        /// The form.
        form: u8,
    },
}

/// A coin as leaf data and the input that spends it tell of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompactLeaf<'a> {
    /// Height of the block that made it.
    pub height: Height,
    /// Whether the transaction that made it is a coinbase.
    pub coinbase: bool,
    /// Its worth in satoshi.
    pub amount: u64,
    /// The script that guards it.
    pub script: LeafScript<'a>,
}

impl<'a> CompactLeaf<'a> {
    /// Reads the leaf data that begin here, of the coin that this input spends.
    pub fn read(reader: &mut Reader<'a>, spender: &Spender<'_>) -> Result<Self, LeafDataError> {
        let code = reader.u32()?;
        let amount = i64::from_le_bytes(*reader.array()?);
        let money = u64::try_from(amount).ok().filter(|amount| *amount <= MAX_MONEY);
        let money = money.ok_or(LeafDataError::Amount { amount: amount.into() })?;
        let script = read_script(reader, spender)?;
        Ok(Self { height: code >> 1, coinbase: code & 1 == 1, amount: money, script })
    }

    /// The coin, borrowed.
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

/// Appends the leaf data of a coin for a reader that has the input that spends it. The script is left out if rebuilding
/// gives just that script.
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
