//! [`ScriptType`]: the type of an output script, as Bitcoin Core names it (Core `script/solver.cpp`).

use super::{
    OP_1, OP_16, OP_CHECKMULTISIG, OP_CHECKSIG, OP_DUP, OP_EQUALVERIFY, OP_HASH160, OP_RETURN,
    Opcode, Opcodes, is_p2sh, last_push,
};

/// The limit of keys in a multisignature script (Core `script/script.h`, `MAX_PUBKEYS_PER_MULTISIG`).
const KEYS_MAX: u8 = 20;

/// The type of an output script (Core `script/solver.h`, `TxoutType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ScriptType {
    /// Pay to a public key.
    PubKey,
    /// Pay to the hash of a public key.
    PubKeyHash,
    /// Pay to the hash of a script (BIP-16).
    ScriptHash,
    /// Several signatures, without a hash around the keys.
    Multisig,
    /// `OP_RETURN` and pushes, which is never a coin.
    NullData,
    /// Witness version 0 with the hash of a key (BIP-141).
    WitnessV0KeyHash,
    /// Witness version 0 with the hash of a script (BIP-141).
    WitnessV0ScriptHash,
    /// Taproot (BIP-341).
    WitnessV1Taproot,
    /// The output that anyone can spend to pay fees.
    Anchor,
    /// A witness program without rules yet.
    WitnessUnknown,
    /// Anything else.
    NonStandard,
}

impl ScriptType {
    /// All types, each at its number.
    pub const ALL: [Self; 11] = [
        Self::PubKey,
        Self::PubKeyHash,
        Self::ScriptHash,
        Self::Multisig,
        Self::NullData,
        Self::WitnessV0KeyHash,
        Self::WitnessV0ScriptHash,
        Self::WitnessV1Taproot,
        Self::Anchor,
        Self::WitnessUnknown,
        Self::NonStandard,
    ];

    /// Returns Core's name (`script/solver.cpp`, `GetTxnOutputType`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::PubKey => "pubkey",
            Self::PubKeyHash => "pubkeyhash",
            Self::ScriptHash => "scripthash",
            Self::Multisig => "multisig",
            Self::WitnessV0KeyHash => "witness_v0_keyhash",
            Self::WitnessV0ScriptHash => "witness_v0_scripthash",
            Self::WitnessV1Taproot => "witness_v1_taproot",
            Self::Anchor => "anchor",
            Self::WitnessUnknown => "witness_unknown",
            Self::NullData => "nulldata",
            Self::NonStandard => "nonstandard",
        }
    }

    /// Returns the type of a script (Core `script/solver.cpp`, `Solver`).
    pub fn of(script: &[u8]) -> Self {
        match script {
            _ if is_p2sh(script) => return Self::ScriptHash,
            [OP_DUP, OP_HASH160, 20, hash @ .., OP_EQUALVERIFY, OP_CHECKSIG]
                if hash.len() == 20 =>
            {
                return Self::PubKeyHash;
            }
            _ => {}
        }
        if let Some((version, program)) = witness_program(script) {
            return match (version, program.len()) {
                (0, 20) => Self::WitnessV0KeyHash,
                (0, 32) => Self::WitnessV0ScriptHash,
                (0, _) => Self::NonStandard,
                (1, 32) => Self::WitnessV1Taproot,
                (1, 2) if program == [0x4e, 0x73] => Self::Anchor,
                _ => Self::WitnessUnknown,
            };
        }
        match script {
            [OP_RETURN, rest @ ..] if last_push(rest).is_some() => Self::NullData,
            [length @ (33 | 65), key @ .., OP_CHECKSIG]
                if key.len() == usize::from(*length) && is_key_length(key) =>
            {
                Self::PubKey
            }
            _ if keys_of_multisig(script).is_some() => Self::Multisig,
            _ => Self::NonStandard,
        }
    }
}

/// Splits a witness program into version and data (Core `script/script.cpp`, `IsWitnessProgram`).
pub fn witness_program(script: &[u8]) -> Option<(u8, &[u8])> {
    let (&[version, length], program) = script.split_first_chunk()?;
    let version = match version {
        0 => 0,
        OP_1..=OP_16 => version - OP_1 + 1,
        _ => return None,
    };
    let fits = (2..=40).contains(&program.len()) && usize::from(length) == program.len();
    fits.then_some((version, program))
}

/// Returns whether a key has the length that its first byte demands (Core `pubkey.h`, `CPubKey::ValidSize`).
fn is_key_length(key: &[u8]) -> bool {
    matches!((key.first(), key.len()), (Some(2 | 3), 33) | (Some(4 | 6 | 7), 65))
}

/// Returns how many signatures a script demands, and of which keys (Core `script/solver.cpp`, `MatchMultisig`);
/// `None` if it is no multisignature script.
pub fn keys_of_multisig(script: &[u8]) -> Option<(u8, Vec<&[u8]>)> {
    if script.last() != Some(&OP_CHECKMULTISIG) {
        return None;
    }
    let mut opcodes = Opcodes::new(script);
    let required = number(&opcodes.next()?.ok()?)?;
    let mut keys = Vec::new();
    let stated = loop {
        let opcode = opcodes.next()?.ok()?;
        if !is_key_length(opcode.data) {
            break number(&opcode)?;
        }
        keys.push(opcode.data);
    };
    let is_whole = opcodes.rest == [OP_CHECKMULTISIG] && usize::from(stated) == keys.len();
    (is_whole && stated >= required).then_some((required, keys))
}

/// Returns a number from 1 to [`KEYS_MAX`] in its shortest form (Core `script/solver.cpp`, `GetScriptNumber`).
fn number(opcode: &Opcode<'_>) -> Option<u8> {
    match (opcode.code, opcode.data) {
        (code @ OP_1..=OP_16, _) => Some(code - OP_1 + 1),
        (1, &[number @ 17..=KEYS_MAX]) => Some(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{OP_EQUAL, OP_PUSHDATA1};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_type_is_at_its_number() {
        for (number, kind) in ScriptType::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
        }
    }

    #[test]
    fn forms_and_near_misses() {
        let key = |first: u8, length: usize| {
            let mut key = vec![7; length];
            key[0] = first;
            key
        };
        let push = |data: &[u8]| [&[data.len() as u8], data].concat();
        let multisig = |head: &[u8], keys: &[Vec<u8>], tail: &[u8]| {
            let keys: Vec<u8> = keys.iter().flat_map(|key| push(key)).collect();
            [head, &keys, tail, &[OP_CHECKMULTISIG]].concat()
        };
        let twenty = vec![key(2, 33); 20];
        for (script, kind) in [
            (vec![], ScriptType::NonStandard),
            ([&[OP_HASH160, 20][..], &[1; 20], &[OP_EQUAL]].concat(), ScriptType::ScriptHash),
            ([&push(&key(2, 33))[..], &[OP_CHECKSIG]].concat(), ScriptType::PubKey),
            ([&push(&key(7, 65))[..], &[OP_CHECKSIG]].concat(), ScriptType::PubKey),
            ([&push(&key(4, 33))[..], &[OP_CHECKSIG]].concat(), ScriptType::NonStandard),
            ([&push(&key(5, 65))[..], &[OP_CHECKSIG]].concat(), ScriptType::NonStandard),
            ([&[0, 20][..], &[1; 20]].concat(), ScriptType::WitnessV0KeyHash),
            ([&[0, 32][..], &[1; 32]].concat(), ScriptType::WitnessV0ScriptHash),
            ([&[0, 21][..], &[1; 21]].concat(), ScriptType::NonStandard),
            ([&[OP_1, 32][..], &[1; 32]].concat(), ScriptType::WitnessV1Taproot),
            (vec![OP_1, 2, 0x4e, 0x73], ScriptType::Anchor),
            (vec![OP_1, 2, 0x4e, 0x74], ScriptType::WitnessUnknown),
            (vec![OP_16, 2, 0x4e, 0x73], ScriptType::WitnessUnknown),
            (vec![OP_16, 1, 0x4e], ScriptType::NonStandard),
            (vec![OP_RETURN, 1, 1], ScriptType::NullData),
            (vec![OP_RETURN, 2, 1], ScriptType::NonStandard),
            (multisig(&[OP_1], &[key(2, 33)], &[OP_1]), ScriptType::Multisig),
            (multisig(&[OP_1 + 1], &[key(2, 33)], &[OP_1]), ScriptType::NonStandard),
            (multisig(&[OP_1], &[key(2, 33)], &[OP_1 + 1]), ScriptType::NonStandard),
            (multisig(&[0], &[key(2, 33)], &[OP_1]), ScriptType::NonStandard),
            (multisig(&[1, 17], &twenty, &[1, 20]), ScriptType::Multisig),
            (multisig(&[OP_1], &twenty, &[OP_PUSHDATA1, 1, 20]), ScriptType::NonStandard),
            (multisig(&[1, 1], &[key(2, 33)], &[OP_1]), ScriptType::NonStandard),
            (multisig(&[OP_1], &[key(4, 65), key(3, 33)], &[OP_1 + 1]), ScriptType::Multisig),
        ] {
            assert_eq!(ScriptType::of(&script), kind, "{script:02x?}");
        }
    }

    proptest! {
        #[test]
        fn agrees_with_another_crate(script in proptest::collection::vec(any::<u8>(), 0..80)) {
            let (kind, other) = (ScriptType::of(&script), bitcoin::Script::from_bytes(&script));
            prop_assert_eq!(kind == ScriptType::PubKeyHash, other.is_p2pkh());
            prop_assert_eq!(kind == ScriptType::ScriptHash, other.is_p2sh());
            prop_assert_eq!(kind == ScriptType::WitnessV0KeyHash, other.is_p2wpkh());
            prop_assert_eq!(kind == ScriptType::WitnessV0ScriptHash, other.is_p2wsh());
            prop_assert_eq!(kind == ScriptType::WitnessV1Taproot, other.is_p2tr());
            prop_assert_eq!(witness_program(&script).is_some(), other.is_witness_program());
        }
    }
}
