//! What `snapshot find` takes: addresses, scripts in digits, and output descriptors. An accepted address has the script
//! that the crate `bitcoin` finds; a script found by digits is these digits; the descriptor of a result has the same
//! script, if it is accepted; there are never more scripts than the limit, and no error shows a private key.
//!
//! Input: the chain, and whether the checksum is corrected; the last index; then the text.
//!
//! Inputs: at most 600 bytes.

#![no_main]

use apus_chain::Network;
use apus_fuzz::Input;
use apus_tables::{KeyRange, QueryError, WantedScript, scripts_of_query};
use bitcoin::address::{Address, NetworkUnchecked};
use libfuzzer_sys::fuzz_target;
use std::sync::atomic::AtomicBool;

/// Deriving a key takes long.
const LIMIT: usize = 40;

const NETWORKS: [(Network, bitcoin::Network); 3] = [
    (Network::Main, bitcoin::Network::Bitcoin),
    (Network::Signet, bitcoin::Network::Signet),
    (Network::Regtest, bitcoin::Network::Regtest),
];

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let (choice, last) = (input.u8(), input.u8());
    let (network, theirs) = NETWORKS[usize::from(choice & 0x3f) % NETWORKS.len()];
    let Ok(text) = str::from_utf8(input.rest()) else { return };
    let range = KeyRange { first: 0, last: last.into() };
    let find = |text: &str| scripts_of_query(text, network, range, LIMIT, &AtomicBool::new(false));
    let mut found = find(text);
    let mut text = text.to_owned();
    if let (Err(QueryError::Checksum { computed, .. }), true) = (&found, choice & 0x40 != 0) {
        text = format!("{}#{computed}", text.split('#').next().unwrap_or_default());
        found = find(&text);
        assert!(!matches!(found, Err(QueryError::Checksum { .. })));
    }
    match found {
        Ok(scripts) => accepted(&text, theirs, &scripts, &find),
        Err(QueryError::TooMany { count }) => assert!(count > LIMIT as u64),
        Err(error) => {
            let said = error.to_string();
            for private in words(&text).filter(|word| is_private(word)) {
                assert!(!said.contains(private), "{said}");
            }
        }
    }
});

fn accepted(
    text: &str,
    chain: bitcoin::Network,
    scripts: &[WantedScript],
    find: &dyn Fn(&str) -> Result<Vec<WantedScript>, QueryError>,
) {
    assert!(!scripts.is_empty() && scripts.len() <= LIMIT);
    if text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let digits: String = scripts[0].script.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digits, text.to_ascii_lowercase());
    } else if !text.contains('(') {
        let address: Address<NetworkUnchecked> = text.parse().expect("only we accept the address");
        let address = address.require_network(chain).expect("only we accept the chain");
        assert_eq!(address.script_pubkey().as_bytes(), scripts[0].script);
    }
    for WantedScript { script, descriptor } in scripts {
        match find(descriptor) {
            Ok(again) => assert!(again.iter().any(|it| it.script == *script), "{descriptor}"),
            // Core, too, infers descriptors that it does not parse: of keys that are no points, of more than three keys.
            Err(error) => {
                assert!(matches!(error, QueryError::Descriptor(_)), "{descriptor}: {error}")
            }
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_ascii_alphanumeric())
}

/// Whether a word is a private key: extended, or in the import format.
fn is_private(word: &str) -> bool {
    word.parse::<bitcoin::PrivateKey>().is_ok() || word.parse::<bitcoin::bip32::Xpriv>().is_ok()
}
