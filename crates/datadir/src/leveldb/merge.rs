//! [`Merge`]: all versions of all keys of a database, in order, from the logs and the tables.

use super::internal_key::InternalKey;
use super::levels::{LiveTable, PLACE_OF_LOGS};
use super::memory::Memory;
use super::table::TableCursor;
use super::{Database, Entry, KIND_DELETE};
use crate::index_error::IndexError;
use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};

/// A version of a key. Of several the one with the smallest key comes first, of those of one key the newest.
pub(super) struct Merge {
    dir: PathBuf,
    last_sequence: u64,
    with_filters: bool,
    sources: Vec<Source>,
    /// The next entry of each source.
    heads: BinaryHeap<Reverse<(InternalKey, usize)>>,
    /// Their values, by source.
    values: Vec<Vec<u8>>,
    /// The entry under the cursor, and its source.
    current: Option<(InternalKey, usize)>,
    scratch: Entry,
}

/// Something that gives entries in order.
struct Source {
    /// When a look-up comes to it.
    place: usize,
    state: State,
}

enum State {
    Closed(LiveTable),
    Table(Box<TableCursor>),
    Memory(Memory),
    Done,
}

/// A version of a key.
pub(super) struct Version<'m> {
    pub(super) key: &'m InternalKey,
    pub(super) value: &'m [u8],
    /// When a look-up comes to where it stands.
    pub(super) place: usize,
    /// Which table or log it is from.
    pub(super) source: usize,
}

/// The version before, and what matters of those of its key.
#[derive(Default)]
pub(super) struct Before {
    key: InternalKey,
    place: usize,
    source: usize,
    /// Whether the newest version of the key that stands in this place is a deletion.
    is_deleted_here: bool,
    is_there: bool,
}

impl Before {
    /// Whether the key had a newer version.
    pub(super) fn is_of(&self, key: &InternalKey) -> bool {
        self.is_there && self.key.user == key.user
    }

    /// Why a look-up could find another version of a key than the newest, now or some day; `older` comes next.
    pub(super) fn conflict(&self, older: &Version<'_>) -> Option<&'static str> {
        if self.key.tag.0 >> 8 == older.key.tag.0 >> 8 {
            return Some("a version of a key is there twice");
        }
        if older.place < self.place {
            return Some("a look-up finds an old version of a key here, not the newest");
        }
        // Merging the other table into a level below, Core's LevelDB looks for older versions there and not in the
        // next table beside it, and takes the deletion for done.
        let is_beside = older.place == self.place && older.source != self.source;
        (is_beside && self.is_deleted_here).then_some(
            "a deletion of a key stands in the table before, where LevelDB may forget it",
        )
    }

    pub(super) fn set(&mut self, version: &Version<'_>) {
        let is_first_here = !self.is_of(version.key) || self.place != version.place;
        if is_first_here {
            self.is_deleted_here = version.key.tag.0 as u8 == KIND_DELETE;
        }
        self.key.clone_from(version.key);
        (self.place, self.source, self.is_there) = (version.place, version.source, true);
    }
}

impl Merge {
    pub(super) fn new(database: Database) -> Self {
        let Database { dir, tables, memory, last_sequence, filters } = database;
        let mut sources = Vec::with_capacity(tables.len() + 1);
        sources.push(Source { place: PLACE_OF_LOGS, state: State::Memory(memory) });
        let mut heads = BinaryHeap::new();
        let unread = |user: &[u8]| InternalKey { user: user.to_vec(), tag: Reverse(u64::MAX) };
        heads.push(Reverse((unread(&[]), 0)));
        for table in tables {
            // Until its turn comes a table is only its smallest key, before all versions of it.
            heads.push(Reverse((unread(&table.smallest.user), sources.len())));
            sources.push(Source { place: table.place, state: State::Closed(table) });
        }
        let values = vec![Vec::new(); sources.len()];
        let (current, scratch) = (None, Entry::default());
        Self { dir, last_sequence, with_filters: filters, sources, heads, values, current, scratch }
    }

    /// Moves to the next version; nothing behind the last.
    pub(super) fn next(&mut self) -> Result<Option<Version<'_>>, IndexError> {
        if let Some((key, source)) = self.current.take() {
            self.advance(key, source)?;
        }
        loop {
            let Some(Reverse((key, source))) = self.heads.pop() else { return Ok(None) };
            if key.tag != Reverse(u64::MAX) {
                let (key, _) = self.current.insert((key, source));
                let (value, place) = (&self.values[source], self.sources[source].place);
                return Ok(Some(Version { key, value, place, source }));
            }
            let state = &mut self.sources[source].state;
            if let State::Closed(_) = state
                && let State::Closed(table) = core::mem::replace(state, State::Done)
            {
                let (last, filters) = (self.last_sequence, self.with_filters);
                let cursor = TableCursor::open(&self.dir, table, last, filters)?;
                *state = State::Table(Box::new(cursor));
            }
            self.advance(key, source)?;
        }
    }

    /// Where the version under the cursor stands.
    pub(super) fn path(&self) -> &Path {
        let source = self.current.as_ref().and_then(|(_, source)| self.sources.get(*source));
        match source.map(|source| &source.state) {
            Some(State::Table(cursor)) => cursor.path(),
            _ => &self.dir,
        }
    }

    /// The next entry of a source becomes its head. The key that was it lends its memory.
    fn advance(&mut self, key: InternalKey, source: usize) -> Result<(), IndexError> {
        let Self { sources, heads, values, scratch, .. } = self;
        scratch.key = key;
        core::mem::swap(&mut scratch.value, &mut values[source]);
        let state = &mut sources[source].state;
        let is_there = match state {
            State::Table(cursor) => cursor.next(scratch)?,
            State::Memory(memory) => memory.next(scratch),
            State::Closed(_) | State::Done => false,
        };
        if is_there {
            heads.push(Reverse((core::mem::take(&mut scratch.key), source)));
        } else {
            *state = State::Done;
        }
        core::mem::swap(&mut scratch.value, &mut values[source]);
        Ok(())
    }
}
