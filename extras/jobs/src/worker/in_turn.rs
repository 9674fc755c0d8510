//! [`in_turn`]: fetches many items in batches.

use crate::error::ClusterError;
use apus_sync::error::{IoError, SyncError};
use std::sync::mpsc::sync_channel;
use std::thread::Builder;

/// Fetches items in batches of `at_once`, in order, and passes each batch to `each` with the index of its first item.
/// The next batch is fetched while `each` works, because a remote store is about as slow as `each`. So two batches are
/// in memory.
///
/// # Errors
/// The first error of `fetch` or `each`, or an error if `fetch` returns more or fewer items than requested.
pub(super) fn in_turn<T: Sync, U: Send>(
    wanted: &[T],
    at_once: usize,
    fetch: impl Fn(&[T]) -> Result<Vec<U>, SyncError> + Send,
    mut each: impl FnMut(usize, Vec<U>) -> Result<(), SyncError>,
) -> Result<(), SyncError> {
    std::thread::scope(|scope| {
        let (send, receive) = sync_channel(0);
        let fetching = move || {
            for some in wanted.chunks(at_once) {
                let got = fetch(some).and_then(|got| expect_all(some.len(), got));
                let failed = got.is_err();
                // The receiver is gone if `each` failed.
                if send.send(got).is_err() || failed {
                    break;
                }
            }
        };
        let spawned = Builder::new().name("fetches".to_owned()).spawn_scoped(scope, fetching);
        spawned.map_err(|error| SyncError::Io(IoError::Threads { wanted: 1, error }))?;
        let mut first = 0;
        for got in receive {
            let got = got?;
            let count = got.len();
            each(first, got)?;
            first += count;
        }
        Ok(())
    })
}

/// Fails on a wrong number of items, which would shift the indices.
fn expect_all<U>(wanted: usize, got: Vec<U>) -> Result<Vec<U>, SyncError> {
    if got.len() == wanted {
        return Ok(got);
    }
    let why = format!("received {} of {wanted} parts of objects", got.len());
    Err(ClusterError::Message(why).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn failure(what: &str) -> SyncError {
        ClusterError::Message(what.to_owned()).into()
    }

    #[test]
    fn all_items_arrive_in_order() {
        for (count, at_once) in [(0, 3), (1, 3), (3, 3), (10, 3), (10, 1)] {
            let wanted: Vec<usize> = (0..count).collect();
            let mut came = Vec::new();
            let fetch = |some: &[usize]| Ok(some.iter().map(|number| number * 2).collect());
            in_turn(&wanted, at_once, fetch, |first, got| {
                assert_eq!(first, came.len());
                assert!(!got.is_empty() && got.len() <= at_once);
                came.extend(got);
                Ok(())
            })
            .unwrap();
            assert!(came.into_iter().eq((0..count).map(|number| number * 2)));
        }
    }

    #[test]
    fn one_batch_is_fetched_ahead() {
        let fetched = AtomicUsize::new(0);
        let fetch = |some: &[u8]| {
            fetched.fetch_add(1, Ordering::SeqCst);
            Ok(some.to_vec())
        };
        let mut at = 0;
        in_turn(&[0; 20], 4, fetch, |_, _| {
            at += 1;
            let next = 5.min(at + 1);
            while fetched.load(Ordering::SeqCst) < next {
                std::thread::yield_now();
            }
            assert_eq!(fetched.load(Ordering::SeqCst), next);
            Ok(())
        })
        .unwrap();
        assert_eq!((at, fetched.into_inner()), (5, 5));
    }

    #[test]
    fn the_first_failure_stops_fetching() {
        let wanted: Vec<usize> = (0..10).collect();
        let error = |fails: usize, refuses: usize, short: usize| {
            let fetch = |some: &[usize]| match some[0] {
                at if at == fails => Err(failure("away")),
                at if at == short => Ok(some[1..].to_vec()),
                _ => Ok(some.to_vec()),
            };
            let mut looked_at = 0;
            let ended = in_turn(&wanted, 3, fetch, |first, got: Vec<usize>| {
                looked_at += got.len();
                if first == refuses { Err(failure("damaged")) } else { Ok(()) }
            });
            (ended.unwrap_err().to_string(), looked_at)
        };
        let never = usize::MAX;
        for (fails, refuses, short, why, looked_at) in [
            (0, never, never, "away", 0),
            (6, never, never, "away", 6),
            (never, 3, never, "damaged", 6),
            (6, 3, never, "damaged", 6),
            (never, never, 9, "received 0 of 1 parts of objects", 9),
            (never, never, 3, "received 2 of 3 parts of objects", 3),
        ] {
            let (error, looked) = error(fails, refuses, short);
            assert!(error.contains(why), "{error}");
            assert_eq!(looked, looked_at);
        }
    }
}
