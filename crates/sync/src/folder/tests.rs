//! Tests of drafts: begun, gone on with, published, and in the way of others.

use super::*;
use tempfile::TempDir;

/// A name that a run gives to a file.
const FILE: &str = "000003.ldb";

fn output(desk: &TempDir, replace: bool) -> FolderOutput {
    FolderOutput { kind: FolderKind::Chainstate, path: desk.path().join("out"), replace }
}

fn draft(desk: &TempDir, replace: bool, content: &str) -> FolderDraft {
    let draft = FolderDraft::begin(&output(desk, replace)).unwrap();
    fs::write(draft.folder().join(FILE), content).unwrap();
    draft
}

fn names(desk: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(desk.path()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn read(desk: &TempDir, folder: &str) -> String {
    fs::read_to_string(desk.path().join(folder).join(FILE)).unwrap()
}

#[test]
fn room_is_expected_before_it_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    assert!(expect_room(folder.path(), 1).unwrap() > 1);
    let error = expect_room(folder.path(), u64::MAX).unwrap_err();
    assert!(matches!(error, SyncError::Io(IoError::NoRoom { .. })), "{error}");
    assert!(expect_room(&folder.path().join("none"), 1).is_err());
}

#[test]
fn a_folder_appears_whole() {
    let desk = tempfile::tempdir().unwrap();
    let draft = draft(&desk, false, "new");
    assert_eq!(names(&desk), ["out.incomplete"]);
    let (moved_to, mark) = draft.publish().unwrap();
    assert_eq!(moved_to, None);
    take_off(&mark, &desk.path().join("out")).unwrap();
    assert_eq!((names(&desk), read(&desk, "out")), (vec!["out".to_owned()], "new".into()));
    assert_eq!(fs::read_dir(desk.path().join("out")).unwrap().count(), 1, "the mark is gone");
}

#[test]
fn what_is_there_is_moved_aside_by_order_only() {
    let desk = tempfile::tempdir().unwrap();
    let old = desk.path().join("out");
    fs::create_dir(&old).unwrap();
    fs::write(old.join(FILE), "old").unwrap();
    fs::create_dir(desk.path().join("out.old")).unwrap();
    let error = draft(&desk, false, "new").publish().unwrap_err();
    assert!(matches!(error, SyncError::Usage(UsageError::OutputExists { .. })), "{error}");
    assert_eq!(read(&desk, "out"), "old");
    let (aside, _mark) = draft(&desk, true, "newer").publish().unwrap();
    assert_eq!(aside, Some(desk.path().join("out.old-2")));
    assert_eq!((read(&desk, "out"), read(&desk, "out.old-2")), ("newer".into(), "old".into()));
}

#[test]
fn an_empty_folder_is_not_in_the_way() {
    let desk = tempfile::tempdir().unwrap();
    fs::create_dir(desk.path().join("out")).unwrap();
    assert_eq!(draft(&desk, false, "new").publish().unwrap().0, None);
    assert_eq!(read(&desk, "out"), "new");
}

/// Two runs with work folders of their own.
#[test]
fn a_draft_has_one_writer_at_a_time() {
    let desk = tempfile::tempdir().unwrap();
    let first = draft(&desk, false, "first");
    for begin in [FolderDraft::begin, FolderDraft::find_or_begin] {
        let error = begin(&output(&desk, true)).err().unwrap();
        assert!(matches!(error, SyncError::Usage(UsageError::DraftInUse { .. })), "{error}");
        assert!(error.to_string().contains("out.incomplete"), "{error}");
    }
    assert_eq!(read(&desk, "out.incomplete"), "first");
    drop(first);
    drop(FolderDraft::find_or_begin(&output(&desk, false)).unwrap());
    let second = draft(&desk, false, "second");
    second.publish().unwrap();
    assert_eq!(read(&desk, "out"), "second");
}

/// The first has its folder under its name, and has hints or a report to write yet.
#[test]
fn a_folder_is_its_runs_until_it_loses_its_mark() {
    let desk = tempfile::tempdir().unwrap();
    let out = desk.path().join("out");
    let (_, mark) = draft(&desk, false, "first").publish().unwrap();
    for used in [false, true] {
        for begin in [FolderDraft::begin, FolderDraft::find_or_begin] {
            let error = begin(&output(&desk, true)).err().unwrap();
            assert!(matches!(error, SyncError::Usage(UsageError::DraftInUse { .. })), "{error}");
            assert!(error.to_string().contains("/out:"), "{error}");
        }
        assert_eq!((names(&desk), read(&desk, "out")), (vec!["out".into()], "first".into()));
        // Also once a node was started on it.
        if !used {
            fs::create_dir(out.join("wallets")).unwrap();
        }
    }
    take_off(&mark, &out).unwrap();
    // Now it is an output that is done.
    let (aside, second) = draft(&desk, true, "second").publish().unwrap();
    assert_eq!((aside, read(&desk, "out")), (Some(desk.path().join("out.old")), "second".into()));
    // No mark is taken from a folder that has come in the place of the first.
    let error = take_off(&mark, &out).unwrap_err();
    assert!(error.to_string().contains("is not the folder any more"), "{error}");
    take_off(&second, &out).unwrap();
}

/// Another run opened the mark just before the folder was renamed, or done.
#[test]
fn a_mark_that_is_elsewhere_by_now_is_no_ones_leave() {
    let desk = tempfile::tempdir().unwrap();
    let out = desk.path().join("out");
    let draft = draft(&desk, false, "first");
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

/// It was moved away before the run was over.
#[test]
fn a_folder_that_is_gone_is_not_done() {
    let desk = tempfile::tempdir().unwrap();
    let out = desk.path().join("out");
    let (_, mark) = draft(&desk, false, "mine").publish().unwrap();
    fs::rename(&out, desk.path().join("elsewhere")).unwrap();
    let error = take_off(&mark, &out).unwrap_err();
    assert!(error.to_string().contains("is not the folder any more"), "{error}");
    assert!(error.to_string().contains("/out "), "{error}");
    assert!(desk.path().join("elsewhere").join(MARK).is_file());
}

#[test]
fn one_that_is_gone_leaves_the_marks_of_all() {
    let desk = tempfile::tempdir().unwrap();
    let (one, two) = (desk.path().join("one"), desk.path().join("two"));
    let publish = |path: &Path| {
        let output = FolderOutput { path: path.to_owned(), ..output(&desk, false) };
        FolderDraft::begin(&output).unwrap().publish().unwrap().1
    };
    let marks = [publish(&one), publish(&two)];
    let all = || marks.iter().zip([one.as_path(), two.as_path()]);
    fs::rename(&two, desk.path().join("elsewhere")).unwrap();
    let error = complete_all(all()).unwrap_err();
    assert!(error.to_string().contains("/two "), "{error}");
    assert!(one.join(MARK).is_file());
    fs::rename(desk.path().join("elsewhere"), &two).unwrap();
    complete_all(all()).unwrap();
    assert!(!one.join(MARK).exists() && !two.join(MARK).exists());
}

/// Another program took the draft away, or put something in its way, between the two renames.
#[test]
fn what_was_moved_aside_is_put_back() {
    let desk = tempfile::tempdir().unwrap();
    let (path, aside) = (desk.path().join("out"), desk.path().join("out.old"));
    let draft = draft(&desk, true, "new");
    fs::create_dir(&aside).unwrap();
    fs::write(aside.join(FILE), "old").unwrap();
    let failed = || io::Error::from(ErrorKind::PermissionDenied);
    let error = draft.not_published(Some(&aside), failed());
    assert!(matches!(error, SyncError::Io(IoError::Storage { .. })), "{error}");
    assert_eq!(names(&desk), ["out", "out.incomplete"]);
    assert_eq!(read(&desk, "out"), "old");

    // It cannot be put back either: the error says where everything is.
    fs::rename(&path, &aside).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("theirs"), "").unwrap();
    let error = draft.not_published(Some(&aside), failed());
    assert_eq!(error.kind(), crate::error::ErrorKind::Io, "{error}");
    let text = error.to_string();
    for place in [&path, &aside, &draft.draft] {
        assert!(text.contains(&place.display().to_string()), "{text}");
    }
    assert!(text.contains(". The new folder is whole in ") && !text.contains("  "), "{text}");
    assert_eq!(
        (read(&desk, "out.old"), read(&desk, "out.incomplete")),
        ("old".into(), "new".into())
    );
    assert!(matches!(draft.not_published(None, failed()), SyncError::Io(IoError::Storage { .. })));
}

/// An earlier start was ended at any step.
#[test]
fn what_an_earlier_start_left() {
    let desk = tempfile::tempdir().unwrap();
    drop(draft(&desk, false, "half"));
    let again = FolderDraft::find_or_begin(&output(&desk, false)).unwrap();
    assert_eq!(read(&desk, "out.incomplete"), "half");
    // It had its name, and the run was not over.
    again.publish().unwrap();
    let again = FolderDraft::find_or_begin(&output(&desk, false)).unwrap();
    assert_eq!(
        (names(&desk), read(&desk, "out.incomplete")),
        (vec!["out.incomplete".to_owned()], "half".into())
    );
    again.publish().unwrap();
    let (_, mark) = draft(&desk, false, "whole").publish().unwrap();
    take_off(&mark, &desk.path().join("out")).unwrap();
    assert_eq!((names(&desk), read(&desk, "out")), (vec!["out".to_owned()], "whole".into()));
}

#[test]
fn a_folder_that_no_run_made_is_left_alone() {
    let desk = tempfile::tempdir().unwrap();
    let theirs = desk.path().join("out.incomplete");
    fs::create_dir(&theirs).unwrap();
    fs::write(theirs.join(FILE), "theirs").unwrap();
    for begin in [FolderDraft::begin, FolderDraft::find_or_begin] {
        let error = begin(&output(&desk, true)).err().unwrap();
        assert!(matches!(error, SyncError::Usage(UsageError::OutputExists { .. })), "{error}");
    }
    assert_eq!(read(&desk, "out.incomplete"), "theirs");
}

/// A run was killed between making the folder and marking it.
#[test]
fn an_empty_draft_is_not_in_the_way() {
    for begin in [FolderDraft::begin, FolderDraft::find_or_begin] {
        let desk = tempfile::tempdir().unwrap();
        fs::create_dir(desk.path().join("out.incomplete")).unwrap();
        drop(begin(&output(&desk, false)).unwrap());
        assert!(FolderDraft::find(&output(&desk, false)).unwrap().is_some());
    }
}

/// A run was killed before it ended, and a node started on what it had made.
#[test]
fn a_folder_that_a_node_used_is_not_taken_back() {
    for used in ["LOCK", "wallets/", "blocks/.lock", "regtest/wallet.dat", "bitcoin.conf"] {
        let desk = tempfile::tempdir().unwrap();
        draft(&desk, false, "used").publish().unwrap();
        assert!(is_unfinished(&desk.path().join("out")));
        let theirs = desk.path().join("out").join(used);
        fs::create_dir_all(theirs.parent().unwrap()).unwrap();
        match used.ends_with('/') {
            true => fs::create_dir(&theirs).unwrap(),
            false => fs::write(&theirs, "").unwrap(),
        }
        assert!(!is_unfinished(&desk.path().join("out")));
        for replace in [false, true] {
            let again = draft(&desk, replace, "again").publish();
            let place = if replace { "out.old" } else { "out" };
            assert_eq!(again.is_ok(), replace);
            assert_eq!(read(&desk, place), "used");
            assert!(desk.path().join(place).join(used).exists(), "{used}");
        }
    }
}

/// The lock cannot be had, as when a node has it: nothing is moved.
#[test]
fn a_database_that_cannot_be_locked_stays() {
    let desk = tempfile::tempdir().unwrap();
    let old = desk.path().join("out");
    fs::create_dir_all(old.join(LEVELDB_LOCK)).unwrap();
    let error = draft(&desk, true, "new").publish().unwrap_err();
    assert!(matches!(error, SyncError::Lock(_)), "{error}");
    assert_eq!(names(&desk), ["out", "out.incomplete"]);
    assert!(old.join(LEVELDB_LOCK).is_dir());
}
