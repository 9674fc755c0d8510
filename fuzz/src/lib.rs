//! Shared code of the fuzz targets: the source of choices, a bounded heap, and slow, obvious models of the
//! tested code.
//!
//! The models follow only Bitcoin Core's rules and the formats, on top of public crates; they never call the
//! code that they check.

pub mod forest_model;
pub mod header_model;
pub mod leveldb;
pub mod rules;

use cap::Cap;
use std::alloc::System;
use std::fs;
use std::path::Path;

/// More than any target needs for an input of a megabyte: code that trusts a count before it has seen the bytes
/// asks for gigabytes.
const HEAP_BYTES_MAX: usize = 64 << 20;

/// Refuses allocations beyond the limit, which aborts the process and so counts as a crash.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, HEAP_BYTES_MAX);

/// Takes choices from the front of an input; zeros after its end.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_at(self.0.len().min(N));
        self.0 = rest;
        let mut array = [0; N];
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Returns the rest of the input.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// Makes a folder with these files, which is removed when dropped.
pub fn folder<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (name, bytes) in files {
        write(&dir.path().join(name), bytes);
    }
    dir
}

/// Writes a file and creates its parent folders.
pub fn write(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().expect("a file's path")).expect("a new folder");
    fs::write(path, bytes).expect("a new file");
}
