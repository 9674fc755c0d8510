//! The little of Bitcoin's script that block rules need without running one.
//!
//! Counting signature operations, the push of a height, the witness commitment. Running scripts
//! is the business of an engine.

/// `OP_RETURN`.
pub const OP_RETURN: u8 = 0x6a;
const OP_PUSHDATA1: u8 = 0x4c;
const OP_PUSHDATA2: u8 = 0x4d;
const OP_PUSHDATA4: u8 = 0x4e;
const OP_1: u8 = 0x51;
const OP_DUP: u8 = 0x76;
const OP_EQUAL: u8 = 0x87;
const OP_EQUALVERIFY: u8 = 0x88;
const OP_HASH160: u8 = 0xa9;
const OP_CHECKSIG: u8 = 0xac;
const OP_CHECKSIGVERIFY: u8 = 0xad;
const OP_CHECKMULTISIG: u8 = 0xae;
const OP_CHECKMULTISIGVERIFY: u8 = 0xaf;

/// What a CHECKMULTISIG counts for where the number of keys is not looked at
/// (Core `script/script.h`, `MAX_PUBKEYS_PER_MULTISIG`).
const MULTISIG_SIGOPS: u32 = 20;

/// Signature operations as Core counts them before it knows what is spent
/// (`script/script.cpp`, `GetSigOpCount(false)`): up to the first push that runs past the end.
#[inline]
pub fn legacy_sigops(script: &[u8]) -> u32 {
    match script {
        // The forms that nearly all scripts have, which need not be walked through: nothing,
        // P2WPKH, P2WSH and P2TR, P2SH, P2PKH.
        [] => 0,
        [0, 20, hash @ ..] if hash.len() == 20 => 0,
        [0 | OP_1, 32, hash @ ..] if hash.len() == 32 => 0,
        [OP_HASH160, 20, hash @ .., OP_EQUAL] if hash.len() == 20 => 0,
        [OP_DUP, OP_HASH160, 20, hash @ .., OP_EQUALVERIFY, OP_CHECKSIG] if hash.len() == 20 => 1,
        _ => walked_sigops(script),
    }
}

fn walked_sigops(script: &[u8]) -> u32 {
    let mut count = 0;
    let mut rest = script;
    while let Some((&opcode, after)) = rest.split_first() {
        let (width, direct) = match opcode {
            ..OP_PUSHDATA1 => (0, opcode as usize),
            OP_PUSHDATA1 => (1, 0),
            OP_PUSHDATA2 => (2, 0),
            OP_PUSHDATA4 => (4, 0),
            _ => {
                count += match opcode {
                    OP_CHECKSIG | OP_CHECKSIGVERIFY => 1,
                    OP_CHECKMULTISIG | OP_CHECKMULTISIGVERIFY => MULTISIG_SIGOPS,
                    _ => 0,
                };
                rest = after;
                continue;
            }
        };
        let Some((prefix, data)) = after.split_at_checked(width) else { break };
        let length = prefix.iter().rev().fold(direct, |n, &byte| n << 8 | byte as usize);
        let Some(after) = data.get(length..) else { break };
        rest = after;
    }
    count
}

/// The script that BIP-34 wants at the start of a coinbase: the height as `CScript() << height`
/// writes it (Core `script/script.h`, `push_int64`). At most six bytes are used.
pub fn height_push(height: u32) -> ([u8; 6], usize) {
    let mut script = [0; 6];
    match height {
        0 => (script, 1),
        1..=16 => {
            script[0] = OP_1 - 1 + height as u8;
            (script, 1)
        }
        _ => {
            // Little-endian, and a further zero byte where the top bit would read as a sign.
            let bits = 32 - height.leading_zeros() as usize;
            let length = bits / 8 + 1;
            let bytes = u64::from(height).to_le_bytes();
            script[0] = length as u8;
            script[1..=length].copy_from_slice(&bytes[..length]);
            (script, length + 1)
        }
    }
}

/// The hash in a witness commitment, if the script is one (BIP-141): OP_RETURN, a push of 36
/// bytes, the mark `aa21a9ed` and 32 bytes of hash; more may follow.
pub fn witness_commitment(script: &[u8]) -> Option<&[u8; 32]> {
    script.strip_prefix(&[OP_RETURN, 0x24, 0xaa, 0x21, 0xa9, 0xed])?.first_chunk()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        fn sigops_of_usual_forms_are_those_of_the_walk(
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
            // Core keeps heights in an i32.
            let height = (height >> shift) & 0x7fff_ffff;
            let expected = bitcoin::script::Builder::new().push_int(i64::from(height)).into_script();
            let (bytes, length) = height_push(height);
            prop_assert_eq!(&bytes[..length], expected.as_bytes());
        }
    }

    #[test]
    fn height_pushes_at_the_edges() {
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
}
