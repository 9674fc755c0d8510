//! Names of Tor services, version 3: their key, a checksum and a version in base 32 (Tor
//! specification, `rend-spec-v3`, "Encoding onion addresses").
//!
//! The checksum is SHA3-256 (FIPS 202), of which there is here only what this one use needs.

/// Version of the names.
const VERSION: u8 = 3;
/// The alphabet of RFC 4648, in lower case.
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The name that a proxy knows a service by, from the service's public key.
#[must_use]
pub fn onion_name(key: &[u8; 32]) -> String {
    let mut message = b".onion checksum".to_vec();
    message.extend(key);
    message.push(VERSION);
    let checksum = sha3_256(&message);
    let mut bytes = key.to_vec();
    bytes.extend([checksum[0], checksum[1], VERSION]);
    // 35 bytes are 56 digits without a rest.
    let mut name = String::with_capacity(62);
    for group in bytes.chunks_exact(5) {
        let bits = group.iter().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
        let digit = |place: u32| char::from(BASE32[(bits >> (5 * place)) as usize % 32]);
        name.extend((0..8).rev().map(digit));
    }
    name.push_str(".onion");
    name
}

/// Bytes that SHA3-256 takes between two permutations.
const RATE: usize = 136;
/// Constants of Keccak-f\[1600\]'s step iota, one a round.
const ROUND_CONSTANTS: [u64; 24] = round_constants();

/// SHA3-256 of a message shorter than one block.
fn sha3_256(message: &[u8]) -> [u8; 32] {
    assert!(message.len() < RATE, "a message of {} bytes needs another block", message.len());
    let mut block = [0; RATE];
    block[..message.len()].copy_from_slice(message);
    block[message.len()] = 0x06;
    block[RATE - 1] |= 0x80;
    let mut state = [0; 25];
    for (lane, bytes) in state.iter_mut().zip(block.as_chunks::<8>().0) {
        *lane = u64::from_le_bytes(*bytes);
    }
    keccak_f(&mut state);
    let mut digest = [0; 32];
    for (bytes, lane) in digest.as_chunks_mut::<8>().0.iter_mut().zip(state) {
        *bytes = lane.to_le_bytes();
    }
    digest
}

/// The permutation Keccak-f\[1600\] (FIPS 202, section 3.3). Lane (x, y) is `state[x + 5 * y]`.
fn keccak_f(state: &mut [u64; 25]) {
    for constant in ROUND_CONSTANTS {
        // Theta: each lane takes in the parity of two columns.
        let parity: [u64; 5] =
            std::array::from_fn(|x| (0..5).fold(0, |sum, y| sum ^ state[x + 5 * y]));
        for (at, lane) in state.iter_mut().enumerate() {
            let x = at % 5;
            *lane ^= parity[(x + 4) % 5] ^ parity[(x + 1) % 5].rotate_left(1);
        }
        // Rho and pi: lanes turn and change places, along one path through all but the first.
        let (mut x, mut y, mut moved) = (1, 0, state[1]);
        for step in 0..24u32 {
            (x, y) = (y, (2 * x + 3 * y) % 5);
            let turned = moved.rotate_left((step + 1) * (step + 2) / 2 % 64);
            moved = std::mem::replace(&mut state[x + 5 * y], turned);
        }
        // Chi: the only step that is not linear.
        for row in state.as_chunks_mut::<5>().0 {
            let old = *row;
            for (x, lane) in row.iter_mut().enumerate() {
                *lane ^= !old[(x + 1) % 5] & old[(x + 2) % 5];
            }
        }
        // Iota.
        state[0] ^= constant;
    }
}

/// The constants come out of a shift register (FIPS 202, section 3.2.5).
const fn round_constants() -> [u64; 24] {
    let mut constants = [0; 24];
    let (mut round, mut register) = (0, 1u8);
    while round < 24 {
        let mut j = 0;
        while j < 7 {
            if register & 1 == 1 {
                constants[round] |= 1 << ((1 << j) - 1);
            }
            register = (register << 1) ^ (0x71 * (register >> 7));
            j += 1;
        }
        round += 1;
    }
    constants
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn digests_are_those_of_the_standard() {
        let known = [
            ("", "a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a"),
            ("abc", "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532"),
            (
                "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "41c0dba2a9d6240849100376a8235e2c82e1b9998a999e21db32dd97496d3376",
            ),
        ];
        for (message, digest) in known {
            assert_eq!(hex(&sha3_256(message.as_bytes())), digest);
        }
    }

    /// The key out of a name, by a slower way.
    fn key_of(name: &str) -> [u8; 32] {
        let digits = name.bytes().map(|c| BASE32.iter().position(|&d| d == c).unwrap());
        let bits: Vec<bool> =
            digits.flat_map(|digit| (0..5).rev().map(move |bit| digit >> bit & 1 == 1)).collect();
        let byte = |bits: &[bool]| bits.iter().fold(0, |byte, &bit| byte << 1 | u8::from(bit));
        let bytes: Vec<u8> = bits.chunks(8).map(byte).collect();
        bytes[..32].try_into().unwrap()
    }

    #[test]
    fn names_of_services_that_exist() {
        // Examples of the Tor specification.
        for name in [
            "pg6mmjiyjmcrsslvykfwnntlaru7p5svn6y2ymmju6nubxndf4pscryd",
            "sp3k262uwy4r2k3ycr5awluarykdpag6a7y33jxop4cs2lu5uz5sseqd",
            "xa4r2iadxm55fbnqgwwi5mymqdcofiu3w6rpbtqn7b2dyn7mgwj64jyd",
        ] {
            assert_eq!(onion_name(&key_of(name)), format!("{name}.onion"));
        }
    }
}
