//! [`Pipe`]: two threads that bring tables to a disk while others are made.
//!
//! One seals and writes, the other makes whole files durable, so that the disk has work while the
//! next file's bytes are copied to the system. What waits is bounded: [`BACKLOG`] pieces and two
//! files. The first error ends both threads; it is told by the next call.

use super::error::DatabaseError;
use super::seal::{Made, Piece, TableEnd, TableSealer};
use apus_storage::StorageFile;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};

/// Pieces of a file that can wait for the writing thread.
const BACKLOG: usize = 4;

/// A file with its name in messages.
type Named = (Box<dyn StorageFile>, String);

enum Order {
    Begin(Named),
    Write(Piece),
    /// The table has no more blocks: complete it and make it durable.
    End(TableEnd),
}

type Thread<T> = JoinHandle<Result<T, DatabaseError>>;

struct Running {
    orders: SyncSender<Order>,
    writer: Thread<Vec<Made>>,
    syncer: Thread<()>,
}

pub(super) struct Pipe {
    folder: String,
    /// `None` once the threads have been joined.
    running: Option<Running>,
    /// Buffers that were written.
    spare: Receiver<Piece>,
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
        let (writer, syncer) = (writer.map_err(&failed)?, syncer.map_err(&failed)?);
        Ok(Self { folder, running: Some(Running { orders, writer, syncer }), spare })
    }

    /// The following pieces go to this file, which is another table.
    pub(super) fn begin(
        &mut self,
        file: Box<dyn StorageFile>,
        name: String,
    ) -> Result<(), DatabaseError> {
        self.send(Order::Begin((file, name)))
    }

    /// Seals blocks and appends them to the file; waits while too much is waiting already.
    pub(super) fn write(&mut self, piece: Piece) -> Result<(), DatabaseError> {
        self.send(Order::Write(piece))
    }

    /// The file has all its blocks.
    pub(super) fn end(&mut self, end: TableEnd) -> Result<(), DatabaseError> {
        self.send(Order::End(end))
    }

    /// An empty buffer, one that was used if there is one.
    pub(super) fn buffer(&self) -> Piece {
        self.spare.try_recv().unwrap_or_default()
    }

    /// Waits until all files are durable; the tables that they are.
    pub(super) fn finish(&mut self) -> Result<Vec<Made>, DatabaseError> {
        let Some(Running { orders, writer, syncer }) = self.running.take() else {
            return Err(DatabaseError::Failed { folder: self.folder.clone() });
        };
        drop(orders);
        let (made, synced) = (join(writer), join(syncer));
        let made = made?;
        synced.map(|()| made)
    }

    fn send(&mut self, order: Order) -> Result<(), DatabaseError> {
        let sent = self.running.as_ref().is_some_and(|it| it.orders.send(order).is_ok());
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
        if let Some(Running { orders, writer, syncer }) = self.running.take() {
            drop(orders);
            // A writer that drops it early needs no results.
            let _ = (writer.join(), syncer.join());
        }
    }
}

fn join<T>(thread: Thread<T>) -> Result<T, DatabaseError> {
    // A panic there is a mistake of ours, and goes on here.
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn write(
    orders: &Receiver<Order>,
    whole: &SyncSender<Named>,
    written: &Sender<Piece>,
) -> Result<Vec<Made>, DatabaseError> {
    let (mut current, mut made): (Option<Named>, _) = (None, Vec::new());
    let (mut sealer, mut rest) = (TableSealer::default(), Vec::new());
    for order in orders {
        match order {
            Order::Begin(file) => current = Some(file),
            Order::Write(mut piece) => {
                let Some(file) = &mut current else { continue };
                sealer.seal(&mut piece);
                append(file, &piece.bytes)?;
                piece.clear();
                // The other end may be about to finish and need no buffer.
                let _ = written.send(piece);
            }
            Order::End(end) => {
                let Some(mut file) = current.take() else { continue };
                rest.clear();
                made.push(sealer.end(end, &mut rest));
                append(&mut file, &rest)?;
                // It ends early only with an error, which it tells itself.
                if whole.send(file).is_err() {
                    return Ok(made);
                }
            }
        }
    }
    Ok(made)
}

fn append((file, name): &mut Named, bytes: &[u8]) -> Result<(), DatabaseError> {
    file.write_all(bytes).map_err(|source| io_error("write", name, source))
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
