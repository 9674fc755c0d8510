use super::*;
use proptest::collection::btree_set;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

const ORDERS: [BitOrder; 2] = [BitOrder::MsbFirst, BitOrder::LsbFirst];

fn encoded(indices: &[u32], order: BitOrder) -> Vec<u8> {
    let mut out = Vec::new();
    encode(indices, order, &mut out).unwrap();
    out
}

fn decoded(bytes: &[u8], order: BitOrder) -> Result<Vec<u32>, HintsFault> {
    let mut indices = vec![77];
    decode(bytes, order, &mut indices).map(|_| indices)
}

/// Index sets like the ones of real blocks: sparse and dense, short and long.
fn any_indices() -> impl Strategy<Value = Vec<u32>> {
    (0u32..17, 0usize..300).prop_flat_map(|(spread, count)| {
        let above = (1 << spread).min(OUTPUTS_PER_BLOCK_MAX);
        btree_set(0..above, 0..=count.min(above as usize)).prop_map(|set| set.into_iter().collect())
    })
}

#[test]
fn published_vectors_in_both_orders() {
    let text =
        include_str!("../../../../../../../fixtures/bip-vectors/elias_fano_both_orders.json");
    let json: serde_json::Value = serde_json::from_str(text).unwrap();
    let vectors = json["vectors"].as_array().unwrap();
    assert_eq!(vectors.len(), 10);
    for vector in vectors {
        let indices: Vec<u32> = serde_json::from_value(vector["indices"].clone()).unwrap();
        for (order, key) in ORDERS.into_iter().zip(["msb_0_1_x_and_bip456_vectors", "lsb_0_2_x"]) {
            let bytes = unhex(vector[key].as_str().unwrap());
            assert_eq!(encoded(&indices, order), bytes);
            assert_eq!(decoded(&bytes, order), Ok(indices.clone()));
        }
    }
    let text = include_str!("../../../../../../../fixtures/bip-vectors/elias_fano.json");
    let vectors: Vec<(Vec<u32>, String)> = serde_json::from_str(text).unwrap();
    assert_eq!(vectors.len(), 3);
    for (indices, hex) in vectors {
        assert_eq!(encoded(&indices, BitOrder::MsbFirst), unhex(&hex));
    }
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

proptest! {
    #[test]
    fn a_set_round_trips_in_both_orders(indices in any_indices(), tail in any::<[u8; 3]>()) {
        for order in ORDERS {
            let bytes = encoded(&indices, order);
            let shape = measure(&bytes).unwrap();
            prop_assert_eq!(shape.bytes(), bytes.len());
            prop_assert_eq!(shape.n as usize, indices.len());
            // Bytes after an element belong to the next.
            let longer = [&bytes[..], &tail].concat();
            prop_assert_eq!(decoded(&longer, order), Ok(indices.clone()));
            for end in 0..bytes.len() {
                let cut = decoded(&bytes[..end], order);
                prop_assert!(matches!(cut, Err(HintsFault::End { .. })), "{end}: {cut:?}");
            }
        }
    }

    #[test]
    fn agrees_with_the_hintsfile_crate(indices in any_indices()) {
        // That crate asserts ℓ < 16 in debug builds, which a single high index exceeds.
        prop_assume!(indices.len() != 1 || indices[0] < 65_535);
        let mut theirs = Vec::new();
        hintsfile::EliasFano::compress(&indices).write(&mut theirs).unwrap();
        prop_assert_eq!(encoded(&indices, BitOrder::LsbFirst), theirs);
    }

    /// Accepted bytes are the only encoding of their set, and the other implementation reads the same.
    #[test]
    fn acceptance_is_canonical(header in (0u32..12, 0u32..90), body in any::<[u8; 24]>()) {
        let mut bytes = vec![header.0 as u8, header.1 as u8];
        bytes.extend_from_slice(&body);
        accepted_is_canonical(&bytes)?;
    }

    #[test]
    fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        accepted_is_canonical(&bytes)?;
    }
}

fn accepted_is_canonical(bytes: &[u8]) -> Result<(), TestCaseError> {
    for order in ORDERS {
        let mut indices = Vec::new();
        let Ok(shape) = decode(bytes, order, &mut indices) else { continue };
        prop_assert_eq!(&encoded(&indices, order)[..], &bytes[..shape.bytes()]);
        if order == BitOrder::LsbFirst {
            let theirs = hintsfile::EliasFano::from_reader(&mut &bytes[..]).unwrap();
            prop_assert_eq!(theirs.decompress(), indices);
        }
    }
    Ok(())
}

#[test]
fn every_small_set_has_one_encoding() {
    for order in ORDERS {
        for mask in 0u32..1 << 10 {
            let indices: Vec<u32> = (0..10).filter(|bit| mask >> bit & 1 == 1).collect();
            let bytes = encoded(&indices, order);
            assert_eq!(decoded(&bytes, order), Ok(indices.clone()));
            // No other string of this length and header decodes to the same set.
            for bit in 16..8 * bytes.len() {
                let mut other = bytes.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                if let Ok(set) = decoded(&other, order) {
                    assert_ne!(set, indices);
                }
            }
        }
    }
}

#[test]
fn the_largest_block_fits_the_bound() {
    let all: Vec<u32> = (0..OUTPUTS_PER_BLOCK_MAX).collect();
    for order in ORDERS {
        let bytes = encoded(&all, order);
        assert_eq!(bytes.len(), ELEMENT_BYTES_MAX);
        assert_eq!(decoded(&bytes, order), Ok(all.clone()));
    }
    for n in 1..=OUTPUTS_PER_BLOCK_MAX {
        let shape = EliasFanoShape::new(n, OUTPUTS_PER_BLOCK_MAX - 1, 10).unwrap();
        assert!(shape.bytes() <= ELEMENT_BYTES_MAX, "{n}");
    }
}

#[test]
fn counts_are_bounded_before_anything_is_allocated() {
    let mut indices = Vec::new();
    for (hex, field, value) in [
        ("feffffffff00", "N", u64::from(u32::MAX)),
        ("fe08b20100feffffffff", "N", 111_112),
        ("ffffffffffffffffff", "N", u64::MAX),
        ("01feffffffff", "M", u64::from(u32::MAX)),
        ("01fe07b20100", "M", 111_111),
        ("01ffffffffffffffffff", "M", u64::MAX),
    ] {
        let got = decode(&unhex(hex), BitOrder::MsbFirst, &mut indices);
        let limit = if field == "N" { 111_111 } else { 111_110 };
        assert_eq!(got, Err(HintsFault::TooLarge { field, value, limit }), "{hex}");
        assert_eq!(indices.capacity(), 0);
    }
    // N is within the limit, but impossible with so small an M.
    let got = decode(&unhex("fd030101"), BitOrder::MsbFirst, &mut indices);
    assert_eq!(got, Err(HintsFault::TooManyIndices { n: 259, m: 1 }));
    assert_eq!(
        decoded(&unhex("0300"), BitOrder::LsbFirst),
        Err(HintsFault::TooManyIndices { n: 3, m: 0 })
    );
}

#[test]
fn numbers_in_longer_forms_are_refused() {
    for (hex, field) in [
        ("fd0000", "N"),
        ("fd01000080", "N"),
        ("fe010000000080", "N"),
        ("ff01000000000000000080", "N"),
        ("01fd000080", "M"),
        ("01fefc000000", "M"),
        ("01ff0000000000000000", "M"),
    ] {
        assert_eq!(measure(&unhex(hex)), Err(HintsFault::NonCanonical { field }), "{hex}");
    }
}

#[test]
fn each_rule_of_the_bit_strings_is_checked() {
    let msb = |hex: &str| decoded(&unhex(hex), BitOrder::MsbFirst);
    let lsb = |hex: &str| decoded(&unhex(hex), BitOrder::LsbFirst);
    // [3, 7, 12] is 030cf0a4: L = 11 11 00, H = 101001.
    assert_eq!(msb("030cf0a4"), Ok(vec![3, 7, 12]));
    assert_eq!(msb("030cf0a6"), Err(HintsFault::Padding { field: "H" }));
    assert_eq!(lsb("030c0f65"), Err(HintsFault::Padding { field: "H" }));
    assert_eq!(msb("030cf1a4"), Err(HintsFault::Padding { field: "L" }));
    assert_eq!(lsb("030c4f25"), Err(HintsFault::Padding { field: "L" }));
    assert_eq!(msb("030cf0e4"), Err(HintsFault::SetBits { found: 4, n: 3 }));
    assert_eq!(msb("030cf084"), Err(HintsFault::SetBits { found: 2, n: 3 }));
    // L = 11 11 10: the last is 13. H = 101010: the last is 8.
    assert_eq!(msb("030cf8a4"), Err(HintsFault::LastIsNotM { last: 13, m: 12 }));
    assert_eq!(msb("030cf0a8"), Err(HintsFault::LastIsNotM { last: 8, m: 12 }));
    // H = 110001: both of the first two have the high part 0, and the low parts 3 and 3.
    assert_eq!(msb("030cf0c4"), Err(HintsFault::NotAscending { previous: 3, index: 3 }));
}

#[test]
fn the_encoder_refuses_invalid_sets() {
    let mut out = vec![9];
    let falling = encode(&[4, 4], BitOrder::MsbFirst, &mut out);
    assert_eq!(falling, Err(HintsFault::NotAscending { previous: 4, index: 4 }));
    let beyond = encode(&[OUTPUTS_PER_BLOCK_MAX], BitOrder::MsbFirst, &mut out);
    assert!(matches!(beyond, Err(HintsFault::TooLarge { value: 111_111, limit: 111_110, .. })));
    assert_eq!(out, [9]);
}

#[test]
fn order_names_parse_back() {
    for order in ORDERS {
        assert_eq!(order.name().parse(), Ok(order));
        assert_ne!(order, order.other());
    }
    assert!("big".parse::<BitOrder>().is_err());
}
