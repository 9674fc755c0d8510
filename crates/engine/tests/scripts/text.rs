//! Scripts and flags in the notation of Core's vectors.

use apus_chain::{
    VERIFY_CHECKLOCKTIMEVERIFY, VERIFY_CHECKSEQUENCEVERIFY, VERIFY_DERSIG, VERIFY_NULLDUMMY,
    VERIFY_P2SH, VERIFY_TAPROOT, VERIFY_WITNESS,
};
use std::path::Path;

/// The consensus rules, all that the kernel library supports.
pub(crate) const CONSENSUS: [(&str, u32); 7] = [
    ("P2SH", VERIFY_P2SH),
    ("DERSIG", VERIFY_DERSIG),
    ("NULLDUMMY", VERIFY_NULLDUMMY),
    ("CHECKLOCKTIMEVERIFY", VERIFY_CHECKLOCKTIMEVERIFY),
    ("CHECKSEQUENCEVERIFY", VERIFY_CHECKSEQUENCEVERIFY),
    ("WITNESS", VERIFY_WITNESS),
    ("TAPROOT", VERIFY_TAPROOT),
];

/// All consensus rules together.
pub(crate) const ALL: u32 = {
    let (mut all, mut next) = (0, 0);
    while next < CONSENSUS.len() {
        all |= CONSENSUS[next].1;
        next += 1;
    }
    all
};

/// Returns every set of rules that contains the rules its members depend on: 64 sets.
pub(crate) fn all_sets() -> impl Iterator<Item = u32> {
    (0u32..1 << CONSENSUS.len())
        .map(|set| {
            let chosen = CONSENSUS.iter().enumerate().filter(|(bit, _)| set >> bit & 1 == 1);
            chosen.fold(0, |flags, (_, (_, flag))| flags | flag)
        })
        .filter(|flags| *flags == trim(*flags))
}

/// Removes rules that lack a rule they depend on (Core `transaction_tests.cpp`, `TrimFlags`).
pub(crate) fn trim(mut flags: u32) -> u32 {
    if flags & VERIFY_P2SH == 0 {
        flags &= !VERIFY_WITNESS;
    }
    if flags & VERIFY_WITNESS == 0 {
        flags &= !VERIFY_TAPROOT;
    }
    flags
}

/// Adds the rules that the given ones depend on (Core `transaction_tests.cpp`, `FillFlags`).
pub(crate) fn fill(mut flags: u32) -> u32 {
    if flags & VERIFY_TAPROOT != 0 {
        flags |= VERIFY_WITNESS;
    }
    if flags & VERIFY_WITNESS != 0 {
        flags |= VERIFY_P2SH;
    }
    flags
}

/// Returns the consensus rules in a list of names, and the number of relay rules.
pub(crate) fn flags(names: &str) -> (u32, usize) {
    let (mut flags, mut relay) = (0, 0);
    for name in names.split(',').filter(|name| !name.is_empty() && *name != "NONE") {
        match CONSENSUS.iter().find(|(known, _)| *known == name) {
            Some((_, flag)) => flags |= flag,
            None => relay += 1,
        }
    }
    (flags, relay)
}

/// Opcodes from `OP_NOP` on, in numeric order.
const OPCODES: &str = "NOP VER IF NOTIF VERIF VERNOTIF ELSE ENDIF VERIFY RETURN TOALTSTACK \
    FROMALTSTACK 2DROP 2DUP 3DUP 2OVER 2ROT 2SWAP IFDUP DEPTH DROP DUP NIP OVER PICK ROLL ROT SWAP \
    TUCK CAT SUBSTR LEFT RIGHT SIZE INVERT AND OR XOR EQUAL EQUALVERIFY RESERVED1 RESERVED2 1ADD \
    1SUB 2MUL 2DIV NEGATE ABS NOT 0NOTEQUAL ADD SUB MUL DIV MOD LSHIFT RSHIFT BOOLAND BOOLOR \
    NUMEQUAL NUMEQUALVERIFY NUMNOTEQUAL LESSTHAN GREATERTHAN LESSTHANOREQUAL GREATERTHANOREQUAL \
    MIN MAX WITHIN RIPEMD160 SHA1 SHA256 HASH160 HASH256 CODESEPARATOR CHECKSIG CHECKSIGVERIFY \
    CHECKMULTISIG CHECKMULTISIGVERIFY NOP1 CHECKLOCKTIMEVERIFY CHECKSEQUENCEVERIFY NOP4 NOP5 NOP6 \
    NOP7 NOP8 NOP9 NOP10 CHECKSIGADD";

fn opcode(name: &str) -> u8 {
    let name = name.strip_prefix("OP_").unwrap_or(name);
    if name == "RESERVED" {
        return 0x50;
    }
    let index = OPCODES.split_whitespace().position(|known| known == name);
    0x61 + u8::try_from(index.unwrap_or_else(|| panic!("no opcode {name}"))).unwrap()
}

/// Returns the bytes of a script (Core `core_io.cpp`, `ParseScript`).
pub(crate) fn script(text: &str) -> Vec<u8> {
    let mut script = bitcoin::ScriptBuf::new();
    let mut bytes = Vec::new();
    for word in text.split_whitespace() {
        let quoted = word.strip_prefix('\'').and_then(|word| word.strip_suffix('\''));
        if let Ok(number) = word.parse::<i64>() {
            bytes.extend(bitcoin::script::Builder::new().push_int(number).into_bytes());
        } else if let Some(hex) = word.strip_prefix("0x") {
            bytes.extend(unhex(hex));
        } else if let Some(data) = quoted {
            script.push_slice(<&bitcoin::script::PushBytes>::try_from(data.as_bytes()).unwrap());
            bytes.append(&mut std::mem::take(&mut script).into_bytes());
        } else {
            bytes.push(opcode(word));
        }
    }
    bytes
}

/// Decodes hexadecimal digits.
pub(crate) fn unhex(digits: &str) -> Vec<u8> {
    bitcoin::hex::FromHex::from_hex(digits).unwrap()
}

/// Reads a file of vectors.
pub(crate) fn vectors(name: &str) -> serde_json::Value {
    let bytes = std::fs::read(fixture(&format!("core-vectors/{name}"))).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// Returns the path of a fixture.
pub(crate) fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

#[test]
fn scripts_are_parsed_as_in_core() {
    assert_eq!(
        script("0 -1 1 16 17 -127 128"),
        unhex("004f51600111 01ff 028000".replace(' ', "").as_str())
    );
    assert_eq!(
        script("0x4c01 0x07 'Az' NOP OP_CHECKSIG CHECKSIGADD RESERVED"),
        unhex("4c010702417a61acba50")
    );
    assert_eq!(all_sets().count(), 64);
}
