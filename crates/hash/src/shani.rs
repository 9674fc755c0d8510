//! The SHA extensions of x86-64: rounds in hardware, two messages interleaved.
//!
//! Every round waits for the previous one, so one message alone leaves the unit idle half of the time; a
//! second, independent one fills the gaps. Invariant: a block's four registers of message words and a state's
//! two registers never leave these functions.
#![allow(unsafe_code)] // These intrinsics have no safe form.

use crate::lanes::{
    Columns, HashLanes, States, add_to_columns, bytes_of, column, forward_lanes, keyed_block,
    set_column,
};
use crate::padded::PaddedMessage;
use crate::rounds::{INITIAL, K, PADDING_64};
use core::arch::x86_64::*;
use core::ops::Range;

/// Proof that the processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShaNi(());

impl ShaNi {
    pub(crate) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("sha")
            && is_x86_feature_detected!("ssse3")
            && is_x86_feature_detected!("sse4.1");
        has.then_some(Self(()))
    }

    /// Continues `state` over whole blocks.
    pub(crate) fn compress(self, state: &mut [u32; 8], blocks: &[[u8; 64]]) {
        // SAFETY: `self` exists only if `detect` found the features.
        unsafe { compress_runs([state], [blocks]) }
    }
}

/// The state in the layout of the instructions: words A, B, E, F and C, D, G, H, highest lane
/// first.
#[derive(Clone, Copy)]
struct Registers {
    abef: __m128i,
    cdgh: __m128i,
}

#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn four(words: &[u32; 4]) -> __m128i {
    // SAFETY: reads 16 bytes from an array of 16; needs no alignment.
    unsafe { _mm_loadu_si128(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn enter(state: &[u32; 8]) -> Registers {
    let (halves, _) = state.as_chunks();
    let cdab = _mm_shuffle_epi32::<0b10_11_00_01>(four(&halves[0]));
    let efgh = _mm_shuffle_epi32::<0b00_01_10_11>(four(&halves[1]));
    Registers {
        abef: _mm_alignr_epi8::<8>(cdab, efgh),
        cdgh: _mm_blend_epi16::<0b1111_0000>(efgh, cdab),
    }
}

#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn leave(registers: Registers) -> [u32; 8] {
    let feba = _mm_shuffle_epi32::<0b00_01_10_11>(registers.abef);
    let dchg = _mm_shuffle_epi32::<0b10_11_00_01>(registers.cdgh);
    let mut state = [0; 8];
    let (halves, _) = state.as_chunks_mut::<4>();
    // SAFETY: writes 16 bytes to each array of 16; needs no alignment.
    unsafe {
        _mm_storeu_si128(halves[0].as_mut_ptr().cast(), _mm_blend_epi16::<0b1111_0000>(feba, dchg));
        _mm_storeu_si128(halves[1].as_mut_ptr().cast(), _mm_alignr_epi8::<8>(dchg, feba));
    }
    state
}

/// The words of a block, four to a register.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn words(block: &[u8; 64]) -> [__m128i; 4] {
    let reversed = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    let (quarters, _) = block.as_chunks::<16>();
    core::array::from_fn(|i| {
        // SAFETY: reads 16 bytes from an array of 16; needs no alignment.
        let quarter = unsafe { _mm_loadu_si128(quarters[i].as_ptr().cast()) };
        _mm_shuffle_epi8(quarter, reversed)
    })
}

/// Builds the words of the padded block of a 32-byte digest.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn digest_words(digest: &[u32; 8]) -> [__m128i; 4] {
    let (halves, _) = digest.as_chunks();
    let (mark, length) = (_mm_set_epi32(0, 0, 0, i32::MIN), _mm_set_epi32(256, 0, 0, 0));
    [four(&halves[0]), four(&halves[1]), mark, length]
}

/// Computes four rounds of each message; `added` has their words plus the round constants.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn rounds<const N: usize>(states: &mut [Registers; N], added: [__m128i; N]) {
    for (state, added) in states.iter_mut().zip(added) {
        state.cdgh = _mm_sha256rnds2_epu32(state.cdgh, state.abef, added);
    }
    for (state, added) in states.iter_mut().zip(added) {
        let high = _mm_shuffle_epi32::<0b00_00_11_10>(added);
        state.abef = _mm_sha256rnds2_epu32(state.abef, state.cdgh, high);
    }
}

/// Computes rounds `4 * I` to `4 * I + 4` of each message, with the schedule.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn step<const I: usize, const N: usize>(
    states: &mut [Registers; N],
    words: &mut [[__m128i; 4]; N],
) {
    let (constants, _) = K.as_chunks();
    let constants = four(&constants[I]);
    let mut added = [constants; N];
    for (added, w) in added.iter_mut().zip(words) {
        if I >= 4 {
            let (last, before) = (w[(I + 3) % 4], w[(I + 2) % 4]);
            let next = _mm_sha256msg1_epu32(w[I % 4], w[(I + 1) % 4]);
            let next = _mm_add_epi32(next, _mm_alignr_epi8::<4>(last, before));
            w[I % 4] = _mm_sha256msg2_epu32(next, last);
        }
        *added = _mm_add_epi32(constants, w[I % 4]);
    }
    rounds(states, added);
}

/// Returns the states after one more block each.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn compress<const N: usize>(before: [Registers; N], mut w: [[__m128i; 4]; N]) -> [Registers; N] {
    let mut states = before;
    step::<0, N>(&mut states, &mut w);
    step::<1, N>(&mut states, &mut w);
    step::<2, N>(&mut states, &mut w);
    step::<3, N>(&mut states, &mut w);
    step::<4, N>(&mut states, &mut w);
    step::<5, N>(&mut states, &mut w);
    step::<6, N>(&mut states, &mut w);
    step::<7, N>(&mut states, &mut w);
    step::<8, N>(&mut states, &mut w);
    step::<9, N>(&mut states, &mut w);
    step::<10, N>(&mut states, &mut w);
    step::<11, N>(&mut states, &mut w);
    step::<12, N>(&mut states, &mut w);
    step::<13, N>(&mut states, &mut w);
    step::<14, N>(&mut states, &mut w);
    step::<15, N>(&mut states, &mut w);
    add(before, states)
}

#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn add<const N: usize>(a: [Registers; N], b: [Registers; N]) -> [Registers; N] {
    core::array::from_fn(|i| Registers {
        abef: _mm_add_epi32(a[i].abef, b[i].abef),
        cdgh: _mm_add_epi32(a[i].cdgh, b[i].cdgh),
    })
}

/// Returns the states after the padding block of a 64-byte message.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn compress_padding_64<const N: usize>(before: [Registers; N]) -> [Registers; N] {
    let mut states = before;
    for added in PADDING_64.as_chunks().0 {
        rounds(&mut states, [four(added); N]);
    }
    add(before, states)
}

/// Continues each state over as many blocks as the shortest of the runs has.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn compress_runs<const N: usize>(states: [&mut [u32; 8]; N], runs: [&[[u8; 64]]; N]) {
    let count = runs.iter().map(|run| run.len()).min().unwrap_or(0);
    let mut registers: [Registers; N] = core::array::from_fn(|i| enter(states[i]));
    for i in 0..count {
        registers = compress(registers, runs.map(|run| words(&run[i])));
    }
    for (state, registers) in states.into_iter().zip(registers) {
        *state = leave(registers);
    }
}

#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn hash_again(registers: [Registers; 2]) -> [[u8; 32]; 2] {
    let start = enter(&INITIAL);
    let words = registers.map(|registers| digest_words(&leave(registers)));
    compress([start; 2], words).map(|registers| bytes_of(&leave(registers)))
}

#[target_feature(enable = "sha,ssse3,sse4.1")]
fn absorb(states: &mut States<2>, messages: &[PaddedMessage<'_>; 2], blocks: Range<usize>) {
    let mut registers = [enter(&column(states, 0)), enter(&column(states, 1))];
    let (mut next, [mut buffer, mut other]) = (blocks.start, [[0; 64]; 2]);
    while next < blocks.end {
        let a = messages[0].blocks_from(next, &mut buffer);
        let b = messages[1].blocks_from(next, &mut other);
        for (a, b) in a.iter().zip(b).take(blocks.end - next) {
            registers = compress(registers, [words(a), words(b)]);
            next += 1;
        }
    }
    for (lane, registers) in registers.into_iter().enumerate() {
        set_column(states, lane, &leave(registers));
    }
}

#[target_feature(enable = "sha,ssse3,sse4.1")]
fn rehash(states: &States<2>) -> [[u8; 32]; 2] {
    hash_again([enter(&column(states, 0)), enter(&column(states, 1))])
}

#[target_feature(enable = "sha,ssse3,sse4.1")]
fn pairs(pairs: &[[[u8; 64]; 2]], out: &mut [[[u8; 32]; 2]]) {
    let start = enter(&INITIAL);
    for ([a, b], out) in pairs.iter().zip(out) {
        *out = hash_again(compress_padding_64(compress([start; 2], [words(a), words(b)])));
    }
}

#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn keyed_pair(midstate: Registers, [a, b]: &[[u8; 36]; 2]) -> [[u32; 8]; 2] {
    compress([midstate; 2], [words(&keyed_block(a)), words(&keyed_block(b))])
        .map(|registers| leave(registers))
}

#[target_feature(enable = "sha,ssse3,sse4.1")]
fn keyed(midstate: &[u32; 8], messages: &[[[u8; 36]; 2]], out: &mut [[[u8; 32]; 2]]) {
    let midstate = enter(midstate);
    for (messages, out) in messages.iter().zip(out) {
        *out = keyed_pair(midstate, messages).map(|state| bytes_of(&state));
    }
}

#[target_feature(enable = "sha,ssse3,sse4.1")]
fn keyed_sum(midstate: &[u32; 8], messages: &[[[u8; 36]; 2]], columns: &mut Columns) {
    let midstate = enter(midstate);
    for messages in messages {
        for state in keyed_pair(midstate, messages) {
            add_to_columns(columns, &state);
        }
    }
}

forward_lanes!(ShaNi, 2);
