//! [`BlockFiles`]: the `blkNNNNN.dat` files of one folder, and the key they are obfuscated with.
//!
//! Files are opened for reading only, no lock is taken, and nothing is ever created beside them.
//! The list is taken once: a file that goes away or shrinks afterwards ends in an error that says
//! so. What the files hold is the business of [`scan`](BlockFiles::scan) and
//! [`BlockReader`](crate::BlockReader).

use crate::error::BlkError;
use crate::obfuscation::Obfuscation;
use crate::place::BlocksFolder;
use apus_chain::{HEADER_SIZE, Network, Params};
use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes before each block on disk: the network's magic and the size.
pub(crate) const RECORD_HEAD: u64 = 8;

/// Sizes that a record on disk may have (Core `validation.cpp`, `LoadExternalBlockFile`).
pub(crate) const BLOCK_SIZES: core::ops::RangeInclusive<u32> = 80..=4_000_000;

/// Where a block lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockLocation {
    /// Number of the block file.
    pub file: u32,
    /// Offset of the block's first byte, after magic and size.
    pub offset: u64,
    /// Length of the block in bytes.
    pub size: u32,
}

impl BlockLocation {
    /// First byte after the block.
    pub const fn end(self) -> u64 {
        self.offset.saturating_add(self.size as u64)
    }
}

/// One `blkNNNNN.dat`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockFile {
    /// The number in its name.
    pub number: u32,
    /// Where it is.
    pub path: PathBuf,
    /// Its length in bytes when the folder was listed.
    pub length: u64,
}

impl BlockFile {
    pub(crate) fn open(&self) -> Result<File, BlkError> {
        File::open(&self.path).map_err(|source| BlkError::opening(&self.path, source))
    }

    /// Fills `buffer` from `offset` on, still obfuscated.
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
    /// Lists the block files in `folder`, whose blocks begin with `magic`. Gaps in the numbering are
    /// normal: a pruning node removes files from the front and between.
    pub fn open(folder: impl Into<BlocksFolder>, magic: [u8; 4]) -> Result<Self, BlkError> {
        Self::open_in(folder.into(), magic)
    }

    fn open_in(folder: BlocksFolder, magic: [u8; 4]) -> Result<Self, BlkError> {
        let dir = folder.files.as_path();
        let listing = |source| BlkError::Folder { path: dir.to_owned(), source };
        let mut files = Vec::new();
        for entry in fs::read_dir(dir).map_err(listing)? {
            let entry = entry.map_err(listing)?;
            let Some(number) = entry.file_name().to_str().and_then(file_number) else { continue };
            let path = entry.path();
            // Follows links: people spread block files over disks.
            let meta = fs::metadata(&path).map_err(|source| BlkError::opening(&path, source))?;
            if !meta.is_file() {
                return Err(BlkError::NotAFile { path });
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

    /// Their folder.
    pub fn dir(&self) -> &Path {
        &self.folder.files
    }

    /// The file with this number, which need not be there.
    pub fn path(&self, number: u32) -> PathBuf {
        self.dir().join(file_name(number))
    }

    /// The folder in which the index of them is, if there is one.
    pub fn home(&self) -> &Path {
        &self.folder.home
    }

    /// The four bytes before each block.
    pub fn magic(&self) -> [u8; 4] {
        self.magic
    }

    /// The key that the files are obfuscated with.
    pub fn obfuscation(&self) -> Obfuscation {
        self.obfuscation
    }

    /// Length of all files together in bytes.
    pub fn bytes_total(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.length))
    }

    /// The file with this number, if it is there.
    pub fn get(&self, number: u32) -> Option<&BlockFile> {
        let at = self.files.binary_search_by_key(&number, |file| file.number).ok()?;
        Some(&self.files[at])
    }

    /// The file with this number, wanted for the block at `offset`.
    pub(crate) fn file(&self, number: u32, offset: u64) -> Result<&BlockFile, BlkError> {
        let unknown = || BlkError::UnknownFile { path: self.path(number), offset };
        self.get(number).ok_or_else(unknown)
    }

    /// The block that begins at `offset` of file `number`, if a record of this chain is there:
    /// finds the size that Core's block index leaves out.
    pub fn locate(&self, number: u32, offset: u64) -> Result<Option<BlockLocation>, BlkError> {
        let file = self.file(number, offset)?;
        self.locate_in(file, &file.open()?, offset)
    }

    /// [`locate`](Self::locate) for many blocks, `(key, file, offset)` each: sorts them, opens
    /// every file once and reads 8 bytes a block. `each` gets the caller's key.
    pub fn locate_all(
        &self,
        wanted: &mut [(u32, u32, u64)],
        each: &mut dyn FnMut(u32, Option<BlockLocation>),
    ) -> Result<(), BlkError> {
        wanted.sort_unstable_by_key(|&(_, number, offset)| (number, offset));
        for run in wanted.chunk_by(|a, b| a.1 == b.1) {
            let file = self.file(run[0].1, run[0].2)?;
            let handle = file.open()?;
            for &(key, _, offset) in run {
                each(key, self.locate_in(file, &handle, offset)?);
            }
        }
        Ok(())
    }

    fn locate_in(
        &self,
        file: &BlockFile,
        handle: &File,
        offset: u64,
    ) -> Result<Option<BlockLocation>, BlkError> {
        let Some(start) = offset.checked_sub(RECORD_HEAD) else { return Ok(None) };
        if offset > file.length {
            return Ok(None);
        }
        let mut head = [0; RECORD_HEAD as usize];
        file.read(handle, &mut head, start)?;
        self.obfuscation.apply(&mut head, start);
        let [m0, m1, m2, m3, s0, s1, s2, s3] = head;
        let size = u32::from_le_bytes([s0, s1, s2, s3]);
        let location = BlockLocation { file: file.number, offset, size };
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
        Ok(meta) => meta.len(),
        // Nodes before version 28 wrote plain files and no key.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            return Ok(Obfuscation::NONE);
        }
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            return Err(BlkError::opening(path, source));
        }
        Err(source) => return Err(BlkError::Open { path: path.to_owned(), source }),
    };
    if length != Obfuscation::KEY_SIZE as u64 {
        return Err(BlkError::Key { path: path.to_owned(), length });
    }
    let mut key = [0; Obfuscation::KEY_SIZE];
    let file = File::open(path).map_err(|source| BlkError::opening(path, source))?;
    file.read_exact_at(&mut key, 0)
        .map_err(|source| BlkError::reading(path, 0, Obfuscation::KEY_SIZE as u64, source))?;
    Ok(Obfuscation::new(key))
}

impl BlockFiles {
    /// The magic of the first file, where its first block is the one that all signets begin with.
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

    /// Fails as a scan would where none of the files begins with a record of this chain, and no block is found in the
    /// first one. Files without a byte say nothing.
    ///
    /// # Errors
    /// As those of a scan.
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
    /// Fails where a file begins as one that is not obfuscated, though there is a key: a scan would find nothing in it.
    ///
    /// # Errors
    /// [`BlkError::Plain`], and those of reading.
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

/// The network of a folder's blocks, by the magic at the start of its first file that has any bytes. None
/// where these are of no network that is known here.
///
/// # Errors
/// As [`BlockFiles::open`]; and where that file cannot be read.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use apus_chain::Network;

    const MAGIC: [u8; 4] = Network::Regtest.magic();

    fn folder(entries: &[(&str, &[u8])]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in entries {
            fs::write(dir.path().join(name), bytes).unwrap();
        }
        dir
    }

    #[test]
    fn only_cores_names_count_and_gaps_are_fine() {
        let dir = folder(&[
            ("blk00007.dat", b"1234"),
            ("blk00002.dat", b"12"),
            ("blk123456.dat", b"1"),
            ("blk000002.dat", b"x"),
            ("blk+0001.dat", b"x"),
            ("blk.dat", b"x"),
            ("rev00002.dat", b"x"),
            ("blk00003.dat.bak", b"x"),
        ]);
        let files = BlockFiles::open(dir.path(), MAGIC).unwrap();
        let numbers: Vec<_> = files.files().iter().map(|file| file.number).collect();
        assert_eq!(numbers, [2, 7, 123_456]);
        assert_eq!(files.bytes_total(), 7);
        assert!(files.obfuscation().is_none());
    }

    #[test]
    fn one_file_that_can_be_read_will_do() {
        let expect = |files: &[(&str, &[u8])]| {
            BlockFiles::open(folder(files).path(), MAGIC).unwrap().expect_blocks()
        };
        let record = [&MAGIC[..], &[80, 0, 0, 0], &[7; 80]].concat();
        let later = [&[9; 100][..], &record].concat();
        let (empty, noise, shorter) = (&b""[..], &[9; 100][..], &record[..50]);
        for blocks in [&record[..], &later, shorter] {
            expect(&[("blk00000.dat", empty), ("blk00001.dat", blocks)]).unwrap();
        }
        expect(&[("blk00000.dat", noise), ("blk00001.dat", &record)]).unwrap();
        expect(&[("blk00000.dat", empty), ("blk00001.dat", &noise[..7])]).unwrap();
        let none = expect(&[("blk00000.dat", empty), ("blk00001.dat", noise)]).unwrap_err();
        assert!(matches!(none, BlkError::NoBlocks { bytes: 100, .. }), "{none}");
    }

    #[test]
    fn the_key_has_eight_bytes_or_is_absent() {
        let dir = folder(&[("blk00000.dat", b""), ("xor.dat", b"12345678")]);
        let files = BlockFiles::open(dir.path(), MAGIC).unwrap();
        assert_eq!(files.obfuscation(), Obfuscation::new(*b"12345678"));
        for key in [&b""[..], b"1234567", b"123456789"] {
            fs::write(dir.path().join("xor.dat"), key).unwrap();
            let error = BlockFiles::open(dir.path(), MAGIC).unwrap_err();
            assert!(matches!(error, BlkError::Key { length, .. } if length == key.len() as u64));
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = folder(&[("readme", b"")]);
        let error = BlockFiles::open(dir.path(), MAGIC).unwrap_err();
        assert!(matches!(error, BlkError::NoFiles { .. }));
        let gone = dir.path().join("gone");
        let error = BlockFiles::open(&gone, MAGIC).unwrap_err();
        assert!(error.to_string().contains(gone.to_str().unwrap()));
        assert_eq!(error.kind(), ErrorKind::Recoverable);
        fs::create_dir(dir.path().join("blk00000.dat")).unwrap();
        assert!(matches!(BlockFiles::open(dir.path(), MAGIC), Err(BlkError::NotAFile { .. })));
    }

    #[test]
    fn a_record_is_located_by_the_offset_of_its_block() {
        let mut bytes = vec![0xee; 3];
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&100u32.to_le_bytes());
        bytes.extend_from_slice(&[7; 100]);
        let key = Obfuscation::new(*b"\x01\x20\x30\x40\x50\x60\x70\x80");
        key.apply(&mut bytes, 0);
        let dir =
            folder(&[("blk00004.dat", &bytes), ("xor.dat", b"\x01\x20\x30\x40\x50\x60\x70\x80")]);
        let files = BlockFiles::open(dir.path(), MAGIC).unwrap();
        let there = BlockLocation { file: 4, offset: 11, size: 100 };
        assert_eq!(files.locate(4, 11).unwrap(), Some(there));
        for offset in [0, 7, 8, 10, 12, 111, 112, u64::MAX] {
            assert_eq!(files.locate(4, offset).unwrap(), None, "{offset}");
        }
        assert!(matches!(files.locate(5, 11), Err(BlkError::UnknownFile { .. })));
        let mut found = Vec::new();
        let mut wanted = [(9, 4, 12), (1, 4, 11)];
        files.locate_all(&mut wanted, &mut |key, place| found.push((key, place))).unwrap();
        assert_eq!(found, [(1, Some(there)), (9, None)]);
        // The size claims one byte more than the file has.
        let file = fs::OpenOptions::new().write(true).open(&files.files()[0].path).unwrap();
        file.set_len(110).unwrap();
        let shorter = BlockFiles::open(dir.path(), MAGIC).unwrap();
        assert_eq!(shorter.locate(4, 11).unwrap(), None);
        file.set_len(5).unwrap();
        assert!(matches!(files.locate(4, 11), Err(BlkError::Shortened { needed: 11, .. })));
        fs::remove_file(&files.files()[0].path).unwrap();
        assert!(matches!(files.locate(4, 11), Err(BlkError::Vanished { .. })));
    }
}
