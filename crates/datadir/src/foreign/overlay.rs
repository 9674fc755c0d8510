//! [`Overlay`]: a folder as the library `rusty-leveldb` sees it, that nothing is ever written to.
//!
//! To open a database is to write: a lock, a log of messages, a manifest, tables from what a log
//! holds. All this is kept in memory over the real files, and forgotten. It is little where the
//! database needs no repair, and bounded where it does.
//!
//! The library passes over blocks that it cannot read as if they were not there. So what it reads
//! of tables is checked here, before it sees it. The first fault is kept, and ends the reading by
//! unwinding: the library knows no other way out that does not first try everything that is left.

use super::ForeignError;
use crate::leveldb::masked_crc32c;
use rusty_leveldb::env::{Env, FileLock, Logger, RandomAccess};
use rusty_leveldb::{Result, Status, StatusCode};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The most that is kept in memory. A database that needs more asks for a repair which is its
/// node's to make.
const MEMORY_BYTES_MAX: usize = 64 << 20;

/// A table's last bytes: two places in it, padding, the magic number.
const FOOTER: u64 = 48;
const MAGIC: [u8; 8] = 0xdb47_7524_8b80_fb57_u64.to_le_bytes();

const TOO_SHORT: &str = "it is shorter than any table";

/// Behind each block: 0 for no compression, checksum.
const TAIL: usize = 5;

/// The first fault, for the caller that catches the unwinding.
pub(super) type Fault = Rc<RefCell<Option<ForeignError>>>;

#[derive(Clone, Default)]
pub(super) struct Overlay {
    pub(super) fault: Fault,
    state: Rc<RefCell<State>>,
}

#[derive(Default)]
struct State {
    /// Files that were written, by name.
    written: BTreeMap<String, Content>,
    /// Real files that were removed.
    hidden: BTreeSet<String>,
    bytes: usize,
}

type Content = Rc<RefCell<Vec<u8>>>;

impl Overlay {
    fn written(&self, path: &Path) -> Option<Content> {
        self.state.borrow().written.get(&name(path)).cloned()
    }

    /// A real file, unless it was removed.
    fn real(&self, path: &Path) -> Result<File> {
        if self.state.borrow().hidden.contains(&name(path)) {
            return Err(not_found(path));
        }
        File::open(path).map_err(|error| match error.kind() {
            // The library asks in this way what there is.
            io::ErrorKind::NotFound => not_found(path),
            _ => self.give_up(path, 0, &error),
        })
    }

    fn give_up(&self, path: &Path, offset: u64, what: &dyn ToString) -> ! {
        let (path, what) = (path.to_owned(), what.to_string());
        give_up(&self.fault, ForeignError::File { path, offset, what })
    }

    /// An empty file over whatever has the name.
    fn create(&self, path: &Path) -> Box<dyn Write> {
        let content = Content::default();
        self.state.borrow_mut().written.insert(name(path), content.clone());
        Box::new(InMemory { overlay: self.clone(), path: path.to_owned(), content })
    }
}

/// Ends the library's work.
fn give_up(fault: &Fault, error: ForeignError) -> ! {
    fault.borrow_mut().get_or_insert(error);
    resume_unwind(Box::new("a fault that is told otherwise"))
}

/// The folder is flat.
fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn not_found(path: &Path) -> Status {
    Status::new(StatusCode::NotFound, &path.display().to_string())
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "ldb")
}

/// Messages of the library's, which are thrown away.
fn is_message_log(path: &Path) -> bool {
    name(path).starts_with("LOG")
}

impl Env for Overlay {
    fn open_sequential_file(&self, path: &Path) -> Result<Box<dyn Read>> {
        Ok(match self.written(path) {
            Some(content) => Box::new(io::Cursor::new(content.borrow().clone())),
            None => Box::new(self.real(path)?),
        })
    }

    fn open_random_access_file(&self, path: &Path) -> Result<Box<dyn RandomAccess>> {
        if let Some(content) = self.written(path) {
            return Ok(Box::new(content.borrow().clone()));
        }
        Ok(Box::new(Table::open(self, path, self.real(path)?)))
    }

    fn open_writable_file(&self, path: &Path) -> Result<Box<dyn Write>> {
        Ok(if is_message_log(path) { Box::new(io::sink()) } else { self.create(path) })
    }

    /// Only asked for the last log, which was read before and is not read again.
    fn open_appendable_file(&self, path: &Path) -> Result<Box<dyn Write>> {
        Ok(self.create(path))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(!is_message_log(path) && (self.written(path).is_some() || self.real(path).is_ok()))
    }

    fn children(&self, path: &Path) -> Result<Vec<PathBuf>> {
        let listed = || -> io::Result<Vec<PathBuf>> {
            fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().into())).collect()
        };
        let mut names = match listed() {
            Ok(names) => names,
            Err(error) => self.give_up(path, 0, &error),
        };
        let state = self.state.borrow();
        names.retain(|path| {
            let name = name(path);
            !state.hidden.contains(&name) && !state.written.contains_key(&name)
        });
        names.extend(state.written.keys().map(PathBuf::from));
        // The library takes names for text.
        names.retain(|name| name.to_str().is_some());
        Ok(names)
    }

    fn size_of(&self, path: &Path) -> Result<usize> {
        if let Some(content) = self.written(path) {
            return Ok(content.borrow().len());
        }
        match self.real(path)?.metadata() {
            // Of a table without a byte it opens nothing, and passes over it.
            Ok(meta) if meta.len() == 0 && is_table(path) => self.give_up(path, 0, &TOO_SHORT),
            Ok(meta) => Ok(meta.len() as usize),
            Err(error) => self.give_up(path, 0, &error),
        }
    }

    fn delete(&self, path: &Path) -> Result<()> {
        let mut state = self.state.borrow_mut();
        if let Some(content) = state.written.remove(&name(path)) {
            state.bytes -= content.borrow().len();
        }
        state.hidden.insert(name(path));
        Ok(())
    }

    fn mkdir(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn rmdir(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    /// Only asked for what was written here.
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.state.borrow_mut();
        let content = state.written.remove(&name(from)).ok_or_else(|| not_found(from))?;
        state.written.insert(name(to), content);
        Ok(())
    }

    fn lock(&self, path: &Path) -> Result<FileLock> {
        Ok(FileLock { id: name(path) })
    }

    fn unlock(&self, _: FileLock) -> Result<()> {
        Ok(())
    }

    fn new_logger(&self, _: &Path) -> Result<Logger> {
        Ok(Logger::new(Box::new(io::sink())))
    }

    fn micros(&self) -> u64 {
        0
    }

    fn sleep_for(&self, _: u32) {}
}

/// A file in memory being written.
struct InMemory {
    overlay: Overlay,
    path: PathBuf,
    content: Content,
}

impl Write for InMemory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.content.borrow_mut().extend_from_slice(bytes);
        let mut state = self.overlay.state.borrow_mut();
        state.bytes += bytes.len();
        if state.bytes > MEMORY_BYTES_MAX {
            drop(state);
            let what = "the database wants to be put in order first, by the node that wrote it";
            self.overlay.give_up(&self.path, 0, &what);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A real table.
struct Table {
    fault: Fault,
    path: PathBuf,
    file: File,
    length: u64,
    /// Where the list of further blocks begins, right behind the filters.
    list: u64,
}

impl Table {
    /// Its footer is checked, since the library takes a table without one for empty.
    fn open(overlay: &Overlay, path: &Path, file: File) -> Self {
        let length = match file.metadata() {
            Ok(meta) => meta.len(),
            Err(error) => overlay.give_up(path, 0, &error),
        };
        let (fault, path) = (overlay.fault.clone(), path.to_owned());
        let mut table = Self { fault, path, file, length, list: 0 };
        let mut footer = [0; FOOTER as usize];
        let start = length.checked_sub(FOOTER);
        let start = start.unwrap_or_else(|| table.give_up(0, &TOO_SHORT));
        table.read(&mut footer, start);
        let (handles, magic) = footer.split_at(footer.len() - MAGIC.len());
        match list_start(handles, start) {
            Some(list) if magic == MAGIC => table.list = list,
            _ => table.give_up(start, &"it does not end as a table does"),
        }
        table
    }

    fn give_up(&self, offset: u64, what: &dyn ToString) -> ! {
        let (path, what) = (self.path.clone(), what.to_string());
        give_up(&self.fault, ForeignError::File { path, offset, what })
    }

    fn read(&self, out: &mut [u8], offset: u64) {
        self.file.read_exact_at(out, offset).unwrap_or_else(|error| self.give_up(offset, &error));
    }

    /// Gives up unless what stands behind a block is that of this one, uncompressed.
    fn expect_sum(&self, offset: u64, content: &[u8], tail: &[u8; TAIL]) {
        let [compression, sum @ ..] = tail;
        if *compression != 0 {
            self.give_up(offset, &"a block is compressed, which Bitcoin Core never does");
        }
        if *sum != masked_crc32c(content, &[0]).to_le_bytes() {
            self.give_up(offset, &"a block has a wrong checksum");
        }
    }
}

impl RandomAccess for Table {
    /// The library reads the footer, the filters without what stands behind them, and all other blocks
    /// with it.
    fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<usize> {
        let offset = offset as u64;
        self.read(out, offset);
        let end = offset + out.len() as u64;
        if (offset, end) == (self.length - FOOTER, self.length) {
            return Ok(out.len());
        }
        if end + TAIL as u64 == self.list {
            let mut tail = [0; TAIL];
            self.read(&mut tail, end);
            self.expect_sum(offset, out, &tail);
            return Ok(out.len());
        }
        match out.split_last_chunk() {
            Some((content, tail)) => self.expect_sum(offset, content, tail),
            None => self.give_up(offset, &"a block is shorter than any"),
        }
        Ok(out.len())
    }
}

/// Where the first of two places begins, each an offset and a length as varints; `None` unless both
/// end before `end`: the library takes memory for what they say.
fn list_start(bytes: &[u8], end: u64) -> Option<u64> {
    let mut numbers = bytes.split_inclusive(|byte| byte & 0x80 == 0).map(|groups| {
        let groups = groups.iter().take(9).enumerate();
        groups.fold(0, |value, (at, byte)| value | u64::from(byte & 0x7f) << (7 * at))
    });
    let mut place = || {
        let (offset, size) = (numbers.next()?, numbers.next()?);
        (offset.checked_add(size)? <= end).then_some(offset)
    };
    let list = place()?;
    place()?;
    Some(list)
}
