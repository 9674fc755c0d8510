//! [`Taker`]: work on batches of bytes, in their order, beside the thread that makes these.

use crate::error::{IoError, SyncError};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Batches on the way to one thread.
const QUEUE: usize = 16;

/// One that takes batches, here or on a thread of its own.
pub(crate) enum Taker<'scope> {
    Here(Box<Take<'scope>>),
    Apart {
        send: SyncSender<Arc<Vec<u8>>>,
        thread: ScopedJoinHandle<'scope, Result<(), SyncError>>,
    },
    /// It failed and has told why.
    Ended,
}

impl<'scope> Taker<'scope> {
    pub(crate) fn new<'env>(
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
        let thread = Builder::new().name("coins".to_owned()).spawn_scoped(scope, work);
        let thread =
            thread.map_err(|error| SyncError::Io(IoError::Threads { wanted: 2, error }))?;
        Ok(Self::Apart { send, thread })
    }

    /// Gives it a batch. What it failed at, now or with an earlier batch, comes back.
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

    /// The same of bytes that the caller keeps.
    pub(crate) fn take_copied(&mut self, batch: &[u8]) -> Result<(), SyncError> {
        match self {
            Self::Here(take) => take(batch),
            Self::Apart { .. } | Self::Ended => self.take(&Arc::new(batch.to_vec())),
        }
    }

    /// Waits until it took everything.
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
