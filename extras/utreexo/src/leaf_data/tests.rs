use super::*;
use bitcoin::hashes::Hash;
use bitcoin::script::PushBytesBuf;
use bitcoin::{PubkeyHash, ScriptBuf, ScriptHash, WPubkeyHash, WScriptHash};
use proptest::prelude::*;

fn write(coin: CoinRef<'_>, spender: &Spender<'_>) -> Result<Vec<u8>, LeafDataError> {
    let mut out = Vec::new();
    write_compact_leaf(&mut out, coin, spender).map(|()| out)
}

/// Reads a leaf, and checks that it takes all bytes.
fn read<'a>(bytes: &'a [u8], spender: &Spender<'_>) -> Result<CompactLeaf<'a>, LeafDataError> {
    let mut reader = Reader::new(bytes);
    let leaf = CompactLeaf::read(&mut reader, spender)?;
    Ok(reader.finish().map(|()| leaf)?)
}

/// The scripts that commit to these bytes as the key or script, made by another library, with their forms.
fn scripts(shown: &[u8]) -> [(u8, ScriptBuf); 4] {
    [
        (1, ScriptBuf::new_p2pkh(&PubkeyHash::hash(shown))),
        (2, ScriptBuf::new_p2wpkh(&WPubkeyHash::hash(shown))),
        (3, ScriptBuf::new_p2sh(&ScriptHash::hash(shown))),
        (4, ScriptBuf::new_p2wsh(&WScriptHash::hash(shown))),
    ]
}

/// A script that pushes `first`, then `last`.
fn pushes(first: &[u8], last: &[u8]) -> ScriptBuf {
    let bytes = |bytes: &[u8]| PushBytesBuf::try_from(bytes.to_vec()).unwrap();
    ScriptBuf::builder().push_slice(bytes(first)).push_slice(bytes(last)).into_script()
}

proptest! {
    /// Each form is rebuilt from the place that shows its key or script, and from no other.
    #[test]
    fn scripts_are_left_out_where_the_input_shows_them(
        shown in prop::collection::vec(any::<u8>(), 1..300),
        other in prop::collection::vec(any::<u8>(), 0..80),
        height in 0..=COIN_HEIGHT_MAX,
        coinbase: bool,
        amount in 0..=MAX_MONEY,
    ) {
        let (in_sig, not_in_sig) = (pushes(&other, &shown), pushes(&shown, &other));
        for (form, script) in scripts(&shown) {
            let coin = CoinRef { height, coinbase, amount, script: script.as_bytes() };
            let (sig, top) = match form {
                1 | 3 => (&in_sig, &other),
                _ => (&not_in_sig, &shown),
            };
            let shows = Spender { script_sig: sig.as_bytes(), witness_top: Some(top) };
            let bytes = write(coin, &shows).unwrap();
            prop_assert_eq!((bytes.len(), bytes[12]), (13, form));
            prop_assert_eq!(u32::from_le_bytes(*bytes.first_chunk().unwrap()), 2 * height + u32::from(coinbase));
            prop_assert!(read(&bytes, &shows).unwrap().coin() == coin);

            let (sig, top) = match form {
                1 | 3 => (&not_in_sig, &shown),
                _ => (&in_sig, &other),
            };
            let hides = Spender { script_sig: sig.as_bytes(), witness_top: Some(top) };
            if other != shown {
                let whole = write(coin, &hides).unwrap();
                prop_assert_eq!((whole.len(), whole[12]), (14 + script.len(), 0));
                prop_assert!(read(&whole, &hides).unwrap().coin() == coin);
                prop_assert!(read(&bytes, &hides).unwrap().coin() != coin);
            }
            let nothing = read(&bytes, &Spender { script_sig: &[0xac], witness_top: None });
            prop_assert_eq!(nothing.unwrap_err(), LeafDataError::Spender { form });
        }
    }

    #[test]
    fn any_coin_round_trips(
        script in prop::collection::vec(any::<u8>(), 0..400),
        sig in prop::collection::vec(any::<u8>(), 0..80),
        height in 0..=COIN_HEIGHT_MAX,
        cut: prop::sample::Index,
    ) {
        let coin = CoinRef { height, coinbase: false, amount: 5, script: &script };
        let spender = Spender { script_sig: &sig, witness_top: Some(&script) };
        let mut bytes = write(coin, &spender).unwrap();
        prop_assert!(read(&bytes, &spender).unwrap().coin() == coin);
        prop_assert!(read(&bytes[..cut.index(bytes.len())], &spender).is_err());
        bytes.push(0);
        prop_assert!(read(&bytes, &spender).is_err());
    }

    /// Readable data round-trips; if its encoding was not the shortest, the new encoding is shorter.
    #[test]
    fn any_bytes_are_a_coin_or_an_error(
        code: u32,
        amount in 0..=MAX_MONEY,
        rest in prop::collection::vec(prop_oneof![0u8..6, any::<u8>()], 0..60),
        sig in prop::collection::vec(prop_oneof![0u8..6, any::<u8>()], 0..10),
    ) {
        let bytes = [&code.to_le_bytes(), &amount.to_le_bytes()[..], &rest].concat();
        let spender = Spender { script_sig: &sig, witness_top: Some(&rest) };
        let mut reader = Reader::new(&bytes);
        if let Ok(leaf) = CompactLeaf::read(&mut reader, &spender) {
            let again = write(leaf.coin(), &spender).unwrap();
            prop_assert_eq!(read(&again, &spender), Ok(leaf));
            prop_assert!(again.len() <= reader.position());
        }
    }
}

/// A script hash as in utreexod's tests: 13 bytes.
#[test]
fn leaf_data_have_the_known_sizes() {
    let p2sh = ScriptBuf::from_hex("a914e8d74935cfa223f9750a32b18d609cba17a5c3fe87").unwrap();
    let coin =
        CoinRef { height: 1_599_255, coinbase: false, amount: 200_000, script: p2sh.as_bytes() };
    let whole = write(coin, &Spender::default()).unwrap();
    assert_eq!(whole.len(), 12 + 1 + 1 + 23);
    assert_eq!(whole[..13], [0x2e, 0xce, 0x30, 0, 0x40, 0x0d, 3, 0, 0, 0, 0, 0, 0]);
    let redeem_script = [0x51];
    let sig = pushes(&[], &redeem_script);
    let script = ScriptBuf::new_p2sh(&ScriptHash::hash(&redeem_script));
    let coin = CoinRef { script: script.as_bytes(), ..coin };
    let spender = Spender { script_sig: sig.as_bytes(), witness_top: None };
    assert_eq!(write(coin, &spender).unwrap().len(), 13);
}

#[test]
fn values_out_of_range_are_refused() {
    let script = vec![0x51; MAX_SCRIPT_SIZE + 1];
    let longest = &script[..MAX_SCRIPT_SIZE];
    let spender = Spender::default();
    let coin = CoinRef { height: 7, coinbase: true, amount: MAX_MONEY, script: longest };
    let bytes = write(coin, &spender).unwrap();
    assert_eq!(read(&bytes, &spender).unwrap().coin(), coin);
    let too_long = LeafDataError::ScriptTooLong { length: 10_001 };
    assert_eq!(write(CoinRef { script: &script, ..coin }, &spender), Err(too_long.clone()));
    let mut long = bytes.clone();
    long[14] += 1;
    long.push(0x51);
    assert_eq!(read(&long, &spender), Err(too_long));
    let height = COIN_HEIGHT_MAX + 1;
    let refused = write(CoinRef { height, ..coin }, &spender);
    assert_eq!(refused, Err(LeafDataError::Height { height }));
    for amount in [-1, i64::MIN, MAX_MONEY as i64 + 1, i64::MAX] {
        let mut bytes = bytes.clone();
        bytes[4..12].copy_from_slice(&amount.to_le_bytes());
        let error = LeafDataError::Amount { amount: amount.into() };
        assert_eq!(read(&bytes, &spender), Err(error));
    }
    for amount in [MAX_MONEY + 1, u64::MAX] {
        let error = LeafDataError::Amount { amount: amount.into() };
        assert_eq!(write(CoinRef { amount, ..coin }, &spender), Err(error));
    }
    for form in [5, 0x80, 255] {
        let mut bytes = bytes.clone();
        bytes[12] = form;
        assert_eq!(read(&bytes, &spender), Err(LeafDataError::Form { offset: 12, form }));
    }
    let long_length = [&bytes[..13], &[0xfd, 1, 0, 0x51]].concat();
    let error = LeafDataError::Read(ReadError::NonCanonical { offset: 13 });
    assert_eq!(read(&long_length, &spender), Err(error));
}

/// The scripts resemble a form, but have another length.
#[test]
fn scripts_of_another_length_match_no_form() {
    for (form, script) in scripts(&[2; 33]) {
        assert_eq!(Form::of_script(script.as_bytes()).map(Form::byte), Some(form));
        let mut longer = script.clone().into_bytes();
        longer.insert(5, 0);
        assert_eq!(Form::of_script(&longer), None);
        longer.drain(5..7);
        assert_eq!(Form::of_script(&longer), None);
    }
}
