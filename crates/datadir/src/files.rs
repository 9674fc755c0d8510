//! [`BlockFiles`]: the `blkNNNNN.dat` files of one folder, and the key that obfuscates them.
//!
//! Apus opens these files only for reading, takes no lock and creates nothing next to them. It lists the
//! folder once: a file that disappears or shrinks afterwards causes an error that says so.
//! [`scan`](BlockFiles::scan) and [`BlockReader`](crate::BlockReader) handle the content of the files.

#[cfg(test)]
mod tests;

use crate::error::BlkError;
use crate::folder::BlocksFolder;
use apus_chain::{HEADER_SIZE, Network, Params};
use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes before each block on disk: the network's magic and the size.
pub(crate) const RECORD_HEAD: u64 = 8;

/// The valid sizes of a record on disk (Core `validation.cpp`, `LoadExternalBlockFile`).
pub(crate) const BLOCK_SIZES: core::ops::RangeInclusive<u32> = 80..=4_000_000;

/// Where a block is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockLocation {
    /// The number of the block file.
    pub file: u32,
    /// The offset of the block's first byte, after magic and size.
    pub offset: u64,
    /// The length of the block in bytes.
    pub size: u32,
}

impl BlockLocation {
    /// The offset just after the block.
    pub const fn end(self) -> u64 {
        self.offset.saturating_add(self.size as u64)
    }
}

/// A block file, `blkNNNNN.dat`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockFile {
    /// The number in its name.
    pub number: u32,
    /// Its path.
    pub path: PathBuf,
    /// Its length in bytes when the folder was listed.
    pub length: u64,
}

impl BlockFile {
    pub(crate) fn open(&self) -> Result<File, BlkError> {
        File::open(&self.path).map_err(|error| BlkError::opening(&self.path, &error))
    }

    /// Reads bytes from `offset` on into `buffer`, still obfuscated.
    pub(crate) fn read(&self, file: &File, buffer: &mut [u8], offset: u64) -> Result<(), BlkError> {
        let needed = offset.saturating_add(buffer.len() as u64);
        file.read_exact_at(buffer, offset)
            .map_err(|source| BlkError::reading(&self.path, offset, needed, source))
    }
}

/// The block files of one folder.
#[derive(Clone, Debug)]
pub struct BlockFiles {
    folder: BlocksFolder,
    magic: [u8; 4],
    obfuscation: Obfuscation,
    files: Vec<BlockFile>,
}

impl BlockFiles {
    /// Lists the block files in `folder`, whose blocks begin with `magic`. Gaps in the numbering
    /// are normal: a pruning node removes files from the front and in between.
    pub fn open(folder: impl Into<BlocksFolder>, magic: [u8; 4]) -> Result<Self, BlkError> {
        Self::open_in(folder.into(), magic)
    }

    fn open_in(folder: BlocksFolder, magic: [u8; 4]) -> Result<Self, BlkError> {
        let dir = folder.files.as_path();
        let listing = |error: io::Error| BlkError::listing(dir, &error);
        let mut files = Vec::new();
        for entry in fs::read_dir(dir).map_err(listing)? {
            let entry = entry.map_err(listing)?;
            let Some(number) = entry.file_name().to_str().and_then(file_number) else { continue };
            let path = entry.path();
            // Metadata of the link's target: people spread block files over several disks with links.
            let meta = fs::metadata(&path).map_err(|error| BlkError::opening(&path, &error))?;
            if !meta.is_file() {
                return Err(BlkError::Strange(format!(
                    "{} is not a regular file: move it away, or restore the block file of that \
                     name",
                    path.display()
                )));
            }
            files.push(BlockFile { number, path, length: meta.len() });
        }
        if files.is_empty() {
            return Err(BlkError::NoFiles { path: dir.to_owned() });
        }
        files.sort_unstable_by_key(|file| file.number);
        let obfuscation = read_key(&dir.join("xor.dat"))?;
        Ok(Self { folder, magic, obfuscation, files })
    }

    /// The files, by number.
    pub fn files(&self) -> &[BlockFile] {
        &self.files
    }

    /// The folder of the files.
    pub fn dir(&self) -> &Path {
        &self.folder.files
    }

    /// The path of the file with this number, whether it exists or not.
    pub fn path(&self, number: u32) -> PathBuf {
        self.dir().join(file_name(number))
    }

    /// The folder with the index of these files, if any.
    pub fn home(&self) -> &Path {
        &self.folder.home
    }

    /// The four bytes before each block.
    pub fn magic(&self) -> [u8; 4] {
        self.magic
    }

    /// The key that obfuscates the files.
    pub fn obfuscation(&self) -> Obfuscation {
        self.obfuscation
    }

    /// The total length of all files in bytes.
    pub fn bytes_total(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.length))
    }

    /// The file with this number, if it exists.
    pub fn get(&self, number: u32) -> Option<&BlockFile> {
        let at = self.files.binary_search_by_key(&number, |file| file.number).ok()?;
        Some(&self.files[at])
    }

    /// The file with this number; an error if it does not exist, although a block should be at `offset`.
    pub(crate) fn file(&self, number: u32, offset: u64) -> Result<&BlockFile, BlkError> {
        self.get(number).ok_or_else(|| {
            BlkError::Changed(format!(
                "a block should be in {} at byte {offset}, but that file was missing when Apus listed the folder: \
                 the node pruned the file, or the block's position is stale. Rerun the same command",
                self.path(number).display()
            ))
        })
    }

    /// Finds the size of the block at `offset` of file `number`, which Core's block index does not store.
    /// Returns `None` unless a record of this chain is there.
    pub fn locate(&self, number: u32, offset: u64) -> Result<Option<BlockLocation>, BlkError> {
        let file = self.file(number, offset)?;
        let Some(start) = offset.checked_sub(RECORD_HEAD) else { return Ok(None) };
        if offset > file.length {
            return Ok(None);
        }
        let mut head = [0; RECORD_HEAD as usize];
        file.read(&file.open()?, &mut head, start)?;
        self.obfuscation.apply(&mut head, start);
        let [m0, m1, m2, m3, size @ ..] = head;
        let size = u32::from_le_bytes(size);
        let location = BlockLocation { file: number, offset, size };
        let good = [m0, m1, m2, m3] == self.magic
            && BLOCK_SIZES.contains(&size)
            && location.end() <= file.length;
        Ok(good.then_some(location))
    }
}

pub(crate) fn file_name(number: u32) -> String {
    format!("blk{number:05}.dat")
}

/// The number in a name that Core would give to a block file (Core `flatfile.cpp`).
pub(crate) fn file_number(name: &str) -> Option<u32> {
    let number = name.strip_prefix("blk")?.strip_suffix(".dat")?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

pub(crate) fn read_key(path: &Path) -> Result<Obfuscation, BlkError> {
    let length = match fs::metadata(path) {
        // Nodes before version 28 wrote plain files and no key file.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            return Ok(Obfuscation::NONE);
        }
        other => other.map_err(|error| BlkError::opening(path, &error))?.len(),
    };
    let key = match length == Obfuscation::KEY_SIZE as u64 {
        true => fs::read(path).map_err(|error| BlkError::opening(path, &error))?.try_into().ok(),
        false => None,
    };
    key.map(Obfuscation::new).ok_or_else(|| {
        BlkError::Strange(format!(
            "{} has {length} bytes where Bitcoin Core writes 8: without that key Apus cannot read the block files \
             next to it. Restore the file from the node that wrote the blocks",
            path.display()
        ))
    })
}

impl BlockFiles {
    /// The magic of the first file, if it begins with the genesis block shared by all signets.
    pub(crate) fn magic_of_signet(&self) -> Result<Option<[u8; 4]>, BlkError> {
        let mut head = [0; RECORD_HEAD as usize + HEADER_SIZE];
        let Some(file) = self.files.iter().find(|file| file.length >= head.len() as u64) else {
            return Ok(None);
        };
        file.read(&file.open()?, &mut head, 0)?;
        self.obfuscation.apply(&mut head, 0);
        let [m0, m1, m2, m3, _, _, _, _, header @ ..] = &head;
        let is_signet = apus_hash::sha256d(header) == Params::of(Network::Signet).genesis_hash.0;
        Ok(is_signet.then_some([*m0, *m1, *m2, *m3]))
    }

    /// Fails with the error of a scan if no file begins with a record of this chain and the first one
    /// contains no block. Skips empty files.
    ///
    /// # Errors
    /// The errors of a scan.
    pub fn expect_blocks(&self) -> Result<(), BlkError> {
        let mut filled = self.files().iter().filter(|file| file.length >= RECORD_HEAD).peekable();
        let Some(first) = filled.peek().map(|file| file.number) else { return Ok(()) };
        for file in filled {
            let mut magic = [0; 4];
            file.read(&file.open()?, &mut magic, 0)?;
            self.obfuscation.apply(&mut magic, 0);
            if magic == self.magic {
                return Ok(());
            }
        }
        self.scan_file(first, &mut |_, _| ControlFlow::Break(()))?.verdict(self)
    }
}

impl BlockFiles {
    /// Fails if a file begins like a plain one although the folder has a key: a scan would find nothing in
    /// that file.
    ///
    /// # Errors
    /// [`BlkError::Plain`], and read errors.
    pub fn expect_obfuscated(&self, number: u32) -> Result<(), BlkError> {
        let file = self.file(number, 0)?;
        if self.obfuscation.is_none() || file.length < RECORD_HEAD {
            return Ok(());
        }
        let mut magic = [0; 4];
        file.read(&file.open()?, &mut magic, 0)?;
        match magic == self.magic {
            true => Err(BlkError::Plain { path: file.path.clone() }),
            false => Ok(()),
        }
    }
}

/// The network of a folder's blocks, from the magic at the start of its first file that is not
/// empty. `None` if the network is unknown.
///
/// # Errors
/// Like [`BlockFiles::open`]; also if that file cannot be read.
pub fn network_of(dir: &Path) -> Result<Option<Network>, BlkError> {
    let mut magic = [0; 4];
    let blocks = BlockFiles::open(dir, magic)?;
    let Some(file) = blocks.files().iter().find(|file| file.length >= RECORD_HEAD) else {
        return Ok(None);
    };
    file.read(&file.open()?, &mut magic, 0)?;
    blocks.obfuscation.apply(&mut magic, 0);
    Ok(Network::from_magic(magic))
}

/// The obfuscation key of a folder of block files. All zeros means plain files.
///
/// A byte at file offset `n` is XORed with `key[n % 8]` (Core `node/blockstorage.cpp` and
/// `util/obfuscation.h`), so the same bytes look different at different offsets and every call
/// needs the offset. This is not encryption; it keeps virus scanners away from users' block files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Obfuscation {
    key: [u8; Self::KEY_SIZE],
}

impl Obfuscation {
    /// The length of the key in bytes.
    pub const KEY_SIZE: usize = 8;

    /// The key of plain files.
    pub const NONE: Self = Self { key: [0; Self::KEY_SIZE] };

    /// Makes a key from the bytes in `xor.dat`.
    pub const fn new(key: [u8; Self::KEY_SIZE]) -> Self {
        Self { key }
    }

    /// The bytes of the key, as in `xor.dat`.
    pub const fn key(self) -> [u8; Self::KEY_SIZE] {
        self.key
    }

    /// Returns whether applying the key changes nothing.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// The key rotated for bytes that begin at `file_offset`.
    #[inline]
    fn aligned(self, file_offset: u64) -> [u8; Self::KEY_SIZE] {
        let bits = 8 * (file_offset % Self::KEY_SIZE as u64) as u32;
        u64::from_le_bytes(self.key).rotate_right(bits).to_le_bytes()
    }

    /// Obfuscates or de-obfuscates in place; `bytes` begin at `file_offset` in their file.
    #[inline]
    pub fn apply(self, bytes: &mut [u8], file_offset: u64) {
        if self.is_none() {
            return;
        }
        let key = self.aligned(file_offset);
        let mask = u64::from_le_bytes(key);
        // Whole words without carried state: the compiler turns this into vector instructions.
        let (words, rest) = bytes.as_chunks_mut::<{ Self::KEY_SIZE }>();
        for word in words {
            *word = (u64::from_le_bytes(*word) ^ mask).to_le_bytes();
        }
        for (byte, mask) in rest.iter_mut().zip(key) {
            *byte ^= mask;
        }
    }

    /// Like [`apply`](Self::apply), but returns a copy.
    #[inline]
    pub(crate) fn applied<const N: usize>(self, bytes: &[u8; N], file_offset: u64) -> [u8; N] {
        let mut applied = *bytes;
        self.apply(&mut applied, file_offset);
        applied
    }

    /// The length of `plain` without its final bytes that are zeros *on disk*, as in a preallocated
    /// tail. `plain` is already de-obfuscated and begins at `file_offset`.
    pub(crate) fn trimmed_len(self, plain: &[u8], file_offset: u64) -> usize {
        let key = self.aligned(file_offset);
        let (words, rest) = plain.as_chunks::<{ Self::KEY_SIZE }>();
        let used = |bytes: &[u8]| bytes.iter().zip(&key).rposition(|(a, b)| a != b);
        if let Some(last) = used(rest) {
            return plain.len() - rest.len() + last + 1;
        }
        match words.iter().rposition(|word| *word != key) {
            Some(word) => word * Self::KEY_SIZE + used(&words[word]).map_or(0, |last| last + 1),
            None => 0,
        }
    }
}
