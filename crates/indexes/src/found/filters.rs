//! Reads the block filter index: its entries, and the filters where they say.

use super::{BestError, CheckedChain, FoundError, rows::hex};
use crate::error::IndexesError;
use crate::filter_index::{FILE_BYTES_MAX, filter_file_name, filter_header};
use crate::forms::IndexForm;
use apus_chain::{Height, Reader};
use apus_hash::sha256d;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The next filter is at most this number of files behind the last one; a node skips none.
const FILES_SKIPPED_MAX: u32 = 1 << 10;

/// The entries of filters.
pub(crate) struct FoundFilters {
    /// The last block whose filter must be there.
    pub(crate) best: Height,
    /// For each block, what [`CheckedChain::row`] makes of the hash of its filter.
    pub(crate) hashes: Vec<u64>,
}

/// A filter that its entry and its file agree about.
struct FilterEntry {
    hash: [u8; 32],
    header: [u8; 32],
    file: u32,
    end: u64,
}

/// Reads the database `folder` and the files beside it.
pub(super) fn read_filters(
    chain: &CheckedChain<'_>,
    folder: &Path,
) -> Result<Result<FoundFilters, BestError>, FoundError> {
    let files = folder.parent().unwrap_or(folder);
    let mut reading = FilterReading {
        chain,
        folder,
        files: FilterFiles { folder: files, open: None, failed: None },
        best: None,
        best_height: None,
        next: None,
        ends: BTreeMap::new(),
        hashes: Vec::new(),
        header: [0; 32],
    };
    chain.for_each_entry(folder, |key, value| reading.entry(key, value))?;
    if let Some(error) = reading.files.failed {
        return Err(FoundError::Run(error));
    }
    if reading.best_height.is_some() {
        reading.check_next();
    }
    let FilterReading { best, hashes, .. } = reading;
    let found = chain.best_block(best.as_deref()).map(|best| {
        if hashes.len() <= best as usize {
            let block = Some(chain.block(hashes.len() as Height));
            chain.faults.add(IndexForm::BlockFilter, block, folder, "the entry is missing");
        }
        FoundFilters { best, hashes }
    });
    Ok(found)
}

struct FilterReading<'c, 'a> {
    chain: &'c CheckedChain<'a>,
    folder: &'c Path,
    files: FilterFiles<'c>,
    best: Option<Vec<u8>>,
    /// The last block to compare, if the best block is of the chain.
    best_height: Option<Height>,
    /// Where the node puts the next filter.
    next: Option<(u32, u64)>,
    /// The end of the last filter in each file.
    ends: BTreeMap<u32, u64>,
    hashes: Vec<u64>,
    /// The header of the last filter.
    header: [u8; 32],
}

impl FilterReading<'_, '_> {
    fn fault(&self, height: Option<Height>, what: impl ToString) {
        let block = height.map(|height| self.chain.block(height));
        self.chain.faults.add(IndexForm::BlockFilter, block, self.folder, what);
    }

    fn entry(&mut self, key: &[u8], value: &[u8]) {
        match key {
            // Its key is before those of the filters.
            b"B" => {
                self.best_height = self.chain.best_block(Some(value)).ok();
                self.best = Some(value.to_vec());
            }
            b"P" => self.next = read_place(value),
            &[b't', a, b, c, d] => {
                let height = u32::from_be_bytes([a, b, c, d]);
                // A node that was killed has entries above its best block. It writes these and their filters again, and
                // says where only together with the best block.
                let is_compared = self.best_height.is_some_and(|best| height <= best);
                if is_compared && self.files.failed.is_none() {
                    self.of_height(height, value);
                }
            }
            [b's', hash @ ..] if hash.len() == 32 => {
                if let Some((file, offset)) = value.get(64..).and_then(read_place) {
                    self.end(file, offset);
                }
            }
            _ => self.fault(None, format!("the entry {} is not one that a node writes", hex(key))),
        }
    }

    fn end(&mut self, file: u32, end: u64) {
        let last = self.ends.entry(file).or_default();
        *last = end.max(*last);
    }

    fn of_height(&mut self, height: Height, value: &[u8]) {
        while (self.hashes.len() as Height) < height {
            let missing = self.hashes.len() as Height;
            self.fault(Some(missing), "the entry is missing");
            self.hashes.push(0);
        }
        let read = self.read(height, value);
        let hash = match read {
            Ok(entry) => {
                self.header = entry.header;
                self.end(entry.file, entry.end);
                self.chain.row(&entry.hash, 0)
            }
            Err(what) => {
                self.fault(Some(height), what);
                // The headers above follow from the one that is there.
                if let Some(header) = value.get(64..96).and_then(<[u8]>::first_chunk) {
                    self.header = *header;
                }
                0
            }
        };
        self.hashes.push(hash);
    }

    fn read(&mut self, height: Height, value: &[u8]) -> Result<FilterEntry, String> {
        let (hashes, place) = value.split_at_checked(96).ok_or("the entry is too short")?;
        let [block, hash, header] = [0, 32, 64].map(|at| {
            let mut part = [0; 32];
            part.copy_from_slice(&hashes[at..at + 32]);
            part
        });
        let (file, offset) = read_place(place).ok_or("the entry has no place of a filter")?;
        if self.chain.block(height).hash.0 != block {
            return Err("the entry is of another block".to_owned());
        }
        if filter_header(&hash, &self.header) != header {
            return Err("the filter's header does not follow from the one below".to_owned());
        }
        let end = self.files.check(file, offset, &block, &hash)?;
        Ok(FilterEntry { hash, header, file, end })
    }

    /// The node writes the next filter behind all others of its file, and later to the files after it.
    fn check_next(&self) {
        let last = self.ends.last_key_value().map(|(file, end)| (*file, *end));
        match (self.next, last) {
            (None, _) => self.fault(None, "the place of the next filter is missing or unreadable"),
            (Some(next), Some(last)) if next < last => {
                let what = format!(
                    "the node would write the next filter to byte {} of {}, over filters that are there: the last is in \
                     {} and ends at byte {}",
                    next.1,
                    filter_file_name(next.0),
                    filter_file_name(last.0),
                    last.1
                );
                self.fault(None, what);
            }
            (Some((file, offset)), last) => {
                let last = last.map_or(0, |(file, _)| file);
                if offset > FILE_BYTES_MAX || file > last.saturating_add(FILES_SKIPPED_MAX) {
                    let what = format!(
                        "the node would write the next filter to byte {offset} of {}, far from the last one, in {}",
                        filter_file_name(file),
                        filter_file_name(last)
                    );
                    self.fault(None, what);
                }
            }
        }
    }
}

fn read_place(bytes: &[u8]) -> Option<(u32, u64)> {
    let mut reader = Reader::new(bytes);
    let place = (u32::try_from(reader.varint().ok()?).ok()?, reader.varint().ok()?);
    reader.finish().ok()?;
    Some(place)
}

/// The files of filters, one of them open.
struct FilterFiles<'c> {
    folder: &'c Path,
    open: Option<(u32, PathBuf, File, u64)>,
    /// Why the system failed to read a file, which is no fault of the index.
    failed: Option<IndexesError>,
}

impl FilterFiles<'_> {
    /// Compares a filter with its entry: the block's hash and the filter's. Returns where it ends.
    fn check(
        &mut self,
        number: u32,
        offset: u64,
        block: &[u8; 32],
        hash: &[u8; 32],
    ) -> Result<u64, String> {
        let Self { folder, open, failed } = self;
        if open.as_ref().is_none_or(|(open, ..)| *open != number) {
            let path = folder.join(filter_file_name(number));
            let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
            let (length, file) = opened.map_err(|error| unread(failed, &path, error))?;
            *open = Some((number, path, file, length));
        }
        let Some((_, path, file, length)) = open else { return Err("no file".to_owned()) };
        let wrong = |what: &str| format!("{} at byte {offset}: {what}", path.display());
        let left = length.checked_sub(offset).ok_or_else(|| wrong("the file ends before"))?;
        let mut read = |bytes: &mut [u8], at| {
            file.read_exact_at(bytes, at).map_err(|error| unread(failed, path, error))
        };
        let mut head = vec![0; left.min(41) as usize];
        read(&mut head, offset)?;
        let mut reader = Reader::new(&head);
        if reader.array::<32>().ok() != Some(block) {
            return Err(wrong("there is no filter of this block"));
        }
        let size = reader.compact_size().map_err(|_| wrong("the length of the filter is wrong"))?;
        let start = reader.position() as u64;
        if size as u64 > left - start {
            return Err(wrong("the filter is longer than the file"));
        }
        let mut filter = vec![0; size];
        read(&mut filter, offset + start)?;
        match sha256d(&filter) == *hash {
            true => Ok(offset + start + size as u64),
            false => Err(wrong("the filter has not the hash of its entry")),
        }
    }
}

/// Returns why a file cannot be read. One that is missing or too short is a fault of the index; any other failure goes to
/// `failed`.
fn unread(failed: &mut Option<IndexesError>, path: &Path, source: io::Error) -> String {
    let what = format!("{}: {source}", path.display());
    if !matches!(source.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) {
        *failed = Some(IndexesError::Read { path: path.to_owned(), source });
    }
    what
}
