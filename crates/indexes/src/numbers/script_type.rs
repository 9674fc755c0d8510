//! [`ScriptType`]: the kind of a script that locks an output, by Core's names.

/// The kind of a script (Core `script/solver.cpp`, `Solver`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScriptType {
    /// A public key, and a signature of it.
    PubKey,
    /// The hash of a public key.
    PubKeyHash,
    /// The hash of a script (BIP-16).
    ScriptHash,
    /// Some of up to 16 public keys.
    Multisig,
    /// Data, which no input can spend.
    NullData,
    /// The hash of a public key in a witness (BIP-141).
    WitnessKeyHash,
    /// The hash of a script in a witness (BIP-141).
    WitnessScriptHash,
    /// A key of Taproot (BIP-341).
    Taproot,
    /// Anyone can spend it: pay to anchor.
    Anchor,
    /// A version of witnesses that has no meaning yet.
    WitnessUnknown,
    /// Anything else.
    NonStandard,
}

const OP_1: u8 = 0x51;
const OP_16: u8 = 0x60;
const OP_CHECKSIG: u8 = 0xac;
const OP_CHECKMULTISIG: u8 = 0xae;

impl ScriptType {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::PubKey,
        Self::PubKeyHash,
        Self::ScriptHash,
        Self::Multisig,
        Self::NullData,
        Self::WitnessKeyHash,
        Self::WitnessScriptHash,
        Self::Taproot,
        Self::Anchor,
        Self::WitnessUnknown,
        Self::NonStandard,
    ];

    /// Returns Core's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PubKey => "pubkey",
            Self::PubKeyHash => "pubkeyhash",
            Self::ScriptHash => "scripthash",
            Self::Multisig => "multisig",
            Self::NullData => "nulldata",
            Self::WitnessKeyHash => "witness_v0_keyhash",
            Self::WitnessScriptHash => "witness_v0_scripthash",
            Self::Taproot => "witness_v1_taproot",
            Self::Anchor => "anchor",
            Self::WitnessUnknown => "witness_unknown",
            Self::NonStandard => "nonstandard",
        }
    }

    /// Returns the kind of a script.
    pub fn of(script: &[u8]) -> Self {
        match script {
            [0x76, 0xa9, 20, hash @ .., 0x88, OP_CHECKSIG] if hash.len() == 20 => Self::PubKeyHash,
            [0xa9, 20, hash @ .., 0x87] if hash.len() == 20 => Self::ScriptHash,
            [0, 20, hash @ ..] if hash.len() == 20 => Self::WitnessKeyHash,
            [0, 32, hash @ ..] if hash.len() == 32 => Self::WitnessScriptHash,
            [OP_1, 32, key @ ..] if key.len() == 32 => Self::Taproot,
            [OP_1, 2, 0x4e, 0x73] => Self::Anchor,
            // A program of version 0 has one of the two lengths above.
            [OP_1..=OP_16, length @ 2..=40, rest @ ..] if rest.len() == usize::from(*length) => {
                Self::WitnessUnknown
            }
            [0, length @ 2..=40, rest @ ..] if rest.len() == usize::from(*length) => {
                Self::NonStandard
            }
            [0x6a, rest @ ..] if has_only_pushes(rest) => Self::NullData,
            [length @ (33 | 65), key @ .., OP_CHECKSIG]
                if key.len() == usize::from(*length) && is_key(key) =>
            {
                Self::PubKey
            }
            _ if is_multisig(script) => Self::Multisig,
            _ => Self::NonStandard,
        }
    }
}

/// Whether the bytes have the length that the first one demands of a public key (Core `pubkey.h`, `ValidSize`).
fn is_key(key: &[u8]) -> bool {
    match key.first() {
        Some(2 | 3) => key.len() == 33,
        Some(4 | 6 | 7) => key.len() == 65,
        _ => false,
    }
}

/// Takes the push at the start of a script: its opcode and data. `None` if it is cut off, or no push.
fn push<'s>(script: &mut &'s [u8]) -> Option<(u8, &'s [u8])> {
    let (&opcode, rest) = script.split_first()?;
    let size = match opcode {
        0..=75 => 0,
        0x4c => 1,
        0x4d => 2,
        0x4e => 4,
        // OP_1NEGATE, OP_RESERVED, OP_1 to OP_16 have no data (Core `script.cpp`, `IsPushOnly`).
        0x4f..=OP_16 => {
            *script = rest;
            return Some((opcode, &[]));
        }
        _ => return None,
    };
    let (length, rest) = rest.split_at_checked(size)?;
    let length = match size {
        0 => usize::from(opcode),
        _ => length.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
    };
    let (data, rest) = rest.split_at_checked(length)?;
    *script = rest;
    Some((opcode, data))
}

fn has_only_pushes(mut script: &[u8]) -> bool {
    while !script.is_empty() {
        if push(&mut script).is_none() {
            return false;
        }
    }
    true
}

/// Whether it is `m KEY... n OP_CHECKMULTISIG` (Core `script/solver.cpp`, `MatchMultisig`).
fn is_multisig(script: &[u8]) -> bool {
    let Some((&OP_CHECKMULTISIG, mut rest)) = script.split_last() else { return false };
    let Some(required) = number(&mut rest) else { return false };
    let mut keys = 0;
    loop {
        let mut ahead = rest;
        match push(&mut ahead) {
            Some((_, key)) if is_key(key) => (keys, rest) = (keys + 1, ahead),
            _ => break,
        }
    }
    number(&mut rest) == Some(keys) && rest.is_empty() && required <= keys
}

/// Takes a number of keys, 1 to 20: an opcode, or the shortest push of a byte (Core `script/solver.cpp`,
/// `GetScriptNumber`).
fn number(script: &mut &[u8]) -> Option<usize> {
    let number = match push(script)? {
        (opcode @ OP_1..=OP_16, _) => usize::from(opcode - OP_1) + 1,
        (1, [byte @ 17..=20]) => usize::from(*byte),
        _ => return None,
    };
    Some(number)
}
