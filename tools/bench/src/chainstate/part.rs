//! [`Part`]: one thing that is measured, done in a process of its own.
//!
//! All read their input as it lies in the page cache and end when everything is durable. The copy
//! makes a file durable on a second thread while it copies the next, as the writer does, so that
//! what is left between the two is what making tables costs.

use super::coins::MadeUpSet;
use super::{ChainstateError, Place};
use apus_chain::{BlockHash, HashSerialized3, Txid};
use apus_datadir::Obfuscation;
use apus_datadir::chainstate::ChainstateWriter;
use apus_storage::DirStorage;
use apus_sync::{ReadBack, Silent};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Instant;

/// Bytes that are read or written at once.
const BUFFER_BYTES: usize = 1 << 20;

/// And of records, so that they are still in a cache when they are looked at.
const RECORDS_BYTES: usize = 256 << 10;

/// Before each group: txid, length.
const HEADER: usize = 32 + 4;

/// The block that the made-up set is at.
const BEST: BlockHash = BlockHash([7; 32]);

/// The key that hides its values. Any but zeros costs the same.
const KEY: Obfuscation = Obfuscation::new([0x9a, 0x3c, 0x01, 0xfe, 0x77, 0x10, 0xc4, 0x5b]);

/// One thing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Makes the set; not measured.
    Make,
    /// Copies the files of the chainstate.
    Copy,
    /// Writes the chainstate from the set.
    Write,
    /// Reads the chainstate back and computes its hash, as a run does before it shows it.
    Check,
}

impl Part {
    /// Those that are measured.
    pub(super) const MEASURED: [Self; 3] = [Self::Write, Self::Copy, Self::Check];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Make => "make",
            Self::Copy => "copy",
            Self::Write => "write",
            Self::Check => "check",
        }
    }

    /// The part of that name.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Make, Self::Copy, Self::Write, Self::Check].into_iter().find(|it| it.name() == name)
    }
}

/// What doing a part led to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Done {
    /// From its first byte read until everything was durable.
    pub(super) seconds: f64,
    /// Coins of the set.
    pub(super) coins: u64,
    /// Bytes that were written, or read by the check.
    pub(super) bytes: u64,
    /// The set's `hash_serialized_3`, where it was computed.
    pub(super) hash_serialized_3: Option<[u8; 32]>,
}

/// Does one part in `place` and leaves there what it led to.
pub fn part(
    place: &Place,
    part: Part,
    coins: u64,
    interrupt: &AtomicBool,
) -> Result<(), ChainstateError> {
    let start = Instant::now();
    let mut done = match part {
        Part::Make => make(place, coins, interrupt)?,
        Part::Copy => copy(&place.chainstate(), &place.copy(), interrupt)?,
        Part::Write => write(place, interrupt)?,
        Part::Check => check(place, interrupt)?,
    };
    done.seconds = start.elapsed().as_secs_f64();
    place.tell(&done)
}

/// Writes the set as a file of records: txid, length of the group in four bytes, group.
fn make(place: &Place, coins: u64, interrupt: &AtomicBool) -> Result<Done, ChainstateError> {
    let path = place.set();
    let failed = ChainstateError::at(&path);
    let file = File::create(&path).map_err(&failed)?;
    let mut file = BufWriter::with_capacity(BUFFER_BYTES, file);
    let (mut set, mut group) = (MadeUpSet::new(coins), Vec::new());
    let (mut hash, mut found, mut bytes) = (HashSerialized3::new(), 0, 0);
    loop {
        let txid = set.next(&mut group, |outpoint, coin| {
            found += 1;
            hash.push(outpoint, coin);
        });
        let Some(txid) = txid else { break };
        stop_if(interrupt)?;
        let length = (group.len() as u32).to_le_bytes();
        for bytes in [txid.as_bytes(), &length[..], &group] {
            file.write_all(bytes).map_err(&failed)?;
        }
        bytes += (32 + length.len() + group.len()) as u64;
    }
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(&failed)?;
    let hash_serialized_3 = Some(hash.finish().0);
    Ok(Done { seconds: 0.0, coins: found, bytes, hash_serialized_3 })
}

fn write(place: &Place, interrupt: &AtomicBool) -> Result<Done, ChainstateError> {
    let path = place.set();
    let failed = ChainstateError::at(&path);
    let mut records = Records::new(File::open(&path).map_err(&failed)?);
    let folder = DirStorage::new(place.chainstate());
    let mut writer = ChainstateWriter::new(&folder, BEST, KEY)?;
    while let Some((txid, group)) = records.next().map_err(&failed)? {
        stop_if(interrupt)?;
        writer.put_group(&txid, group)?;
    }
    let written = writer.finish()?;
    Ok(Done { seconds: 0.0, coins: written.coins, bytes: written.bytes, hash_serialized_3: None })
}

/// The records of a set, read some at a time.
struct Records {
    file: File,
    buffer: Vec<u8>,
    /// What of the buffer was not given yet.
    left: Range<usize>,
}

impl Records {
    fn new(file: File) -> Self {
        Self { file, buffer: vec![0; RECORDS_BYTES], left: 0..0 }
    }

    /// The next one; none at the end of the file.
    fn next(&mut self) -> io::Result<Option<(Txid, &[u8])>> {
        if self.whole().is_none() {
            self.fill()?;
        }
        match self.whole() {
            Some(end) => Ok(Some(self.give(end))),
            None if self.left.is_empty() => Ok(None),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Where the next record ends, if all of it is here.
    fn whole(&self) -> Option<usize> {
        let header = self.buffer[self.left.clone()].first_chunk::<HEADER>()?;
        let length = header.last_chunk().map(|length| u32::from_le_bytes(*length))?;
        let end = (self.left.start + HEADER).checked_add(length as usize)?;
        (end <= self.left.end).then_some(end)
    }

    fn give(&mut self, end: usize) -> (Txid, &[u8]) {
        let record = &self.buffer[self.left.start..end];
        self.left.start = end;
        let (header, group) = record.split_at(HEADER);
        let mut txid = Txid([0; 32]);
        txid.0.copy_from_slice(&header[..32]);
        (txid, group)
    }

    /// Fills the buffer as far as the file goes.
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.left.clone(), 0);
        self.left = 0..self.left.len();
        while self.left.end < self.buffer.len() {
            match self.file.read(&mut self.buffer[self.left.end..])? {
                0 => break,
                count => self.left.end += count,
            }
        }
        Ok(())
    }
}

fn copy(from: &Path, to: &Path, interrupt: &AtomicBool) -> Result<Done, ChainstateError> {
    let mut names: Vec<_> = fs::read_dir(from)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect())
        .map_err(ChainstateError::at(from))?;
    names.sort_unstable();
    let failed = ChainstateError::at(to);
    let bytes = std::thread::scope(|scope| {
        let (send, whole) = sync_channel::<File>(1);
        let sync = scope.spawn(move || whole.into_iter().try_for_each(|file| file.sync_data()));
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut bytes = 0;
        for name in names {
            stop_if(interrupt)?;
            let failed = ChainstateError::at(&from.join(&name));
            let file = File::open(from.join(&name)).map_err(&failed)?;
            let target = File::create(to.join(&name)).map_err(&failed)?;
            bytes += copy_file(file, &target, &mut buffer).map_err(&failed)?;
            if send.send(target).is_err() {
                break;
            }
        }
        drop(send);
        let synced = sync.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        synced.map_err(&failed)?;
        Ok::<u64, ChainstateError>(bytes)
    })?;
    File::open(to).and_then(|folder| folder.sync_all()).map_err(&failed)?;
    Ok(Done { seconds: 0.0, coins: 0, bytes, hash_serialized_3: None })
}

fn copy_file(mut from: File, mut to: &File, buffer: &mut [u8]) -> io::Result<u64> {
    let mut bytes = 0;
    loop {
        let count = from.read(buffer)?;
        if count == 0 {
            return Ok(bytes);
        }
        to.write_all(&buffer[..count])?;
        bytes += count as u64;
    }
}

fn check(place: &Place, interrupt: &AtomicBool) -> Result<Done, ChainstateError> {
    let folder = place.chainstate();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let found = ReadBack::of(&folder, threads, &Silent, interrupt)?;
    let bytes = size_of_files(&folder).map_err(ChainstateError::at(&folder))?;
    let hash_serialized_3 = Some(found.hash_serialized_3);
    Ok(Done { seconds: 0.0, coins: found.coins, bytes, hash_serialized_3 })
}

fn size_of_files(folder: &Path) -> io::Result<u64> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.metadata()?.len())).sum()
}

fn stop_if(interrupt: &AtomicBool) -> Result<(), ChainstateError> {
    if interrupt.load(Ordering::Relaxed) { Err(ChainstateError::Interrupted) } else { Ok(()) }
}
