use super::{Network, *};
use crate::work::check_proof_of_work;

#[test]
fn genesis_headers_hash_to_their_names() {
    for network in Network::ALL {
        let params = Params::of(network);
        assert_eq!(params.network, network);
        assert_eq!(params.genesis_header.hash(), params.genesis_hash, "{network}");
        let header = params.genesis_header;
        assert!(check_proof_of_work(&params.genesis_hash, header.bits, params.pow_limit));
        assert_eq!(params.pow_limit.to_compact(), header.bits, "{network} starts at its limit");
        let coinbase_id = apus_hash::sha256d(&params.genesis_coinbase);
        assert_eq!(header.merkle_root.0, coinbase_id, "{network}");
    }
}

#[test]
fn genesis_blocks_and_work_limits_agree_with_an_independent_library() {
    for (network, theirs) in [
        (Network::Main, bitcoin::Network::Bitcoin),
        (Network::Testnet3, bitcoin::Network::Testnet),
        (Network::Testnet4, bitcoin::Network::Testnet4),
        (Network::Signet, bitcoin::Network::Signet),
        (Network::Regtest, bitcoin::Network::Regtest),
    ] {
        let params = Params::of(network);
        let genesis = bitcoin::constants::genesis_block(theirs);
        assert_eq!(params.genesis_block(), bitcoin::consensus::serialize(&genesis), "{network}");
        let reference = bitcoin::params::Params::new(theirs);
        assert_eq!(params.pow_target_spacing_seconds.get(), reference.pow_target_spacing as u32);
        assert_eq!(params.pow_allow_min_difficulty_blocks, reference.allow_min_difficulty_blocks);
        assert_eq!(params.pow_no_retargeting, reference.no_pow_retargeting);
    }
}

#[test]
fn retarget_periods_match_known_lengths() {
    for network in Network::ALL {
        let interval = Params::of(network).difficulty_adjustment_interval();
        assert_eq!(interval, if network == Network::Regtest { 144 } else { 2016 }, "{network}");
    }
}

/// BIP-325: a signet's magic is derived from its challenge.
#[test]
fn signet_magic_follows_from_its_challenge() {
    let challenge = Params::of(Network::Signet).signet_challenge.as_ref().unwrap();
    let mut script = vec![challenge.len() as u8];
    script.extend_from_slice(challenge);
    assert_eq!(apus_hash::sha256d(&script)[..4], Network::Signet.magic());
}

#[test]
fn bip30_is_checked_below_bip34_and_far_above_and_not_for_the_two_repeats() {
    let main = Params::of(Network::Main);
    let other = BlockHash([7; 32]);
    let known = main.bip34_hash.as_ref();
    let repeat = main.bip30_repeats[0];
    assert!(main.enforces_bip30(1, &other, None));
    assert!(!main.enforces_bip30(repeat.height, &repeat.hash, None), "the repeat itself");
    assert!(main.enforces_bip30(repeat.height, &other, None), "a rival at the same height");
    assert!(main.enforces_bip30(repeat.height + 1, &repeat.hash, None), "another height");
    assert!(!main.enforces_bip30(main.bip34_height + 1, &other, known), "BIP-34 implies it");
    assert!(main.enforces_bip30(main.bip34_height + 1, &other, Some(&other)), "another chain");
    assert!(!main.enforces_bip30(BIP34_IMPLIES_BIP30_LIMIT - 1, &other, known));
    assert!(main.enforces_bip30(BIP34_IMPLIES_BIP30_LIMIT, &other, known));
    // Without a known BIP-34 block the check stays on forever.
    for network in [Network::Testnet4, Network::Signet, Network::Regtest] {
        assert!(Params::of(network).enforces_bip30(500, &other, Some(&BlockHash::ZERO)));
    }
    assert!(main.is_bip30_unspendable(91_722, &main.bip30_unspendable[0].hash));
    assert!(!main.is_bip30_unspendable(91_722, &other));
    assert!(!main.is_bip30_unspendable(91_842, &repeat.hash));
}

#[test]
fn hints_state_all_coins_once_both_repeats_have_come() {
    let main = Params::of(Network::Main);
    let of = |blocks: &[KnownBlock], height| {
        blocks.iter().find(|it| it.height == height).map(|it| it.hash)
    };
    let forked = |height| of(&main.bip30_unspendable, height);
    let hash = |height| forked(height).or_else(|| of(&main.bip30_repeats, height));
    assert!(main.has_uncounted_coins(91_900, forked), "no block repeats them");
    let stops = [(91_721, false), (91_722, true), (91_841, true), (91_879, true), (91_880, false)];
    for (stop, has) in stops {
        assert_eq!(main.has_uncounted_coins(stop, hash), has, "{stop}");
        assert!(!main.has_uncounted_coins(stop, |_| Some(BlockHash([7; 32]))), "another chain");
    }
}

#[test]
fn script_flags_activate_at_their_heights_and_exceptions_keep_theirs() {
    use crate::script::*;
    let main = Params::of(Network::Main);
    let any = BlockHash([7; 32]);
    let base = VERIFY_P2SH | VERIFY_WITNESS | VERIFY_TAPROOT;
    assert_eq!(main.block_script_flags(0, &any), base);
    let mut expected = base;
    for (height, flag) in [
        (363_725, VERIFY_DERSIG),
        (388_381, VERIFY_CHECKLOCKTIMEVERIFY),
        (419_328, VERIFY_CHECKSEQUENCEVERIFY),
        (481_824, VERIFY_NULLDUMMY),
    ] {
        assert_eq!(main.block_script_flags(height - 1, &any), expected);
        expected |= flag;
        assert_eq!(main.block_script_flags(height, &any), expected);
    }
    let bip16 = main.script_flag_exceptions[0].0;
    assert_eq!(main.block_script_flags(170_060, &bip16), 0);
    let taproot = main.script_flag_exceptions[1].0;
    assert_eq!(main.block_script_flags(692_261, &taproot), expected & !VERIFY_TAPROOT);
    let regtest = Params::of(Network::Regtest);
    assert_eq!(regtest.block_script_flags(1, &any), expected);
}

#[test]
fn a_copy_may_have_other_activation_heights() {
    let mut params = Params::of(Network::Regtest).clone();
    params.bip66_height = 102;
    assert_eq!(params.block_script_flags(101, &BlockHash::ZERO) & crate::script::VERIFY_DERSIG, 0);
    assert_ne!(params.block_script_flags(102, &BlockHash::ZERO) & crate::script::VERIFY_DERSIG, 0);
    assert_eq!(Params::of(Network::Regtest).bip66_height, 1);
}

/// The table in `fixtures/headers/assumeutxo.tsv` was extracted from Core's sources independently.
#[test]
fn assumeutxo_equals_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/headers/assumeutxo.tsv");
    let table = std::fs::read_to_string(path).unwrap();
    let mut rows = 0;
    for line in table.lines().filter(|line| !line.starts_with('#') && !line.starts_with("network"))
    {
        let fields: Vec<&str> = line.split('\t').collect();
        let network = match fields[0] {
            "Main" => Network::Main,
            "TestNet3" => Network::Testnet3,
            "TestNet4" => Network::Testnet4,
            "SigNet" => Network::Signet,
            "RegTest" => Network::Regtest,
            other => panic!("{other}"),
        };
        let expected = AssumeUtxo {
            height: fields[1].parse().unwrap(),
            block_hash: fields[4].parse().unwrap(),
            hash_serialized: fields[2].parse::<BlockHash>().unwrap().0,
            chain_tx_count: fields[3].parse().unwrap(),
        };
        let found = Params::of(network).assumeutxo_for(&expected.block_hash);
        assert_eq!(found, Some(&expected));
        rows += 1;
    }
    let all: usize = Network::ALL.iter().map(|&network| Params::of(network).assumeutxo.len()).sum();
    assert_eq!(rows, all);
    assert_eq!(Params::of(Network::Main).assumeutxo_for(&BlockHash::ZERO), None);
}

#[test]
fn names_and_magics_are_distinct_and_parse_back() {
    for network in Network::ALL {
        // Another test may have registered a custom signet before this one.
        let parsed: Network = network.name().parse().unwrap();
        assert_eq!(parsed.name(), network.name());
        assert_eq!(Network::from_magic(network.magic()), Some(network));
    }
    assert!("mainnet".parse::<Network>().is_err());
}

fn regtest_with(activations: &[(&str, Height)]) -> Params {
    let mut params = Params::of(Network::Regtest).clone();
    for (name, height) in activations {
        params.activate(format!("{name}@{height}").parse().unwrap());
    }
    params
}

#[test]
fn each_name_moves_its_own_height_and_no_other() {
    let plain = regtest_with(&[]);
    for (name, expected) in [
        ("segwit", Params { segwit_height: 77, ..plain.clone() }),
        ("bip34", Params { bip34_height: 77, ..plain.clone() }),
        ("dersig", Params { bip66_height: 77, ..plain.clone() }),
        ("cltv", Params { bip65_height: 77, ..plain.clone() }),
        ("csv", Params { csv_height: 77, ..plain.clone() }),
    ] {
        assert_ne!(expected, plain);
        assert_eq!(regtest_with(&[(name, 77)]), expected, "{name}");
        let mut parsed = plain.clone();
        parsed.activate(format!("{name}@77").parse().unwrap());
        assert_eq!(parsed, expected, "{name}");
    }
    assert_eq!(regtest_with(&[("csv", 5), ("csv", 6)]).csv_height, 6);
}

#[test]
fn other_forms_are_rejected() {
    let parse = |text: &str| text.parse::<ActivationHeight>();
    let form = |text: &str| Err(ActivationError::Form(text.to_owned()));
    let name = |text: &str| Err(ActivationError::Name(text.to_owned()));
    let height = |text: &str| Err(ActivationError::Height(text.to_owned()));
    for (text, expected) in [
        ("segwit", form("segwit")),
        ("", form("")),
        ("@1", name("")),
        ("taproot@1", name("taproot")),
        ("bip65@1", name("bip65")),
        ("bip66@1", name("bip66")),
        ("Segwit@1", name("Segwit")),
        ("segwit @1", name("segwit ")),
        ("segwit@", height("")),
        ("segwit@+1", height("+1")),
        ("segwit@-1", height("-1")),
        ("segwit@ 1", height(" 1")),
        ("segwit@1@2", height("1@2")),
        ("segwit@0x1", height("0x1")),
        ("segwit@2147483647", height("2147483647")),
        ("segwit@99999999999", height("99999999999")),
    ] {
        assert_eq!(parse(text), expected, "{text}");
    }
    let most = ActivationHeight { deployment: Deployment::Segwit, height: HEIGHT_MAX };
    assert_eq!(parse("segwit@2147483646"), Ok(most));
    assert_eq!(parse("segwit@007").map(|parsed| parsed.height), Ok(7));
    let mut params = regtest_with(&[]);
    let too_great = parse("segwit@2147483647");
    assert_eq!(too_great, Err(ActivationError::Height("2147483647".to_owned())));
    params.activate(most);
    assert_eq!(params.segwit_height, HEIGHT_MAX);
}

#[test]
fn errors_name_the_valid_values() {
    let text = ActivationError::Name("taproot".to_owned()).to_string();
    for deployment in Deployment::ALL {
        assert!(text.contains(deployment.name()), "{text}");
    }
}
