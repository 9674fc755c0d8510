use super::*;

const KEY: &str = "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";

static GOING: AtomicBool = AtomicBool::new(false);

fn scripts(text: &str, chain: Network, range: KeyRange) -> Result<Vec<WantedScript>, QueryError> {
    scripts_of_query(text, chain, range, 1_000_000, &GOING)
}

fn find(text: &str) -> Result<Vec<(String, String)>, QueryError> {
    let found = scripts(text, Network::Regtest, KeyRange::default())?;
    Ok(found.into_iter().map(|it| (hex(&it.script), it.descriptor)).collect())
}

fn one(text: &str) -> (String, String) {
    let found = find(text).unwrap();
    assert_eq!(found.len(), 1, "{text}");
    found.into_iter().next().unwrap()
}

#[test]
fn checksums_are_those_of_bip_380() {
    assert_eq!(with_checksum("raw(deadbeef)"), "raw(deadbeef)#89f8spxm");
    assert_eq!(split_checksum("raw(deadbeef)#89f8spxm"), Ok("raw(deadbeef)"));
    assert_eq!(split_checksum("raw(deadbeef)"), Ok("raw(deadbeef)"));
    for wrong in [
        "raw(deadbeef)#",
        "raw(deadbeef)#89f8spxmx",
        "raw(deadbeef)#89f8spx",
        "raw(dedbeef)#89f8spxm",
        "raw(deadbeef)##9f8spxm",
    ] {
        assert!(matches!(split_checksum(wrong), Err(QueryError::Checksum { .. })), "{wrong}");
    }
    assert!(matches!(split_checksum("raw(Ü)#00000000"), Err(QueryError::Descriptor(_))));
}

#[test]
fn scripts_and_addresses_are_their_own_descriptors() {
    let (script, descriptor) = one("51");
    assert_eq!((script.as_str(), &descriptor[..8]), ("51", "raw(51)#"));
    assert_eq!(one("raw(51)"), one("51"));
    let (script, descriptor) = one(&format!("21{KEY}ac"));
    assert_eq!(script, format!("21{KEY}ac"));
    assert!(descriptor.starts_with(&format!("pk({KEY})#")));
    let address = "bcrt1qw508d6qejxtdg4y5r3zarvary0c5xw7kygt080";
    assert_eq!(one(address).0, "0014751e76e8199196d454941c45d1b3a323f1433bd6");
    assert!(one(address).1.starts_with(&format!("addr({address})#")));
    assert_eq!(one(&format!("addr({address})")), one(address));
    let x = &KEY[2..];
    assert!(one(&format!("5120{x}")).1.starts_with(&format!("rawtr({x})#")));
    // No point has this x.
    let x = "ff".repeat(32);
    assert!(one(&format!("5120{x}")).1.starts_with("addr("));
}

#[test]
fn wrong_queries_are_refused() {
    for wrong in [
        "",
        "5",
        "raw()",
        "raw(5)",
        "raw(51",
        "addr(51)",
        "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4",
    ] {
        assert!(find(wrong).is_err(), "{wrong}");
    }
    let error = find("addr(1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa)").unwrap_err();
    assert_eq!(error, QueryError::Address(AddressError::OtherChain("main")));
}

#[test]
fn ranges() {
    let range = |first, last| Ok(KeyRange { first, last });
    for (text, expected) in [
        ("1000", range(0, 1000)),
        ("[5-7]", range(5, 7)),
        ("5-7", range(5, 7)),
        ("[5,7]", range(5, 7)),
        ("2147483647", Err(QueryError::Range)),
        ("[2147483640-2147483647]", range(2_147_483_640, 2_147_483_647)),
        ("[2147483640-2147483648]", Err(QueryError::Range)),
        ("7-5", Err(QueryError::Range)),
        ("1000000", Err(QueryError::Range)),
        ("999999", range(0, 999_999)),
        ("-1", Err(QueryError::Range)),
        ("+1", Err(QueryError::Range)),
        ("", Err(QueryError::Range)),
    ] {
        assert_eq!(text.parse::<KeyRange>(), expected, "{text}");
    }
}

#[test]
fn private_keys_are_known_by_their_first_characters() {
    let import = "5HueCGU8rMjxEXxiPuD5BDku4MkFqeZyd4dZ1jvhTVqvbTLvyTJ";
    for private in [
        import,
        &format!("pkh({import})"),
        &format!("wpkh([d34db33f/84h]{import})"),
        "KwdMAjGmerYanjeui5SHS7JkmpZvVipYvB2LJGU1ZxJwYvP98617",
        "cMahea7zqjxrtgAbB7LSGbcQUr1uX1ojuat9jZodMN87JcbXMTcA",
        "sh(multi(1,xprv9s,02))",
        "wpkh([d34db33f/84h]tprv8Zgx/*)",
        "zprvAWgYBBk",
        "p2wpkh:cMahea7zqjxrtgAbB7LSGbcQUr1uX1ojuat9jZodMN87JcbXMTc",
    ] {
        assert_eq!(find(private), Err(QueryError::Private), "{private}");
        let said = find(private).unwrap_err().to_string();
        assert!(!said.contains(&private[..20.min(private.len())]), "{said}");
    }
    // An xpub may have these letters inside by chance.
    for public in ["wpkh(tpubD6NzVbkrYtprvaWSyxprv/*)", "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNb"] {
        assert!(!has_private_key(public));
        assert!(find(public).is_err_and(|error| error != QueryError::Private), "{public}");
    }
}

#[cfg(feature = "descriptors")]
mod with_keys {
    use super::*;

    const TPUB: &str = "tpubD6NzVbkrYhZ4WaWSyoBvQwbpLkojyoTZPRsgXELWz3Popb3qkjcJyJUGLnL4qHHoQvao8ESaAstxYSnhyswJ76uZPStJRJCTKvosUCJZL5B";

    const WHOLE: &str = "0479be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8";

    #[test]
    fn wildcards_lead_to_a_script_for_each_index() {
        let count =
            |text: &str, range: KeyRange| scripts(text, Network::Regtest, range).unwrap().len();
        let range = KeyRange { first: 5, last: 7 };
        assert_eq!(count(&format!("wpkh({TPUB}/*)"), KeyRange::default()), 1001);
        assert_eq!(count(&format!("wpkh({TPUB}/*)"), range), 3);
        assert_eq!(count(&format!("wpkh({TPUB}/<0;1>/*)"), range), 6);
        assert_eq!(count(&format!("combo({TPUB}/*)"), range), 12);
        assert_eq!(count(&format!("wpkh({TPUB}/1)"), range), 1);
        let eleven = scripts(&format!("pkh({TPUB}/1/5)"), Network::Regtest, range);
        let wild = scripts(&format!("pkh({TPUB}/1/*)"), Network::Regtest, range);
        assert_eq!(eleven.unwrap()[0], wild.unwrap()[0]);
    }

    #[test]
    fn too_many_scripts_are_refused_before_any_is_derived() {
        let range = KeyRange { first: 0, last: 999_999 };
        // Deriving takes minutes, and sees the interrupt.
        let stop = AtomicBool::new(true);
        let found = |text: &str, limit| {
            scripts_of_query(text, Network::Regtest, range, limit, &stop).unwrap_err()
        };
        let text = format!("wpkh({TPUB}/<0;1>/*)");
        assert_eq!(found(&text, 1_999_999), QueryError::TooMany { count: 2_000_000 });
        assert_eq!(found(&text, 2_000_000), QueryError::Interrupted);
        let text = format!("combo({TPUB}/*)");
        assert_eq!(found(&text, 3_999_999), QueryError::TooMany { count: 4_000_000 });
        assert_eq!(found("51", 0), QueryError::TooMany { count: 1 });
    }

    #[test]
    fn keys_are_sorted_as_the_script_has_them() {
        let order = |keys: [&str; 2]| {
            let text = format!("sortedmulti(1,{},{})", keys[0], keys[1]);
            let (script, descriptor) = one(&text);
            let (wrapped, _) = one(&format!("sh({text})"));
            let (plain, _) = one(&format!("raw({script})"));
            assert_eq!(plain, script);
            assert!(wrapped.starts_with("a914") && descriptor.starts_with("multi(1,"));
            script.find(&keys[0][2..]) < script.find(&keys[1][2..])
        };
        let (one, two) =
            (WHOLE, "02c6047f9441ed7d6d3045406e95c07cd85c778e4b8cef3ca7abac09b95c709ee5");
        // By x, the first would be before the second.
        assert!(!order([one, two]) && order([two, one]));
        assert!(order([KEY, two]) && !order([two, KEY]));
    }

    #[test]
    fn descriptors_that_core_refuses_are_refused() {
        let private = "tprv8ZgxMBicQKsPd7Uf69XL1XwhmjHopUGep8GuEiJDZmbQz6o58LninorQAfcKZWARbtRtfnLcJ5MQ2AtHcQJCCRUcMRvmDUjyEmNUWwx8UbK";
        assert_eq!(find(&format!("wpkh({private}/*)")), Err(QueryError::Private));
        let keys = [KEY; 4].join(",");
        for wrong in [
            "wpkh()",
            "wpkh",
            "pk(0)",
            &format!("nothing({KEY})"),
            &format!("wpkh({KEY}"),
            &format!("multi(1,{keys})"),
            &format!("wpkh({})", &KEY[..64]),
            &format!("wpkh({TPUB}/1h)"),
            &format!("sh({KEY})"),
            &format!("combo({})", &KEY[2..]),
            &format!("combo([d34db33f/1]{})", &KEY[2..]),
            &format!("pk({})", &KEY[2..]),
            &format!("pkh({})", &KEY[2..]),
            &format!("wpkh({})", &KEY[2..]),
            &format!("multi(1,{})", &KEY[2..]),
            &format!("sh(sortedmulti(1,{}))", &KEY[2..]),
            &format!("wsh(pk({}))", &KEY[2..]),
            &format!("wpkh({WHOLE})"),
            &format!("wsh(multi(1,{WHOLE}))"),
            &format!("sh(wpkh({WHOLE}))"),
            &format!("tr({WHOLE})"),
            &format!("tr({},pk({WHOLE}))", &KEY[2..]),
            &format!("rawtr({WHOLE})"),
        ] {
            assert!(find(wrong).is_err(), "{wrong}");
        }
        let error = scripts(&format!("wpkh({TPUB})"), Network::Main, KeyRange::default());
        assert!(error.unwrap_err().to_string().contains("another chain"));
    }
}
