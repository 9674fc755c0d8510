//! Addresses of output scripts, as Bitcoin Core writes and reads them (`key_io.cpp`).

use crate::{base58, bech32};
use apus_chain::{
    Network, OP_CHECKSIG, OP_DUP, OP_EQUAL, OP_EQUALVERIFY, OP_HASH160, ScriptType, witness_program,
};

/// How a chain's addresses begin (Core `kernel/chainparams.cpp`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressKinds {
    pub_key_hash: u8,
    script_hash: u8,
    prefix: &'static str,
}

const MAIN: AddressKinds = AddressKinds { pub_key_hash: 0, script_hash: 5, prefix: "bc" };
const TEST: AddressKinds = AddressKinds { pub_key_hash: 111, script_hash: 196, prefix: "tb" };
const REGTEST: AddressKinds = AddressKinds { pub_key_hash: 111, script_hash: 196, prefix: "bcrt" };

impl AddressKinds {
    /// Returns those of a chain. The test chains and signets share theirs.
    pub const fn of(network: Network) -> Self {
        match network {
            Network::Main => MAIN,
            Network::Testnet3 | Network::Testnet4 | Network::Signet | Network::OwnSignet(_) => TEST,
            Network::Regtest => REGTEST,
        }
    }
}

/// Why a text is not an address of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text has no form of an address.
    #[error("this is not an address")]
    Malformed,
    /// A digit is wrong.
    #[error("the address has a wrong checksum: a character is mistyped")]
    Checksum,
    /// Upper-case and lower-case letters are mixed.
    #[error("the address mixes upper and lower case")]
    MixedCase,
    /// The address belongs to another chain.
    #[error("the address is not of this chain, but of {0}")]
    OtherChain(&'static str),
}

/// Appends the address of a script of this kind, and returns whether it has one.
///
/// Scripts that pay to a key directly have none, although a wallet may show the address of its hash.
pub fn write_address(
    out: &mut Vec<u8>,
    kinds: AddressKinds,
    kind: ScriptType,
    script: &[u8],
) -> bool {
    match kind {
        ScriptType::PubKeyHash | ScriptType::ScriptHash => {
            let (version, start) = match kind {
                ScriptType::PubKeyHash => (kinds.pub_key_hash, 3),
                _ => (kinds.script_hash, 2),
            };
            let Some(hash) = script.get(start..).and_then(<[u8]>::first_chunk) else {
                return false;
            };
            base58::write(out, version, hash);
            true
        }
        ScriptType::WitnessV0KeyHash
        | ScriptType::WitnessV0ScriptHash
        | ScriptType::WitnessV1Taproot
        | ScriptType::Anchor
        | ScriptType::WitnessUnknown => {
            let Some((version, program)) = witness_program(script) else { return false };
            bech32::write(out, kinds.prefix, version, program);
            true
        }
        ScriptType::PubKey
        | ScriptType::Multisig
        | ScriptType::NullData
        | ScriptType::NonStandard => false,
    }
}

/// Returns the script of an address.
///
/// # Errors
/// If the text is no address, or one of another chain.
pub fn script_of_address(text: &str, kinds: AddressKinds) -> Result<Vec<u8>, AddressError> {
    let prefix = text.rsplit_once('1').map(|(prefix, _)| prefix.to_ascii_lowercase());
    let other = [(MAIN, "main"), (TEST, "test, testnet4 or signet"), (REGTEST, "regtest")];
    if let Some((found, name)) =
        other.into_iter().find(|(it, _)| Some(it.prefix) == prefix.as_deref())
    {
        let (version, program) = bech32::read(text, found.prefix)?;
        if found.prefix != kinds.prefix {
            return Err(AddressError::OtherChain(name));
        }
        let version = if version == 0 { 0 } else { 0x50 + version };
        return Ok([&[version, program.len() as u8], &program[..]].concat());
    }
    let (version, hash) = base58::read(text)?;
    if version == kinds.pub_key_hash {
        return Ok([&[OP_DUP, OP_HASH160, 20], &hash[..], &[OP_EQUALVERIFY, OP_CHECKSIG]].concat());
    }
    if version == kinds.script_hash {
        return Ok([&[OP_HASH160, 20], &hash[..], &[OP_EQUAL]].concat());
    }
    Err(match version {
        0 | 5 => AddressError::OtherChain("main"),
        111 | 196 => AddressError::OtherChain("a test chain"),
        _ => AddressError::Malformed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bitcoin::{Address, ScriptBuf};
    use proptest::prelude::*;
    use std::str::FromStr;

    const CHAINS: [(Network, bitcoin::Network); 5] = [
        (Network::Main, bitcoin::Network::Bitcoin),
        (Network::Testnet3, bitcoin::Network::Testnet),
        (Network::Testnet4, bitcoin::Network::Testnet4),
        (Network::Signet, bitcoin::Network::Signet),
        (Network::Regtest, bitcoin::Network::Regtest),
    ];

    fn address(script: &[u8], kinds: AddressKinds) -> Option<String> {
        let mut out = b"x".to_vec();
        let has = write_address(&mut out, kinds, ScriptType::of(script), script);
        assert!(has || out.len() == 1);
        has.then(|| String::from_utf8(out.split_off(1)).unwrap())
    }

    /// Scripts with an address, and others.
    fn any_script() -> impl Strategy<Value = Vec<u8>> {
        let hash = prop_oneof![
            any::<[u8; 20]>(),
            any::<u8>().prop_map(|byte| {
                // Leading zeros have digits of their own.
                let mut hash = [0; 20];
                hash[19] = byte;
                hash
            })
        ];
        let program = proptest::collection::vec(any::<u8>(), 1..43);
        prop_oneof![
            hash.clone().prop_map(|h| [&[0x76, 0xa9, 20], &h[..], &[0x88, 0xac]].concat()),
            hash.prop_map(|h| [&[0xa9, 20], &h[..], &[0x87]].concat()),
            any::<[u8; 20]>().prop_map(|h| [&[0, 20], &h[..]].concat()),
            any::<[u8; 32]>().prop_map(|h| [&[0, 32], &h[..]].concat()),
            any::<[u8; 32]>().prop_map(|h| [&[0x51, 32], &h[..]].concat()),
            (0x50_u8..0x62, program).prop_map(|(v, p)| [&[v, p.len() as u8], &p[..]].concat()),
            Just(vec![0x51, 2, 0x4e, 0x73]),
        ]
    }

    proptest! {
        #[test]
        fn addresses_agree_with_another_crate_and_lead_back(script in any_script(), at in 0..5_usize) {
            let (network, other) = CHAINS[at];
            let kinds = AddressKinds::of(network);
            let found = address(&script, kinds);
            let oracle = Address::from_script(&ScriptBuf::from_bytes(script.clone()), other);
            prop_assert_eq!(&found, &oracle.ok().map(|it| it.to_string()));
            if let Some(found) = found {
                prop_assert_eq!(script_of_address(&found, kinds), Ok(script.clone()));
                if found.starts_with(kinds.prefix) {
                    let loud = script_of_address(&found.to_ascii_uppercase(), kinds);
                    prop_assert_eq!(loud, Ok(script));
                }
            }
        }

        #[test]
        fn a_changed_address_is_refused_as_by_another_crate(
            script in any_script(), at in 0..5_usize, place in any::<proptest::sample::Index>(), new in 0x20_u8..0x7f
        ) {
            let (network, other) = CHAINS[at];
            let kinds = AddressKinds::of(network);
            let Some(text) = address(&script, kinds) else { return Ok(()) };
            let mut changed = text.into_bytes();
            let place = place.index(changed.len());
            changed[place] = new;
            let changed = String::from_utf8(changed).unwrap();
            let oracle = Address::from_str(&changed).ok().and_then(|it| it.require_network(other).ok());
            let oracle = oracle.map(|it| it.script_pubkey().into_bytes());
            prop_assert_eq!(script_of_address(&changed, kinds).ok(), oracle);
        }

        #[test]
        fn any_text_is_safe(text in ".{0,100}") {
            let _ = script_of_address(&text, MAIN);
        }
    }

    #[test]
    fn errors_name_the_fault() {
        let main = "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4";
        assert!(script_of_address(main, MAIN).is_ok());
        let wrong = main.replace("w508", "w509");
        for (text, kinds, error) in [
            (main, REGTEST, AddressError::OtherChain("main")),
            (main, TEST, AddressError::OtherChain("main")),
            (&wrong, MAIN, AddressError::Checksum),
            (&main.replace("bc1", "BC1"), MAIN, AddressError::MixedCase),
            ("1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", TEST, AddressError::OtherChain("main")),
            ("1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNb", MAIN, AddressError::Checksum),
            ("mipcBbFg9gMiCh81Kj8tqqdgoZub1ZJRfn", MAIN, AddressError::OtherChain("a test chain")),
            ("11A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", MAIN, AddressError::Malformed),
            ("", MAIN, AddressError::Malformed),
        ] {
            assert_eq!(script_of_address(text, kinds), Err(error), "{text}");
        }
    }
}
