//! The 64 rounds of SHA-256 (FIPS 180-4, 6.2.2), written once for every kind of word.
//!
//! A [`Word`] is one 32-bit word of one message (`u32`) or the same word of several messages in
//! the lanes of a vector register. Invariant: lanes never mix here, so what holds for `u32` holds
//! for each lane. This module does no padding and reads no bytes.

/// Initial hash value (FIPS 180-4, 5.3.3).
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

/// Round constants (FIPS 180-4, 4.2.2).
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

/// One 32-bit word, or one word of each lane.
pub(crate) trait Word: Copy {
    /// The same number in every lane. Takes an existing word because a vector word may only be
    /// made where the processor has the instructions, and `self` is the proof of that.
    fn constant(self, value: u32) -> Self;
    /// Sum modulo 2^32.
    fn add(self, other: Self) -> Self;
    /// Rotation to the right by `N` bits.
    fn ror<const N: i32>(self) -> Self;
    /// Shift to the right by `N` bits.
    fn shr<const N: i32>(self) -> Self;
    /// Exclusive or of three words.
    fn xor3(self, b: Self, c: Self) -> Self;
    /// `Ch` of FIPS 180-4, 4.1.2: bits of `f` where `self` has ones, of `g` where it has zeros.
    fn choose(self, f: Self, g: Self) -> Self;
    /// `Maj` of FIPS 180-4, 4.1.2: the bit that at least two of the three have.
    fn majority(self, b: Self, c: Self) -> Self;
}

#[inline(always)]
fn big_sigma_0<W: Word>(a: W) -> W {
    a.ror::<2>().xor3(a.ror::<13>(), a.ror::<22>())
}

#[inline(always)]
fn big_sigma_1<W: Word>(e: W) -> W {
    e.ror::<6>().xor3(e.ror::<11>(), e.ror::<25>())
}

#[inline(always)]
fn small_sigma_0<W: Word>(w: W) -> W {
    w.ror::<7>().xor3(w.ror::<18>(), w.shr::<3>())
}

#[inline(always)]
fn small_sigma_1<W: Word>(w: W) -> W {
    w.ror::<17>().xor3(w.ror::<19>(), w.shr::<10>())
}

/// Word `i` of the message schedule; `w` holds the last sixteen.
#[inline(always)]
fn schedule<W: Word>(w: &mut [W; 16], i: usize) -> W {
    if i >= 16 {
        let next = w[i % 16].add(w[(i + 9) % 16]);
        w[i % 16] = next.add(small_sigma_0(w[(i + 1) % 16])).add(small_sigma_1(w[(i + 14) % 16]));
    }
    w[i % 16]
}

// Spelled out rather than looped: vector words stay in registers only if every index is a
// constant, and the words of padding then fold into the round constants.
macro_rules! round {
    ($a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident, $added:expr) => {
        let t1 = $h.add($added).add($e.choose($f, $g)).add(big_sigma_1($e));
        $d = $d.add(t1);
        $h = t1.add(big_sigma_0($a)).add($a.majority($b, $c));
    };
}

macro_rules! all_rounds {
    ($state:expr, $i:ident => $added:expr) => {{
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = $state;
        all_rounds!(@eight a b c d e f g h, $i, $added; 0 8 16 24 32 40 48 56);
        [a, b, c, d, e, f, g, h]
    }};
    (@eight $a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident,
     $i:ident, $added:expr; $($first:literal)*) => {$(
        round!($a $b $c $d $e $f $g $h, { const $i: usize = $first; $added });
        round!($h $a $b $c $d $e $f $g, { const $i: usize = $first + 1; $added });
        round!($g $h $a $b $c $d $e $f, { const $i: usize = $first + 2; $added });
        round!($f $g $h $a $b $c $d $e, { const $i: usize = $first + 3; $added });
        round!($e $f $g $h $a $b $c $d, { const $i: usize = $first + 4; $added });
        round!($d $e $f $g $h $a $b $c, { const $i: usize = $first + 5; $added });
        round!($c $d $e $f $g $h $a $b, { const $i: usize = $first + 6; $added });
        round!($b $c $d $e $f $g $h $a, { const $i: usize = $first + 7; $added });
    )*};
}

#[inline(always)]
fn add_states<W: Word>(a: [W; 8], b: [W; 8]) -> [W; 8] {
    core::array::from_fn(|i| a[i].add(b[i]))
}

/// The state after one more block, given as its sixteen words.
#[inline(always)]
pub(crate) fn compress<W: Word>(state: [W; 8], mut w: [W; 16]) -> [W; 8] {
    let after = all_rounds!(state, I => schedule(&mut w, I).add(w[0].constant(K[I])));
    add_states(state, after)
}

/// The schedule of the block that pads a 64-byte message, each word with its round constant.
const PADDING_64: [u32; 64] = {
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

/// The state after the block that pads a message of exactly 64 bytes: no schedule to compute.
#[inline(always)]
pub(crate) fn compress_padding_64<W: Word>(state: [W; 8]) -> [W; 8] {
    let proof = state[0];
    let after = all_rounds!(state, I => proof.constant(PADDING_64[I]));
    add_states(state, after)
}

/// The initial hash value in every lane.
#[inline(always)]
pub(crate) fn initial<W: Word>(proof: W) -> [W; 8] {
    INITIAL.map(|word| proof.constant(word))
}

/// The digest of a 32-byte digest, both as state words: the second half of a double hash.
#[inline(always)]
pub(crate) fn rehash<W: Word>(digest: [W; 8]) -> [W; 8] {
    let proof = digest[0];
    let zero = proof.constant(0);
    let [a, b, c, d, e, f, g, h] = digest;
    let (one, length) = (proof.constant(0x8000_0000), proof.constant(32 * 8));
    let w = [a, b, c, d, e, f, g, h, one, zero, zero, zero, zero, zero, zero, length];
    compress(initial(proof), w)
}

/// The state after a 36-byte message that follows one 64-byte block; `words` are its nine words.
#[inline(always)]
pub(crate) fn compress_keyed<W: Word>(midstate: [W; 8], words: [W; 9]) -> [W; 8] {
    let proof = words[0];
    let zero = proof.constant(0);
    let [a, b, c, d, e, f, g, h, i] = words;
    let (one, length) = (proof.constant(0x8000_0000), proof.constant((64 + 36) * 8));
    let w = [a, b, c, d, e, f, g, h, i, one, zero, zero, zero, zero, zero, length];
    compress(midstate, w)
}
