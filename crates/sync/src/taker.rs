//! [`BatchTaker`]: processes batches of bytes in order, in parallel with the thread that produces them.

use crate::error::{IoError, SyncError};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Batches queued for one thread.
const QUEUE: usize = 16;

/// Processes batches, on the calling thread or on its own thread.
pub(crate) enum BatchTaker<'scope> {
    Here(Box<Take<'scope>>),
    Apart {
        send: SyncSender<Arc<Vec<u8>>>,
        thread: ScopedJoinHandle<'scope, Result<(), SyncError>>,
    },
    /// It failed and has returned its error.
    Ended,
}

impl<'scope> BatchTaker<'scope> {
    /// Creates a taker; if `apart`, starts a thread with that name for it.
    pub(crate) fn new<'env>(
        name: &str,
        scope: &'scope Scope<'scope, 'env>,
        apart: bool,
        take: impl FnMut(&[u8]) -> Result<(), SyncError> + Send + 'scope,
    ) -> Result<Self, SyncError> {
        if !apart {
            return Ok(Self::Here(Box::new(take)));
        }
        let (send, receive) = sync_channel::<Arc<Vec<u8>>>(QUEUE);
        let mut take = take;
        let work = move || receive.into_iter().try_for_each(|batch| take(&batch));
        let thread = Builder::new().name(name.to_owned()).spawn_scoped(scope, work);
        let thread =
            thread.map_err(|error| SyncError::Io(IoError::Threads { wanted: 2, error }))?;
        Ok(Self::Apart { send, thread })
    }

    /// Passes on a batch. Returns the error of this or an earlier batch.
    pub(crate) fn take(&mut self, batch: &Arc<Vec<u8>>) -> Result<(), SyncError> {
        match self {
            Self::Here(take) => take(batch),
            Self::Apart { send, .. } => match send.send(Arc::clone(batch)) {
                Ok(()) => Ok(()),
                Err(_) => std::mem::replace(self, Self::Ended).end(),
            },
            Self::Ended => Ok(()),
        }
    }

    /// Like [`take`](Self::take), but copies the bytes, which the caller keeps.
    pub(crate) fn take_copied(&mut self, batch: &[u8]) -> Result<(), SyncError> {
        match self {
            Self::Here(take) => take(batch),
            Self::Apart { .. } | Self::Ended => self.take(&Arc::new(batch.to_vec())),
        }
    }

    /// Waits until it has processed everything.
    pub(crate) fn end(self) -> Result<(), SyncError> {
        match self {
            Self::Apart { send, thread } => {
                drop(send);
                thread.join().unwrap_or_else(|panic| resume_unwind(panic))
            }
            Self::Here(_) | Self::Ended => Ok(()),
        }
    }
}

pub(crate) type Take<'a> = dyn FnMut(&[u8]) -> Result<(), SyncError> + Send + 'a;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::UsageError;
    use std::thread::scope;

    /// The bytes taken from this many batches, in order, and whether there was an error.
    fn taken(batches: usize, fails_at: Option<usize>, apart: bool) -> (Vec<u8>, bool) {
        let (mut all, mut count) = (Vec::new(), 0);
        let failed = scope(|scope| {
            let mut taker = BatchTaker::new("test", scope, apart, |batch| {
                if fails_at == Some(count) {
                    return Err(SyncError::Usage(UsageError::NothingToDo));
                }
                count += 1;
                all.extend_from_slice(batch);
                Ok(())
            })
            .unwrap();
            let each = |batch: usize| match batch % 2 {
                0 => taker.take(&Arc::new(vec![batch as u8])),
                _ => taker.take_copied(&[batch as u8]),
            };
            let given = (0..batches).try_for_each(each);
            let failed_by_then = given.is_err();
            failed_by_then || taker.end().is_err()
        });
        (all, failed)
    }

    /// Holds for any number of batches above the queue's capacity, and whichever batch fails.
    #[test]
    fn batches_are_taken_in_order_until_an_error() {
        for apart in [false, true] {
            for batches in [0, 1, 2, 5 * QUEUE] {
                let all: Vec<u8> = (0..batches as u8).collect();
                assert_eq!(taken(batches, None, apart), (all.clone(), false));
                for at in 0..batches {
                    assert_eq!(taken(batches, Some(at), apart), (all[..at].to_vec(), true));
                }
            }
        }
    }
}
