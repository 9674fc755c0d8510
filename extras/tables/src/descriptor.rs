//! What a user looks for, as the scripts to find: an address, a script, or an output descriptor with the spelling of
//! Bitcoin Core (`doc/descriptors.md`).
//!
//! Each script has the descriptor that Core infers for it (`script/descriptor.cpp`, `InferDescriptor`), as in the answer
//! of `scantxoutset`.

mod checksum;
#[cfg(feature = "descriptors")]
mod keys;

use crate::address::{AddressError, AddressKinds, script_of_address, write_address};
use crate::find::WantedScript;
use crate::text::write_hex;
use apus_chain::{Network, Reader, ScriptType, keys_of_multisig, read_coin_strict};
use checksum::{split_checksum, with_checksum};
use std::collections::HashMap;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;

/// Why a query names no scripts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The text is neither a script nor an address of the chain.
    #[error(
        "{0}. Give an address, a script in hexadecimal digits, or a descriptor such as wpkh(KEY)"
    )]
    Address(#[from] AddressError),
    /// The script is not hexadecimal.
    #[error("a script needs an even number of hexadecimal digits")]
    Hex,
    /// The checksum of a descriptor is wrong.
    #[error(
        "the descriptor has the checksum {given}, but its text has {computed}: a character is mistyped"
    )]
    Checksum {
        /// The checksum in the text.
        given: String,
        /// The right one.
        computed: String,
    },
    /// This build knows no descriptors with keys.
    #[error("this build lacks the feature descriptors, so it knows only addr() and raw()")]
    Feature,
    /// The descriptor is invalid.
    #[error("{0}")]
    Descriptor(String),
    /// The text holds a private key. It must not be printed.
    #[error(
        "this has a private key, which a look-up does not need: use the public one (xpub), or an address"
    )]
    Private,
    /// There are more scripts than the caller wants.
    #[error("these are {count} scripts, which is too many")]
    TooMany {
        /// Scripts of the text.
        count: u64,
    },
    /// The caller interrupted it.
    #[error("interrupted")]
    Interrupted,
    /// A range is invalid.
    #[error(
        "a range is a last index below 2147483648, or [FIRST-LAST] with at most 1000000 indices between"
    )]
    Range,
}

/// The derived keys of a descriptor with a wildcard: first and last index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRange {
    /// The first index.
    pub first: u32,
    /// The last index.
    pub last: u32,
}

impl KeyRange {
    /// The limit of indices (Core `rpc/util.cpp`, `ParseDescriptorRange`).
    const SPAN_MAX: u32 = 1_000_000;
}

impl Default for KeyRange {
    /// Core's range (`rpc/util.cpp`, `EvalDescriptorStringOrObject`).
    fn default() -> Self {
        Self { first: 0, last: 1000 }
    }
}

impl FromStr for KeyRange {
    type Err = QueryError;

    /// Parses `LAST`, `FIRST-LAST` or `[FIRST,LAST]`.
    fn from_str(text: &str) -> Result<Self, QueryError> {
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        let (first, last) = inner.split_once(['-', ',']).unwrap_or(("0", inner));
        let index = |text: &str| {
            let digits = text.trim().bytes().all(|byte| byte.is_ascii_digit());
            text.trim().parse::<u32>().ok().filter(|index| digits && *index < 1 << 31)
        };
        match (index(first), index(last)) {
            (Some(first), Some(last)) if first <= last && last - first < Self::SPAN_MAX => {
                Ok(Self { first, last })
            }
            _ => Err(QueryError::Range),
        }
    }
}

/// Returns the scripts that a user's text names, at most `limit`. Only descriptors with a wildcard use the range.
///
/// # Errors
/// If the text is invalid, of another chain, or has more scripts. No error quotes a private key.
pub fn scripts_of_query(
    text: &str,
    network: Network,
    range: KeyRange,
    limit: usize,
    interrupt: &AtomicBool,
) -> Result<Vec<WantedScript>, QueryError> {
    let found = match (limit, text.contains('(')) {
        (0, _) => Err(QueryError::TooMany { count: 1 }),
        (_, true) => of_descriptor(text, network, range, limit, interrupt),
        (_, false) => of_word(text, AddressKinds::of(network)).map(|it| vec![it]),
    };
    // The crate `miniscript` quotes what it does not understand.
    found.map_err(|error| if has_private_key(text) { QueryError::Private } else { error })
}

/// Returns whether a wrong text seems to hold a private key: an extended one (BIP-32, SLIP-132), or one in the import
/// format. A mistyped key is also private, so this checks no checksum.
fn has_private_key(text: &str) -> bool {
    let is_extended = |word: &str| {
        let head = word.get(..4).unwrap_or_default().to_ascii_lowercase();
        head.ends_with("prv") && head.starts_with(['x', 't', 'y', 'z', 'u', 'v'])
    };
    // Version 128 or 239, and 32 or 33 bytes (Core `key_io.cpp`, `DecodeSecret`), have 51 or 52 digits. A slip of the
    // hand may add or lose one.
    let is_import =
        |word: &str| (50..=53).contains(&word.len()) && word.starts_with(['5', 'K', 'L', '9', 'c']);
    let mut words = text.split(|character: char| !character.is_ascii_alphanumeric());
    words.any(|word| is_extended(word) || is_import(word))
}

/// Returns an address or a script in digits.
fn of_word(text: &str, kinds: AddressKinds) -> Result<WantedScript, QueryError> {
    let is_hex = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let script = if is_hex { bytes_of_hex(text)? } else { script_of_address(text, kinds)? };
    Ok(alone(script, kinds))
}

/// Returns a script about which nothing else is known.
fn alone(script: Vec<u8>, kinds: AddressKinds) -> WantedScript {
    let descriptor = with_checksum(&infer(&script, kinds, &Known::default()));
    WantedScript { script, descriptor }
}

fn of_descriptor(
    text: &str,
    network: Network,
    range: KeyRange,
    limit: usize,
    interrupt: &AtomicBool,
) -> Result<Vec<WantedScript>, QueryError> {
    let kinds = AddressKinds::of(network);
    let body = split_checksum(text)?;
    let (name, argument) = body.split_once('(').unwrap_or_default();
    let argument = argument.strip_suffix(')');
    match (name, argument) {
        ("addr", Some(address)) => Ok(vec![alone(script_of_address(address, kinds)?, kinds)]),
        ("raw", Some(digits)) => Ok(vec![alone(bytes_of_hex(digits)?, kinds)]),
        #[cfg(feature = "descriptors")]
        _ => keys::scripts(body, network, range, limit, interrupt),
        #[cfg(not(feature = "descriptors"))]
        _ => Err((QueryError::Feature, range, limit, interrupt).0),
    }
}

fn bytes_of_hex(digits: &str) -> Result<Vec<u8>, QueryError> {
    let byte = |pair: &[u8; 2]| {
        let is_hex = pair.iter().all(u8::is_ascii_hexdigit);
        let text = str::from_utf8(pair).ok().filter(|_| is_hex)?;
        u8::from_str_radix(text, 16).ok()
    };
    match digits.as_bytes().as_chunks::<2>() {
        (pairs, []) if !pairs.is_empty() => pairs.iter().map(byte).collect::<Option<_>>(),
        _ => None,
    }
    .ok_or(QueryError::Hex)
}

/// What is known about the keys and scripts behind hashes: a descriptor's own.
#[derive(Debug, Default)]
struct Known {
    /// The text of a public key, with its origin.
    keys: HashMap<Vec<u8>, String>,
    /// The text of the public key with a HASH160.
    key_hashes: HashMap<Vec<u8>, String>,
    /// The script with a HASH160 or SHA-256.
    scripts: HashMap<Vec<u8>, Vec<u8>>,
    /// The text of the descriptor of a Taproot output.
    taproot: HashMap<Vec<u8>, String>,
    /// The text of the descriptor, for scripts of other forms.
    otherwise: Option<String>,
}

/// Returns the descriptor of a script, without checksum.
fn infer(script: &[u8], kinds: AddressKinds, known: &Known) -> String {
    if let Some(text) = infer_inner(script, known).or_else(|| known.otherwise.clone()) {
        return text;
    }
    let mut address = Vec::new();
    if write_address(&mut address, kinds, ScriptType::of(script), script) {
        return format!("addr({})", String::from_utf8_lossy(&address));
    }
    format!("raw({})", hex(script))
}

/// Returns the descriptor of a script that may also be inside another one.
fn infer_inner(script: &[u8], known: &Known) -> Option<String> {
    let key = |key: &[u8]| {
        // No descriptor has hybrid keys.
        let is_valid = matches!(key.first(), Some(2..=4));
        is_valid.then(|| known.keys.get(key).cloned().unwrap_or_else(|| hex(key)))
    };
    match ScriptType::of(script) {
        ScriptType::PubKey => Some(format!("pk({})", key(&script[1..script.len() - 1])?)),
        ScriptType::PubKeyHash => Some(format!("pkh({})", known.key_hashes.get(&script[3..23])?)),
        ScriptType::WitnessV0KeyHash => {
            Some(format!("wpkh({})", known.key_hashes.get(&script[2..])?))
        }
        ScriptType::Multisig => {
            let (required, keys) = keys_of_multisig(script)?;
            let keys: Option<Vec<String>> = keys.into_iter().map(key).collect();
            Some(format!("multi({required},{})", keys?.join(",")))
        }
        ScriptType::ScriptHash => {
            Some(format!("sh({})", infer_inner(known.scripts.get(&script[2..22])?, known)?))
        }
        ScriptType::WitnessV0ScriptHash => {
            Some(format!("wsh({})", infer_inner(known.scripts.get(&script[2..])?, known)?))
        }
        ScriptType::WitnessV1Taproot => known.taproot.get(&script[2..]).cloned().or_else(|| {
            let x = script.last_chunk::<32>()?;
            is_on_curve(x).then(|| format!("rawtr({})", hex(x)))
        }),
        _ => None,
    }
}

/// Returns whether this is the x of a point: whether a stored coin that pays to it can be read.
fn is_on_curve(x: &[u8; 32]) -> bool {
    const UNCOMPRESSED_EVEN: u8 = 4;
    let coin = [&[0, 0, UNCOMPRESSED_EVEN], &x[..]].concat();
    read_coin_strict(&mut Reader::new(&coin)).is_ok()
}

fn hex(bytes: &[u8]) -> String {
    let mut text = Vec::with_capacity(2 * bytes.len());
    write_hex(&mut text, bytes);
    String::from_utf8(text).expect("digits are ASCII")
}

#[cfg(test)]
mod tests;
