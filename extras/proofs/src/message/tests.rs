//! Tests the codecs against themselves, noise, and messages of a real utreexod.

use super::*;
use apus_chain::{MAX_MONEY, ReadError, write_compact_size};
use apus_p2p::message::{CommandName, Message};
use apus_testkit::utreexod::recorded_proofs;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;
use std::str::FromStr;

fn hash() -> impl Strategy<Value = NodeHash> {
    any::<[u8; 32]>()
}

fn leaf() -> impl Strategy<Value = PeerLeaf> {
    let script = prop_oneof![
        vec(any::<u8>(), 0..300).prop_map(PeerLeafScript::Other),
        Just(PeerLeafScript::PubkeyHash),
        Just(PeerLeafScript::WitnessPubkeyHash),
        Just(PeerLeafScript::ScriptHash),
        Just(PeerLeafScript::WitnessScriptHash),
    ];
    (any::<u32>(), 0..=MAX_MONEY, script).prop_map(|(header_code, amount, script)| PeerLeaf {
        header_code,
        amount,
        script,
    })
}

fn message() -> impl Strategy<Value = UtreexoMessage> {
    let block = || hash().prop_map(BlockHash);
    let wanted = |most| vec(0..most, 0..20).prop_map(|places| places.into_iter().collect());
    let request = (block(), any::<[bool; 3]>(), wanted(HASHES_MAX), wanted(LEAVES_MAX)).prop_map(
        |(block, [targets, all_hashes, all_leaves], hashes, leaves)| ProofRequest {
            block,
            targets,
            all_hashes,
            all_leaves,
            hashes,
            leaves,
        },
    );
    let proof = (block(), vec(hash(), 0..20), vec(any::<u64>(), 0..20), vec(leaf(), 0..20))
        .prop_map(|(block, hashes, targets, leaves)| PeerProof { block, hashes, targets, leaves });
    let roots = (block(), any::<u64>(), any::<u64>(), vec(hash(), 64), vec(hash(), 0..9)).prop_map(
        |(block, leaves, target, mut roots, proof)| {
            roots.truncate(leaves.count_ones() as usize);
            PeerRoots { block, leaves, roots, target, proof }
        },
    );
    prop_oneof![
        request.prop_map(UtreexoMessage::GetProof),
        proof.prop_map(UtreexoMessage::Proof),
        block().prop_map(UtreexoMessage::GetRoots),
        roots.prop_map(UtreexoMessage::Roots),
    ]
}

fn encoded(message: &UtreexoMessage) -> (&'static str, Vec<u8>) {
    let mut out = Vec::new();
    encode(message, &mut out);
    (message.name(), out)
}

fn decode(name: &str, payload: &[u8]) -> Option<Result<UtreexoMessage, PayloadFlaw>> {
    super::decode(name, &mut Reader::new(payload)).transpose()
}

fn read(name: &str, payload: &[u8]) -> Result<UtreexoMessage, PayloadFlaw> {
    decode(name, payload).expect("a known name")
}

proptest! {
    #[test]
    fn messages_round_trip(message in message()) {
        let (name, payload) = encoded(&message);
        prop_assert_eq!(decode(name, &payload), Some(Ok(message.clone())));
        let command = CommandName::new(name);
        let Ok(Message::Other { name, payload: came }) = apus_p2p::message::decode(command, payload.clone())
        else { panic!("it has another meaning") };
        prop_assert_eq!(UtreexoMessage::read(&name, &came), Ok(Some(message.clone())));
        let whole = message.to_message();
        let (again, bytes) = apus_p2p::message::encode(&whole, false);
        prop_assert_eq!((again, &*bytes), (command, &payload[..]));
    }

    #[test]
    fn a_truncated_message_is_an_error(message in message(), place: prop::sample::Index) {
        let (name, payload) = encoded(&message);
        let len = place.index(payload.len());
        prop_assert!(decode(name, &payload[..len]).unwrap().is_err());
    }

    #[test]
    fn damaged_messages_never_panic(message in message(), place: prop::sample::Index, to: u8) {
        let (name, mut payload) = encoded(&message);
        let place = place.index(payload.len());
        payload[place] = to;
        let _ = decode(name, &payload);
    }

    #[test]
    fn noise_never_panics(
        name in prop::sample::select(&["getuproof", "uproof", "geturoot", "uroot"]),
        payload: Vec<u8>,
    ) {
        let _ = read(name, &payload);
    }

    #[test]
    fn places_match_the_request(places in prop::collection::btree_set(0..200_usize, 0..20)) {
        let wanted: WantedPlaces = places.iter().copied().collect();
        let found: Vec<usize> = (0..300).filter(|&place| wanted.has(place)).collect();
        prop_assert_eq!(found, places.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn other_names_are_ignored() {
    for name in ["uttls", "getuttls", "usummary", "utreexotx", "block", ""] {
        assert_eq!(decode(name, &[0; 100]), None);
    }
}

/// A payload with a count after `before`, followed by as many entries.
fn counted(before: &[u8], count: usize, entry: &[u8], after: &[u8]) -> Vec<u8> {
    let mut payload = before.to_vec();
    write_compact_size(&mut payload, count as u64);
    (0..count).for_each(|_| payload.extend(entry));
    payload.extend(after);
    payload
}

#[test]
fn counts_are_limited_to_what_a_block_can_need() {
    let leaf = [0; LEAF_BYTES + 1];
    let (block, asked, none) = ([7; 32], [&[7; 32][..], &[0]].concat(), [&[7; 32][..], &[0; 2]]);
    let none = none.concat();
    let one_leaf = [&none[..], &[1], &[0; LEAF_BYTES]].concat();
    let roots = [&[0, 0][..], &[7; 32], &[0]].concat();
    for (name, before, most, entry, after) in [
        ("getuproof", &asked[..], HASHES_MAX.div_ceil(8), &[9][..], &[0][..]),
        ("getuproof", &[&asked[..], &[0]].concat(), LEAVES_MAX.div_ceil(8), &[9], &[]),
        ("uproof", &block, HASHES_MAX, &[9; 32], &[0, 0]),
        ("uproof", &[&block[..], &[0]].concat(), LEAVES_MAX, &[9], &[0]),
        ("uproof", &none, LEAVES_MAX, &leaf, &[]),
        ("uproof", &one_leaf, LEAF_SCRIPT_BYTES_MAX, &[9], &[]),
        ("uroot", &roots, ROOT_PROOF_MAX, &[9; 32], &[]),
    ] {
        read(name, &counted(before, most, entry, after)).unwrap();
        let error = read(name, &counted(before, most + 1, entry, after)).unwrap_err();
        assert!(error.to_string().contains("above the limit"), "{name}: {error}");
        // The count alone allocates no memory.
        let error = read(name, &counted(before, most, b"", b"")).unwrap_err();
        assert!(error.to_string().contains("the data ends"), "{name}: {error}");
    }
}

/// Header code, amount and kind.
const LEAF_BYTES: usize = 13;

#[test]
fn leaves_out_of_range_are_refused() {
    let with = |amount: u64, kind: u8| {
        let mut payload = [&[7; 32][..], &[0, 0, 2, 1, 0, 0, 0], &[0; 8], &[4]].concat();
        payload.extend([2, 0, 0, 0].into_iter().chain(amount.to_le_bytes()).chain([kind]));
        read("uproof", &payload)
    };
    let Ok(UtreexoMessage::Proof(proof)) = with(MAX_MONEY, 3) else { panic!() };
    let script = PeerLeafScript::ScriptHash;
    assert_eq!(proof.leaves[1], PeerLeaf { header_code: 2, amount: MAX_MONEY, script });
    let source = ReadError::TooLarge { offset: 52, value: MAX_MONEY + 1, limit: MAX_MONEY };
    let too_much = PayloadFlaw::Malformed(source);
    assert_eq!(with(MAX_MONEY + 1, 3), Err(too_much));
    let unknown = PayloadFlaw::ScriptKind { index: 1, kind: 5 };
    assert_eq!(with(0, 5), Err(unknown.clone()));
    let error = BadPayload { name: "uproof".to_owned(), flaw: unknown }.to_string();
    assert!(error.contains("`uproof`: leaf 1 has a script of unknown kind 5"), "{error}");
}

#[test]
fn the_number_of_roots_matches_the_leaves() {
    let with = |leaves: u8, count: u8| {
        let roots = vec![5; 32 * usize::from(count)];
        read("uroot", &[&[leaves, 0][..], &[7; 32], &[count], &roots, &[0]].concat())
    };
    assert!(with(0b0110, 2).is_ok() && with(0, 0).is_ok());
    for count in [1, 3] {
        let expected =
            PayloadFlaw::RootCount { leaves: 0b0110, found: u64::from(count), needed: 2 };
        assert_eq!(with(0b0110, count), Err(expected));
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().map(|c| c.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn hash_of(hex: &str) -> NodeHash {
    bytes(hex).try_into().unwrap()
}

/// Block 301 of `fixtures/regtest-315`.
const BLOCK_301: &str = "80e35d09269b50657b82fb0008e94bab2a97b1e35deee18302c80bddb0760c11";
const HASH_0: &str = "aacf97b1a6ed4e50df8e87a4289547938e34f83627b6a37e6fc955a14a654f91";
const HASH_2: &str = "aa21b6a26335df5a8f7051b9f0df91e0e17245fb9ab33df62d70753f26e4cdc6";

/// A request to utreexod 0.6.0 and its answer.
#[test]
fn recorded_parts_of_a_proof_decode() {
    let block = BlockHash(hash_of(BLOCK_301));
    let parts =
        ProofRequest::parts(block, [0, 2].into_iter().collect(), WantedPlaces::from_iter([1]));
    let request = UtreexoMessage::GetProof(ProofRequest { targets: true, ..parts });
    let sent = bytes(&format!("{BLOCK_301}01 0105 0102").replace(' ', ""));
    assert_eq!(encoded(&request), ("getuproof", sent));

    let leaf = "0500000000f2052a01000000000151";
    let came = bytes(&format!("{BLOCK_301}02{HASH_0}{HASH_2}02000101{leaf}"));
    let script = PeerLeafScript::Other(vec![0x51]);
    let expected = PeerProof {
        block,
        hashes: vec![hash_of(HASH_0), hash_of(HASH_2)],
        targets: vec![0, 1],
        leaves: vec![PeerLeaf { header_code: 5, amount: 5_000_000_000, script }],
    };
    assert_eq!(read("uproof", &came), Ok(UtreexoMessage::Proof(expected)));
}

#[test]
fn a_recorded_request_for_a_whole_proof_decodes() {
    let block = BlockHash(hash_of(BLOCK_301));
    let sent = bytes(&format!("{BLOCK_301}070000"));
    let request = UtreexoMessage::GetProof(ProofRequest::whole(block));
    assert_eq!(encoded(&request), ("getuproof", sent.clone()));
    assert_eq!(read("getuproof", &sent), Ok(request));
}

/// The roots after block 2 of `fixtures/regtest-315`, sent by utreexod 0.6.0 with 316 blocks.
#[test]
fn recorded_roots_decode() {
    let block = "ac6631ff8e1499156747a3970b471084291d1df618860912ca40f5c0608e241b";
    let root = "85b4354d8fc81580c879b282daf2643e7e2e0c6f84ca2a43f8f9ed0f5a13d1d9";
    let proof = concat!(
        "58d1b4c69c37ba5e4c7db660711edf46cda4ceb1a36b3a0664859e69966b8b5e",
        "f50d09a02b8874460fac2497dd4ff38aef192dc9dbb82b089430acd7c68d9478",
        "317130fe1de3127379566b95dd123e1bd8a995718f9006fddd90824e86def3de",
        "2b94b3f52eb0767ef6fe4429122fe8869b44c248a342dd2b976d2fa3f4c5d509",
        "f04b72d0bcc9bfee09f749784ea0baa05d42d766d0122a0f37839637712f7105",
        "f34d4018bf9c48346052623be516faeb8cec827274c699d7041d710fa58651c4",
        "4a163fc9bf0398761eb38320d96ef09aced259fbd056ba439cb728d4c1c08ace",
        "d2a67cb3ca2341a01248352cb3dbee787c17bd46bcf960eac9514098dfd6ca26",
    );
    let came = bytes(&format!("0202{block}01{root}08{proof}"));
    let expected = PeerRoots {
        block: BlockHash(hash_of(block)),
        leaves: 2,
        roots: vec![hash_of(root)],
        target: 2,
        proof: bytes(proof).chunks(32).map(|hash| hash.try_into().unwrap()).collect(),
    };
    let expected = UtreexoMessage::Roots(expected);
    assert_eq!(read("uroot", &came), Ok(expected.clone()));
    assert_eq!(encoded(&expected), ("uroot", came));
}

fn list<'a>(record: &'a Value, name: &str) -> &'a Vec<Value> {
    record[name].as_array().unwrap()
}

/// A proof from the RPC, in the order of the message; in the RPC, targets come before hashes.
fn payload_of(record: &Value) -> Vec<u8> {
    let proof = bytes(record["proof"].as_str().unwrap());
    let mut targets = Vec::new();
    write_compact_size(&mut targets, list(record, "prooftargets").len() as u64);
    for target in list(record, "prooftargets") {
        write_compact_size(&mut targets, target.as_u64().unwrap());
    }
    let mut hashes = Vec::new();
    write_compact_size(&mut hashes, list(record, "proofhashes").len() as u64);
    hashes.extend(list(record, "proofhashes").iter().flat_map(|it| hash_of(it.as_str().unwrap())));
    assert!(proof.starts_with(&[&targets[..], &hashes].concat()));
    let leaves = &proof[targets.len() + hashes.len()..];
    let block = BlockHash::from_str(record["hash"].as_str().unwrap()).unwrap();
    [&block.0[..], &hashes, &targets, leaves].concat()
}

/// The binary and the RPC form of utreexod's proofs are equal.
#[test]
fn binary_and_rpc_proofs_of_real_blocks_match() {
    let mut kinds = [0; 5];
    for name in ["regtest-315-proofs.jsonl.gz", "random-proofs.jsonl.gz"] {
        for record in recorded_proofs(name) {
            let payload = payload_of(&record);
            let Ok(UtreexoMessage::Proof(proof)) = read("uproof", &payload) else { panic!() };
            let targets = list(&record, "prooftargets").iter().map(|it| it.as_u64().unwrap());
            assert_eq!(proof.targets, targets.collect::<Vec<_>>());
            assert_eq!(proof.leaves.len(), proof.targets.len());
            for (leaf, preimage) in proof.leaves.iter().zip(list(&record, "targetpreimages")) {
                // After the block's hash and the outpoint.
                let rest = bytes(&preimage.as_str().unwrap()[2 * 68..]);
                let mut expected = [leaf.header_code.to_le_bytes().to_vec(), vec![]].concat();
                expected.extend(leaf.amount.to_le_bytes());
                kinds[match &leaf.script {
                    PeerLeafScript::Other(script) => {
                        write_compact_size(&mut expected, script.len() as u64);
                        expected.extend(script);
                        0
                    }
                    PeerLeafScript::PubkeyHash => 1,
                    PeerLeafScript::WitnessPubkeyHash => 2,
                    PeerLeafScript::ScriptHash => 3,
                    PeerLeafScript::WitnessScriptHash => 4,
                }] += 1;
                assert!(rest.starts_with(&expected), "block {}", record["height"]);
            }
            let written = encoded(&UtreexoMessage::Proof(proof));
            assert_eq!(written, ("uproof", payload));
        }
    }
    assert!(kinds.iter().all(|&count| count > 0), "a kind of script occurs in no proof: {kinds:?}");
}
