use super::*;

const KEY: &str = "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";

fn find(text: &str) -> Result<Vec<(String, String)>, QueryError> {
    let found = scripts_of_query(text, Network::Regtest, KeyRange::default())?;
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

#[cfg(feature = "descriptors")]
mod with_keys {
    use super::*;

    const TPUB: &str = "tpubD6NzVbkrYhZ4WaWSyoBvQwbpLkojyoTZPRsgXELWz3Popb3qkjcJyJUGLnL4qHHoQvao8ESaAstxYSnhyswJ76uZPStJRJCTKvosUCJZL5B";

    #[test]
    fn wildcards_lead_to_a_script_for_each_index() {
        let count = |text: &str, range: KeyRange| {
            scripts_of_query(text, Network::Regtest, range).unwrap().len()
        };
        let range = KeyRange { first: 5, last: 7 };
        assert_eq!(count(&format!("wpkh({TPUB}/*)"), KeyRange::default()), 1001);
        assert_eq!(count(&format!("wpkh({TPUB}/*)"), range), 3);
        assert_eq!(count(&format!("wpkh({TPUB}/<0;1>/*)"), range), 6);
        assert_eq!(count(&format!("combo({TPUB}/*)"), range), 12);
        assert_eq!(count(&format!("wpkh({TPUB}/1)"), range), 1);
        let eleven = scripts_of_query(&format!("pkh({TPUB}/1/5)"), Network::Regtest, range);
        let wild = scripts_of_query(&format!("pkh({TPUB}/1/*)"), Network::Regtest, range);
        assert_eq!(eleven.unwrap()[0], wild.unwrap()[0]);
    }

    #[test]
    fn descriptors_that_core_refuses_are_refused() {
        let private = "tprv8ZgxMBicQKsPd7Uf69XL1XwhmjHopUGep8GuEiJDZmbQz6o58LninorQAfcKZWARbtRtfnLcJ5MQ2AtHcQJCCRUcMRvmDUjyEmNUWwx8UbK";
        assert_eq!(find(&format!("wpkh({private}/*)")), Err(QueryError::Private));
        let keys = vec![KEY; 4].join(",");
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
        ] {
            assert!(find(wrong).is_err(), "{wrong}");
        }
        let error = scripts_of_query(&format!("wpkh({TPUB})"), Network::Main, KeyRange::default());
        assert!(error.unwrap_err().to_string().contains("another chain"));
    }
}
