//! Project Wycheproof's ECDSA vectors, each with the key in all encodings.

use super::checks::{Asked, encoded, proven, provers};
use data_encoding::HEXLOWER;
use flate2::read::GzDecoder;
use serde_json::Value;

const VECTORS: &[u8] =
    include_bytes!("../../../../fixtures/wycheproof/ecdsa_secp256k1_sha256_bitcoin_test.json.gz");

#[test]
fn all_vectors() {
    let file: Value = serde_json::from_reader(GzDecoder::new(VECTORS)).unwrap();
    let decode = |value: &Value| HEXLOWER.decode(value.as_str().unwrap().as_bytes()).unwrap();
    let mut asked = vec![];
    for group in file["testGroups"].as_array().unwrap() {
        let key = decode(&group["publicKey"]["uncompressed"]);
        let key = secp256k1::PublicKey::from_slice(&key).unwrap();
        for vector in group["tests"].as_array().unwrap() {
            let hash = apus_hash::sha256(&decode(&vector["msg"]));
            for encoding in 1..4 {
                let (key, signature) = (encoded(&key, encoding), decode(&vector["sig"]));
                asked.push(Asked { is_schnorr: false, key, hash, signature });
                // Core accepts more than strict signatures with a low S, never less.
                let is_strict = vector["result"] == "valid";
                assert!(!is_strict || asked[asked.len() - 1].is_valid(), "{vector}");
            }
        }
    }
    assert_eq!(asked.len(), 3 * 463);
    let proven = proven(&mut provers(), &asked);
    let valid: Vec<bool> = asked.iter().map(Asked::is_valid).collect();
    assert!(proven.iter().zip(&valid).all(|(proven, valid)| *valid || !proven));
    let left = proven.iter().zip(&valid).filter(|(proven, valid)| **valid && !**proven).count();
    // The one vector with the x coordinate r + n.
    let valid = valid.iter().filter(|valid| **valid).count();
    assert_eq!((valid, left), (3 * 199, 3));
}
