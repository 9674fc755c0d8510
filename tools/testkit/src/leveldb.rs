//! LevelDB folders that are sound and folders that lie.
//!
//! A [`LevelDbFolder`] is made of a history of writes, in one of the many shapes that LevelDB gives it, and may
//! then tell [lies](Lie): it is built from its parts, with right checksums, so that nothing but its meaning
//! is wrong. All of it comes from a seed.

mod folder;
mod format;
mod lies;
mod parts;
mod table;

pub use folder::{Write, hide};
pub use lies::{AmongTables, InBatches, InEdits, InFiles, InRecords, InTable, Lie};
pub use parts::LevelDbFolder;
