//! The rounds of SHA-256 and SHA-512 (FIPS 180-4, 6.2.2 and 6.4.2), written once for every kind of word. The
//! two functions differ in the width of a word, the number of rounds and the constants.
//!
//! A word is one word of one message (`u32`, `u64`), or the same word of several messages in the lanes of a
//! vector register. Invariant: lanes never mix here, so each lane behaves like a `u32`. This module does no
//! padding and reads no bytes.
//!
//! The code is a macro, not a trait: it compiles well and quickly only in functions that themselves enable a
//! vector instruction set, and a generic function cannot enable one for one type only.

/// Initial hash value of SHA-256 (FIPS 180-4, 5.3.3).
pub(crate) const INITIAL: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// Round constants of SHA-256 (FIPS 180-4, 4.2.2).
#[rustfmt::skip]
pub(crate) const K: [u32; 64] = [
    0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5, 0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5,
    0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3, 0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174,
    0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc, 0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da,
    0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7, 0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967,
    0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13, 0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85,
    0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3, 0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070,
    0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5, 0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3,
    0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208, 0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2,
];

/// Round constants of SHA-512 (FIPS 180-4, 4.2.3).
#[rustfmt::skip]
pub(crate) const K_512: [u64; 80] = [
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

/// The schedule of the padding block of a 64-byte message, each word with its round constant added.
#[cfg(target_arch = "x86_64")]
pub(crate) const PADDING_64: [u32; 64] = {
    let mut w = [0u32; 64];
    w[0] = 0x8000_0000;
    w[15] = 64 * 8;
    let mut i = 16;
    while i < 64 {
        let (x, y) = (w[i - 15], w[i - 2]);
        let s0 = x.rotate_right(7) ^ x.rotate_right(18) ^ (x >> 3);
        let s1 = y.rotate_right(17) ^ y.rotate_right(19) ^ (y >> 10);
        w[i] = w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1);
        i += 1;
    }
    i = 0;
    while i < 64 {
        w[i] = w[i].wrapping_add(K[i]);
        i += 1;
    }
    w
};

/// The index of word `letter` (0 for A to 7 for H) of the state at the start of round `round`. The names move
/// by one place each round, so the words need not.
pub(crate) const fn place(letter: usize, round: usize) -> usize {
    (letter + 80 - round) % 8
}

/// Executes `$body` for each of 64 or 80 rounds, with `$round` as its constant number. It is unrolled,
/// because words stay in registers only if every index is a constant, and words of padding then fold into the
/// round constants.
macro_rules! each_round {
    (64, $round:ident => $body:expr) => {
        crate::rounds::each_round!(@ $round => $body;
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29
            30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56
            57 58 59 60 61 62 63)
    };
    (80, $round:ident => $body:expr) => {
        crate::rounds::each_round!(64, $round => $body);
        crate::rounds::each_round!(@ $round => $body;
            64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79)
    };
    (@ $round:ident => $body:expr; $($number:literal)*) => {$({
        const $round: usize = $number;
        $body;
    })*};
}
pub(crate) use each_round;

/// Defines the compression functions of `sha256` or `sha512` for words of type `$word`. These must be in
/// scope for such words: `constant`, `add`, `ror`, `shr`, `xor3` and, from FIPS 180-4, 4.1.2, `choose` and
/// `majority`; for `sha512`, its constants too.
macro_rules! define_rounds {
    // FIPS 180-4, 4.1.2 and 4.1.3 define these numbers.
    (sha256, $word:ty $(, #[$attribute:meta])?) => {
        crate::rounds::define_rounds! { @ $word, 64 rounds with crate::rounds::K;
            large [2 13 22], [6 11 25]; small [7 18 3], [17 19 10] $(; #[$attribute])? }
    };
    (sha512, $word:ty $(, #[$attribute:meta])?) => {
        crate::rounds::define_rounds! { @ $word, 80 rounds with crate::rounds::K_512;
            large [28 34 39], [14 18 41]; small [1 8 7], [19 61 6] $(; #[$attribute])? }
    };
    (@ $word:ty, $rounds:tt rounds with $constants:path;
     large [$a0:literal $a1:literal $a2:literal], [$e0:literal $e1:literal $e2:literal];
     small [$x0:literal $x1:literal $x2:literal], [$y0:literal $y1:literal $y2:literal]
     $(; #[$attribute:meta])?) => {
        #[inline]
        $(#[$attribute])?
        fn small_sigma_0(w: $word) -> $word {
            xor3(ror::<$x0>(w), ror::<$x1>(w), shr::<$x2>(w))
        }

        #[inline]
        $(#[$attribute])?
        fn small_sigma_1(w: $word) -> $word {
            xor3(ror::<$y0>(w), ror::<$y1>(w), shr::<$y2>(w))
        }

        /// Computes the schedule word of round `ROUND`; `w` has the last sixteen.
        #[inline]
        $(#[$attribute])?
        fn schedule<const ROUND: usize>(w: &mut [$word; 16]) -> $word {
            if ROUND >= 16 {
                let next = add(w[ROUND % 16], w[(ROUND + 9) % 16]);
                let next = add(next, small_sigma_0(w[(ROUND + 1) % 16]));
                w[ROUND % 16] = add(next, small_sigma_1(w[(ROUND + 14) % 16]));
            }
            w[ROUND % 16]
        }

        /// Computes one round; `added` is its word of the schedule plus its constant.
        #[inline]
        $(#[$attribute])?
        fn round<const ROUND: usize>(state: &mut [$word; 8], added: $word) {
            use crate::rounds::place;
            let (a, b, c) =
                (state[place(0, ROUND)], state[place(1, ROUND)], state[place(2, ROUND)]);
            let (e, f, g) =
                (state[place(4, ROUND)], state[place(5, ROUND)], state[place(6, ROUND)]);
            let sigma_0 = xor3(ror::<$a0>(a), ror::<$a1>(a), ror::<$a2>(a));
            let sigma_1 = xor3(ror::<$e0>(e), ror::<$e1>(e), ror::<$e2>(e));
            let t1 = add(add(add(state[place(7, ROUND)], added), choose(e, f, g)), sigma_1);
            state[place(3, ROUND)] = add(state[place(3, ROUND)], t1);
            state[place(7, ROUND)] = add(t1, add(sigma_0, majority(a, b, c)));
        }

        #[inline]
        $(#[$attribute])?
        fn add_states(state: &mut [$word; 8], before: &[$word; 8]) {
            for (word, before) in state.iter_mut().zip(before) {
                *word = add(*word, *before);
            }
        }

        /// Continues the state over one block, given as its sixteen words.
        macro_rules! compress_words {
            ($state:expr, $words:expr) => {
                let (state, w): (&mut [$word; 8], &mut [$word; 16]) = ($state, $words);
                let before = *state;
                crate::rounds::each_round!($rounds, ROUND => {
                    let added = add(schedule::<ROUND>(w), constant($constants[ROUND]));
                    round::<ROUND>(state, added)
                });
                add_states(state, &before);
            };
        }
    };
}
pub(crate) use define_rounds;
