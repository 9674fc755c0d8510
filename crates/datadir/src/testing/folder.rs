//! [`CrashFolder`]: a folder in memory that fails at a chosen moment and knows what a crash leaves.

use crate::folder::{OutFile, OutFolder};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::{fs, mem};

#[derive(Default)]
pub(crate) struct CrashFolder(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    names: BTreeMap<String, Content>,
    durable_names: BTreeMap<String, Content>,
    operations: u64,
    fail_from: Option<u64>,
    /// What the operations were, for messages of tests.
    failed_at: Option<String>,
}

type Content = Arc<Mutex<Bytes>>;

#[derive(Default)]
struct Bytes {
    all: Vec<u8>,
    durable: Vec<u8>,
}

/// What of the names is on the disk after a crash; of files it is what was synced.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Names {
    /// Those that were synced.
    Synced,
    /// All, since the system may write names earlier.
    All,
}

impl CrashFolder {
    /// All operations from the nth on fail.
    pub(crate) fn failing_from(n: u64) -> Self {
        let folder = Self::default();
        folder.0.lock().unwrap().fail_from = Some(n);
        folder
    }

    pub(crate) fn operations(&self) -> u64 {
        self.0.lock().unwrap().operations
    }

    /// The operation and file that failed first.
    pub(crate) fn failed_at(&self) -> Option<String> {
        self.0.lock().unwrap().failed_at.clone()
    }

    /// Writes into `dir` what a crash now would leave.
    pub(crate) fn write_image(&self, names: Names, dir: &Path) {
        let state = self.0.lock().unwrap();
        let names = match names {
            Names::Synced => &state.durable_names,
            Names::All => &state.names,
        };
        for (name, content) in names {
            fs::write(dir.join(name), &content.lock().unwrap().durable).unwrap();
        }
    }
}

impl State {
    fn operation(&mut self, what: &str, name: &str) -> io::Result<()> {
        self.operations += 1;
        if self.fail_from.is_some_and(|n| self.operations > n) {
            self.failed_at.get_or_insert_with(|| format!("{what} {name}"));
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

struct CrashFile {
    state: Arc<Mutex<State>>,
    name: String,
    content: Content,
}

impl OutFolder for CrashFolder {
    fn create(&self, name: &str) -> io::Result<Box<dyn OutFile>> {
        let mut state = self.0.lock().unwrap();
        state.operation("create", name)?;
        let content = Content::default();
        state.names.insert(name.to_owned(), content.clone());
        Ok(Box::new(CrashFile { state: self.0.clone(), name: name.to_owned(), content }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.operation("rename", from)?;
        let content = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), content);
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.operation("sync", "")?;
        state.durable_names = state.names.clone();
        Ok(())
    }

    fn describe(&self, name: &str) -> String {
        format!("disk:{name}")
    }
}

impl Write for CrashFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.state.lock().unwrap().operation("write", &self.name)?;
        self.content.lock().unwrap().all.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl OutFile for CrashFile {
    fn sync(&mut self) -> io::Result<()> {
        self.state.lock().unwrap().operation("sync", &self.name)?;
        let mut content = self.content.lock().unwrap();
        let all = mem::take(&mut content.all);
        content.durable.clone_from(&all);
        content.all = all;
        Ok(())
    }
}
