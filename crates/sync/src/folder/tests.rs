//! Tests that begin, continue and publish drafts, also while another sync holds one.

use super::*;
use tempfile::TempDir;

/// The name of a file that a sync writes.
const FILE: &str = "000003.ldb";

fn place(sandbox: &TempDir) -> PathBuf {
    sandbox.path().join("out")
}

fn draft(sandbox: &TempDir, replace: bool, content: &str) -> FolderDraft {
    let draft = FolderDraft::begin_at(&place(sandbox), replace).unwrap();
    fs::write(draft.folder().join(FILE), content).unwrap();
    draft
}

fn names(sandbox: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(sandbox.path()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn read(sandbox: &TempDir, folder: &str) -> String {
    fs::read_to_string(sandbox.path().join(folder).join(FILE)).unwrap()
}

#[test]
fn missing_disk_space_is_reported_early() {
    let folder = tempfile::tempdir().unwrap();
    assert!(expect_room(folder.path(), 1).unwrap() > 1);
    let error = expect_room(folder.path(), u64::MAX).unwrap_err();
    assert!(matches!(error, SyncError::Io(IoError::NoRoom { .. })), "{error}");
    assert!(expect_room(&folder.path().join("none"), 1).is_err());
}

#[test]
fn a_folder_appears_whole() {
    let sandbox = tempfile::tempdir().unwrap();
    let draft = draft(&sandbox, false, "new");
    assert_eq!(names(&sandbox), ["out.incomplete"]);
    let (moved_to, mark) = draft.publish().unwrap();
    assert_eq!(moved_to, None);
    take_off(&mark, &sandbox.path().join("out")).unwrap();
    assert_eq!((names(&sandbox), read(&sandbox, "out")), (vec!["out".to_owned()], "new".into()));
    assert_eq!(fs::read_dir(sandbox.path().join("out")).unwrap().count(), 1, "the mark is gone");
}

#[test]
fn an_existing_folder_is_moved_aside_only_on_request() {
    let sandbox = tempfile::tempdir().unwrap();
    let old = sandbox.path().join("out");
    fs::create_dir(&old).unwrap();
    fs::write(old.join(FILE), "old").unwrap();
    fs::create_dir(sandbox.path().join("out.old")).unwrap();
    let error = draft(&sandbox, false, "new").publish().unwrap_err();
    assert!(matches!(error, SyncError::Usage(UsageError::OutputExists { .. })), "{error}");
    assert_eq!(read(&sandbox, "out"), "old");
    let (aside, _mark) = draft(&sandbox, true, "newer").publish().unwrap();
    assert_eq!(aside, Some(sandbox.path().join("out.old-2")));
    assert_eq!(
        (read(&sandbox, "out"), read(&sandbox, "out.old-2")),
        ("newer".into(), "old".into())
    );
}

#[test]
fn an_empty_folder_is_replaced() {
    let sandbox = tempfile::tempdir().unwrap();
    fs::create_dir(sandbox.path().join("out")).unwrap();
    assert_eq!(draft(&sandbox, false, "new").publish().unwrap().0, None);
    assert_eq!(read(&sandbox, "out"), "new");
}

/// Two syncs with separate work folders write the same output.
#[test]
fn a_draft_has_one_writer_at_a_time() {
    let sandbox = tempfile::tempdir().unwrap();
    let first = draft(&sandbox, false, "first");
    for begin in [FolderDraft::begin_at, FolderDraft::find_or_begin] {
        let error = begin(&place(&sandbox), true).err().unwrap();
        assert!(matches!(error, SyncError::Usage(UsageError::DraftInUse { .. })), "{error}");
        assert!(error.to_string().contains("out.incomplete"), "{error}");
    }
    assert_eq!(read(&sandbox, "out.incomplete"), "first");
    drop(first);
    drop(FolderDraft::find_or_begin(&place(&sandbox), false).unwrap());
    let second = draft(&sandbox, false, "second");
    second.publish().unwrap();
    assert_eq!(read(&sandbox, "out"), "second");
}

/// The first sync has published its folder, but still has hints or a report to write.
#[test]
fn a_marked_folder_belongs_to_its_sync() {
    let sandbox = tempfile::tempdir().unwrap();
    let out = sandbox.path().join("out");
    let (_, mark) = draft(&sandbox, false, "first").publish().unwrap();
    for used in [false, true] {
        for begin in [FolderDraft::begin_at, FolderDraft::find_or_begin] {
            let error = begin(&place(&sandbox), true).err().unwrap();
            assert!(matches!(error, SyncError::Usage(UsageError::DraftInUse { .. })), "{error}");
            assert!(error.to_string().contains("/out:"), "{error}");
        }
        assert_eq!((names(&sandbox), read(&sandbox, "out")), (vec!["out".into()], "first".into()));
        // A node that was started on the folder does not change that.
        if !used {
            fs::create_dir(out.join("wallets")).unwrap();
        }
    }
    take_off(&mark, &out).unwrap();
    // Removing the mark completes the output.
    let (aside, second) = draft(&sandbox, true, "second").publish().unwrap();
    assert_eq!(
        (aside, read(&sandbox, "out")),
        (Some(sandbox.path().join("out.old")), "second".into())
    );
    // A folder that took the place of the first keeps its mark.
    let error = take_off(&mark, &out).unwrap_err();
    assert!(error.to_string().contains("is no longer the folder"), "{error}");
    take_off(&second, &out).unwrap();
}

/// A sync may open the mark just before another one renames or completes the folder.
#[test]
fn a_moved_mark_protects_no_folder() {
    let sandbox = tempfile::tempdir().unwrap();
    let out = sandbox.path().join("out");
    let draft = draft(&sandbox, false, "first");
    let in_draft = draft.folder().to_owned();
    let late = |path: &Path| -> io::Result<Option<FolderLock>> {
        let lock = FolderLock::try_take_existing(path)?;
        fs::remove_file(path)?;
        Ok(lock)
    };
    let (_, mark) = draft.publish().unwrap();
    drop(mark);
    let error = FolderMark::take(&out, late).unwrap_err();
    assert!(matches!(error, SyncError::Usage(UsageError::DraftInUse { .. })), "{error}");
    let error = FolderMark::take(&in_draft, FolderLock::try_take_existing).unwrap_err();
    assert!(matches!(error, SyncError::Io(IoError::Storage { .. })), "{error}");
}

/// Completing a folder fails if it was moved away before the sync ended.
#[test]
fn a_missing_folder_is_not_completed() {
    let sandbox = tempfile::tempdir().unwrap();
    let out = sandbox.path().join("out");
    let (_, mark) = draft(&sandbox, false, "mine").publish().unwrap();
    fs::rename(&out, sandbox.path().join("moved")).unwrap();
    let error = take_off(&mark, &out).unwrap_err();
    assert!(error.to_string().contains("is no longer the folder"), "{error}");
    assert!(error.to_string().contains("/out: "), "{error}");
    assert!(sandbox.path().join("moved").join(MARK).is_file());
}

#[test]
fn one_missing_folder_keeps_all_marks() {
    let sandbox = tempfile::tempdir().unwrap();
    let (one, two) = (sandbox.path().join("one"), sandbox.path().join("two"));
    let publish = |path: &Path| FolderDraft::begin_at(path, false).unwrap().publish().unwrap().1;
    let marks = [publish(&one), publish(&two)];
    let all = || marks.iter().zip([one.as_path(), two.as_path()]);
    fs::rename(&two, sandbox.path().join("moved")).unwrap();
    let error = complete_all(all()).unwrap_err();
    assert!(error.to_string().contains("/two: "), "{error}");
    assert!(one.join(MARK).is_file());
    fs::rename(sandbox.path().join("moved"), &two).unwrap();
    complete_all(all()).unwrap();
    assert!(!one.join(MARK).exists() && !two.join(MARK).exists());
}

/// A sync that ended badly left its mark in a folder that a node then used: it is no draft, and nothing removes it.
#[test]
fn a_used_folder_with_a_mark_is_moved_aside_without_it() {
    let sandbox = tempfile::tempdir().unwrap();
    drop(draft(&sandbox, false, "old").publish().unwrap());
    fs::write(place(&sandbox).join(LEVELDB_LOCK), "").unwrap();
    let (moved_to, _mark) = draft(&sandbox, true, "new").publish().unwrap();
    let aside = moved_to.unwrap();
    assert!(!aside.join(MARK).exists());
    assert_eq!((read(&sandbox, "out"), read(&sandbox, "out.old")), ("new".into(), "old".into()));
}

/// A kill after the folders changed places leaves the previous one under the draft's name.
#[test]
fn a_replaced_folder_is_moved_aside_by_the_next_start() {
    let sandbox = tempfile::tempdir().unwrap();
    let (path, incomplete) = (sandbox.path().join("out"), sandbox.path().join("out.incomplete"));
    fs::create_dir(&path).unwrap();
    fs::write(path.join(FILE), "old").unwrap();
    drop(draft(&sandbox, true, "new").publish().unwrap());
    fs::rename(sandbox.path().join("out.old"), &incomplete).unwrap();
    assert_eq!(expect_draft(&path).unwrap(), DraftState::Nothing);
    let again = FolderDraft::find_or_begin(&path, true).unwrap();
    assert_eq!(names(&sandbox), ["out.incomplete", "out.old"]);
    assert_eq!(
        (read(&sandbox, "out.old"), read(&sandbox, "out.incomplete")),
        ("old".into(), "new".into())
    );
    drop(again);
}

/// Another program removes the draft, or blocks its path, between the two renames.
#[test]
fn the_old_folder_is_moved_back() {
    let sandbox = tempfile::tempdir().unwrap();
    let (path, aside) = (sandbox.path().join("out"), sandbox.path().join("out.old"));
    let draft = draft(&sandbox, true, "new");
    fs::create_dir(&aside).unwrap();
    fs::write(aside.join(FILE), "old").unwrap();
    let failed = || io::Error::from(ErrorKind::PermissionDenied);
    let error = draft.not_published(&aside, failed());
    assert!(matches!(error, SyncError::Io(IoError::Storage { .. })), "{error}");
    assert_eq!(names(&sandbox), ["out", "out.incomplete"]);
    assert_eq!(read(&sandbox, "out"), "old");

    // The old folder cannot be moved back either: the error says where both folders are.
    fs::rename(&path, &aside).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("theirs"), "").unwrap();
    let error = draft.not_published(&aside, failed());
    assert_eq!(error.kind(), crate::error::ErrorKind::Io, "{error}");
    let text = error.to_string();
    for place in [&path, &aside, &draft.draft] {
        assert!(text.contains(&place.display().to_string()), "{text}");
    }
    assert!(text.contains(". The new folder is complete in ") && !text.contains("  "), "{text}");
    assert_eq!(
        (read(&sandbox, "out.old"), read(&sandbox, "out.incomplete")),
        ("old".into(), "new".into())
    );
}

/// Earlier starts were killed at different steps.
#[test]
fn drafts_of_earlier_starts_are_reused() {
    let sandbox = tempfile::tempdir().unwrap();
    drop(draft(&sandbox, false, "half"));
    let again = FolderDraft::find_or_begin(&place(&sandbox), false).unwrap();
    assert_eq!(read(&sandbox, "out.incomplete"), "half");
    // The folder was published, and the sync had not ended.
    again.publish().unwrap();
    let again = FolderDraft::find_or_begin(&place(&sandbox), false).unwrap();
    assert_eq!(
        (names(&sandbox), read(&sandbox, "out.incomplete")),
        (vec!["out.incomplete".to_owned()], "half".into())
    );
    again.publish().unwrap();
    let (_, mark) = draft(&sandbox, false, "whole").publish().unwrap();
    take_off(&mark, &sandbox.path().join("out")).unwrap();
    assert_eq!((names(&sandbox), read(&sandbox, "out")), (vec!["out".to_owned()], "whole".into()));
}

#[test]
fn a_foreign_folder_is_not_touched() {
    let sandbox = tempfile::tempdir().unwrap();
    let theirs = sandbox.path().join("out.incomplete");
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join(FILE), "theirs").unwrap();
    for begin in [FolderDraft::begin_at, FolderDraft::find_or_begin] {
        let error = begin(&place(&sandbox), true).err().unwrap();
        assert!(matches!(error, SyncError::Usage(UsageError::OutputExists { .. })), "{error}");
    }
    assert_eq!(read(&sandbox, "out.incomplete"), "theirs");
}

/// A sync killed between making the folder and marking it leaves it empty.
#[test]
fn an_empty_draft_is_reused() {
    for begin in [FolderDraft::begin_at, FolderDraft::find_or_begin] {
        let sandbox = tempfile::tempdir().unwrap();
        fs::create_dir(sandbox.path().join("out.incomplete")).unwrap();
        drop(begin(&place(&sandbox), false).unwrap());
        assert!(FolderDraft::find_at(&place(&sandbox), false).unwrap().is_some());
    }
}

/// A sync was killed after publishing its folder, and a node started on that folder.
#[test]
fn a_folder_that_a_node_used_is_not_taken_back() {
    for used in ["LOCK", "wallets/", "blocks/.lock", "regtest/wallet.dat", "bitcoin.conf"] {
        let sandbox = tempfile::tempdir().unwrap();
        draft(&sandbox, false, "used").publish().unwrap();
        assert!(is_unfinished(&sandbox.path().join("out")));
        let theirs = sandbox.path().join("out").join(used);
        fs::create_dir_all(theirs.parent().unwrap()).unwrap();
        match used.ends_with('/') {
            true => fs::create_dir(&theirs).unwrap(),
            false => fs::write(&theirs, "").unwrap(),
        }
        assert!(!is_unfinished(&sandbox.path().join("out")));
        for replace in [false, true] {
            let again = draft(&sandbox, replace, "again").publish();
            let place = if replace { "out.old" } else { "out" };
            assert_eq!(again.is_ok(), replace);
            assert_eq!(read(&sandbox, place), "used");
            assert!(sandbox.path().join(place).join(used).exists(), "{used}");
        }
    }
}

/// If a node holds the lock, nothing is moved.
#[test]
fn a_database_that_cannot_be_locked_is_not_moved() {
    let sandbox = tempfile::tempdir().unwrap();
    let old = sandbox.path().join("out");
    fs::create_dir_all(old.join(LEVELDB_LOCK)).unwrap();
    let error = draft(&sandbox, true, "new").publish().unwrap_err();
    assert!(matches!(error, SyncError::Lock(_)), "{error}");
    assert_eq!(names(&sandbox), ["out", "out.incomplete"]);
    assert!(old.join(LEVELDB_LOCK).is_dir());
}
