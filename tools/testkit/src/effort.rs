//! How long random tests go on: briefly, so that all tests together stay a matter of minutes, or for
//! as long as it is worth on a machine that has nothing else to do (`scripts/test --long`).

/// How many rounds a test does, of which the first are always the same: `short`, or `long` if the
/// environment has `APUS_LONG`.
pub fn rounds(short: u64, long: u64) -> u64 {
    if std::env::var_os("APUS_LONG").is_some() { long } else { short }
}
