//! A script that fails says which rule it broke, in Core's words.

use crate::spend::{coin, verify};
use apus_chain::VERIFY_P2SH;

/// A transaction with one input, an empty script and nothing else of interest.
fn spend_with(script_sig: &[u8]) -> Vec<u8> {
    let mut raw = vec![1, 0, 0, 0, 1];
    raw.extend([7; 36]);
    raw.push(u8::try_from(script_sig.len()).unwrap());
    raw.extend(script_sig);
    raw.extend([0xff; 4]);
    raw.extend([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    raw
}

#[test]
fn a_failing_script_has_its_name() {
    const OP_IF: u8 = 0x63;
    const OP_CAT: u8 = 0x7e;
    const OP_VERIFY: u8 = 0x69;
    for (script_sig, script, name) in [
        (&[0x51][..], &[OP_IF][..], "Invalid OP_IF construction"),
        (&[], &[OP_CAT], "Attempted to use a disabled opcode"),
        (&[0x6a], &[0x51], "OP_RETURN was encountered"),
        (&[0x00], &[OP_VERIFY], "Script failed an OP_VERIFY operation"),
        (
            &[],
            &[0x00],
            "Script evaluated without error but finished with a false/empty top stack element",
        ),
    ] {
        let failure = verify(spend_with(script_sig), vec![coin(script, 0)], VERIFY_P2SH);
        let expected = format!("block-script-verify-flag-failed ({name})");
        assert_eq!(failure.unwrap_err().reason(), expected);
    }
    assert_eq!(verify(spend_with(&[]), vec![coin(&[0x51], 0)], VERIFY_P2SH), Ok(()));
}
