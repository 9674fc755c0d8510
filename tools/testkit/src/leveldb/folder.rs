//! A whole [`LevelDbFolder`], in any shape that LevelDB produces.

use super::Lie;
use super::format::LogBytes;
use super::parts::{AddedTable, Field, LevelDbFolder, WriteAheadLog, WriteBatch};
use super::table::{InternalEntry, SortedTable};
use crate::rng::Rng;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A key and its new value, or `None` if it is removed.
pub type Write = (Vec<u8>, Option<Vec<u8>>);

const COMPARATOR: &[u8] = b"leveldb.BytewiseComparator";

impl LevelDbFolder {
    /// Makes a folder with the result of these writes, in some shape, and with these lies.
    pub fn new(writes: &[Write], lies: &[Lie], rng: &mut Rng) -> Self {
        let mut contents = BTreeMap::new();
        for (key, value) in writes {
            match value {
                Some(value) => contents.insert(key.clone(), value.clone()),
                None => contents.remove(key),
            };
        }
        let mut keys: Vec<_> = writes.iter().map(|(key, _)| key.clone()).collect();
        keys.sort();
        keys.dedup();
        let mut folder = Self {
            tables: Vec::new(),
            logs: Vec::new(),
            manifest_number: 0,
            log_number: 0,
            next_file: 0,
            last_sequence: 0,
            edits: Vec::new(),
            files: BTreeMap::new(),
            contents,
            keys,
        };
        folder.lay_out(writes, rng);
        lies.iter().for_each(|lie| lie.tell_in_parts(&mut folder, rng));
        for table in &folder.tables {
            folder.files.insert(table.name(), table.bytes(rng));
        }
        folder.edit(rng);
        lies.iter().for_each(|lie| lie.tell_in_edits(&mut folder, rng));
        folder.write_logs(lies, rng);
        lies.iter().for_each(|lie| lie.tell_in_files(&mut folder, rng));
        folder
    }

    /// Writes its files into an empty folder.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn write(&self, dir: &Path) {
        for (name, bytes) in &self.files {
            fs::write(dir.join(name), bytes).unwrap();
        }
    }

    /// Returns its content, unless it contains lies.
    pub fn contents(&self) -> &BTreeMap<Vec<u8>, Vec<u8>> {
        &self.contents
    }

    /// Returns all keys that were ever written, or could be.
    pub fn keys(&self) -> &[Vec<u8>] {
        &self.keys
    }

    /// Places old writes in deep levels, new ones in high levels, and the newest in logs.
    fn lay_out(&mut self, writes: &[Write], rng: &mut Rng) {
        let versions = with_sequences(writes, rng);
        self.last_sequence = versions.last().map_or(0, |last| last.sequence);
        let deep = rng.index(4);
        let (flat, logs) = (rng.index(4), rng.index(3));
        let parts = (deep + flat + logs).max(1);
        let mut cuts: Vec<_> = (1..parts).map(|_| rng.index(versions.len() + 1)).collect();
        cuts.extend([0, versions.len()]);
        cuts.sort_unstable();
        let mut levels: Vec<u64> = (1..7).collect();
        rng.shuffle(&mut levels);
        levels.truncate(deep);
        levels.sort_unstable_by(|left, right| right.cmp(left));
        levels.resize(deep + flat, 0);
        self.manifest_number = rng.between(1, 9);
        let mut number = self.manifest_number + 1 + rng.below(3);
        for (at, cut) in cuts.windows(2).enumerate() {
            let part = versions[cut[0]..cut[1]].to_vec();
            if part.is_empty() {
                continue;
            }
            number += 1 + rng.below(2);
            if let Some(level) = levels.get(at) {
                number = self.add_tables(part, *level, number, rng);
            } else {
                self.logs.push(WriteAheadLog { number, batches: batches(part, rng) });
            }
        }
        // The tables compacted last have the highest numbers, but may be old.
        let deep: Vec<_> =
            self.tables.iter().filter(|it| it.level > 0).map(|it| it.number).collect();
        let mut shuffled = deep;
        rng.shuffle(&mut shuffled);
        for (table, number) in self.tables.iter_mut().filter(|it| it.level > 0).zip(shuffled) {
            table.number = number;
        }
        self.log_number = self.logs.first().map_or(number + 1, |log| log.number);
        self.next_file = number.max(self.log_number) + 1 + rng.below(3);
    }

    /// Adds tables, and returns the next number.
    fn add_tables(
        &mut self,
        mut versions: Vec<InternalEntry>,
        level: u64,
        mut number: u64,
        rng: &mut Rng,
    ) -> u64 {
        versions.sort_by(|a, b| a.key.cmp(&b.key).then(b.sequence.cmp(&a.sequence)));
        if level > 0 && !rng.one_in(3) {
            versions.dedup_by(|older, newer| older.key == newer.key);
        }
        let mut left = &versions[..];
        while !left.is_empty() {
            let most = if level == 0 { left.len() } else { 1 + rng.index(left.len()) };
            let (these, rest) = left.split_at(without_parting_deletions(left, most));
            self.tables.push(SortedTable {
                number,
                level,
                versions: these.to_vec(),
                per_block: 1 + rng.index(8),
                interval: 1 + rng.index(4),
                has_filters: !rng.one_in(8),
                harms: Vec::new(),
                ending: if rng.one_in(20) { "sst" } else { "ldb" },
            });
            left = rest;
            number += 1;
        }
        number
    }

    /// Writes the manifest, in one or more records.
    fn edit(&mut self, rng: &mut Rng) {
        self.edits.push(vec![Field::Comparator(COMPARATOR.to_vec())]);
        let ghost = |folder: &Self| AddedTable {
            level: 0,
            number: folder.next_file - 1,
            length: 9,
            smallest: vec![b'k'; 9],
            largest: vec![b'l'; 9],
        };
        for table in &self.tables {
            let [first, .., last] = [&table.versions[0], table.versions.last().unwrap()];
            let added = AddedTable {
                level: table.level,
                number: table.number,
                length: self.files[&table.name()].len() as u64,
                smallest: first.internal(),
                largest: last.internal(),
            };
            let number = added.number;
            // The table was moved down from the level above.
            if table.level > 1 && rng.one_in(4) {
                let level = table.level - 1;
                self.edits.push(vec![Field::Added(AddedTable { level, ..added.clone() })]);
                self.edits.push(vec![Field::Removed { level, number }, Field::Added(added)]);
                continue;
            }
            if rng.one_in(2) {
                self.edits.push(Vec::new());
            }
            self.edits.last_mut().unwrap().push(Field::Added(added));
        }
        let last = self.next_file - 1;
        if rng.one_in(3) && self.tables.iter().all(|table| table.number != last) {
            self.edits.push(vec![Field::Added(ghost(self))]);
            self.edits.push(vec![Field::Removed { level: 0, number: last }]);
        }
        if rng.one_in(4) {
            self.edits[0].push(Field::Pointer(rng.below(7), vec![b'k'; 12]));
        }
        let numbers = [
            Field::WriteAheadLog(self.log_number),
            Field::Next(self.next_file),
            Field::Sequence(self.last_sequence),
        ];
        let last = self.edits.len() - 1;
        self.edits[last].extend(numbers);
        if rng.one_in(2) {
            self.edits[0].push(Field::Previous(0));
        }
    }

    fn write_logs(&mut self, lies: &[Lie], rng: &mut Rng) {
        let record = |fields: &Vec<Field>| {
            let mut record = Vec::new();
            fields.iter().for_each(|field| field.put(&mut record));
            record
        };
        let records: Vec<_> = self.edits.iter().map(record).collect();
        let manifest = format!("MANIFEST-{:06}", self.manifest_number);
        let file = log_file(&records, lies, Lie::is_of_manifests, rng);
        self.files.insert(manifest.clone(), file.0);
        for log in &self.logs {
            let records: Vec<_> = log.batches.iter().map(WriteBatch::bytes).collect();
            let mut file = log_file(&records, lies, Lie::is_of_logs, rng);
            // Files that remain after a crash.
            if rng.one_in(4) {
                let whole = file.0.len();
                file.push(&rng.bytes(40));
                let torn = whole + rng.index(file.0.len() - whole);
                file.0.truncate(torn.min(whole.next_multiple_of(super::format::LOG_BLOCK)));
            }
            self.files.insert(format!("{:06}.log", log.number), file.0);
        }
        self.files.insert("CURRENT".to_owned(), format!("{manifest}\n").into_bytes());
        // Files that a node would soon remove.
        if rng.one_in(4) && self.log_number > 1 {
            self.files.insert(format!("{:06}.log", self.log_number - 1), rng.bytes(90));
            self.files.insert(format!("{:06}.ldb", self.next_file + 7), rng.bytes(90));
            self.files.insert("MANIFEST-000000".to_owned(), rng.bytes(9));
            self.files.insert("000123.dbtmp".to_owned(), rng.bytes(9));
        }
    }
}

/// Makes a log file, with the lies of this kind in one record.
fn log_file(records: &[Vec<u8>], lies: &[Lie], of: fn(&Lie) -> bool, rng: &mut Rng) -> LogBytes {
    let mut file = LogBytes::default();
    let at = rng.index(records.len() + 1);
    for number in 0..=records.len() {
        let record = records.get(number);
        let lie = lies.iter().find(|lie| at == number && of(lie));
        match (lie, record) {
            (Some(lie), _) => lie.tell_in_log(&mut file, record.map_or(&[], |it| &it[..]), rng),
            (None, Some(record)) => file.push(record),
            (None, None) => {}
        }
    }
    file
}

/// Finds a place to separate versions, at or after this one, so that no deleted version follows its deletion:
/// otherwise Core's LevelDB can lose only the deletion.
fn without_parting_deletions(versions: &[InternalEntry], mut at: usize) -> usize {
    while let Some(next) = versions.get(at) {
        let newest = versions.iter().find(|version| version.key == next.key);
        if versions[at - 1].key != next.key || newest.is_some_and(|newest| newest.kind == 1) {
            break;
        }
        at += 1;
    }
    at
}

/// Adds a table with these writes to the closed database in `dir`, in a record of the manifest that also
/// removes it: a reader that follows the order of the fields does not see the table, but LevelDB applies
/// removals first.
///
/// # Panics
/// If a file cannot be read or written.
pub fn hide(writes: &[Write], dir: &Path) {
    const NUMBER: u64 = 900_000;
    let mut rng = Rng::new(NUMBER);
    let mut versions = with_sequences(writes, &mut rng);
    versions.iter_mut().for_each(|version| version.sequence = 1);
    versions.sort_by(|left, right| left.key.cmp(&right.key));
    let (smallest, largest) = (versions[0].internal(), versions.last().unwrap().internal());
    let table = SortedTable {
        number: NUMBER,
        level: 0,
        versions,
        per_block: 4,
        interval: 16,
        has_filters: true,
        harms: Vec::new(),
        ending: "ldb",
    };
    let bytes = table.bytes(&mut rng);
    let length = bytes.len() as u64;
    fs::write(dir.join(table.name()), bytes).unwrap();
    let added = AddedTable { level: 0, number: NUMBER, length, smallest, largest };
    let mut record = Vec::new();
    for field in
        [Field::Next(NUMBER + 1), Field::Added(added), Field::Removed { level: 0, number: NUMBER }]
    {
        field.put(&mut record);
    }
    let manifest = dir.join(fs::read_to_string(dir.join("CURRENT")).unwrap().trim());
    let mut file = LogBytes(fs::read(&manifest).unwrap());
    file.push(&record);
    fs::write(manifest, file.0).unwrap();
}

/// Appends two values of a key to the newest log of the closed database in `dir`, the newer one first: LevelDB goes by
/// the sequence numbers and returns it, a reader that goes by the order in the log returns the other one.
///
/// # Panics
/// If there is no log, or it cannot be written.
pub fn disorder(key: &[u8], [newer, older]: [&[u8]; 2], dir: &Path) {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let path = files.filter(|path| path.extension().is_some_and(|it| it == "log")).max().unwrap();
    let mut log = LogBytes(fs::read(&path).unwrap());
    for (sequence, value) in [(2_000_000, newer), (1_000_000, older)] {
        let version = InternalEntry { key: key.to_vec(), sequence, kind: 1, value: value.to_vec() };
        let (first, count, versions, more) = (sequence, 1, vec![version], Vec::new());
        log.push(&WriteBatch { first, count, versions, more }.bytes());
    }
    fs::write(path, log.0).unwrap();
}

fn with_sequences(writes: &[Write], rng: &mut Rng) -> Vec<InternalEntry> {
    let mut sequence = rng.below(1000);
    let version = |(key, value): &Write| {
        sequence += 1;
        let (kind, value) = value.as_ref().map_or((0, Vec::new()), |value| (1, value.clone()));
        InternalEntry { key: key.clone(), sequence, kind, value }
    };
    writes.iter().map(version).collect()
}

fn batches(versions: Vec<InternalEntry>, rng: &mut Rng) -> Vec<WriteBatch> {
    let (mut batches, mut left) = (Vec::new(), &versions[..]);
    while !left.is_empty() {
        let (these, rest) = left.split_at(1 + rng.index(left.len().min(6)));
        let (first, count) = (these[0].sequence, these.len() as u32);
        batches.push(WriteBatch { first, count, versions: these.to_vec(), more: Vec::new() });
        // A batch without writes, as a node makes it in an empty database.
        if rng.one_in(9) {
            let first = first + u64::from(count);
            batches.push(WriteBatch { first, count: 0, versions: Vec::new(), more: Vec::new() });
        }
        left = rest;
    }
    batches
}
