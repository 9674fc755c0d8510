//! [`FaultStorage`]: a wrapper whose operations fail at a test's request.
//!
//! A failed operation has no effect at all on the wrapped storage. Every call to the wrapper counts, including
//! failed ones.

use apus_storage::{Storage, StorageFile};
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex};

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// [`Storage::create`].
    Create,
    /// [`Storage::open`].
    Open,
    /// Reading from a file that was opened.
    Read,
    /// Writing to a file that was created.
    Write,
    /// [`StorageFile::sync`] and [`Storage::sync`].
    Sync,
    /// [`Storage::rename`].
    Rename,
    /// [`Storage::remove`].
    Remove,
    /// [`Storage::sync_names`].
    SyncNames,
    /// [`Storage::names`].
    Names,
    /// [`Storage::len`].
    Len,
    /// Any of these.
    Any,
}

/// The calls of a kind that fail.
#[derive(Debug, Clone, Copy)]
enum When {
    Nth(u64),
    From(u64),
    Every(u64),
}

#[derive(Debug)]
struct PlannedFault {
    operation: Operation,
    when: When,
    kind: io::ErrorKind,
    seen: u64,
}

#[derive(Debug)]
struct FaultPlan {
    faults: Vec<PlannedFault>,
    calls: u64,
    failed: u64,
    bytes_max: usize,
}

impl FaultPlan {
    fn call(&mut self, operation: Operation) -> io::Result<()> {
        self.calls += 1;
        let mut verdict = Ok(());
        for fault in &mut self.faults {
            if fault.operation != operation && fault.operation != Operation::Any {
                continue;
            }
            let now = match fault.when {
                When::Nth(n) => fault.seen == n,
                When::From(n) => fault.seen >= n,
                When::Every(n) => (fault.seen + 1) % n == 0,
            };
            fault.seen += 1;
            if now && verdict.is_ok() {
                verdict = Err(io::Error::new(fault.kind, format!("{operation:?} made to fail")));
            }
        }
        self.failed += u64::from(verdict.is_err());
        verdict
    }
}

/// A storage that fails on demand. Clones share the plan and the wrapped storage.
#[derive(Clone)]
pub struct FaultStorage {
    inner: Arc<dyn Storage>,
    plan: Arc<Mutex<FaultPlan>>,
}

impl FaultStorage {
    /// Makes a storage that does not fail yet.
    pub fn new(inner: impl Storage + 'static) -> Self {
        let plan = FaultPlan { faults: Vec::new(), calls: 0, failed: 0, bytes_max: usize::MAX };
        Self { inner: Arc::new(inner), plan: Arc::new(Mutex::new(plan)) }
    }

    /// Fails one call of a kind: the one after `n` others, counting from now.
    pub fn fail_nth(&self, operation: Operation, n: u64, kind: io::ErrorKind) -> &Self {
        self.add(operation, When::Nth(n), kind)
    }

    /// Fails every call of a kind after `n` others, counting from now.
    pub fn fail_from(&self, operation: Operation, n: u64, kind: io::ErrorKind) -> &Self {
        self.add(operation, When::From(n), kind)
    }

    /// Fails every `n`-th call of a kind, counting from now.
    pub fn fail_every(&self, operation: Operation, n: u64, kind: io::ErrorKind) -> &Self {
        assert!(n > 0, "n counts from 1");
        self.add(operation, When::Every(n), kind)
    }

    /// Transfers at most `bytes` in a call, as a system may (at least 1).
    pub fn short_transfers(&self, bytes: usize) -> &Self {
        self.locked(|plan| plan.bytes_max = bytes.max(1));
        self
    }

    /// Stops failing, as if space had been freed.
    pub fn heal(&self) {
        self.locked(|plan| plan.faults.clear());
    }

    /// Returns the number of calls.
    pub fn calls(&self) -> u64 {
        self.locked(|plan| plan.calls)
    }

    /// Returns the number of calls made to fail.
    pub fn failed(&self) -> u64 {
        self.locked(|plan| plan.failed)
    }

    fn add(&self, operation: Operation, when: When, kind: io::ErrorKind) -> &Self {
        self.locked(|plan| plan.faults.push(PlannedFault { operation, when, kind, seen: 0 }));
        self
    }

    fn call(&self, operation: Operation) -> io::Result<()> {
        self.locked(|plan| plan.call(operation))
    }

    fn locked<T>(&self, act: impl FnOnce(&mut FaultPlan) -> T) -> T {
        act(&mut self.plan.lock().expect("no test panics while it holds the plan"))
    }
}

impl Storage for FaultStorage {
    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        self.call(Operation::Create)?;
        let inner = self.inner.create(name)?;
        Ok(Box::new(FaultFile { inner, storage: self.clone() }))
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.call(Operation::Sync)?;
        self.inner.sync(name)
    }

    fn open(&self, name: &str, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        self.call(Operation::Open)?;
        let inner = self.inner.open(name, offset)?;
        Ok(Box::new(FaultReader { inner, storage: self.clone() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.call(Operation::Rename)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.call(Operation::Remove)?;
        self.inner.remove(name)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.call(Operation::SyncNames)?;
        self.inner.sync_names()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.call(Operation::Names)?;
        self.inner.names()
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        self.call(Operation::Len)?;
        self.inner.len(name)
    }

    fn describe(&self, name: &str) -> String {
        self.inner.describe(name)
    }
}

struct FaultFile {
    inner: Box<dyn StorageFile>,
    storage: FaultStorage,
}

impl Write for FaultFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.storage.call(Operation::Write)?;
        let len = bytes.len().min(self.storage.locked(|plan| plan.bytes_max));
        self.inner.write(&bytes[..len])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl StorageFile for FaultFile {
    fn sync(&mut self) -> io::Result<()> {
        self.storage.call(Operation::Sync)?;
        self.inner.sync()
    }
}

struct FaultReader {
    inner: Box<dyn Read + Send>,
    storage: FaultStorage,
}

impl Read for FaultReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.storage.call(Operation::Read)?;
        let len = bytes.len().min(self.storage.locked(|plan| plan.bytes_max));
        self.inner.read(&mut bytes[..len])
    }
}
