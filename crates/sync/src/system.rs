//! Requests to the operating system: open files, and random bytes.
//!
//! Long syncs leave thousands of files to merge, and some threads read all of them at the same time. By
//! default systems let a process have 1,024 files open, some only 256, and many more on request.

use crate::error::SyncError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Number of open files to ask for.
const WANTED: u64 = 8_192;

/// Number of open files reserved for everything except runs: blocks, the coins of a store, connections.
const OTHERS: u64 = 160;

/// Number assumed if the system does not report a limit.
const UNKNOWN: u64 = 1_024;

/// Asks the system for as many open files as the largest syncs need, as far as it allows. The program calls
/// it once. Core does the same (`util/fs_helpers.cpp`, `RaiseFileDescriptorLimit`).
pub fn ask_for_open_files() {
    let now = getrlimit(Resource::Nofile);
    let wanted = now.maximum.map_or(WANTED, |most| most.min(WANTED));
    if now.current.is_some_and(|current| current < wanted) {
        // If the system refuses, the sync keeps fewer files open.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..now });
    }
}

/// Returns the number of runs that may be open at once in total.
pub fn runs_open_max() -> u64 {
    runs_of(getrlimit(Resource::Nofile).current)
}

fn runs_of(limit: Option<u64>) -> u64 {
    let limit = limit.unwrap_or(UNKNOWN);
    limit.saturating_sub(OTHERS).max(limit / 4)
}

/// Returns unpredictable bytes from the system, for secrets and keys.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], SyncError> {
    let mut bytes = [0; N];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => {
            Err(SyncError::io(format!("no random bytes for the aggregate's key: {error}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_files_are_left_for_others() {
        assert_eq!(runs_of(None), 864);
        assert_eq!(
            [8_192, 1_024, 256, 100].map(|limit| runs_of(Some(limit))),
            [8_032, 864, 96, 25]
        );
        assert!(runs_open_max() > 0);
    }
}
