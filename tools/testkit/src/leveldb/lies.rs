//! [`Lie`]: a fault in a folder although every checksum is right.

use super::format::{FIRST, FULL, LAST, LogBytes, MIDDLE, internal, put_varint};
use super::parts::{Field, LevelDbFolder, WriteAheadLog, WriteBatch};
use super::table::{Harm, SortedTable};
use crate::rng::Rng;

/// A kind of fault, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Within a table.
    SortedTable(InTable),
    /// In the arrangement of tables.
    Tables(AmongTables),
    /// In the records of the manifest, or their meaning.
    Edits(InEdits),
    /// In the batches of a log.
    Batches(InBatches),
    /// In how the manifest's records are stored.
    ManifestRecords(InRecords),
    /// In how a log's records are stored.
    LogRecords(InRecords),
    /// In files and their names.
    Files(InFiles),
}

macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident: $($kind:ident),* $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the names say it")]
        pub enum $name { $($kind),* }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];
        }
    };
}

kinds!(
    /// Lies within a table.
    InTable: Separator, EmptyBlock, BlockTwice, BlocksSwapped, BlockLeftOut, LongHandle, Restarts,
    FilterBit, FilterPlaces, FilterOfAnother, FilterForm, Bit, Compressed, UnknownKind, TooNew, OutOfOrder, Twice,
);
kinds!(
    /// Lies in the arrangement of tables.
    AmongTables: Deeper, Higher, NumbersSwapped, LevelsSwapped, SameNumber, OldOnTop, NewBelow, AboveTheLast, OtherTable,
    DeletionParted,
);
kinds!(
    /// Lies of the manifest.
    InEdits: AddedAndRemoved, RemovedAndAddedAgain, AddedTwice, RemovedElsewhere, OtherRange, OtherTag, OtherLength,
    NextTooLow, NextMissing, NextHuge, LogHigher, LogLower, LogMissing, SequenceLower, SequenceHuge, SequenceMissing,
    Previous, UnknownField, LevelTooDeep, ShortKey, OtherComparator, LongNumber, WrappedNumber,
);
kinds!(
    /// Lies of logs.
    InBatches: Count, Backwards, Again, FromZero, Huge, UnknownKind, WrappedLength, More, Reversed,
);
kinds!(
    /// Lies in how records are stored.
    InRecords: KindZero, KindFive, KindSix, KindSigned, Unfinished, ZerosWithin, BegunTwice, BegunEmpty, MiddleAlone,
    LastAlone, TornWithin, PastTheBlock, Bit, Zeros, Left,
);
kinds!(
    /// Lies of files.
    InFiles: Missing, Cut, Longer, Bit, BothEndings, OtherEnding, ShortLogName, LongLogName, LogZero, Current, ShortManifest,
);

impl Lie {
    /// Picks any lie.
    pub fn any(rng: &mut Rng) -> Self {
        fn one<T: Copy>(all: &[T], rng: &mut Rng) -> T {
            all[rng.index(all.len())]
        }
        match rng.below(7) {
            0 => Self::SortedTable(one(InTable::ALL, rng)),
            1 => Self::Tables(one(AmongTables::ALL, rng)),
            2 => Self::Edits(one(InEdits::ALL, rng)),
            3 => Self::Batches(one(InBatches::ALL, rng)),
            4 => Self::ManifestRecords(one(InRecords::ALL, rng)),
            5 => Self::LogRecords(one(InRecords::ALL, rng)),
            _ => Self::Files(one(InFiles::ALL, rng)),
        }
    }

    pub(super) fn is_of_manifests(&self) -> bool {
        matches!(self, Self::ManifestRecords(_))
    }

    pub(super) fn is_of_logs(&self) -> bool {
        matches!(self, Self::LogRecords(_))
    }

    pub(super) fn tell_in_parts(self, folder: &mut LevelDbFolder, rng: &mut Rng) {
        match self {
            Self::SortedTable(lie) if !folder.tables.is_empty() => {
                let at = rng.index(folder.tables.len());
                lie.tell(&mut folder.tables[at], rng);
            }
            Self::Tables(lie) if !folder.tables.is_empty() => lie.tell(folder, rng),
            Self::Batches(lie) if !folder.logs.is_empty() => {
                let at = rng.index(folder.logs.len());
                lie.tell(&mut folder.logs[at], rng);
                if lie == InBatches::Reversed && folder.logs.len() == 2 {
                    let [first, second] = &mut folder.logs[..] else { return };
                    core::mem::swap(&mut first.batches, &mut second.batches);
                }
            }
            _ => {}
        }
    }

    pub(super) fn tell_in_edits(self, folder: &mut LevelDbFolder, rng: &mut Rng) {
        if let Self::Edits(lie) = self {
            lie.tell(folder, rng);
        }
    }

    pub(super) fn tell_in_log(self, file: &mut LogBytes, record: &[u8], rng: &mut Rng) {
        if let Self::ManifestRecords(lie) | Self::LogRecords(lie) = self {
            lie.tell(file, record, rng);
        }
    }

    pub(super) fn tell_in_files(self, folder: &mut LevelDbFolder, rng: &mut Rng) {
        if let Self::Files(lie) = self {
            lie.tell(folder, rng);
        }
    }
}

impl InTable {
    fn tell(self, table: &mut SortedTable, rng: &mut Rng) {
        let versions = &mut table.versions;
        let (at, other) = (rng.index(versions.len()), rng.index(versions.len()));
        let harm = match self {
            Self::Separator => Harm::Separator,
            Self::EmptyBlock => Harm::EmptyBlock,
            Self::BlockTwice => Harm::BlockTwice,
            Self::BlocksSwapped => Harm::BlocksSwapped,
            Self::BlockLeftOut => Harm::BlockLeftOut,
            Self::LongHandle => Harm::LongHandle,
            Self::Restarts => Harm::Restarts,
            Self::FilterBit => Harm::FilterBit,
            Self::FilterPlaces => Harm::FilterPlaces,
            Self::FilterOfAnother => Harm::FilterOfAnother,
            Self::FilterForm => Harm::FilterForm,
            Self::Bit => Harm::Bit,
            Self::Compressed => Harm::Compressed,
            Self::UnknownKind => return versions[at].kind = 2 + rng.below(254) as u8,
            Self::TooNew => {
                versions[at].sequence =
                    versions[at].sequence.saturating_add(1 << (6 + rng.below(49)));
                return;
            }
            Self::OutOfOrder => return versions.swap(at, other),
            Self::Twice => {
                let mut again = versions[at].clone();
                again.value.push(7);
                return versions.insert(at + rng.index(2), again);
            }
        };
        table.has_filters |= rng.below(4) > 0;
        table.harms.push(harm);
    }
}

impl AmongTables {
    fn tell(self, folder: &mut LevelDbFolder, rng: &mut Rng) {
        let last_sequence = folder.last_sequence;
        let count = folder.tables.len();
        let (at, other) = (rng.index(count), rng.index(count));
        let number = folder.next_file;
        let table = &mut folder.tables[at];
        match self {
            Self::Deeper => table.level = rng.between(table.level, 6),
            Self::Higher => table.level = rng.below(table.level + 1),
            Self::NumbersSwapped | Self::LevelsSwapped => {
                let (its_number, level) = (table.number, table.level);
                let second = &mut folder.tables[other];
                let (other_number, other_level) = (second.number, second.level);
                if self == Self::NumbersSwapped {
                    second.number = its_number;
                    folder.tables[at].number = other_number;
                } else {
                    second.level = level;
                    folder.tables[at].level = other_level;
                }
            }
            Self::SameNumber => {
                let mut again = table.clone();
                again.level = rng.below(7);
                folder.tables.push(again);
            }
            Self::OtherTable => {
                let mut again = table.clone();
                (again.level, again.number) = (rng.below(7), number);
                folder.next_file += 1;
                folder.tables.push(again);
            }
            // The deletion of a key is the last entry of a table, and the deleted version is the first of the next one.
            Self::DeletionParted => {
                let at = rng.index(table.versions.len());
                let mut older = table.versions[at].clone();
                older.sequence = older.sequence.saturating_sub(1);
                older.kind = 1;
                table.versions[at].kind = 0;
                table.level = table.level.max(1);
                let mut next = table.clone();
                next.number = number;
                next.versions = table.versions.split_off(at + 1);
                next.versions.insert(0, older);
                folder.next_file += 1;
                folder.tables.push(next);
            }
            Self::OldOnTop | Self::NewBelow | Self::AboveTheLast => {
                let mut version = table.versions[rng.index(table.versions.len())].clone();
                version.value.push(9);
                version.kind = rng.below(2) as u8;
                version.sequence = match self {
                    Self::OldOnTop => rng.below(version.sequence.saturating_add(1)),
                    Self::NewBelow => last_sequence + rng.below(2),
                    _ => last_sequence + 1 + rng.below(9),
                };
                let level = if self == Self::NewBelow { rng.below(7) } else { 0 };
                let mut again = table.clone();
                (again.level, again.number, again.versions) = (level, number, vec![version]);
                folder.next_file += 1;
                folder.tables.push(again);
            }
        }
    }
}

impl InEdits {
    fn tell(self, folder: &mut LevelDbFolder, rng: &mut Rng) {
        let added: Vec<(usize, usize)> = folder
            .edits
            .iter()
            .enumerate()
            .flat_map(|(edit, fields)| (0..fields.len()).map(move |field| (edit, field)))
            .filter(|(edit, field)| matches!(folder.edits[*edit][*field], Field::Added(_)))
            .collect();
        if !added.is_empty() {
            self.tell_of_a_table(folder, added[rng.index(added.len())], rng);
        }
        let edits = folder.edits.len();
        let edit = rng.index(edits);
        let log = folder.log_number;
        let mut say = |field| folder.edits[edits - 1].push(field);
        match self {
            Self::NextTooLow => say(Field::Next(rng.below(folder.next_file))),
            Self::NextHuge => say(Field::Next(u64::MAX - rng.below(3))),
            Self::LogHigher => say(Field::WriteAheadLog(log + 1 + rng.below(6))),
            Self::LogLower => say(Field::WriteAheadLog(rng.below(log))),
            Self::SequenceLower => say(Field::Sequence(rng.below(folder.last_sequence + 1))),
            Self::SequenceHuge => say(Field::Sequence(u64::MAX >> rng.below(9))),
            Self::Previous => say(Field::Previous(rng.below(folder.next_file + 2))),
            Self::UnknownField => say(Field::Raw(vec![[0, 8, 10, 99][rng.index(4)], 1])),
            Self::LevelTooDeep => say(Field::Removed { level: 7, number: 1 }),
            Self::ShortKey => say(Field::Pointer(rng.below(8), vec![1; rng.index(9)])),
            Self::LongNumber => say(Field::Raw([&[2][..], &[log as u8 | 0x80, 0x80, 0]].concat())),
            // A tag has 32 bits: LevelDB reads this as 2, others as 2 and more.
            Self::WrappedNumber => {
                let tag = [0x82, 0x80, 0x80, 0x80, 0x10 << rng.below(3)];
                let mut bytes = tag.to_vec();
                put_varint(&mut bytes, log + rng.below(5));
                say(Field::Raw(bytes));
            }
            Self::OtherComparator => {
                folder.edits[edit].insert(0, Field::Comparator(b"another".to_vec()));
            }
            Self::NextMissing | Self::LogMissing | Self::SequenceMissing => {
                for fields in &mut folder.edits {
                    fields.retain(|field| match field {
                        Field::Next(_) => self != Self::NextMissing,
                        Field::WriteAheadLog(_) => self != Self::LogMissing,
                        Field::Sequence(_) => self != Self::SequenceMissing,
                        _ => true,
                    });
                }
            }
            _ => {}
        }
    }

    fn tell_of_a_table(
        self,
        folder: &mut LevelDbFolder,
        (edit, field): (usize, usize),
        rng: &mut Rng,
    ) {
        let Field::Added(mut added) = folder.edits[edit][field].clone() else { return };
        let original = added.clone();
        let (level, number) = (added.level, added.number);
        let removed = Field::Removed { level, number };
        match self {
            Self::AddedAndRemoved => {
                let at = rng.index(folder.edits[edit].len() + 1);
                folder.edits[edit].insert(at, removed);
            }
            Self::RemovedElsewhere => {
                folder.edits.push(vec![Field::Removed { level: rng.below(7), number }]);
            }
            Self::RemovedAndAddedAgain | Self::AddedTwice => {
                match rng.below(4) {
                    0 => added.smallest = added.largest.clone(),
                    1 => added.largest = added.smallest.clone(),
                    2 => added.length += 1,
                    _ => {}
                }
                if self == Self::RemovedAndAddedAgain {
                    folder.edits.push(vec![removed]);
                }
                folder.edits.push(vec![Field::Added(added)]);
            }
            Self::OtherRange | Self::OtherTag | Self::OtherLength => {
                let key = if rng.one_in(2) { &mut added.smallest } else { &mut added.largest };
                match self {
                    Self::OtherLength => added.length ^= 1 << rng.below(9),
                    Self::OtherTag => {
                        let at = key.len() - 1 - rng.index(8);
                        key[at] ^= 1 << rng.below(8);
                    }
                    _ => match rng.below(4) {
                        0 => *key = internal(b"", 1, 1),
                        1 => *key = internal(&[0xff; 4], 1, 1),
                        2 => *key = original.largest.clone(),
                        _ => key[0] ^= 1 << rng.below(8),
                    },
                }
                folder.edits[edit][field] = Field::Added(added);
            }
            _ => {}
        }
    }
}

impl InBatches {
    fn tell(self, log: &mut WriteAheadLog, rng: &mut Rng) {
        let at = rng.index(log.batches.len());
        let batch = &mut log.batches[at];
        match self {
            Self::Count => {
                batch.count = batch.count.wrapping_add(rng.below(5) as u32).wrapping_sub(2)
            }
            Self::Backwards => batch.first = batch.first.saturating_sub(1 + rng.below(40)),
            Self::FromZero => {
                let empty =
                    WriteBatch { first: 0, count: 0, versions: Vec::new(), more: Vec::new() };
                log.batches.insert(at, empty);
            }
            Self::Huge => batch.first |= 1 << (50 + rng.below(14)),
            Self::Again => {
                let again = batch.clone();
                log.batches.insert(at + rng.index(2), again);
            }
            Self::UnknownKind => {
                if let Some(version) = batch.versions.last_mut() {
                    version.kind = 2 + rng.below(250) as u8;
                }
            }
            // A length of more than 32 bits: LevelDB reads it as 1.
            Self::WrappedLength => {
                batch.count = batch.count.wrapping_add(1);
                batch.more = vec![0, 0x81, 0x80, 0x80, 0x80, 0x10, b'w'];
            }
            Self::More => batch.more = rng.bytes(4),
            Self::Reversed => log.batches.reverse(),
        }
    }
}

impl InRecords {
    fn tell(self, file: &mut LogBytes, record: &[u8], rng: &mut Rng) {
        let (head, tail) = record.split_at(record.len() / 2);
        let other = [0, 5, 6, 200][match self {
            Self::KindZero => 0,
            Self::KindFive => 1,
            Self::KindSix => 2,
            _ => 3,
        }];
        match self {
            Self::KindZero | Self::KindFive | Self::KindSix | Self::KindSigned => {
                file.fragment(other, &rng.bytes(12));
                file.push(record);
            }
            Self::Unfinished => {
                file.fragment(FIRST, head);
                file.fragment(MIDDLE, tail);
            }
            Self::ZerosWithin => {
                file.fragment(FIRST, head);
                file.pad();
                file.fragment(LAST, tail);
            }
            Self::BegunTwice => {
                file.fragment(FIRST, head);
                file.push(record);
            }
            Self::BegunEmpty => {
                file.fragment(FIRST, &[]);
                file.push(record);
            }
            Self::MiddleAlone => {
                file.fragment(MIDDLE, head);
                file.push(record);
            }
            Self::LastAlone => {
                file.fragment(LAST, head);
                file.push(record);
            }
            Self::TornWithin => {
                file.fragment(FULL, record);
                let cut = rng.index(9);
                file.0.truncate(file.0.len().saturating_sub(cut));
            }
            // The length reaches past the end of the block, where the file may also end.
            Self::PastTheBlock => {
                let start = file.0.len();
                file.fragment(FULL, record);
                file.0[start + 4..][..2].fill(0xff);
                file.pad();
            }
            Self::Bit => {
                let start = file.0.len();
                file.push(record);
                if file.0.len() > start {
                    let at = start + rng.index(file.0.len() - start);
                    file.0[at] ^= 1 << rng.below(8);
                }
            }
            Self::Zeros => {
                file.pad();
                file.push(record);
            }
            Self::Left => {}
        }
    }
}

impl InFiles {
    fn tell(self, folder: &mut LevelDbFolder, rng: &mut Rng) {
        let names: Vec<String> = folder.files.keys().cloned().collect();
        let name = names[rng.index(names.len())].clone();
        let mut of_kind = |ending: &str| {
            let all: Vec<_> = names.iter().filter(|it| it.ends_with(ending)).collect();
            (!all.is_empty()).then(|| all[rng.index(all.len())].clone())
        };
        let (table, log) = (of_kind(".ldb"), of_kind(".log"));
        let mut bytes = folder.files[&name].clone();
        let at = rng.index(bytes.len().max(1));
        match self {
            Self::Missing => return drop(folder.files.remove(&name)),
            Self::Cut => bytes.truncate(at),
            Self::Longer => bytes.extend(rng.bytes(9)),
            Self::Bit => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << rng.below(8);
                }
            }
            Self::BothEndings | Self::OtherEnding => {
                let Some(table) = table else { return };
                let of_another = folder.files.values().nth(rng.index(names.len()));
                let content = of_another.cloned().unwrap_or_default();
                let old = table.replace(".ldb", ".sst");
                match self {
                    Self::BothEndings => folder.files.insert(old, content),
                    _ => folder.files.remove(&table).and_then(|it| folder.files.insert(old, it)),
                };
                return;
            }
            Self::ShortLogName | Self::LongLogName | Self::LogZero => {
                let Some(log) = log else { return };
                let content = folder.files[&log].clone();
                let number = log.trim_start_matches('0');
                let name = match self {
                    Self::ShortLogName => number.to_owned(),
                    Self::LongLogName => format!("{}{log}", ["0", "+", "000"][rng.index(3)]),
                    _ => "000000.log".to_owned(),
                };
                if rng.one_in(2) {
                    folder.files.remove(&log);
                }
                return drop(folder.files.insert(name, content));
            }
            Self::Current => {
                let text = match rng.below(5) {
                    0 => "MANIFEST-000001".to_owned(),
                    1 => format!("MANIFEST-{:07}\n", folder.manifest_number),
                    2 => format!("MANIFEST-{:06}\n\n", folder.manifest_number),
                    3 => format!("./MANIFEST-{:06}\n", folder.manifest_number),
                    _ => String::new(),
                };
                return drop(folder.files.insert("CURRENT".to_owned(), text.into_bytes()));
            }
            Self::ShortManifest => {
                let from = format!("MANIFEST-{:06}", folder.manifest_number);
                let to = format!("MANIFEST-{}", folder.manifest_number);
                if let Some(content) = folder.files.remove(&from) {
                    folder.files.insert(to.clone(), content);
                    folder.files.insert("CURRENT".to_owned(), format!("{to}\n").into_bytes());
                }
                return;
            }
        }
        folder.files.insert(name, bytes);
    }
}
