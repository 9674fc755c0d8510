//! SHA-512/256 of many messages at once (FIPS 180-4): the hash function of Utreexo's trees and
//! leaves.
//!
//! The kernels are those of SHA-512: portable for one message, AVX2 for four, AVX-512 for eight.
//! Few x86-64 processors have instructions for its rounds, so lanes gain more here than they do in
//! SHA-256. Rounds, padding, sorting and the tokens of kernels are those of SHA-256. Only
//! [`sha512_256`] is seen from outside.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod groups;
pub mod sha512_256;
#[cfg(test)]
mod tests;

use crate::groups::column;
use crate::rounds::define_rounds;
use core::ops::Range;

/// Bytes in a block.
const BLOCK: usize = 128;

/// A message as SHA-512 sees it.
type Padded<'a> = crate::many::Padded<'a, BLOCK>;

/// The states of `N` hashes: word by word, in each the lanes.
type States<const N: usize> = crate::groups::States<N, u64>;

/// A kernel for `N` messages at once.
trait Sha512Lanes<const N: usize>: Copy {
    /// Continues all states over the same range of blocks of their messages.
    fn absorb(self, states: &mut States<N>, messages: &[Padded<'_>; N], blocks: Range<usize>);

    /// SHA-512/256 of each 64-byte message.
    fn pairs(self, pairs: &[[[u8; 64]; N]], out: &mut [[[u8; 32]; N]]);
}

#[inline]
fn constant(value: u64) -> u64 {
    value
}

#[inline]
fn add(a: u64, b: u64) -> u64 {
    a.wrapping_add(b)
}

#[inline]
fn ror<const N: u32>(a: u64) -> u64 {
    a.rotate_right(N)
}

#[inline]
fn shr<const N: u32>(a: u64) -> u64 {
    a >> N
}

#[inline]
fn xor3(a: u64, b: u64, c: u64) -> u64 {
    a ^ b ^ c
}

#[inline]
fn choose(e: u64, f: u64, g: u64) -> u64 {
    g ^ (e & (f ^ g))
}

#[inline]
fn majority(a: u64, b: u64, c: u64) -> u64 {
    (a & b) | (c & (a | b))
}

define_rounds!(sha512, u64);

/// Continues `state` over whole blocks.
fn compress(state: &mut [u64; 8], blocks: &[[u8; BLOCK]]) {
    for block in blocks {
        let (bytes, _) = block.as_chunks::<8>();
        let mut words = core::array::from_fn(|i| u64::from_be_bytes(bytes[i]));
        compress_words!(state, &mut words);
    }
}

/// Continues `state` over these blocks of a message.
fn absorb(state: &mut [u64; 8], message: &Padded<'_>, blocks: Range<usize>) {
    let mut next = blocks.start;
    while next < blocks.end {
        let mut buffer = [0; BLOCK];
        let run = message.blocks_from(next, &mut buffer);
        let run = &run[..run.len().min(blocks.end - next)];
        compress(state, run);
        next += run.len();
    }
}

/// SHA-512/256 of 64 bytes.
fn pair(pair: &[u8; 64]) -> [u8; 32] {
    let mut block = [0; BLOCK];
    block[..64].copy_from_slice(pair);
    block[64] = 0x80;
    block[BLOCK - 2..].copy_from_slice(&(64u16 * 8).to_be_bytes());
    let mut state = INITIAL_256;
    compress(&mut state, &[block]);
    digest(&state)
}

/// The digest in bytes: the first half of the state.
#[inline]
fn digest(state: &[u64; 8]) -> [u8; 32] {
    let mut out = [0; 32];
    for (bytes, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(state) {
        *bytes = word.to_be_bytes();
    }
    out
}

/// The kernel of one lane.
#[derive(Clone, Copy, Debug)]
struct Portable;

impl Sha512Lanes<1> for Portable {
    fn absorb(self, states: &mut States<1>, [message]: &[Padded<'_>; 1], blocks: Range<usize>) {
        let mut state = column(states, 0);
        absorb(&mut state, message, blocks);
        *states = state.map(|word| [word]);
    }

    fn pairs(self, pairs: &[[[u8; 64]; 1]], out: &mut [[[u8; 32]; 1]]) {
        for ([bytes], out) in pairs.iter().zip(out) {
            *out = [pair(bytes)];
        }
    }
}

/// Implements [`Sha512Lanes`] for `$token`. In scope must be, besides what
/// `define_rounds!` asks for:
///
/// - `load` and `store`: a register from and to an array of words,
/// - `words_of_blocks`, `words_of_64`: the words of a block of each message, of 64-byte messages
///   side by side,
/// - `digests`: of the first halves of the states in the lanes.
///
/// Its methods are the only way in, and the token the proof that they may be called.
#[cfg(target_arch = "x86_64")]
macro_rules! implement_lanes {
    ($token:ident, $register:ty, $n:literal, #[$attribute:meta]) => {
        crate::rounds::define_rounds!(sha512, $register, #[$attribute]);

        #[$attribute]
        fn absorb(states: &mut States<$n>, messages: &[Padded<'_>; $n], blocks: Range<usize>) {
            let mut state = [constant(0); 8];
            for (lanes, words) in state.iter_mut().zip(&*states) {
                *lanes = load(words);
            }
            for block in blocks {
                let mut words = words_of_blocks(messages, block);
                compress_words!(&mut state, &mut words);
            }
            for (words, lanes) in states.iter_mut().zip(state) {
                store(lanes, words);
            }
        }

        #[$attribute]
        fn pairs(pairs: &[[[u8; 64]; $n]], out: &mut [[[u8; 32]; $n]]) {
            for (pairs, out) in pairs.iter().zip(out) {
                let mut state = [constant(0); 8];
                for (lanes, word) in state.iter_mut().zip(super::INITIAL_256) {
                    *lanes = constant(word);
                }
                let [a, b, c, d, e, f, g, h] = words_of_64(pairs);
                let (zero, mark, length) = (constant(0), constant(1 << 63), constant(64 * 8));
                let mut words =
                    [a, b, c, d, e, f, g, h, mark, zero, zero, zero, zero, zero, zero, length];
                compress_words!(&mut state, &mut words);
                let [a, b, c, d, ..] = state;
                *out = digests(&[a, b, c, d]);
            }
        }

        crate::groups::forward_lanes! { @each Sha512Lanes, $token, $n;
            fn absorb(states: &mut States<$n>, messages: &[Padded<'_>; $n], blocks: Range<usize>);
            fn pairs(messages: &[[[u8; 64]; $n]], out: &mut [[[u8; 32]; $n]]);
        }
    };
}
#[cfg(target_arch = "x86_64")]
use implement_lanes;

/// Initial hash value of SHA-512/256 (FIPS 180-4, 5.3.6.2).
pub(crate) const INITIAL_256: [u64; 8] = [
    0x2231_2194_fc2b_f72c,
    0x9f55_5fa3_c84c_64c2,
    0x2393_b86b_6f53_b151,
    0x9638_7719_5940_eabd,
    0x9628_3ee2_a88e_ffe3,
    0xbe5e_1e25_5386_3992,
    0x2b01_99fc_2c85_b8aa,
    0x0eb7_2ddc_81c5_2ca2,
];

/// Round constants (FIPS 180-4, 4.2.3).
#[rustfmt::skip]
pub(crate) const K: [u64; 80] = [
    0x428a_2f98_d728_ae22, 0x7137_4491_23ef_65cd, 0xb5c0_fbcf_ec4d_3b2f, 0xe9b5_dba5_8189_dbbc,
    0x3956_c25b_f348_b538, 0x59f1_11f1_b605_d019, 0x923f_82a4_af19_4f9b, 0xab1c_5ed5_da6d_8118,
    0xd807_aa98_a303_0242, 0x1283_5b01_4570_6fbe, 0x2431_85be_4ee4_b28c, 0x550c_7dc3_d5ff_b4e2,
    0x72be_5d74_f27b_896f, 0x80de_b1fe_3b16_96b1, 0x9bdc_06a7_25c7_1235, 0xc19b_f174_cf69_2694,
    0xe49b_69c1_9ef1_4ad2, 0xefbe_4786_384f_25e3, 0x0fc1_9dc6_8b8c_d5b5, 0x240c_a1cc_77ac_9c65,
    0x2de9_2c6f_592b_0275, 0x4a74_84aa_6ea6_e483, 0x5cb0_a9dc_bd41_fbd4, 0x76f9_88da_8311_53b5,
    0x983e_5152_ee66_dfab, 0xa831_c66d_2db4_3210, 0xb003_27c8_98fb_213f, 0xbf59_7fc7_beef_0ee4,
    0xc6e0_0bf3_3da8_8fc2, 0xd5a7_9147_930a_a725, 0x06ca_6351_e003_826f, 0x1429_2967_0a0e_6e70,
    0x27b7_0a85_46d2_2ffc, 0x2e1b_2138_5c26_c926, 0x4d2c_6dfc_5ac4_2aed, 0x5338_0d13_9d95_b3df,
    0x650a_7354_8baf_63de, 0x766a_0abb_3c77_b2a8, 0x81c2_c92e_47ed_aee6, 0x9272_2c85_1482_353b,
    0xa2bf_e8a1_4cf1_0364, 0xa81a_664b_bc42_3001, 0xc24b_8b70_d0f8_9791, 0xc76c_51a3_0654_be30,
    0xd192_e819_d6ef_5218, 0xd699_0624_5565_a910, 0xf40e_3585_5771_202a, 0x106a_a070_32bb_d1b8,
    0x19a4_c116_b8d2_d0c8, 0x1e37_6c08_5141_ab53, 0x2748_774c_df8e_eb99, 0x34b0_bcb5_e19b_48a8,
    0x391c_0cb3_c5c9_5a63, 0x4ed8_aa4a_e341_8acb, 0x5b9c_ca4f_7763_e373, 0x682e_6ff3_d6b2_b8a3,
    0x748f_82ee_5def_b2fc, 0x78a5_636f_4317_2f60, 0x84c8_7814_a1f0_ab72, 0x8cc7_0208_1a64_39ec,
    0x90be_fffa_2363_1e28, 0xa450_6ceb_de82_bde9, 0xbef9_a3f7_b2c6_7915, 0xc671_78f2_e372_532b,
    0xca27_3ece_ea26_619c, 0xd186_b8c7_21c0_c207, 0xeada_7dd6_cde0_eb1e, 0xf57d_4f7f_ee6e_d178,
    0x06f0_67aa_7217_6fba, 0x0a63_7dc5_a2c8_98a6, 0x113f_9804_bef9_0dae, 0x1b71_0b35_131c_471b,
    0x28db_77f5_2304_7d84, 0x32ca_ab7b_40c7_2493, 0x3c9e_be0a_15c9_bebc, 0x431d_67c4_9c10_0d4c,
    0x4cc5_d4be_cb3e_42b6, 0x597f_299c_fc65_7e2a, 0x5fcb_6fab_3ad6_faec, 0x6c44_198c_4a47_5817,
];
