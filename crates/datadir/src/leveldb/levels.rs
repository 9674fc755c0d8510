//! [`Levels`]: the tables that edits of a manifest leave, and the order in which a look-up goes
//! through them.
//!
//! LevelDB looks for a key in the logs, then in the tables of level 0, those with high numbers first,
//! then level by level, and takes the first version that it meets. Going over all keys it takes the
//! newest. Both are the same only where tables lie as LevelDB puts them, so other arrangements are
//! damage.

use super::internal_key::InternalKey;
use std::collections::{BTreeMap, BTreeSet};

/// LevelDB `db/dbformat.h`, `kNumLevels`.
const LEVELS: usize = 7;

/// No node has made so many files. LevelDB counts on from the last.
pub(super) const FILE_NUMBER_MAX: u64 = 1 << 48;

/// Where a look-up begins: the logs.
pub(super) const PLACE_OF_LOGS: usize = 0;

/// A table that is part of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LiveTable {
    pub(super) number: u64,
    /// Length in bytes.
    pub(super) length: u64,
    /// Its first key.
    pub(super) smallest: InternalKey,
    /// Its last key.
    pub(super) largest: InternalKey,
    /// When a look-up comes to it; tables of one level, but for level 0, have the same.
    pub(super) place: usize,
}

/// What is wrong with the tables, and with which.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The table's number.
    pub(super) table: u64,
    pub(super) what: &'static str,
}

/// What one record of a manifest does to the tables.
#[derive(Default)]
pub(super) struct Change {
    pub(super) removed: BTreeSet<(usize, u64)>,
    pub(super) added: Vec<(usize, LiveTable)>,
}

/// A level as it is stored.
pub(super) fn level(number: u64) -> Option<usize> {
    usize::try_from(number).ok().filter(|level| *level < LEVELS)
}

#[derive(Default)]
pub(super) struct Levels {
    tables: [BTreeMap<u64, LiveTable>; LEVELS],
    /// All that were added, those too that are gone.
    seen: BTreeSet<(usize, u64)>,
}

impl Levels {
    /// Removes first and adds then, as LevelDB does, whatever the order in the record. To remove what
    /// is not there does nothing.
    pub(super) fn apply(&mut self, change: Change) -> Result<(), &'static str> {
        for (level, number) in &change.removed {
            self.tables[*level].remove(number);
        }
        for (level, table) in change.added {
            let name = (level, table.number);
            if change.removed.contains(&name) {
                return Err("a manifest record adds and removes the same table");
            }
            // LevelDB would keep what it was told first.
            if !self.seen.insert(name) {
                return Err("a table is added to a level a second time");
            }
            self.tables[level].insert(table.number, table);
        }
        Ok(())
    }

    /// All tables, those first to which a look-up comes first. New files get numbers from `next_file` on.
    pub(super) fn into_tables(self, next_file: u64) -> Result<Vec<LiveTable>, Fault> {
        let mut numbers = BTreeSet::new();
        let mut all = Vec::new();
        for (level, tables) in self.tables.into_iter().enumerate() {
            let mut tables: Vec<_> = tables.into_values().collect();
            let mut place = all.last().map_or(PLACE_OF_LOGS, |last: &LiveTable| last.place) + 1;
            if level == 0 {
                tables.reverse();
            } else {
                tables.sort_by(|left, right| left.smallest.cmp(&right.smallest));
            }
            for mut table in tables {
                let fault = |what| Err(Fault { table: table.number, what });
                if table.number == 0 || table.number >= next_file {
                    return fault("its number is one that the manifest has not given out");
                }
                if !numbers.insert(table.number) {
                    return fault("the manifest has it on two levels");
                }
                if table.smallest > table.largest {
                    return fault("the manifest has its first key behind its last");
                }
                let before = all.last().filter(|before: &&LiveTable| before.place == place);
                if before.is_some_and(|before| before.largest >= table.smallest) {
                    return fault("it overlaps another table of its level");
                }
                table.place = place;
                place += usize::from(level == 0);
                all.push(table);
            }
        }
        Ok(all)
    }
}
