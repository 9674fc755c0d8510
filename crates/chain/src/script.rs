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
const OP_16: u8 = 0x60;
/// `OP_DUP`.
pub const OP_DUP: u8 = 0x76;
/// `OP_EQUAL`.
pub const OP_EQUAL: u8 = 0x87;
/// `OP_EQUALVERIFY`.
pub const OP_EQUALVERIFY: u8 = 0x88;
/// `OP_HASH160`.
pub const OP_HASH160: u8 = 0xa9;
/// `OP_CHECKSIG`.
pub const OP_CHECKSIG: u8 = 0xac;
const OP_CHECKSIGVERIFY: u8 = 0xad;
const OP_CHECKMULTISIG: u8 = 0xae;
const OP_CHECKMULTISIGVERIFY: u8 = 0xaf;

/// The longest script that can be run (Core `script/script.h`, `MAX_SCRIPT_SIZE`).
pub const MAX_SCRIPT_SIZE: usize = 10_000;

/// What a CHECKMULTISIG counts for where the number of keys is not looked at
/// (Core `script/script.h`, `MAX_PUBKEYS_PER_MULTISIG`).
const MULTISIG_SIGOPS: u32 = 20;

/// Signature operations as Core counts them before it knows what is spent
/// (`script/script.cpp`, `GetSigOpCount(false)`): up to the first push that runs past the end.
#[inline]
pub fn legacy_sigops(script: &[u8]) -> u32 {
    // Of inputs most scripts are empty.
    if script.is_empty() {
        return 0;
    }
    match usual_sigops(script) {
        Some(count) => count,
        None => walked_sigops(script),
    }
}

/// The signature operations of the forms that nearly all scripts have, which need not be walked through: P2WPKH, P2WSH
/// and P2TR, P2SH, P2PKH. Which of these comes next is not to be foreseen, so all are looked at without a branch.
#[inline]
fn usual_sigops(script: &[u8]) -> Option<u32> {
    let (&[a, b, c], &[y, z]) = (script.first_chunk()?, script.last_chunk()?);
    let length = script.len();
    let key_hash = (length == 22) & (a == 0) & (b == 20);
    let program = (length == 34) & ((a == 0) | (a == OP_1)) & (b == 32);
    let script_hash = (length == 23) & (a == OP_HASH160) & (b == 20) & (z == OP_EQUAL);
    let begins = (a == OP_DUP) & (b == OP_HASH160) & (c == 20);
    let public_key_hash = (length == 25) & begins & (y == OP_EQUALVERIFY) & (z == OP_CHECKSIG);
    (key_hash | program | script_hash | public_key_hash).then_some(u32::from(public_key_hash))
}

fn walked_sigops(script: &[u8]) -> u32 {
    let mut count = 0;
    for opcode in Opcodes::new(script).map_while(Result::ok) {
        count += match opcode.code {
            OP_CHECKSIG | OP_CHECKSIGVERIFY => 1,
            OP_CHECKMULTISIG | OP_CHECKMULTISIGVERIFY => MULTISIG_SIGOPS,
            _ => 0,
        };
    }
    count
}

/// Signature operations as Core counts them in a script that it knows to be run
/// (`script/script.cpp`, `GetSigOpCount(true)`): a CHECKMULTISIG straight after `OP_1` to `OP_16`
/// counts for so many, another one for 20.
pub fn accurate_sigops(script: &[u8]) -> u32 {
    let (mut count, mut before) = (0, 0);
    for opcode in Opcodes::new(script).map_while(Result::ok) {
        count += match (opcode.code, before) {
            (OP_CHECKSIG | OP_CHECKSIGVERIFY, _) => 1,
            (OP_CHECKMULTISIG | OP_CHECKMULTISIGVERIFY, OP_1..=OP_16) => {
                u32::from(before - OP_1) + 1
            }
            (OP_CHECKMULTISIG | OP_CHECKMULTISIGVERIFY, _) => MULTISIG_SIGOPS,
            _ => 0,
        };
        before = opcode.code;
    }
    count
}

/// What the last operation of a script pushes, if the script does nothing but push (Core
/// `script/script.cpp`, `IsPushOnly`): nothing where it is empty or ends in `OP_0` or one of the
/// small numbers, which Core does not spell out here either (`GetSigOpCount(const CScript&)`).
pub fn last_push(script: &[u8]) -> Option<&[u8]> {
    let mut last = &[][..];
    for opcode in Opcodes::new(script) {
        let Opcode { code, data } = opcode.ok()?;
        if code > OP_16 {
            return None;
        }
        last = data;
    }
    Some(last)
}

/// Whether this is pay-to-script-hash (BIP-16; Core `script/script.cpp`, `IsPayToScriptHash`).
#[inline]
pub(crate) fn is_p2sh(script: &[u8]) -> bool {
    matches!(script, [OP_HASH160, 20, hash @ .., OP_EQUAL] if hash.len() == 20)
}

/// One operation: its code, and what it pushes if it is a push with data.
struct Opcode<'a> {
    code: u8,
    data: &'a [u8],
}

/// A push that runs past the end of its script.
struct CutOff;

/// The operations of a script (Core `script/script.cpp`, `GetScriptOp`); after one that is cut off
/// there are no more.
struct Opcodes<'a> {
    rest: &'a [u8],
}

impl<'a> Opcodes<'a> {
    fn new(script: &'a [u8]) -> Self {
        Self { rest: script }
    }
}

/// What is pushed and what follows it, where the length is the first `N` bytes, little-endian.
fn split_after_length<const N: usize>(script: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, data) = script.split_first_chunk::<N>()?;
    data.split_at_checked(length.iter().rev().fold(0, |n, &byte| n << 8 | byte as usize))
}

impl<'a> Iterator for Opcodes<'a> {
    type Item = Result<Opcode<'a>, CutOff>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (&code, after) = self.rest.split_first()?;
        let parts = match code {
            ..OP_PUSHDATA1 => after.split_at_checked(code as usize),
            OP_PUSHDATA1 => split_after_length::<1>(after),
            OP_PUSHDATA2 => split_after_length::<2>(after),
            OP_PUSHDATA4 => split_after_length::<4>(after),
            _ => Some((&[][..], after)),
        };
        let Some((data, after)) = parts else {
            self.rest = &[];
            return Some(Err(CutOff));
        };
        self.rest = after;
        Some(Ok(Opcode { code, data }))
    }
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
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Puts something else between two operations that count. That crate remembers a number from
    /// before the first of them for the second; Core does not.
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
    fn the_last_push_is_what_a_script_leaves_on_top() {
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
