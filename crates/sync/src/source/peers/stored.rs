//! Headers in the work folder: files in the order in which they came, each written whole.
//!
//! Format of a file: `docs/formats/headers.md`. What does not read well, and all that comes after it,
//! is downloaded again; headers are checked anew in any case.

use crate::error::{StorageResult, SyncError};
use crate::workdir::names::HEADERS;
use apus_chain::{HEADER_SIZE, Network};
use apus_p2p::headers::store::{HeaderFileReader, write_frames, write_head};
use apus_storage::{Storage, write_atomically};

/// So many files are made one by the next start.
const FILES_MAX: usize = 16;

fn name(number: u32) -> String {
    format!("{HEADERS}{number:05}")
}

/// What an earlier start left.
pub(super) struct Stored {
    pub(super) headers: Vec<[u8; 80]>,
    pub(super) next_file: u32,
}

/// Reads all files.
pub(super) fn read(storage: &dyn Storage, network: Network) -> Result<Stored, SyncError> {
    let mut headers = Vec::new();
    let names = storage.names().at(storage, "")?;
    let files: Vec<&String> = names.iter().filter(|name| number_of(name).is_some()).collect();
    let mut next_file = 0;
    let mut whole = true;
    for file in &files {
        next_file = number_of(file).map_or(0, |number| number.saturating_add(1)).max(next_file);
        whole = whole && read_file(storage, file, network, &mut |header| headers.push(*header))?;
    }
    if !whole || files.len() > FILES_MAX {
        // The one that has it all comes first: where the next steps don't, nothing is lost.
        write(storage, next_file, network, &headers)?;
        for file in &files {
            storage.remove(file).at(storage, file)?;
        }
        next_file += 1;
    }
    Ok(Stored { headers, next_file })
}

/// Gives all headers that read well to `each`.
pub(super) fn for_each(
    storage: &dyn Storage,
    network: Network,
    each: &mut dyn FnMut(&[u8; HEADER_SIZE]),
) -> Result<(), SyncError> {
    for file in storage.names().at(storage, "")? {
        if number_of(&file).is_some() {
            read_file(storage, &file, network, each)?;
        }
    }
    Ok(())
}

fn number_of(name: &str) -> Option<u32> {
    name.strip_prefix(HEADERS)?.parse().ok()
}

/// Tells whether the file is whole.
fn read_file(
    storage: &dyn Storage,
    file: &str,
    network: Network,
    each: &mut dyn FnMut(&[u8; HEADER_SIZE]),
) -> Result<bool, SyncError> {
    let mut input = storage.open(file, 0).at(storage, file)?;
    let length = storage.len(file).at(storage, file)?;
    let Ok(Some(mut reader)) = HeaderFileReader::open(&mut *input, network) else {
        return Ok(false);
    };
    while let Ok(Some(frame)) = reader.next_frame() {
        frame.iter().for_each(&mut *each);
    }
    Ok(reader.good_bytes() == length)
}

/// Writes a file.
pub(super) fn write(
    storage: &dyn Storage,
    number: u32,
    network: Network,
    headers: &[[u8; 80]],
) -> Result<(), SyncError> {
    let name = name(number);
    let mut bytes = Vec::new();
    write_head(&mut bytes, network)
        .and_then(|()| write_frames(&mut bytes, headers))
        .and_then(|()| write_atomically(storage, &name, &bytes))
        .at(storage, &name)
}
