//! [`await_ready`]: waiting for a server that was just started.

use crate::bitcoind::{PATIENCE, POLL_EVERY};
use std::fs;
use std::path::Path;
use std::process::Child;
use std::thread::sleep;
use std::time::Instant;

/// Waits until a server `listens`, by what it has `said` so far in its file or otherwise. One that does not within our
/// patience is killed.
pub(crate) fn await_ready(
    process: &mut Child,
    said: &Path,
    listens: impl Fn(&str) -> bool,
) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    let tail = || fs::read_to_string(said).unwrap_or_default();
    while !listens(&tail()) {
        if let Ok(Some(status)) = process.try_wait() {
            return Err(format!("it ended with {status}: {}", tail()));
        }
        if Instant::now() > deadline {
            let _ = process.kill();
            let _ = process.wait();
            return Err(format!("it does not listen within {PATIENCE:?}: {}", tail()));
        }
        sleep(POLL_EVERY);
    }
    Ok(())
}
