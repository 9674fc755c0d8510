//! About how many bytes blocks have whose headers alone are known.

use apus_chain::{Height, Network, Params};

/// Heights in a step of [`MAIN_KB`].
const STEP: Height = 50_000;

/// Mean size of the main chain's blocks in each step, in kilobytes: rounded from the growth of the
/// block files. Good for dividing work, and for telling how far a run is.
const MAIN_KB: [u64; 19] = [
    1, 1, 12, 60, 130, 200, 280, 480, 840, 1000, 900, 1000, 1200, 1100, 1200, 1500, 1700, 1750,
    1700,
];

/// What is taken for a block of the other chains.
const OTHER_BYTES: u64 = 256 << 10;

/// A guess.
pub(super) fn block_bytes(params: &Params, height: Height, with_witness: bool) -> u64 {
    if params.network != Network::Main {
        return OTHER_BYTES;
    }
    let step = ((height / STEP) as usize).min(MAIN_KB.len() - 1);
    // Some two fifths are witnesses.
    let tenths = if with_witness || height < params.segwit_height { 10 } else { 6 };
    MAIN_KB[step] * 100 * tenths
}
