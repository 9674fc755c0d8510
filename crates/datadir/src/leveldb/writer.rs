//! [`DatabaseWriter`]: writes a new database from entries in ascending key order, at disk speed.
//!
//! It writes each byte once. All tables are on one level, the lowest that may hold this many bytes, so the
//! node that opens the database has nothing to merge. The calling thread makes blocks; a second thread adds
//! checksums and filters, and writes; a third one syncs ([`TablePipe`]). Together they hold about 10 MB.
//!
//! It creates `CURRENT` last, with a rename, when all other files are durable: before that, a reader finds no
//! database. An interrupted attempt leaves its tables behind. The next attempt replaces them or, once a
//! database exists, the LevelDB that opens it removes them.
//!
//! It only makes new databases and must not be used where one exists: the caller chooses an empty folder.

use super::KIND_PUT;
use super::block_writer::{KEY_BYTES_MAX, NumberedKey, TaggedKey};
use super::log::append_record;
use super::manifest::{NewTable, first_record};
use super::table_writer::{TableEnd, TablePiece, TableSealer, TableWriter};
use crate::files::Obfuscation;
use apus_storage::{Storage, StorageFile};
use core::fmt::Write as _;
use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};

/// File numbers in the order of assignment: the manifest, a log that is never written, the tables.
const MANIFEST_NUMBER: u64 = 1;
const LOG_NUMBER: u64 = 2;
const FIRST_TABLE_NUMBER: u64 = 3;

/// The sequence number of all entries: no key occurs twice, so all may have the same.
const SEQUENCE: u64 = 1;
const TAG: u64 = SEQUENCE << 8 | KIND_PUT as u64;

/// The database's last sequence number, above that of all entries. If it were equal, `rusty-leveldb` would
/// look for a key with exactly the number of its entry, and miss the last one of a table.
const LAST_SEQUENCE: u64 = SEQUENCE + 1;

/// The length of a piece, which is what the writing thread receives at once.
const PIECE_BYTES: usize = 1 << 20;

/// Far longer than any value of Core's. The format has 32 bits for offsets within a block.
const VALUE_BYTES_MAX: usize = 1 << 28;

const TOO_LARGE: &str = "it is far larger than any valid entry";

/// Sizes that make no difference to a reader.
#[derive(Debug, Clone, Copy)]
pub struct WriterOptions {
    /// A table ends with the block that reaches this length.
    pub table_bytes: u64,
    /// A block ends with the entry that reaches this length.
    pub block_bytes: usize,
}

impl Default for WriterOptions {
    /// Core's values (Core `dbwrapper.cpp`, `DBWRAPPER_MAX_FILE_SIZE`; LevelDB's block size).
    fn default() -> Self {
        Self { table_bytes: 32 << 20, block_bytes: 4 << 10 }
    }
}

/// The size of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatabaseSize {
    /// The total length of all files.
    pub bytes: u64,
    /// The number of tables.
    pub tables: u64,
}

/// Writes a new database from entries in ascending key order.
pub struct DatabaseWriter<'f> {
    folder: &'f dyn Storage,
    options: WriterOptions,
    pipe: TablePipe,
    table: TableWriter,
    /// Whether `table` has an entry, and therefore a file.
    begun: bool,
    /// The number of tables started.
    tables: u64,
    /// Whether entries may be missing, so that the database must never be finished.
    failed: bool,
}

impl<'f> DatabaseWriter<'f> {
    /// Starts a database in `folder`, which must not contain one.
    pub fn new(folder: &'f dyn Storage, options: WriterOptions) -> Result<Self, DatabaseError> {
        let pipe = TablePipe::start(folder.describe(""))?;
        let table = TableWriter::new(options.block_bytes);
        Ok(Self { folder, options, pipe, table, begun: false, tables: 0, failed: false })
    }

    /// Adds an entry; its key must be above all earlier ones. After an error the database cannot be finished.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DatabaseError> {
        self.put_obfuscated(key, value, Obfuscation::NONE)
    }

    /// Like [`put`](Self::put), and obfuscates the value.
    pub(crate) fn put_obfuscated(
        &mut self,
        key: &[u8],
        value: &[u8],
        obfuscation: Obfuscation,
    ) -> Result<(), DatabaseError> {
        if key.len() > KEY_BYTES_MAX {
            return self.refused(key, TOO_LARGE);
        }
        let mut tagged = TaggedKey::default();
        tagged.set(key, TAG);
        self.put_tagged(&tagged, value, obfuscation)
    }

    /// Like [`put_obfuscated`](Self::put_obfuscated), for a key with a number; fast for coins.
    #[inline]
    pub(crate) fn put_numbered(
        &mut self,
        key: NumberedKey<'_>,
        value: &[u8],
        obfuscation: Obfuscation,
    ) -> Result<(), DatabaseError> {
        if !self.failed
            && let Some(ended) = self.table.put_short(key, TAG, value, obfuscation)
        {
            return if ended { self.hand_on() } else { Ok(()) };
        }
        let mut tagged = TaggedKey::default();
        tagged.set_numbered(key, TAG);
        self.put_tagged(&tagged, value, obfuscation)
    }

    fn put_tagged(
        &mut self,
        key: &TaggedKey,
        value: &[u8],
        obfuscation: Obfuscation,
    ) -> Result<(), DatabaseError> {
        if self.failed {
            return Err(self.failed_before());
        }
        if value.len() > VALUE_BYTES_MAX {
            return self.refused(key.user(), TOO_LARGE);
        }
        let follows = self.table.follow(key);
        if !follows.above {
            return self.refused(key.user(), "keys must ascend");
        }
        if !self.begun {
            self.begin_table()?;
        }
        let ended = self.table.put(key, follows, value, obfuscation);
        if ended { self.hand_on() } else { Ok(()) }
    }

    /// Reports an invalid entry; the database cannot be finished afterwards.
    fn refused(&mut self, key: &[u8], what: &'static str) -> Result<(), DatabaseError> {
        self.failed = true;
        let previous = hex(self.table.last().unwrap_or_default());
        Err(DatabaseError::Entry { key: hex(key), previous, what })
    }

    /// Ends the table if it is long enough; sends bytes to the writing thread once they make a piece.
    fn hand_on(&mut self) -> Result<(), DatabaseError> {
        // Stays set if anything below fails.
        self.failed = true;
        if self.table.length() >= self.options.table_bytes {
            self.end_table()?;
        } else if self.table.ready() >= PIECE_BYTES {
            let piece = self.table.take(self.pipe.buffer());
            self.pipe.write(piece)?;
        }
        self.failed = false;
        Ok(())
    }

    /// Makes everything durable, then creates `CURRENT`.
    pub fn finish(mut self) -> Result<DatabaseSize, DatabaseError> {
        if self.failed {
            return Err(self.failed_before());
        }
        if self.begun {
            self.end_table()?;
        }
        let made = self.pipe.finish()?;

        let tables: u64 = made.iter().map(|made| made.length).sum();
        let level = level_of(tables);
        let record = first_record(&made, level, LOG_NUMBER, FIRST_TABLE_NUMBER, LAST_SEQUENCE);
        let mut manifest = Vec::new();
        append_record(&mut manifest, &record);
        let name = format!("MANIFEST-{MANIFEST_NUMBER:06}");
        self.write_file(&name, &manifest)?;

        // LevelDB uses the same temporary name, so it cleans up a file left by a crash.
        let draft = format!("{MANIFEST_NUMBER:06}.dbtmp");
        let current = format!("{name}\n");
        self.write_file(&draft, current.as_bytes())?;
        self.sync_names()?;
        self.with_context("rename", &draft, self.folder.rename(&draft, "CURRENT"))?;
        self.sync_names()?;
        let bytes = tables + manifest.len() as u64 + current.len() as u64;
        Ok(DatabaseSize { bytes, tables: made.len() as u64 })
    }

    /// The error after an earlier failure.
    pub(crate) fn failed_before(&self) -> DatabaseError {
        DatabaseError::Failed { folder: self.folder.describe("") }
    }

    fn begin_table(&mut self) -> Result<(), DatabaseError> {
        // Stays set if anything below fails.
        self.failed = true;
        let number = FIRST_TABLE_NUMBER + self.tables;
        let name = format!("{number:06}.ldb");
        let file = self.with_context("create", &name, self.folder.create(&name))?;
        self.pipe.begin(file, self.folder.describe(&name))?;
        self.tables += 1;
        (self.begun, self.failed) = (true, false);
        Ok(())
    }

    fn end_table(&mut self) -> Result<(), DatabaseError> {
        let (rest, end) = self.table.finish(self.pipe.buffer());
        self.begun = false;
        self.pipe.write(rest)?;
        self.pipe.end(end)
    }

    /// Writes a small file and makes it durable.
    fn write_file(&self, name: &str, bytes: &[u8]) -> Result<(), DatabaseError> {
        let mut file = self.with_context("create", name, self.folder.create(name))?;
        self.with_context("write", name, file.write_all(bytes))?;
        self.with_context("sync", name, file.sync())
    }

    fn sync_names(&self) -> Result<(), DatabaseError> {
        self.with_context("sync", "", self.folder.sync_names())
    }

    fn with_context<T>(
        &self,
        doing: &'static str,
        name: &str,
        result: io::Result<T>,
    ) -> Result<T, DatabaseError> {
        result.map_err(|source| io_error(doing, &self.folder.describe(name), source))
    }
}

/// Returns the lowest level that may hold this many bytes of tables: 10 MiB on level 1, ten times as much on
/// each further one (LevelDB `db/version_set.cc`, `MaxBytesForLevel`). LevelDB merges a full level into the
/// next as soon as it opens the database. The last level, 6, has no limit; level 0 counts tables, which may
/// overlap there.
pub(crate) fn level_of(bytes: u64) -> u32 {
    (1..6).find(|level| bytes < (10 << 20) * 10u64.pow(level - 1)).unwrap_or(6)
}

/// Formats enough of a key to identify it in messages.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes.iter().take(40) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    if text.is_empty() { "(none)".to_owned() } else { text }
}

/// Why a database could not be written. The written files are not a database, because no `CURRENT` names
/// them.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The system failed.
    #[error(
        "cannot {doing} {file}: {source}. Check the disk and its free space, then rerun the command"
    )]
    Io {
        /// The operation: "create", "write", "sync" ...
        doing: &'static str,
        /// The file or folder.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The writing threads could not be started.
    #[error("cannot start a thread for writing {folder}: {source}")]
    Thread {
        /// The folder of the database.
        folder: String,
        /// The system's error.
        source: io::Error,
    },
    /// A key does not follow the one before it, or an entry is too large for a table.
    #[error("entry {key} cannot follow entry {previous}: {what}")]
    Entry {
        /// The key in hex.
        key: String,
        /// The previous key in hex.
        previous: String,
        /// The fault.
        what: &'static str,
    },
    /// The caller continued after a failed write.
    #[error("writing {folder} failed before, so nothing more can be written there")]
    Failed {
        /// The folder of the database.
        folder: String,
    },
}

/// The number of pieces that can wait for the writing thread.
const BACKLOG: usize = 4;

/// A file, with its name for messages.
type NamedFile = (Box<dyn StorageFile>, String);

enum PipeOrder {
    Begin(NamedFile),
    Write(TablePiece),
    /// The table's blocks are complete: write the rest and make it durable.
    End(TableEnd),
}

type Thread<T> = JoinHandle<Result<T, DatabaseError>>;

struct PipeThreads {
    orders: SyncSender<PipeOrder>,
    writer: Thread<Vec<NewTable>>,
    syncer: Thread<()>,
}

/// Two threads that write tables to a disk while the caller makes the next ones.
///
/// One seals and writes; the other syncs whole files, so that the disk works while the system receives the
/// next file's bytes. The backlog is bounded: [`BACKLOG`] pieces and two files. The first error ends both
/// threads; the next call returns it.
pub(super) struct TablePipe {
    folder: String,
    /// `None` once the threads have been joined.
    running: Option<PipeThreads>,
    /// Written buffers, for reuse.
    spare: Receiver<TablePiece>,
}

impl TablePipe {
    /// Starts the threads; `folder` is for messages.
    pub(super) fn start(folder: String) -> Result<Self, DatabaseError> {
        let (orders, to_write) = sync_channel(BACKLOG);
        let (whole, to_sync) = sync_channel(1);
        let (written, spare) = channel();
        let failed = |source| DatabaseError::Thread { folder: folder.clone(), source };
        let thread = |name: &str| Builder::new().name(name.to_owned());
        let writer = thread("db-write").spawn(move || write(&to_write, &whole, &written));
        // Without a syncing thread, `to_sync` is closed and the writing thread ends.
        let syncer = thread("db-sync").spawn(move || sync(&to_sync));
        let (writer, syncer) = (writer.map_err(&failed)?, syncer.map_err(&failed)?);
        Ok(Self { folder, running: Some(PipeThreads { orders, writer, syncer }), spare })
    }

    /// Starts a new table: the following pieces go to this file.
    pub(super) fn begin(
        &mut self,
        file: Box<dyn StorageFile>,
        name: String,
    ) -> Result<(), DatabaseError> {
        self.send(PipeOrder::Begin((file, name)))
    }

    /// Seals blocks and appends them to the file; waits while the backlog is full.
    pub(super) fn write(&mut self, piece: TablePiece) -> Result<(), DatabaseError> {
        self.send(PipeOrder::Write(piece))
    }

    /// Ends the file after its last block.
    pub(super) fn end(&mut self, end: TableEnd) -> Result<(), DatabaseError> {
        self.send(PipeOrder::End(end))
    }

    /// Returns an empty buffer, reused if possible.
    pub(super) fn buffer(&self) -> TablePiece {
        self.spare.try_recv().unwrap_or_default()
    }

    /// Waits until all files are durable; returns their tables in order.
    pub(super) fn finish(&mut self) -> Result<Vec<NewTable>, DatabaseError> {
        let Some(PipeThreads { orders, writer, syncer }) = self.running.take() else {
            return Err(DatabaseError::Failed { folder: self.folder.clone() });
        };
        drop(orders);
        let (made, synced) = (join(writer), join(syncer));
        let made = made?;
        synced.map(|()| made)
    }

    fn send(&mut self, order: PipeOrder) -> Result<(), DatabaseError> {
        let sent = self.running.as_ref().is_some_and(|it| it.orders.send(order).is_ok());
        if sent {
            return Ok(());
        }
        // A thread ends early only with an error.
        self.finish()?;
        Err(DatabaseError::Failed { folder: self.folder.clone() })
    }
}

/// Stops all writing when the pipe is dropped.
impl Drop for TablePipe {
    fn drop(&mut self) {
        if let Some(PipeThreads { orders, writer, syncer }) = self.running.take() {
            drop(orders);
            // A writer that drops the pipe early does not need the results.
            let _ = (writer.join(), syncer.join());
        }
    }
}

fn join<T>(thread: Thread<T>) -> Result<T, DatabaseError> {
    // A panic in a thread is a bug, and continues here.
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn write(
    orders: &Receiver<PipeOrder>,
    whole: &SyncSender<NamedFile>,
    written: &Sender<TablePiece>,
) -> Result<Vec<NewTable>, DatabaseError> {
    let (mut current, mut made): (Option<NamedFile>, _) = (None, Vec::new());
    let (mut sealer, mut rest) = (TableSealer::default(), Vec::new());
    for order in orders {
        match order {
            PipeOrder::Begin(file) => current = Some(file),
            PipeOrder::Write(mut piece) => {
                let Some(file) = &mut current else { continue };
                sealer.seal(&mut piece);
                append(file, &piece.bytes)?;
                piece.clear();
                // The other thread may be about to finish and need no buffer.
                let _ = written.send(piece);
            }
            PipeOrder::End(end) => {
                let Some(mut file) = current.take() else { continue };
                rest.clear();
                made.push(sealer.end(end, &mut rest));
                append(&mut file, &rest)?;
                // The syncing thread ends early only with an error, which it returns itself.
                if whole.send(file).is_err() {
                    return Ok(made);
                }
            }
        }
    }
    Ok(made)
}

fn append((file, name): &mut NamedFile, bytes: &[u8]) -> Result<(), DatabaseError> {
    file.write_all(bytes).map_err(|source| io_error("write", name, source))
}

fn sync(whole: &Receiver<NamedFile>) -> Result<(), DatabaseError> {
    for (mut file, name) in whole {
        file.sync().map_err(|source| io_error("sync", &name, source))?;
    }
    Ok(())
}

/// Adds the file to a system error.
pub(super) fn io_error(doing: &'static str, file: &str, source: std::io::Error) -> DatabaseError {
    DatabaseError::Io { doing, file: file.to_owned(), source }
}
