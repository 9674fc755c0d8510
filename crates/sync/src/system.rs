//! What is asked of the system: open files, and random bytes.
//!
//! Long runs leave thousands of files that are merged, and some threads read all of them at the same time. Systems let
//! a process have 1,024 files open by default, some of them 256, and many more if it asks for them.

use crate::error::SyncError;

/// Files that are asked for.
#[cfg(unix)]
const WANTED: u64 = 8_192;

/// Of those that there may be, so many are for everything but runs: blocks, the coins of a store, connections.
const OTHERS: u64 = 160;

/// What a process may have where the system does not say.
const UNKNOWN: u64 = 1_024;

/// Asks the system for as many open files as the largest runs need, if it lets this process have them. To be called
/// once, by the program. Core does the same (`util/fs_helpers.cpp`, `RaiseFileDescriptorLimit`).
pub fn ask_for_open_files() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let now = getrlimit(Resource::Nofile);
        let wanted = now.maximum.map_or(WANTED, |most| most.min(WANTED));
        if now.current.is_some_and(|current| current < wanted) {
            // Where it is refused, fewer files are open at once.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..now });
        }
    }
}

/// How many runs may be open at once, in all.
pub(crate) fn runs_open_max() -> u64 {
    #[cfg(unix)]
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    #[cfg(not(unix))]
    let limit = None;
    runs_of(limit)
}

fn runs_of(limit: Option<u64>) -> u64 {
    let limit = limit.unwrap_or(UNKNOWN);
    limit.saturating_sub(OTHERS).max(limit / 4)
}

/// So many bytes that only the system can know beforehand: for secrets and keys.
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
