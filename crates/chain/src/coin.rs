//! A coin: an unspent output with the height at which it was created, and its stored form.
//!
//! `VARINT(height * 2 + coinbase) VARINT(compressed amount) script`, as in Core's chainstate and in
//! `dumptxoutset` files (Core `coins.h`, `Coin::Serialize`). The writer produces only Core's form, and
//! [`read_coin_strict`] accepts no other. Reading allocates nothing. The coin does not contain its
//! [`OutPoint`](crate::OutPoint): the caller stores that next to the coin.

use crate::amount::{SHORT_FITS, compress_amount, decompress_amount, money_range};
use crate::compress::{
    CoinError, SHORT_SCRIPTS, StoredScript, pass_script, skip_script, write_script,
};
use crate::header::Height;
use crate::read::{Reader, extend_short, varint};
use crate::script::{MAX_SCRIPT_SIZE, OP_RETURN};

/// The maximum height that a coin can have: its code has 32 bits, and the coinbase flag takes
/// one.
pub const COIN_HEIGHT_MAX: Height = u32::MAX >> 1;

/// An unspent output, with a borrowed script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoinRef<'a> {
    /// Height of the block that created it, at most [`COIN_HEIGHT_MAX`].
    pub height: Height,
    /// Whether a coinbase created it.
    pub coinbase: bool,
    /// Its amount in satoshi.
    pub amount: u64,
    /// The script that locks it.
    pub script: &'a [u8],
}

/// A coin without its script: the data that amount and maturity rules need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoinValue {
    /// Height of the block that created it, at most [`COIN_HEIGHT_MAX`].
    pub height: Height,
    /// Whether a coinbase created it.
    pub coinbase: bool,
    /// Its amount in satoshi.
    pub amount: u64,
}

impl CoinRef<'_> {
    /// Returns the same coin without its script.
    pub const fn value(&self) -> CoinValue {
        let Self { height, coinbase, amount, .. } = *self;
        CoinValue { height, coinbase, amount }
    }
}

/// An unspent output that was read; its script may have been rebuilt.
#[derive(Clone, Debug)]
pub struct Coin<'a> {
    /// Height of the block that created it.
    pub height: Height,
    /// Whether a coinbase created it.
    pub coinbase: bool,
    /// Its amount in satoshi.
    pub amount: u64,
    /// The script that locks it.
    pub script: StoredScript<'a>,
}

impl Coin<'_> {
    /// Returns the same coin, borrowed.
    pub fn as_ref(&self) -> CoinRef<'_> {
        CoinRef {
            height: self.height,
            coinbase: self.coinbase,
            amount: self.amount,
            script: &self.script,
        }
    }
}

/// Returns whether no input can ever spend this script, so that the output never becomes a coin
/// (Core `script/script.h`, `CScript::IsUnspendable`).
pub fn is_unspendable(script: &[u8]) -> bool {
    script.first() == Some(&OP_RETURN) || script.len() > MAX_SCRIPT_SIZE
}

/// Returns `height * 2 + coinbase`, the first field of a coin, which the hashes of a set cover too.
pub(crate) fn coin_code(coin: &CoinRef<'_>) -> u32 {
    debug_assert!(coin.height <= COIN_HEIGHT_MAX, "height {} does not fit a coin", coin.height);
    coin.height << 1 | u32::from(coin.coinbase)
}

/// Appends the stored form of the coin.
pub fn write_coin(out: &mut Vec<u8>, coin: CoinRef<'_>) {
    let (code, code_bytes) = varint(u64::from(coin_code(&coin)));
    let (amount, amount_bytes) = varint(compress_amount(coin.amount));
    // The fields take at most 5 and 10 bytes.
    let head = code | amount << (8 * code_bytes);
    extend_short(out, &head.to_le_bytes(), code_bytes + amount_bytes);
    write_script(out, coin.script);
}

/// Reads a coin as Core does, except that an amount beyond 64 bits is an error instead of wrapping.
///
/// Accepts what Core accepts, even if Core never writes it; see [`read_coin_strict`].
pub fn read_coin<'a>(reader: &mut Reader<'a>) -> Result<Coin<'a>, CoinError> {
    read(reader, false)
}

/// Reads a coin only if it is in Core's form and can be in a UTXO set: the amount is at most
/// [`MAX_MONEY`](crate::MAX_MONEY), and the script is compressed if it can be, not too long and not
/// unspendable.
pub fn read_coin_strict<'a>(reader: &mut Reader<'a>) -> Result<Coin<'a>, CoinError> {
    read(reader, true)
}

/// Reads a coin, but ignores its script. The amount has 64 bits and may be out of range.
#[inline]
pub fn read_coin_value(reader: &mut Reader<'_>) -> Result<CoinValue, CoinError> {
    let code = reader.varint_u32()?;
    let offset = reader.position();
    let amount = decompress_amount(reader.varint()?).ok_or(CoinError::Amount { offset })?;
    Ok(CoinValue { height: code >> 1, coinbase: code & 1 == 1, amount })
}

fn read<'a>(reader: &mut Reader<'a>, strict: bool) -> Result<Coin<'a>, CoinError> {
    let code = reader.varint_u32()?;
    read_after_code(reader, code, strict)
}

/// Reads the amount and script of a coin whose height and coinbase flag are known.
pub(crate) fn read_after_code<'a>(
    reader: &mut Reader<'a>,
    code: u32,
    strict: bool,
) -> Result<Coin<'a>, CoinError> {
    let offset = reader.position();
    let amount = decompress_amount(reader.varint()?).ok_or(CoinError::Amount { offset })?;
    if strict && !money_range(amount) {
        return Err(CoinError::Amount { offset });
    }
    let offset = reader.position();
    let script = StoredScript::read(reader, strict)?;
    if strict && is_unspendable(&script) {
        return Err(CoinError::Unspendable { offset });
    }
    Ok(Coin { height: code >> 1, coinbase: code & 1 == 1, amount, script })
}

/// Skips a coin and returns its bytes; fails if [`read_coin`] would fail. It decodes nothing, so it is many
/// times as fast.
#[inline]
pub fn check_coin<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], CoinError> {
    pass_coin(reader, check_unusual)
}

fn check_unusual(reader: &mut Reader<'_>) -> Result<(), CoinError> {
    reader.varint_u32()?;
    let offset = reader.position();
    let short = reader.varint()?;
    if short > SHORT_FITS && decompress_amount(short).is_none() {
        return Err(CoinError::Amount { offset });
    }
    pass_script(reader, usize::MAX)
}

/// Skips a coin and returns its bytes. The fields must be within their bounds (32 bits, 64 bits,
/// [`MAX_SCRIPT_SIZE`]); their values are not checked.
pub fn skip_coin<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], CoinError> {
    pass_coin(reader, |ahead| {
        ahead.varint_u32()?;
        ahead.varint()?;
        skip_script(ahead)
    })
}

/// Returns the bytes of a coin. `unusual` finds the length if the fields are not short.
#[inline]
fn pass_coin<'a>(
    reader: &mut Reader<'a>,
    unusual: impl FnOnce(&mut Reader<'a>) -> Result<(), CoinError>,
) -> Result<&'a [u8], CoinError> {
    if let Some(length) = usual_length(reader.unread()) {
        return Ok(reader.take(length)?);
    }
    let mut ahead = reader.clone();
    unusual(&mut ahead)?;
    Ok(reader.take(ahead.position() - reader.position())?)
}

/// Returns the length of the coin at the start of these bytes if its fields are short enough to be within
/// bounds, which is nearly always. Coins come in an unpredictable order, so it does not branch on the kind of
/// coin.
#[inline]
fn usual_length(bytes: &[u8]) -> Option<usize> {
    // Four groups of seven bits fit 32 bits; five groups are an amount that fits.
    const CODE_BYTES: usize = 4;
    const AMOUNT_BYTES: usize = 5;
    const { assert!(SHORT_FITS >> (7 * AMOUNT_BYTES) > 1) };
    let code = varint_length(bytes)?;
    let amount = varint_length(bytes.get(code..)?)?;
    let script = SHORT_SCRIPTS.get(usize::from(*bytes.get(code + amount)?))?;
    let length = code + amount + usize::from(*script);
    (code <= CODE_BYTES && amount <= AMOUNT_BYTES && length <= bytes.len()).then_some(length)
}

/// Returns the length of the VARINT at the start of these bytes; there must be at least eight
/// bytes.
#[inline]
fn varint_length(bytes: &[u8]) -> Option<usize> {
    let groups = u64::from_le_bytes(*bytes.first_chunk()?);
    let last = !groups & 0x8080_8080_8080_8080;
    Some(last.trailing_zeros() as usize / 8 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amount::MAX_MONEY;
    use crate::read::write_varint;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn stored(coin: CoinRef<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        write_coin(&mut out, coin);
        out
    }

    const PLAIN: CoinRef<'_> =
        CoinRef { height: 203_998, coinbase: false, amount: 60_000_000_000, script: &[0x51] };

    #[test]
    fn a_known_coin_has_its_stored_form() {
        let hash: Vec<u8> = (0..20).collect();
        let script = [&[0x76, 0xa9, 20], &hash[..], &[0x88, 0xac]].concat();
        let bytes = stored(CoinRef { script: &script, ..PLAIN });
        // 407996 = VARINT 97 f2 3c; 600 BTC = 60 * 10^9 -> 600 = VARINT 83 58.
        assert_eq!(bytes, [&[0x97, 0xf2, 0x3c, 0x83, 0x58, 0x00], &hash[..]].concat());
    }

    proptest! {
        #[test]
        fn coins_round_trip(
            height in 0..=COIN_HEIGHT_MAX,
            coinbase: bool,
            amount in 0..=MAX_MONEY,
            script in vec(any::<u8>(), 0..100),
            tail in vec(any::<u8>(), 0..4),
        ) {
            prop_assume!(!is_unspendable(&script));
            let coin = CoinRef { height, coinbase, amount, script: &script };
            let bytes = stored(coin);
            let input = [&bytes[..], &tail].concat();
            for read in [read_coin, read_coin_strict] {
                let mut reader = Reader::new(&input);
                let read = read(&mut reader).unwrap();
                prop_assert_eq!(read.as_ref(), coin);
                prop_assert_eq!(reader.position(), bytes.len());
            }
            prop_assert_eq!(skip_coin(&mut Reader::new(&input)), Ok(&bytes[..]));
        }

        #[test]
        fn a_strictly_read_coin_has_no_other_form(bytes in vec(any::<u8>(), 0..60)) {
            let mut reader = Reader::new(&bytes);
            if let Ok(coin) = read_coin_strict(&mut reader) {
                let length = reader.position();
                prop_assert_eq!(&stored(coin.as_ref())[..], &bytes[..length]);
                let lenient = read_coin(&mut Reader::new(&bytes)).unwrap();
                prop_assert_eq!(lenient.as_ref(), coin.as_ref());
                prop_assert_eq!(skip_coin(&mut Reader::new(&bytes)).unwrap().len(), length);
            }
        }

        /// Makes coins with arbitrary fields, and scripts too long to run.
        #[test]
        fn checking_a_coin_agrees_with_reading_it(
            bytes in vec(any::<u8>(), 0..60),
            code in 0u64..1 << 33,
            amount: u64,
            shifts in (0u32..34, 0u32..64),
            kind in prop_oneof![0u64..10, 20u64..50, 10_000u64..10_010],
            length in prop_oneof![0usize..70, 9_990usize..10_010],
        ) {
            let mut made = Vec::new();
            write_varint(&mut made, code >> shifts.0);
            write_varint(&mut made, amount >> shifts.1);
            write_varint(&mut made, kind);
            made.resize(made.len() + length, 2);
            for bytes in [bytes, made] {
                let (mut read, mut checked) = (Reader::new(&bytes), Reader::new(&bytes));
                let result = read_coin(&mut read).map(|_| ());
                prop_assert_eq!(check_coin(&mut checked).map(drop), result.clone());
                if result.is_ok() {
                    prop_assert_eq!(checked.position(), read.position());
                }
                let skipped = skip_coin(&mut Reader::new(&bytes));
                match (&result, &skipped) {
                    (Ok(()), Ok(coin)) => prop_assert_eq!(coin, &&bytes[..read.position()]),
                    // `read_coin` does not check the script's length; `skip_coin` does not check the other
                    // bounds.
                    (Ok(()), error) => {
                        let too_long = matches!(error, Err(CoinError::ScriptTooLong { .. }));
                        prop_assert!(too_long, "{:?}", error);
                    }
                    (Err(CoinError::Amount { .. }), Ok(_)) => {}
                    (Err(error), Ok(_)) => prop_assert!(false, "{:?}", error),
                    (Err(_), Err(_)) => {}
                }
            }
        }

        #[test]
        fn a_cut_coin_is_an_error(script in vec(any::<u8>(), 0..50), amount in 0..=MAX_MONEY) {
            let bytes = stored(CoinRef { amount, script: &script, ..PLAIN });
            for length in 0..bytes.len() {
                let cut = &bytes[..length];
                prop_assert!(read_coin(&mut Reader::new(cut)).is_err());
                prop_assert!(skip_coin(&mut Reader::new(cut)).is_err());
            }
        }
    }

    #[test]
    fn strict_reading_rejects_coins_that_no_set_contains() {
        let strict = |coin| read_coin_strict(&mut Reader::new(&stored(coin))).map(|_| ());
        assert_eq!(strict(PLAIN), Ok(()));
        assert_eq!(strict(CoinRef { amount: MAX_MONEY, ..PLAIN }), Ok(()));
        let above = CoinRef { amount: MAX_MONEY + 1, ..PLAIN };
        assert_eq!(strict(above), Err(CoinError::Amount { offset: 3 }));
        let returns = CoinRef { script: &[0x6a, 0x51], ..PLAIN };
        assert_eq!(strict(returns), Err(CoinError::Unspendable { offset: 5 }));
        for coin in [above, returns] {
            assert_eq!(read_coin(&mut Reader::new(&stored(coin))).unwrap().as_ref(), coin);
        }
    }

    #[test]
    fn both_readers_reject_an_amount_beyond_64_bits() {
        let mut bytes = vec![0x00];
        write_varint(&mut bytes, u64::MAX - 5);
        bytes.push(0x06);
        for read in [read_coin, read_coin_strict] {
            let error = read(&mut Reader::new(&bytes)).map(|_| ());
            assert_eq!(error, Err(CoinError::Amount { offset: 1 }));
        }
    }

    #[test]
    fn a_code_beyond_32_bits_is_an_error() {
        let mut bytes = Vec::new();
        write_varint(&mut bytes, u64::from(u32::MAX) + 1);
        bytes.extend_from_slice(&[0, 6]);
        assert!(read_coin(&mut Reader::new(&bytes)).is_err());
        assert!(skip_coin(&mut Reader::new(&bytes)).is_err());
    }

    #[test]
    fn the_first_byte_or_the_length_makes_a_script_unspendable() {
        assert!(is_unspendable(&[0x6a]));
        assert!(!is_unspendable(&[]) && !is_unspendable(&[0x51, 0x6a]));
        assert!(!is_unspendable(&[0x51; 10_000]) && is_unspendable(&[0x51; 10_001]));
    }
}
