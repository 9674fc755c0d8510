//! [`ModelDisk`]: what a program sees, what is durable, and what may remain after a crash.
//!
//! Files are numbered; names point to numbers, as directory entries point to inodes. The invariant: `durable`
//! and `names_durable` change only at sync points.

use crate::rng::Rng;
use std::collections::BTreeMap;

/// A disk writes whole sectors; after a crash each one may independently be old, new or zeros.
const SECTOR_BYTES: usize = 512;

/// A file's content.
#[derive(Debug, Clone, Default)]
pub(super) struct File {
    /// The content that the program reads.
    pub(super) live: Vec<u8>,
    /// The content at the last sync.
    durable: Vec<u8>,
    /// Whether the file was emptied since: then no byte of `durable` is safe.
    truncated: bool,
}

/// A change of names that is not durable yet, with the numbers of files.
#[derive(Debug, Clone)]
enum NameChange {
    Point { name: String, file: usize },
    Rename { from: String, to: String, file: usize },
    Remove { name: String },
}

/// A whole folder.
#[derive(Debug, Clone, Default)]
pub(super) struct ModelDisk {
    files: Vec<File>,
    names: BTreeMap<String, usize>,
    names_durable: BTreeMap<String, usize>,
    changes: Vec<NameChange>,
}

impl ModelDisk {
    /// Makes a disk with these files, all durable.
    pub(super) fn holding(files: BTreeMap<String, Vec<u8>>) -> Self {
        let mut disk = Self::default();
        for (name, content) in files {
            disk.names.insert(name, disk.files.len());
            disk.files.push(File { live: content.clone(), durable: content, truncated: false });
        }
        disk.names_durable = disk.names.clone();
        disk
    }

    /// Creates or empties a file and returns its number. As with O_TRUNC, an existing file keeps its identity:
    /// its old content may vanish before anything new is durable.
    pub(super) fn create(&mut self, name: &str) -> usize {
        if let Some(&file) = self.names.get(name) {
            self.files[file].live.clear();
            self.files[file].truncated = true;
            return file;
        }
        let file = self.files.len();
        self.files.push(File::default());
        self.names.insert(name.to_owned(), file);
        self.changes.push(NameChange::Point { name: name.to_owned(), file });
        file
    }

    pub(super) fn file(&self, name: &str) -> Option<&File> {
        self.place(name).map(|file| &self.files[file])
    }

    /// Returns the number of the file with this name.
    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    pub(super) fn append(&mut self, file: usize, bytes: &[u8]) {
        self.files[file].live.extend_from_slice(bytes);
    }

    /// Returns false if there is no such file.
    pub(super) fn rename(&mut self, from: &str, to: &str) -> bool {
        let Some(&file) = self.names.get(from) else { return false };
        // POSIX: if both names point to the same file, nothing changes.
        if self.names.get(to) == Some(&file) {
            return true;
        }
        self.names.remove(from);
        self.names.insert(to.to_owned(), file);
        self.changes.push(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), file });
        true
    }

    pub(super) fn remove(&mut self, name: &str) {
        if self.names.remove(name).is_some() {
            self.changes.push(NameChange::Remove { name: name.to_owned() });
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    pub(super) fn sync_file(&mut self, file: usize) {
        let file = &mut self.files[file];
        file.durable = file.live.clone();
        file.truncated = false;
    }

    pub(super) fn sync_names(&mut self) {
        self.names_durable = self.names.clone();
        self.changes.clear();
    }

    /// Returns the files that the program sees.
    pub(super) fn live_files(&self) -> BTreeMap<String, Vec<u8>> {
        self.names
            .iter()
            .map(|(name, &file)| (name.clone(), self.files[file].live.clone()))
            .collect()
    }

    /// Returns only the durable files.
    pub(super) fn durable_files(&self) -> BTreeMap<String, Vec<u8>> {
        let durable = |(name, &file): (&String, &usize)| {
            // Emptied files have lost their content: that may happen at once.
            let file = &self.files[file];
            (name.clone(), if file.truncated { Vec::new() } else { file.durable.clone() })
        };
        self.names_durable.iter().map(durable).collect()
    }

    /// Returns a possible content of the disk after a crash now: everything durable, and as much of the rest as
    /// the seed decides.
    pub(super) fn after_crash(&self, seed: u64) -> BTreeMap<String, Vec<u8>> {
        let mut rng = Rng::new(seed);
        let names = self.names_after_crash(&mut rng);
        // A file with two names has one content.
        let mut contents = BTreeMap::new();
        for &file in names.values() {
            contents.entry(file).or_insert_with(|| self.files[file].after_crash(&mut rng));
        }
        names.into_iter().map(|(name, file)| (name, contents[&file].clone())).collect()
    }

    fn names_after_crash(&self, rng: &mut Rng) -> BTreeMap<String, usize> {
        let mut names = self.names_durable.clone();
        let count = self.changes.len();
        // Nothing, everything, a first part (journals), or any part at all.
        let (first, any) = match rng.below(4) {
            0 => (0, false),
            1 => (count, false),
            2 => (rng.index(count + 1), false),
            _ => (0, true),
        };
        for (place, change) in self.changes.iter().enumerate() {
            if place >= first && !(any && rng.one_in(2)) {
                continue;
            }
            match change {
                NameChange::Point { name, file } => {
                    names.insert(name.clone(), *file);
                }
                NameChange::Rename { from, to, file } => {
                    // The target is the old file or the new one, but the old name may remain.
                    names.insert(to.clone(), *file);
                    if names.get(from) == Some(file) && !(any && rng.one_in(3)) {
                        names.remove(from);
                    }
                }
                NameChange::Remove { name } => {
                    names.remove(name);
                }
            }
        }
        names
    }
}

impl File {
    fn after_crash(&self, rng: &mut Rng) -> Vec<u8> {
        if self.truncated {
            // Not emptied yet, or some of the new content, over the old one or in place of it.
            return match rng.below(3) {
                0 => self.durable.clone(),
                1 => partial(&self.live, 0, &self.durable, rng),
                _ => partial(&self.live, 0, &[], rng),
            };
        }
        partial(&self.live, self.durable.len(), &[], rng)
    }
}

/// Returns the first `safe` bytes of `new`, then as much as the rng decides: nothing, all, or a part whose
/// sectors hold the new bytes, the bytes of `old`, or zeros.
fn partial(new: &[u8], safe: usize, old: &[u8], rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(4) {
        0 => safe,
        1 | 2 => new.len(),
        _ => rng.between(safe as u64, new.len() as u64) as usize,
    };
    let mut bytes = new[..len].to_vec();
    if rng.one_in(3) {
        return bytes;
    }
    for start in (0..len).step_by(SECTOR_BYTES) {
        let sector = start.max(safe)..(start + SECTOR_BYTES).min(len).max(safe);
        if !rng.one_in(3) {
            continue;
        }
        for at in sector {
            bytes[at] = old.get(at).copied().unwrap_or(0);
        }
    }
    bytes
}
