//! How long random tests run: briefly, so that all tests together take minutes, or as long as is useful on an
//! idle machine (`scripts/test --long`).

/// Returns the number of rounds of a test: `short`, or `long` if the environment has `APUS_LONG`. The first
/// rounds are the same in both.
pub fn rounds(short: u64, long: u64) -> u64 {
    if std::env::var_os("APUS_LONG").is_some() { long } else { short }
}
