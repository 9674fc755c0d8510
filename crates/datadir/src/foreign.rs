//! A LevelDB read through another implementation than the one that writes it here.
//!
//! What a writer and a reader of the same hand agree on can still be wrong. So what is handed to a
//! node is read back through the library `rusty-leveldb`, opened over an [`Overlay`]: nothing on disk
//! is written and no lock is taken. Memory does not grow with the database; in it are the index of the
//! table being read and what the library writes on opening. Damage ends in an error, never in entries
//! that are passed over.
//!
//! It is read in two ways, since they take different paths through a table: [`Entries`] go from the
//! first key to the last, [`LookUps`] ask for single ones as a node does, by separators, filters and
//! restart points.

mod overlay;

use overlay::Overlay;
use rusty_leveldb::{DB, DBIterator, LdbIterator, Options, Status};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Tables whose indexes and filters the library keeps, a megabyte each, and ten that it subtracts.
const OPEN_FILES: usize = 10 + 4;

/// Nothing is read twice, or at once again.
const CACHE_BYTES: usize = 64 << 10;

/// Why a database could not be read back.
#[derive(Debug, thiserror::Error)]
pub enum ForeignError {
    /// A file of the database cannot be read or is not what it should be.
    #[error("{path} cannot be read back at byte {offset}: {what}")]
    File {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// The other implementation does not accept the database.
    #[error("{path} is no database that can be opened: {what}")]
    Open {
        /// The folder.
        path: PathBuf,
        /// What the other implementation said.
        what: String,
    },
}

/// Key and value.
pub(crate) type Entry<'e> = (&'e [u8], &'e [u8]);

/// The entries of a database as the library gives them, one at a time.
pub(crate) struct Entries<'d> {
    key: Vec<u8>,
    value: Vec<u8>,
    dir: &'d Path,
    overlay: Overlay,
    iterator: DBIterator,
    /// What the iterator reads from.
    _database: DB,
}

impl<'d> Entries<'d> {
    /// Opens the database in the folder `dir`, at rest.
    pub(crate) fn open(dir: &'d Path) -> Result<Self, ForeignError> {
        let (overlay, (_database, iterator)) = open(dir, |mut database| {
            let iterator = database.new_iter()?;
            Ok((database, iterator))
        })?;
        let (key, value) = (Vec::new(), Vec::new());
        Ok(Self { key, value, dir, overlay, iterator, _database })
    }

    /// The next one, in the order of the keys; nothing where there is none.
    pub(crate) fn next(&mut self) -> Result<Option<Entry<'_>>, ForeignError> {
        let Self { key, value, iterator, .. } = self;
        let found = told(self.dir, &self.overlay, || {
            let entry = if iterator.advance() { iterator.current() } else { None };
            let Some((its_key, its_value)) = entry else { return false };
            key.clear();
            key.extend_from_slice(&its_key);
            value.clear();
            value.extend_from_slice(&its_value);
            true
        })?;
        Ok(found.then_some((&self.key[..], &self.value[..])))
    }
}

/// Single entries of a database, asked for by their keys. It is meant for one whose tables lie side by
/// side on one level, as they are written here: where they don't, the library may begin to merge them,
/// in memory, and is stopped when that grows.
pub(crate) struct LookUps<'d> {
    dir: &'d Path,
    overlay: Overlay,
    database: DB,
}

impl<'d> LookUps<'d> {
    /// Opens the database in the folder `dir`, at rest.
    pub(crate) fn open(dir: &'d Path) -> Result<Self, ForeignError> {
        let (overlay, database) = open(dir, Ok)?;
        Ok(Self { dir, overlay, database })
    }

    /// The value that a key has. Keys that follow each other are found fastest.
    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, ForeignError> {
        let Self { dir, overlay, database } = self;
        told(dir, overlay, || database.get(key).map(|value| value.to_vec()))
    }
}

/// Opens the database in the folder `dir` over an overlay, and does the first `work` with it.
fn open<T>(
    dir: &Path,
    work: impl FnOnce(DB) -> Result<T, Status>,
) -> Result<(Overlay, T), ForeignError> {
    let overlay = Overlay::default();
    let options = Options {
        env: Rc::new(Box::new(overlay.clone())),
        create_if_missing: false,
        max_open_files: OPEN_FILES,
        block_cache_capacity_bytes: CACHE_BYTES,
        // A manifest and log of its own: those that are there are not appended to.
        reuse_logs: true,
        reuse_manifest: false,
        ..Options::default()
    };
    match told(dir, &overlay, || DB::open(dir, options).and_then(work))? {
        Ok(done) => Ok((overlay, done)),
        Err(status) => Err(ForeignError::Open { path: dir.to_owned(), what: status.to_string() }),
    }
}

/// Lets the library work; a fault that the overlay found ends it, and so does one that the
/// library did not expect.
fn told<T>(dir: &Path, overlay: &Overlay, work: impl FnOnce() -> T) -> Result<T, ForeignError> {
    // After a fault nothing of the library's is used any more.
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        overlay.fault.borrow_mut().take().unwrap_or_else(|| {
            let what = "it is damaged in a way that stopped the library that reads it".to_owned();
            ForeignError::Open { path: dir.to_owned(), what }
        })
    })
}
