//! [`check_indexes`]: compares a node's indexes with its blocks, undo data and coins. It changes nothing.
//!
//! A node checks next to nothing of an index, so a wrong entry would give wrong answers for ever. First the
//! databases are read from end to end, by a reader that shares no code with the writer; then one pass over the
//! blocks computes what each block must have there.
//!
//! Rows of transactions and inputs are in the order of a hash, not of blocks. Sorting them again would take as
//! long as making the index, so a keyed hash of each row is added to the sum of the row's block, in the index
//! and from the blocks. Equal sums prove equal rows, but for a chance of 1 in 2^64 for each wrong block; the
//! key is random, so that no one can prepare rows for it. Filters and statistics are computed again and
//! compared.

use crate::chain::IndexedChain;
use crate::error::IndexesError;
use crate::found::{CheckedChain, FoundIndexes, IndexFaults, IndexesChecked};
use crate::make::{INDEX_TABLES, IndexesRequest, open_blocks, open_undo};
use crate::node_coins::node_coins;
use crate::pass::{INDEX_BLOCKS, IndexPass, PassRows};
use apus_sync::engines::swiftsync::UndoSource;
use apus_sync::source::ChainSource;
use apus_sync::{BlocksDir, ErrorKind, Event, SyncError};
use std::sync::atomic::Ordering;

/// Checks the indexes of a node against its blocks up to `tip` of the request, whose `forms` are those
/// [in the folder](crate::forms_in). `muhash` is that of the coins at this block, if it is proven; without it, the
/// node's coins are read.
///
/// # Errors
///
/// Fails if the blocks are not found, or if the disk fails. A fault of an index is no error, and blocks or coins that are
/// missing or damaged only leave the rest unchecked.
pub fn check_indexes(
    request: &IndexesRequest<'_>,
    muhash: Option<[u8; 32]>,
) -> Result<IndexesChecked, SyncError> {
    let mut checked = IndexesChecked::default();
    let source = open_blocks(request)?;
    let undo = open_undo(request, &source);
    let undo = undo.or_else(|error| match error.kind() {
        ErrorKind::Usage | ErrorKind::Wrong => {
            checked.unchecked.push(format!("filters and statistics of coins: {error}"));
            Ok(None)
        }
        _ => Err(error),
    })?;
    let chain = &IndexedChain::new(source.chain(), |height| source.place(height).map(Into::into));
    let faults = IndexFaults::default();
    let chain = CheckedChain::new(chain, &faults, &request.blocks, request.interrupt);
    request.observer.event(Event::Started(INDEX_TABLES));
    let mut found = FoundIndexes::default();
    for form in request.forms {
        found.read(&chain, request.folder, *form, &mut checked)?;
    }
    request.observer.event(Event::Ended { phase: INDEX_TABLES, bytes: 0 });

    let blocks = BlocksToCompare { request, source: &source, undo: undo.as_deref() };
    match blocks.compare(&chain, &found, muhash) {
        Ok(unchecked) => checked.unchecked.extend(unchecked),
        // Faults that were found until then stay true.
        Err(error) if matches!(error.kind(), ErrorKind::Wrong | ErrorKind::Usage) => {
            checked.indexes.clear();
            checked.unchecked.push(error.to_string());
        }
        Err(error) => return Err(error),
    }
    checked.faults = faults.all();
    Ok(checked)
}

/// The blocks that indexes are compared with.
struct BlocksToCompare<'a> {
    request: &'a IndexesRequest<'a>,
    source: &'a BlocksDir,
    undo: Option<&'a dyn UndoSource>,
}

impl BlocksToCompare<'_> {
    /// Compares all blocks. Returns what could not be compared.
    fn compare(
        &self,
        chain: &CheckedChain<'_>,
        found: &FoundIndexes,
        muhash: Option<[u8; 32]>,
    ) -> Result<Option<String>, SyncError> {
        let Self { request, source, undo } = *self;
        request.observer.event(Event::Started(INDEX_BLOCKS));
        let stats = undo.is_some() && found.has_statistics();
        let rows = PassRows { old_tx: None, tx: None, spender: None };
        let pass = IndexPass {
            params: request.params,
            chain: chain.chain,
            source,
            undo,
            rows: &rows,
            filters: None,
            stats,
            numbers: false,
            check: Some((chain, found)),
            scratch: request.scratch,
            threads: request.threads,
            read_bytes: 2 * request.buffer_bytes(),
            observer: request.observer,
            interrupt: request.interrupt,
        };
        let (_, parts) = pass.run()?;
        request.observer.event(Event::Ended { phase: INDEX_BLOCKS, bytes: source.bytes_total() });
        if !stats {
            return Ok(None);
        }
        // The statistics come first: if the coins cannot be read, faults of the index are known.
        let tip = found.compare_statistics(chain, parts.stats)?;
        let muhash = match muhash {
            Some(muhash) => muhash,
            None => {
                let stop = || match request.interrupt.load(Ordering::Relaxed) {
                    true => Err(IndexesError::Interrupted),
                    false => Ok(()),
                };
                node_coins(&request.folder.join("chainstate"), &stop)?.muhash
            }
        };
        // The node has coins of repeated coinbases, and the statistics never do.
        let hash = |height| chain.chain.headers.hash(height).copied();
        let is_led_to =
            tip.muhash == muhash || request.params.has_uncounted_coins(chain.tip(), hash);
        Ok((!is_led_to).then(|| {
            "statistics of coins, and the scripts of spent coins in filters: the node's undo data do not lead to its \
             coins, so they are wrong, or the coins are"
                .to_owned()
        }))
    }
}
