//! [`Databases`]: writes the databases of all indexes at the same time, once the pass has collected their entries.

use crate::chain::IndexedChain;
use crate::coin_stats::CoinStatsPart;
use crate::coin_stats_index::{CoinStatsForm, CoinStatsTip, write_coin_stats_index};
use crate::error::{IndexesError, at};
use crate::filter_index::{FilterPart, write_filter_index};
use crate::forms::IndexForm;
use crate::node_coins::NodeCoins;
use crate::pass::{PassParts, PassRows};
use crate::read_back::IndexDatabase;
use crate::rows::RowFiles;
use crate::salt::Salt;
use crate::{spender_index, txindex};
use apus_datadir::WriterOptions;
use apus_storage::{DirStorage, Storage, parent};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;

/// Where the databases go, and of what chain they are.
pub(crate) struct Databases<'a> {
    pub(crate) chain: &'a IndexedChain<'a>,
    pub(crate) forms: &'a [IndexForm],
    /// A folder for each form.
    pub(crate) folders: Vec<PathBuf>,
    pub(crate) interrupt: &'a AtomicBool,
}

/// What was written.
pub(crate) struct WrittenDatabases {
    /// The number of rows of each form that is made of rows.
    pub(crate) rows: Vec<(IndexForm, u64)>,
    /// The coins that the blocks and undo data lead to, and those of the node.
    pub(crate) coins: Option<(CoinStatsTip, NodeCoins)>,
}

impl Databases<'_> {
    /// Returns the folder of a form, if it is made.
    fn folder(&self, form: IndexForm) -> Option<&Path> {
        let at = self.forms.iter().position(|it| *it == form)?;
        self.folders.get(at).map(PathBuf::as_path)
    }

    /// Makes the folder for files of filters, if there are some.
    pub(crate) fn make_filters_folder(&self) -> Result<Option<DirStorage>, IndexesError> {
        if !self.forms.contains(&IndexForm::BlockFilter) {
            return Ok(None);
        }
        let database = self.begin(IndexForm::BlockFilter)?;
        Ok(Some(DirStorage::new(parent(database.folder()))))
    }

    /// Makes the folder of a form's database.
    fn begin(&self, form: IndexForm) -> Result<DirStorage, IndexesError> {
        let folder = self.folder(form).unwrap_or(Path::new(""));
        let storage = DirStorage::new(folder.join(form.database()));
        fs::create_dir_all(storage.folder()).map_err(at(&storage, ""))?;
        Ok(storage)
    }

    pub(crate) fn stop(&self) -> Result<(), IndexesError> {
        match self.interrupt.load(Ordering::Relaxed) {
            true => Err(IndexesError::Interrupted),
            false => Ok(()),
        }
    }

    /// Writes all databases. Meanwhile `node` sums up the node's coins, if the coins' statistics prove the undo data.
    pub(crate) fn write(
        &self,
        rows: PassRows<'_>,
        parts: PassParts<'_>,
        node: &(dyn Fn() -> Result<NodeCoins, IndexesError> + Sync),
    ) -> Result<WrittenDatabases, IndexesError> {
        let (PassRows { old_tx, tx, spender }, PassParts { filters, stats, .. }) = (rows, parts);
        std::thread::scope(|scope| {
            let old_tx = old_tx.map(|rows| scope.spawn(|| self.write_old_tx(rows)));
            let tx = tx.map(|(salt, rows)| scope.spawn(move || self.write_tx(salt, rows)));
            let spender =
                spender.map(|(salt, rows)| scope.spawn(move || self.write_spender(salt, rows)));
            let coins = (!stats.is_empty()).then(|| {
                let node = scope.spawn(node);
                (scope.spawn(|| self.write_stats(stats)), node)
            });
            // This thread does what is left.
            let filters = if filters.is_empty() { Ok(()) } else { self.write_filters(filters) };
            let mut rows = Vec::new();
            for (form, thread) in [
                (IndexForm::TxIndex, old_tx),
                (IndexForm::TxIndexV2, tx),
                (IndexForm::TxoSpender, spender),
            ] {
                let count = thread.map(join).transpose();
                rows.push(count.map(|count| count.map(|count| (form, count))));
            }
            let coins = coins.map(|(made, node)| (join(made), join(node)));
            filters?;
            let rows: Result<Vec<Option<(IndexForm, u64)>>, IndexesError> =
                rows.into_iter().collect();
            let rows = rows?.into_iter().flatten().collect();
            let coins =
                coins.map(|(made, node)| Ok::<_, IndexesError>((made?, node?))).transpose()?;
            Ok(WrittenDatabases { rows, coins })
        })
    }

    fn write_old_tx(&self, rows: RowFiles<'_, { txindex::OLD_ROW }>) -> Result<u64, IndexesError> {
        self.put(IndexForm::TxIndex, |database| {
            txindex::put_old(database, self.chain, rows, &|| self.stop())
        })
    }

    fn write_tx(
        &self,
        salt: Salt,
        rows: RowFiles<'_, { txindex::ROW }>,
    ) -> Result<u64, IndexesError> {
        self.put(IndexForm::TxIndexV2, |database| {
            txindex::put_new(database, self.chain, salt, rows, &|| self.stop())
        })
    }

    fn write_spender(
        &self,
        salt: Salt,
        rows: RowFiles<'_, { spender_index::ROW }>,
    ) -> Result<u64, IndexesError> {
        self.put(IndexForm::TxoSpender, |database| {
            spender_index::put(database, self.chain, salt, rows, &|| self.stop())
        })
    }

    /// Writes a database that `put` puts the entries of. Returns the number of rows.
    fn put(
        &self,
        form: IndexForm,
        put: impl FnOnce(&mut IndexDatabase<'_>) -> Result<u64, IndexesError>,
    ) -> Result<u64, IndexesError> {
        let storage = self.begin(form)?;
        let filters = form.has_bloom_filters();
        let options = WriterOptions { filters, ..WriterOptions::default() };
        let mut database = IndexDatabase::new(&storage, options)?;
        let rows = put(&mut database)?;
        database.finish(&|| self.stop())?;
        Ok(rows)
    }

    fn write_filters(&self, parts: Vec<FilterPart<'_>>) -> Result<(), IndexesError> {
        let storage = self.begin(IndexForm::BlockFilter)?;
        write_filter_index(parts, &storage, &self.chain.locator, &|| self.stop())?;
        // The files of filters are in the folder around the database.
        DirStorage::new(parent(storage.folder())).sync_names().map_err(at(&storage, ""))
    }

    fn write_stats(&self, parts: Vec<CoinStatsPart<'_>>) -> Result<CoinStatsTip, IndexesError> {
        let forms = [
            (IndexForm::CoinStats, CoinStatsForm::Wide),
            (IndexForm::CoinStatsOld, CoinStatsForm::Narrow),
        ];
        let made = forms.into_iter().filter(|(form, _)| self.forms.contains(form));
        let places = made.map(|(form, of)| Ok((of, self.begin(form)?)));
        let places = places.collect::<Result<Vec<(CoinStatsForm, DirStorage)>, IndexesError>>()?;
        let places: Vec<(CoinStatsForm, &DirStorage)> =
            places.iter().map(|(form, storage)| (*form, storage)).collect();
        write_coin_stats_index(parts, &places, &self.chain.locator, &|| self.stop())
    }
}

fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
