//! Tests the facts that block rules read in scripts against the `bitcoin` crate.

mod sigops;

use super::*;
use proptest::prelude::*;

/// Inserts another operation between counted ones. The `bitcoin` crate still applies a number from before the
/// first of them to the second; Core does not.
pub(crate) fn spread_sigops(script: &mut [u8]) {
    const OP_NOP: u8 = 0x61;
    for at in 1..script.len() {
        let counts = |byte: u8| (OP_CHECKSIG..=OP_CHECKMULTISIGVERIFY).contains(&byte);
        if counts(script[at - 1]) && counts(script[at]) {
            script[at] = OP_NOP;
        }
    }
}

proptest! {
    #[test]
    fn sigops_agree_with_the_bitcoin_crate(
        script in proptest::collection::vec(
            prop_oneof![any::<u8>(), 0xa8u8..0xb0, 0x4au8..0x50, 0u8..4], 0..80),
    ) {
        let expected = bitcoin::Script::from_bytes(&script).count_sigops_legacy();
        prop_assert_eq!(legacy_sigops(&script) as usize, expected);
    }

    #[test]
    fn accurate_sigops_agree_with_the_bitcoin_crate(
        mut script in proptest::collection::vec(
            prop_oneof![
                any::<u8>(), 0xa8u8..0xb0, 0x4au8..0x50, 0u8..4, 0x4eu8..0x63, Just(0xae_u8),
            ],
            0..80,
        ),
    ) {
        spread_sigops(&mut script);
        let expected = bitcoin::Script::from_bytes(&script).count_sigops();
        prop_assert_eq!(accurate_sigops(&script) as usize, expected);
    }

    #[test]
    fn sigops_of_usual_forms_match_the_walk(
        form in 0usize..5,
        length in 18usize..36,
        fill: u8,
        damage in proptest::option::of((0usize..36, any::<u8>())),
    ) {
        let (before, after): (&[u8], &[u8]) = [
            (&[0, 20][..], &[][..]),
            (&[0, 32], &[]),
            (&[OP_1, 32], &[]),
            (&[OP_HASH160, 20], &[OP_EQUAL]),
            (&[OP_DUP, OP_HASH160, 20], &[OP_EQUALVERIFY, OP_CHECKSIG]),
        ][form];
        for length in [20, 32, length] {
            let hash = vec![fill; length];
            let mut script = [before, &hash, after].concat();
            if let Some((at, byte)) = damage {
                let at = at % script.len();
                script[at] = byte;
            }
            prop_assert_eq!(legacy_sigops(&script), walked_sigops(&script));
        }
    }

    #[test]
    fn height_push_agrees_with_the_bitcoin_crate(shift in 0u32..32, height in any::<u32>()) {
        // Core stores heights in an i32.
        let height = (height >> shift) & 0x7fff_ffff;
        let expected = bitcoin::script::Builder::new().push_int(i64::from(height)).into_script();
        let (bytes, length) = height_push(height);
        prop_assert_eq!(&bytes[..length], expected.as_bytes());
    }
}

#[test]
fn multisigs_count_the_number_before_them() {
    for (script, expected) in [
        (&[OP_16, OP_CHECKMULTISIG][..], 16),
        (&[OP_1, OP_CHECKMULTISIGVERIFY], 1),
        (&[OP_1 - 1, OP_CHECKMULTISIG], 20),
        (&[OP_16 + 1, OP_CHECKMULTISIG], 20),
        (&[0, OP_CHECKMULTISIG], 20),
        (&[1, OP_1, OP_CHECKMULTISIG], 20),
        (&[OP_1 + 1, OP_CHECKMULTISIG, OP_CHECKMULTISIG], 22),
        (&[OP_CHECKSIG, OP_CHECKSIGVERIFY, 2, OP_CHECKSIG], 2),
    ] {
        assert_eq!(accurate_sigops(script), expected, "{script:02x?}");
    }
}

#[test]
fn the_last_push_is_the_top_of_the_stack() {
    for (script, expected) in [
        (&[][..], Some(&[][..])),
        (&[1, 7], Some(&[7])),
        (&[1, 7, 0], Some(&[])),
        (&[1, 7, OP_16], Some(&[])),
        (&[0x50, OP_PUSHDATA1, 2, 8, 9], Some(&[8, 9])),
        (&[OP_PUSHDATA2, 1, 0, 5], Some(&[5])),
        (&[OP_PUSHDATA4, 1, 0, 0, 0, 5], Some(&[5])),
        (&[OP_16 + 1, 1, 7], None),
        (&[1, 7, 2, 7], None),
        (&[OP_PUSHDATA2, 1], None),
    ] {
        assert_eq!(last_push(script), expected, "{script:02x?}");
    }
}

#[test]
fn height_pushes_match_at_the_limits() {
    for (height, expected) in [
        (0u32, &[0x00u8][..]),
        (1, &[0x51]),
        (16, &[0x60]),
        (17, &[0x01, 0x11]),
        (127, &[0x01, 0x7f]),
        (128, &[0x02, 0x80, 0x00]),
        (227_931, &[0x03, 0x5b, 0x7a, 0x03]),
        (0x0080_0000, &[0x04, 0, 0, 0x80, 0]),
    ] {
        let (bytes, length) = height_push(height);
        assert_eq!(&bytes[..length], expected, "{height}");
    }
}

#[test]
fn commitments_need_every_byte() {
    let mut script = vec![OP_RETURN, 0x24, 0xaa, 0x21, 0xa9, 0xed];
    script.extend([7; 32]);
    assert_eq!(witness_commitment(&script), Some(&[7; 32]));
    assert_eq!(witness_commitment(&script[..37]), None);
    script[5] ^= 1;
    assert_eq!(witness_commitment(&script), None);
}
