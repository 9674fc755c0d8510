//! What `--replace` moved aside, this time and before: nothing removes it but the user, and a
//! chainstate has gigabytes.

use crate::print;
use crate::report::bytes;
use apus_sync::{WrittenFolder, parent};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Says what lies beside a folder that was written, where that is more than what was moved aside for
/// it, which the report tells of.
pub(crate) fn tell(folder: &WrittenFolder) {
    if folder.moved_to.is_none() {
        return;
    }
    if let Some(words) = words(&folder.path, &beside(&folder.path)) {
        print::aside(words);
    }
}

/// None of fewer than two.
fn words(path: &Path, aside: &[(PathBuf, u64)]) -> Option<String> {
    if aside.len() < 2 {
        return None;
    }
    let together = aside.iter().map(|(_, bytes)| bytes).sum();
    let mut words = format!(
        "apus: of {}, {} earlier ones are still there ({}): remove those that you don't need",
        path.display(),
        aside.len(),
        bytes(together)
    );
    for (path, count) in aside {
        // Writing to a string does not fail.
        let _ = write!(words, "\n  {} ({})", path.display(), bytes(*count));
    }
    Some(words)
}

/// The folders `NAME.old`, `NAME.old-2` and so on beside one called `NAME`, and their bytes.
fn beside(path: &Path) -> Vec<(PathBuf, u64)> {
    let Some(start) = path.file_name().and_then(|name| name.to_str()) else { return Vec::new() };
    let number = |name: &str| {
        let rest = name.strip_prefix(start)?.strip_prefix(".old")?;
        match rest {
            "" => Some(1),
            _ => rest.strip_prefix('-')?.parse::<u32>().ok(),
        }
    };
    let Ok(entries) = fs::read_dir(parent(path)) else { return Vec::new() };
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| {
            let name = entry.file_name();
            Some((number(name.to_str()?)?, path.with_file_name(name)))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| (path.clone(), bytes_in(&path))).collect()
}

/// Bytes of all files in a folder; what cannot be looked at counts nothing.
pub(crate) fn bytes_in(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            // Of a link this is the link's own.
            let there = entry.metadata().ok()?;
            Some(if there.is_dir() { bytes_in(&entry.path()) } else { there.len() })
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_moved_aside_is_found_in_order_with_its_bytes() {
        let desk = tempfile::tempdir().unwrap();
        let path = |name: &str| desk.path().join(name);
        for name in ["cs", "cs.old-10", "cs.old", "cs.old-x", "cs.older", "other.old", "cs.old-2"] {
            fs::create_dir_all(path(name).join("within")).unwrap();
            fs::write(path(name).join("within/000003.ldb"), [0; 1000]).unwrap();
        }
        fs::write(path("cs.old-3"), "a file").unwrap();
        let found = beside(&path("cs"));
        let wanted = ["cs.old", "cs.old-2", "cs.old-10"].map(|name| (path(name), 1000));
        assert_eq!(found, wanted);
        assert_eq!(words(&path("cs"), &found[..1]), None);
        let words = words(&path("cs"), &found).unwrap();
        assert!(words.contains("3 earlier ones") && words.contains("cs.old-10 ("), "{words}");
    }
}
