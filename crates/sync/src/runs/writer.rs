//! [`RunWriter`]: writes a run, and says of it what a reader compares with.

use crate::error::{StorageResult, SyncError};
use crate::workdir::RunInfo;
use crate::workdir::index::{RunIndex, Section, checksum};
use apus_storage::{Storage, StorageFile};

/// A run on its way to a file.
pub struct RunWriter<'s> {
    storage: &'s dyn Storage,
    name: String,
    file: Box<dyn StorageFile>,
    section_bytes: usize,
    /// Records that are not in the file yet.
    section: Vec<u8>,
    index: RunIndex,
}

impl<'s> RunWriter<'s> {
    /// Its sections have about so many bytes.
    pub fn create(
        storage: &'s dyn Storage,
        name: String,
        section_bytes: usize,
    ) -> Result<Self, SyncError> {
        let file = storage.create(&name).at(storage, &name)?;
        let (section, index) = (Vec::with_capacity(section_bytes), RunIndex::default());
        Ok(Self { storage, name, file, section_bytes, section, index })
    }

    pub fn write(&mut self, record: &[u8]) -> Result<(), SyncError> {
        if self.section.len() + record.len() > self.section_bytes {
            self.end_section()?;
        }
        self.section.extend_from_slice(record);
        Ok(())
    }

    fn end_section(&mut self) -> Result<(), SyncError> {
        if self.section.is_empty() {
            return Ok(());
        }
        self.index.sections.push(Section::of(&self.section));
        self.file.write_all(&self.section).at(self.storage, &self.name)?;
        self.section.clear();
        Ok(())
    }

    /// Ends the run. Where it is to be `durable` all of it is but its name.
    pub fn finish(mut self, durable: bool) -> Result<RunInfo, SyncError> {
        self.end_section()?;
        let index = self.index.to_bytes();
        self.file.write_all(&index).at(self.storage, &self.name)?;
        self.file.flush().at(self.storage, &self.name)?;
        if durable {
            self.file.sync().at(self.storage, &self.name)?;
        }
        Ok(RunInfo {
            name: self.name,
            bytes: self.index.run_bytes(),
            sections: self.index.sections.len() as u32,
            checksum: checksum(&index),
            held: None,
        })
    }
}
