//! [`Table`]: a table under a draft name. It gets its final name only after its rows were counted and summed again, by
//! reading the file.

use crate::columns::{ScriptColumns, TableColumns, TableFormat};
use crate::error::TableError;
use crate::meta::TableFacts;
use crate::rows::{RowWriter, TableSums};
use crate::{AddressKinds, csv};
use apus_chain::{CoinRef, Network, OutPoint};
use apus_storage::{DirStorage, Storage, StorageFile, parent};
use apus_sync::error::StorageResult;
use apus_sync::sink::FileDraft;
use apus_sync::{SyncError, draft_of};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where a table is written, and its form.
pub struct TablePlace {
    path: PathBuf,
    storage: Arc<dyn Storage>,
    name: String,
    format: TableFormat,
    columns: TableColumns,
    replace: bool,
}

impl TablePlace {
    /// # Errors
    /// If this build lacks the format, if the format lacks a column's form, or if the path has no valid name.
    pub fn new(path: &Path, format: TableFormat, columns: TableColumns) -> Result<Self, String> {
        if !format.is_built() {
            return Err(format!("this build lacks the feature {format}"));
        }
        if columns.raw && format == TableFormat::Csv {
            return Err("CSV is text and cannot hold raw bytes: use sqlite or parquet".to_owned());
        }
        let name = path.file_name().and_then(|name| name.to_str());
        let name =
            name.ok_or_else(|| format!("{} is not a valid name for a file", path.display()))?;
        let storage = Arc::new(DirStorage::new(parent(path)));
        let (path, name) = (path.to_owned(), name.to_owned());
        Ok(Self { path, storage, name, format, columns, replace: false })
    }

    /// With `replace`, the table takes the place of an existing one.
    #[must_use]
    pub fn replacing(self, replace: bool) -> Self {
        Self { replace, ..self }
    }

    /// Uses `storage` for the folder of the table.
    #[must_use]
    pub fn in_storage(self, storage: Arc<dyn Storage>) -> Self {
        Self { storage, ..self }
    }

    /// Returns the files that a table here consists of.
    pub fn files(&self) -> Vec<PathBuf> {
        [self.path.clone()].into_iter().chain(self.format.facts_path(&self.path)).collect()
    }

    /// Returns the file of facts that a killed run left without their table, if any. A table here replaces it.
    pub fn left_facts(&self) -> Option<PathBuf> {
        let path = self.format.facts_path(&self.path)?;
        let is_left =
            !self.has(&self.name) && TableFacts::are_in(&*self.storage, &self.facts_name()?);
        is_left.then_some(path)
    }

    /// Fails if a file that no table has written has the name of the facts.
    pub fn expect_own_facts(&self) -> Result<(), SyncError> {
        let Some(name) = self.facts_name() else { return Ok(()) };
        if self.has(&name) && !TableFacts::are_in(&*self.storage, &name) {
            return Err(SyncError::usage(format!(
                "{} is no file of a table, and the facts about this table need its name: move it, or use another output",
                self.storage.describe(&name)
            )));
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        self.storage.len(name).is_ok()
    }

    fn facts_name(&self) -> Option<String> {
        let path = self.format.facts_path(&self.path)?;
        Some(path.file_name()?.to_str()?.to_owned())
    }
}

/// A table that is being written.
pub struct Table<'a> {
    place: &'a TablePlace,
    draft: FileDraft<'a>,
    state: State<'a>,
    sums: TableSums,
}

enum State<'a> {
    Rows(Box<dyn RowWriter>),
    /// The complete file, and the file of its facts with its name.
    Complete(Box<dyn StorageFile>, Option<(FileDraft<'a>, Box<dyn StorageFile>, String)>),
    /// An error ended it.
    Failed,
}

impl<'a> Table<'a> {
    /// Begins a table of coins of a chain.
    pub fn create(place: &'a TablePlace, network: Network) -> Result<Self, SyncError> {
        place.expect_own_facts()?;
        let (draft, file) = FileDraft::create(&*place.storage, &place.name)?;
        let columns = ScriptColumns::new(place.columns, AddressKinds::of(network));
        let path = draft_of(&place.path);
        let rows: Box<dyn RowWriter> = match place.format {
            TableFormat::Csv => Box::new(csv::CsvFile::new(file, path, columns)),
            #[cfg(feature = "sqlite")]
            TableFormat::Sqlite => Box::new(crate::sqlite::SqliteFile::new(file, path, columns)?),
            #[cfg(feature = "parquet")]
            TableFormat::Parquet => {
                Box::new(crate::parquet::ParquetTable::new(file, path, columns)?)
            }
            #[allow(unreachable_patterns, reason = "a build may have all formats")]
            format => {
                return Err(SyncError::usage(format!("this build lacks the feature {format}")));
            }
        };
        Ok(Self { place, draft, state: State::Rows(rows), sums: TableSums::default() })
    }

    /// Adds a row. The coins come in the order of a snapshot.
    pub fn put(&mut self, outpoint: &OutPoint, coin: CoinRef<'_>) -> Result<(), SyncError> {
        self.sums.add(outpoint, coin.amount)?;
        match &mut self.state {
            State::Rows(rows) => rows.put(outpoint, coin),
            State::Complete(..) | State::Failed => Err(TableError::Incomplete.into()),
        }
    }

    /// Returns the sum of the values so far, in satoshi.
    pub fn total(&self) -> u64 {
        self.sums.total
    }

    /// Completes the file under its draft name, reads it back, and compares its rows and their sum with the set's.
    pub fn finish(&mut self, facts: &TableFacts, interrupt: &AtomicBool) -> Result<(), SyncError> {
        let State::Rows(rows) = std::mem::replace(&mut self.state, State::Failed) else {
            return Err(TableError::Incomplete.into());
        };
        let file = rows.finish(facts)?;
        let wanted = TableSums { rows: facts.coins, total: facts.total };
        let found = self.read_back(interrupt)?;
        if self.sums != wanted || found != wanted {
            let draft = draft_of(&self.place.path);
            let TableSums { rows, total } = found;
            let (coins, worth) = (facts.coins, facts.total);
            return Err(TableError::Different { draft, rows, total, coins, worth }.into());
        }
        let facts_file = match self.place.facts_name() {
            Some(name) => {
                let storage = &*self.place.storage;
                let (draft, mut file) = FileDraft::create(storage, &name)?;
                file.write_all(facts.to_json().as_bytes()).at(storage, &name)?;
                Some((draft, file, name))
            }
            None => None,
        };
        self.state = State::Complete(file, facts_file);
        Ok(())
    }

    fn read_back(&self, interrupt: &AtomicBool) -> Result<TableSums, SyncError> {
        let draft = draft_of(&self.place.path);
        let go_on = || match interrupt.load(Ordering::Relaxed) {
            true => Err(SyncError::Interrupted),
            false => Ok(()),
        };
        match self.place.format {
            TableFormat::Csv => csv::read_back(&draft, &go_on),
            #[cfg(feature = "sqlite")]
            TableFormat::Sqlite => crate::sqlite::read_back(&draft, &go_on),
            #[cfg(feature = "parquet")]
            TableFormat::Parquet => crate::parquet::read_back(&draft, &go_on),
            #[allow(unreachable_patterns, reason = "a build may have all formats")]
            _ => Err(TableError::Incomplete.into()),
        }
    }

    /// Gives the finished table and its facts their names. A crash never leaves facts beside another table, and a new table
    /// has its facts when it appears.
    pub fn publish(self) -> Result<(), SyncError> {
        let State::Complete(file, facts) = self.state else {
            return Err(TableError::Incomplete.into());
        };
        let place = self.place;
        let Some((facts_draft, facts_file, name)) = facts else {
            return self.draft.publish_over(file, place.replace);
        };
        let storage = &*place.storage;
        // It may have come meanwhile.
        place.expect_own_facts()?;
        if !place.has(&place.name) {
            facts_draft.publish_over(facts_file, true)?;
            return self.draft.publish_over(file, place.replace);
        }
        if place.replace {
            storage.remove(&name).at(storage, &name)?;
            storage.sync_names().at(storage, &name)?;
        }
        self.draft.publish_over(file, place.replace)?;
        facts_draft.publish_over(facts_file, place.replace)
    }
}
