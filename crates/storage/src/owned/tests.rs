//! Folders of this user's and of others: run by root, the tests have another user's.

use super::*;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};

const UNUSED_ID: u32 = 12_345;

fn give_away(path: &Path) -> bool {
    user_id() == 0 && lchown(path, Some(UNUSED_ID), None).is_ok()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_folder_is_ours_where_no_other_can_write() {
    let desk = tempfile::tempdir().unwrap();
    let folder = desk.path().join("folder");
    fs::create_dir(&folder).unwrap();
    for (mode, work, output) in [
        (0o700, true, true),
        (0o755, true, true),
        (0o775, false, true),
        (0o757, false, false),
        (0o1777, false, false),
    ] {
        set_mode(&folder, mode);
        let found = (expect_own_folder(&folder).unwrap(), expect_own_output(&folder).unwrap());
        assert_eq!((found.0.is_ok(), found.1.is_ok()), (work, output), "{mode:o}");
    }
    set_mode(&folder, 0o755);
    if give_away(&folder) {
        for found in [expect_own_folder(&folder), expect_own_output(&folder)] {
            assert_eq!(found.unwrap(), Err(NotOwn::Of(UNUSED_ID)));
        }
    }
    symlink(&folder, desk.path().join("link")).unwrap();
    assert_eq!(expect_own_folder(&desk.path().join("link")).unwrap(), Err(NotOwn::Link));
    assert!(expect_own_folder(&desk.path().join("missing")).is_err());
    // Nothing is left of what was tried.
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn links_are_followed_where_this_user_made_them() {
    let desk = tempfile::tempdir().unwrap();
    let path = |name: &str| desk.path().join(name);
    fs::create_dir(path("folder")).unwrap();
    symlink("folder", path("first")).unwrap();
    symlink(path("first"), path("second")).unwrap();
    let led = |name: &str| follow_own_links(&path(name)).unwrap();
    assert_eq!(led("second"), Ok(path("folder")));
    assert_eq!(led("folder"), Ok(path("folder")));
    assert_eq!(led("missing"), Ok(path("missing")));
    if give_away(&path("first")) {
        assert_eq!(led("second"), Err(NotOwn::LinkOf(UNUSED_ID)));
    }
}

#[test]
fn what_others_left_in_a_folder_is_found() {
    let desk = tempfile::tempdir().unwrap();
    let within = desk.path().join("coins/tree");
    fs::create_dir_all(&within).unwrap();
    let file = within.join("7");
    fs::write(&file, "").unwrap();
    assert_eq!(find_of_others(desk.path()).unwrap(), None);
    fs::hard_link(&file, within.join("8")).unwrap();
    let (found, why) = find_of_others(desk.path()).unwrap().unwrap();
    assert_eq!((found.parent(), why), (Some(&*within), NotOwn::Names(2)));
    fs::remove_file(within.join("8")).unwrap();
    if give_away(&file) {
        let found = find_of_others(desk.path()).unwrap();
        assert_eq!(found, Some((file, NotOwn::Of(UNUSED_ID))));
    }
}

/// Where a file system shows all files as another's and open, a new one of ours is like them.
#[test]
fn what_a_file_system_shows_of_our_own_files_counts() {
    let desk = tempfile::tempdir().unwrap();
    let there = desk.path().metadata().unwrap();
    let user = there.uid();
    let squashed = ShownOwner { user: user + 1, open: 0o022 };
    assert_eq!(squashed.judge(&there, 0o022), Err(NotOwn::Of(user)));
    set_mode(desk.path(), 0o777);
    let there = desk.path().metadata().unwrap();
    assert_eq!(ShownOwner::usual().judge(&there, 0o022), Err(NotOwn::OpenTo(0o777)));
    assert_eq!(ShownOwner { user, open: 0o022 }.judge(&there, 0o022), Ok(()));
    let shown = ShownOwner::tried(desk.path());
    assert_eq!((shown.user, shown.open), (user, 0));
}
