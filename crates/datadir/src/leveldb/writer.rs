//! [`DatabaseWriter`]: a new database from entries in ascending order of keys, at the speed of the
//! disk.
//!
//! Each byte is written once. All tables lie side by side on one level, the lowest that may hold
//! so much, so the node that opens the database has nothing to merge. The calling thread makes
//! blocks, a second one adds checksums and filters and writes, a third syncs ([`TablePipe`]); together
//! they hold some 10 MB.
//!
//! `CURRENT` comes last, by a rename, when all that it leads to is durable: before that a reader
//! finds no database. Tables of an attempt that ended early stay where they are, and are replaced
//! or, once a database is there, removed by the LevelDB that opens it.
//!
//! It only makes new databases. Where one exists already it must not be used: the folder is the
//! caller's to choose and to empty.

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

/// Numbers of files, in the order in which they are given out: manifest, a log that is never
/// written, tables.
const MANIFEST_NUMBER: u64 = 1;
const LOG_NUMBER: u64 = 2;
const FIRST_TABLE_NUMBER: u64 = 3;

/// All entries are as old as each other: no key comes twice.
const SEQUENCE: u64 = 1;
const TAG: u64 = SEQUENCE << 8 | KIND_PUT as u64;

/// The database is past them all. Where it is not, `rusty-leveldb` looks for a key with exactly the
/// number of its entry, and does not find a table's last one.
const LAST_SEQUENCE: u64 = SEQUENCE + 1;

/// How much is handed to the writing thread at once.
const PIECE_BYTES: usize = 1 << 20;

/// More than any value of Core's by far. The format has 32 bits for offsets within a block.
const VALUE_BYTES_MAX: usize = 1 << 28;

const TOO_LARGE: &str = "it is far larger than any entry can be";

/// What a reader does not care about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriterOptions {
    /// A table ends with the block that brings it to this length.
    pub(crate) table_bytes: u64,
    /// A block ends with the entry that brings it to this length.
    pub(crate) block_bytes: usize,
}

impl Default for WriterOptions {
    /// As Core has it (Core `dbwrapper.cpp`, `DBWRAPPER_MAX_FILE_SIZE`; LevelDB's blocks).
    fn default() -> Self {
        Self { table_bytes: 32 << 20, block_bytes: 4 << 10 }
    }
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatabaseSize {
    /// Length of all files together.
    pub(crate) bytes: u64,
    /// How many tables there are.
    pub(crate) tables: u64,
}

pub(crate) struct DatabaseWriter<'f> {
    folder: &'f dyn Storage,
    options: WriterOptions,
    pipe: TablePipe,
    table: TableWriter,
    /// Whether `table` has an entry, and so a file.
    begun: bool,
    /// How many tables were begun.
    tables: u64,
    /// Whether something is missing, so that it must never be finished.
    failed: bool,
}

impl<'f> DatabaseWriter<'f> {
    /// Begins a database in `folder`, which holds none.
    pub(crate) fn new(
        folder: &'f dyn Storage,
        options: WriterOptions,
    ) -> Result<Self, DatabaseError> {
        let pipe = TablePipe::start(folder.describe(""))?;
        let table = TableWriter::new(options.block_bytes);
        Ok(Self { folder, options, pipe, table, begun: false, tables: 0, failed: false })
    }

    /// Adds an entry, whose key must be above those before it. After an error the database cannot
    /// be finished.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DatabaseError> {
        self.put_obfuscated(key, value, Obfuscation::NONE)
    }

    /// The same, with the value obfuscated on its way.
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

    /// The same of what is numbered, which is fast for coins.
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

    /// An entry that cannot be, after which there is no database.
    fn refused(&mut self, key: &[u8], what: &'static str) -> Result<(), DatabaseError> {
        self.failed = true;
        let previous = hex(self.table.last().unwrap_or_default());
        Err(DatabaseError::Entry { key: hex(key), previous, what })
    }

    /// Ends the table if it is long enough, and hands on what is enough for the writing thread.
    fn hand_on(&mut self) -> Result<(), DatabaseError> {
        // Stays so where anything below fails.
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

    /// Makes everything durable, then names it in `CURRENT`.
    pub(crate) fn finish(mut self) -> Result<DatabaseSize, DatabaseError> {
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

        // Under LevelDB's own name for it, so that one left by a crash is cleaned away.
        let draft = format!("{MANIFEST_NUMBER:06}.dbtmp");
        let current = format!("{name}\n");
        self.write_file(&draft, current.as_bytes())?;
        self.sync_names()?;
        self.told("rename", &draft, self.folder.rename(&draft, "CURRENT"))?;
        self.sync_names()?;
        let bytes = tables + manifest.len() as u64 + current.len() as u64;
        Ok(DatabaseSize { bytes, tables: made.len() as u64 })
    }

    /// Why a writer that failed does nothing more.
    pub(crate) fn failed_before(&self) -> DatabaseError {
        DatabaseError::Failed { folder: self.folder.describe("") }
    }

    fn begin_table(&mut self) -> Result<(), DatabaseError> {
        // Stays so where anything below fails.
        self.failed = true;
        let number = FIRST_TABLE_NUMBER + self.tables;
        let name = format!("{number:06}.ldb");
        let file = self.told("create", &name, self.folder.create(&name))?;
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
        let mut file = self.told("create", name, self.folder.create(name))?;
        self.told("write", name, file.write_all(bytes))?;
        self.told("sync", name, file.sync())
    }

    fn sync_names(&self) -> Result<(), DatabaseError> {
        self.told("sync", "", self.folder.sync_names())
    }

    fn told<T>(
        &self,
        doing: &'static str,
        name: &str,
        result: io::Result<T>,
    ) -> Result<T, DatabaseError> {
        result.map_err(|source| io_error(doing, &self.folder.describe(name), source))
    }
}

/// The lowest level that may hold tables of so many bytes: 10 MiB on level 1, ten times as much on
/// each further one (LevelDB `db/version_set.cc`, `MaxBytesForLevel`). A level that holds as much
/// as it may is merged into the next as soon as the database is opened. The last, 6, has no limit;
/// level 0 is counted in tables, which may overlap there.
pub(crate) fn level_of(bytes: u64) -> u32 {
    (1..6).find(|level| bytes < (10 << 20) * 10u64.pow(level - 1)).unwrap_or(6)
}

/// For messages: enough of a key to find it.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes.iter().take(40) {
        // A string takes everything.
        let _ = write!(text, "{byte:02x}");
    }
    if text.is_empty() { "(none)".to_owned() } else { text }
}

/// Why a database could not be written. What was written so far is none: no file `CURRENT` names
/// it.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The system refused.
    #[error(
        "cannot {doing} {file}: {source}; see that the disk has space and is sound, then write the \
         database anew"
    )]
    Io {
        /// What was tried: "create", "write", "sync" ...
        doing: &'static str,
        /// The file or folder.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The threads that write could not be started.
    #[error("cannot start a thread to write {folder} with: {source}")]
    Thread {
        /// The folder of the database.
        folder: String,
        /// What the system said.
        source: io::Error,
    },
    /// A key does not follow the one before it, or an entry is too large for a table.
    #[error("entry {key} cannot follow entry {previous}: {what}")]
    Entry {
        /// The key in hex.
        key: String,
        /// The one before it in hex.
        previous: String,
        /// What is wrong.
        what: &'static str,
    },
    /// Writing failed before, and the caller went on nevertheless.
    #[error("writing {folder} failed before: nothing can be added to it")]
    Failed {
        /// The folder of the database.
        folder: String,
    },
}

/// Pieces of a file that can wait for the writing thread.
const BACKLOG: usize = 4;

/// A file with its name in messages.
type Named = (Box<dyn StorageFile>, String);

enum PipeOrder {
    Begin(Named),
    Write(TablePiece),
    /// The table has no more blocks: complete it and make it durable.
    End(TableEnd),
}

type Thread<T> = JoinHandle<Result<T, DatabaseError>>;

struct PipeThreads {
    orders: SyncSender<PipeOrder>,
    writer: Thread<Vec<NewTable>>,
    syncer: Thread<()>,
}

/// Two threads that bring tables to a disk while others are made.
///
/// One seals and writes, the other makes whole files durable, so that the disk has work while the
/// next file's bytes are copied to the system. What waits is bounded: [`BACKLOG`] pieces and two
/// files. The first error ends both threads; it is told by the next call.
pub(super) struct TablePipe {
    folder: String,
    /// `None` once the threads have been joined.
    running: Option<PipeThreads>,
    /// Buffers that were written.
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
        // Without a syncing thread `to_sync` is gone, and the writing one ends by itself.
        let syncer = thread("db-sync").spawn(move || sync(&to_sync));
        let (writer, syncer) = (writer.map_err(&failed)?, syncer.map_err(&failed)?);
        Ok(Self { folder, running: Some(PipeThreads { orders, writer, syncer }), spare })
    }

    /// The following pieces go to this file, which is another table.
    pub(super) fn begin(
        &mut self,
        file: Box<dyn StorageFile>,
        name: String,
    ) -> Result<(), DatabaseError> {
        self.send(PipeOrder::Begin((file, name)))
    }

    /// Seals blocks and appends them to the file; waits while too much is waiting already.
    pub(super) fn write(&mut self, piece: TablePiece) -> Result<(), DatabaseError> {
        self.send(PipeOrder::Write(piece))
    }

    /// The file has all its blocks.
    pub(super) fn end(&mut self, end: TableEnd) -> Result<(), DatabaseError> {
        self.send(PipeOrder::End(end))
    }

    /// An empty buffer, one that was used if there is one.
    pub(super) fn buffer(&self) -> TablePiece {
        self.spare.try_recv().unwrap_or_default()
    }

    /// Waits until all files are durable; the tables that they are.
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

/// Nothing is written any more when a pipe is gone.
impl Drop for TablePipe {
    fn drop(&mut self) {
        if let Some(PipeThreads { orders, writer, syncer }) = self.running.take() {
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
    orders: &Receiver<PipeOrder>,
    whole: &SyncSender<Named>,
    written: &Sender<TablePiece>,
) -> Result<Vec<NewTable>, DatabaseError> {
    let (mut current, mut made): (Option<Named>, _) = (None, Vec::new());
    let (mut sealer, mut rest) = (TableSealer::default(), Vec::new());
    for order in orders {
        match order {
            PipeOrder::Begin(file) => current = Some(file),
            PipeOrder::Write(mut piece) => {
                let Some(file) = &mut current else { continue };
                sealer.seal(&mut piece);
                append(file, &piece.bytes)?;
                piece.clear();
                // The other end may be about to finish and need no buffer.
                let _ = written.send(piece);
            }
            PipeOrder::End(end) => {
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
