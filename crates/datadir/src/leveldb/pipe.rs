//! [`Pipe`]: two threads that bring bytes to a disk while others are made.
//!
//! One writes, the other makes whole files durable, so that the disk has work while the next
//! file's bytes are copied to the system. What waits is bounded: [`BACKLOG`] pieces and two files.
//! The first error ends both threads; it is told by the next call.

use super::error::DatabaseError;
use crate::folder::OutFile;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};

/// Pieces of a file that can wait for the writing thread.
const BACKLOG: usize = 4;

/// A file with its name in messages.
type Named = (Box<dyn OutFile>, String);

enum Order {
    Begin(Named),
    Write(Vec<u8>),
    /// The file is whole: make it durable.
    End,
}

type Thread = JoinHandle<Result<(), DatabaseError>>;

pub(super) struct Pipe {
    folder: String,
    /// `None` once the threads have been joined.
    running: Option<(SyncSender<Order>, [Thread; 2])>,
    /// Buffers that were written.
    spare: Receiver<Vec<u8>>,
}

impl Pipe {
    /// Starts the threads; `folder` is for messages.
    pub(super) fn start(folder: String) -> Result<Self, DatabaseError> {
        let (orders, to_write) = sync_channel(BACKLOG);
        let (whole, to_sync) = sync_channel(1);
        let (written, spare) = channel();
        let failed = |source| DatabaseError::Thread { folder: folder.clone(), source };
        let thread = |name: &str| Builder::new().name(name.to_owned());
        let writer = thread("db-write").spawn(move || write(&to_write, &whole, &written));
        // Without a syncing thread `to_sync` is gone, and the writing one ends by itself.
        let syncer = thread("db-sync").spawn(move || sync(&to_sync));
        let threads = [writer.map_err(failed)?, syncer.map_err(failed)?];
        Ok(Self { folder, running: Some((orders, threads)), spare })
    }

    /// The following pieces go to this file.
    pub(super) fn begin(
        &mut self,
        file: Box<dyn OutFile>,
        name: String,
    ) -> Result<(), DatabaseError> {
        self.send(Order::Begin((file, name)))
    }

    /// Appends to the file; waits while too much is waiting already.
    pub(super) fn write(&mut self, bytes: Vec<u8>) -> Result<(), DatabaseError> {
        self.send(Order::Write(bytes))
    }

    /// The file is whole.
    pub(super) fn end(&mut self) -> Result<(), DatabaseError> {
        self.send(Order::End)
    }

    /// An empty buffer, one that was used if there is one.
    pub(super) fn buffer(&self) -> Vec<u8> {
        self.spare.try_recv().unwrap_or_default()
    }

    /// Waits until all files are durable.
    pub(super) fn finish(&mut self) -> Result<(), DatabaseError> {
        let Some((orders, threads)) = self.running.take() else {
            return Err(DatabaseError::Failed { folder: self.folder.clone() });
        };
        drop(orders);
        let mut result = Ok(());
        for thread in threads {
            // A panic there is a mistake of ours, and goes on here.
            let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(ended);
        }
        result
    }

    fn send(&mut self, order: Order) -> Result<(), DatabaseError> {
        let sent = self.running.as_ref().is_some_and(|(orders, _)| orders.send(order).is_ok());
        if sent {
            return Ok(());
        }
        // A thread ends early only with an error.
        self.finish()?;
        Err(DatabaseError::Failed { folder: self.folder.clone() })
    }
}

/// Nothing is written any more when a pipe is gone.
impl Drop for Pipe {
    fn drop(&mut self) {
        if let Some((orders, threads)) = self.running.take() {
            drop(orders);
            for thread in threads {
                // Whoever drops it early does not care how it ended.
                let _ = thread.join();
            }
        }
    }
}

fn write(
    orders: &Receiver<Order>,
    whole: &SyncSender<Named>,
    written: &Sender<Vec<u8>>,
) -> Result<(), DatabaseError> {
    let mut current: Option<Named> = None;
    for order in orders {
        match order {
            Order::Begin(file) => current = Some(file),
            Order::Write(mut bytes) => {
                let Some((file, name)) = &mut current else { continue };
                file.write_all(&bytes).map_err(|source| io_error("write", name, source))?;
                bytes.clear();
                // The other end may be about to finish and need no buffer.
                let _ = written.send(bytes);
            }
            Order::End => {
                // It ends early only with an error, which it tells itself.
                if let Some(file) = current.take()
                    && whole.send(file).is_err()
                {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

fn sync(whole: &Receiver<Named>) -> Result<(), DatabaseError> {
    for (mut file, name) in whole {
        file.sync().map_err(|source| io_error("sync", &name, source))?;
    }
    Ok(())
}

/// An error of the system about a file.
pub(super) fn io_error(doing: &'static str, file: &str, source: std::io::Error) -> DatabaseError {
    DatabaseError::Io { doing, file: file.to_owned(), source }
}
