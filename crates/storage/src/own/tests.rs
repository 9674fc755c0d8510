//! What lies there already, made by whom: run by root, the tests have another user's; run by another user, what is the
//! user's own alone.

use super::*;
use crate::publish_file;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::PathBuf;
use tempfile::TempDir;

/// A user that no account has.
const UNUSED_ID: u32 = 12_345;

/// A folder to which all can add, and a file outside of it that must not change.
struct Desk(TempDir);

const PRECIOUS: &str = "precious";

impl Desk {
    fn open_to_all() -> Self {
        let desk = Self(tempfile::tempdir().unwrap());
        fs::create_dir(desk.path("all")).unwrap();
        fs::set_permissions(desk.path("all"), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(desk.path("precious"), PRECIOUS).unwrap();
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn expect_unharmed(&self) {
        assert_eq!(fs::read_to_string(self.path("precious")).unwrap(), PRECIOUS);
    }
}

/// Gives what lies there to another user, where that can be done.
fn give_away(path: &Path) -> bool {
    rustix::process::geteuid().is_root() && lchown(path, Some(UNUSED_ID), None).is_ok()
}

fn make_pipe(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

#[test]
fn what_is_new_is_new() {
    let desk = Desk::open_to_all();
    for name in ["precious", "nowhere"] {
        let link = desk.path("all/link");
        symlink(desk.path(name), &link).unwrap();
        for made in [create_file(&link), create_private_file(&link)] {
            assert_eq!(made.unwrap_err().kind(), ErrorKind::AlreadyExists);
        }
        fs::remove_file(link).unwrap();
    }
    desk.expect_unharmed();
    assert!(!desk.path("nowhere").exists());
}

#[test]
fn a_draft_is_taken_over_only_where_it_is_a_plain_file_of_ours() {
    let desk = Desk::open_to_all();
    let draft = desk.path("all/draft");
    let refused = |wanted: &str| {
        for made in [replace_file(&draft), open_or_create(&draft, false), open_own_file(&draft)] {
            let error = made.unwrap_err().to_string();
            assert!(error.contains(wanted) && error.contains("remove it"), "{error}");
        }
        fs::remove_file(&draft).unwrap();
        desk.expect_unharmed();
    };
    for name in ["precious", "nowhere"] {
        symlink(desk.path(name), &draft).unwrap();
        refused("it is a link");
    }
    fs::hard_link(desk.path("precious"), &draft).unwrap();
    refused("2 names");
    make_pipe(&draft);
    let error = replace_file(&draft).unwrap_err().to_string();
    assert!(error.contains("neither a file nor a folder"), "{error}");
    // Nobody reads: one that waited would wait for ever.
    open_own_file(&draft).unwrap_err();
    open_to_lock(&draft).unwrap_err();
    open_to_read(&draft).unwrap_err();
    fs::remove_file(&draft).unwrap();
    fs::write(&draft, "theirs").unwrap();
    if give_away(&draft) {
        refused("it belongs to user 12345");
    }
    fs::write(&draft, "of an earlier start").unwrap();
    replace_file(&draft).unwrap().write_all(b"new").unwrap();
    let (mut file, mut text) = (open_or_create(&draft, true).unwrap(), String::new());
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "new");
    fs::remove_file(&draft).unwrap();
    fs::create_dir(&draft).unwrap();
    assert_eq!(replace_file(&draft).unwrap_err().kind(), ErrorKind::IsADirectory);
}

#[test]
fn a_log_goes_on_where_it_is_safe() {
    let desk = Desk::open_to_all();
    let append = |name: &str| open_to_append(&desk.path(name)).map(|mut it| it.write_all(b"+"));
    append("new.log").unwrap().unwrap();
    append("new.log").unwrap().unwrap();
    assert_eq!(fs::read_to_string(desk.path("new.log")).unwrap(), "++");
    // By links of this user's, one after the other, to one that is not there.
    symlink("second", desk.path("first")).unwrap();
    symlink(desk.path("led.log"), desk.path("second")).unwrap();
    append("first").unwrap().unwrap();
    assert_eq!(fs::read_to_string(desk.path("led.log")).unwrap(), "+");
    symlink("around", desk.path("around")).unwrap();
    append("around").unwrap_err();
    // What is no file on a disk.
    open_to_append(Path::new("/dev/null")).unwrap();
    let open = fs::File::create(desk.path("open.log")).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&open);
    open_to_append(Path::new(&format!("/proc/self/fd/{number}"))).unwrap();
    open_to_append(Path::new(&format!("/dev/fd/{number}"))).unwrap();
    let pipe = desk.path("pipe");
    make_pipe(&pipe);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| fs::read_to_string(&pipe).unwrap());
        append("pipe").unwrap().unwrap();
        assert_eq!(read.join().unwrap(), "+");
    });
}

#[test]
fn a_log_is_not_written_where_another_user_leads() {
    let desk = Desk::open_to_all();
    let append = |name: &str| open_to_append(&desk.path(name)).map(drop);
    fs::hard_link(desk.path("precious"), desk.path("all/names.log")).unwrap();
    let error = append("all/names.log").unwrap_err().to_string();
    assert!(error.contains("2 names"), "{error}");
    let (link, pipe, file) = ("all/link.log", "all/pipe.log", "all/file.log");
    symlink(desk.path("precious"), desk.path(link)).unwrap();
    symlink(desk.path(link), desk.path("ours.log")).unwrap();
    make_pipe(&desk.path(pipe));
    fs::write(desk.path(file), "").unwrap();
    let given = [link, pipe, file].map(|name| give_away(&desk.path(name)));
    if given == [true; 3] {
        for (name, wanted) in [
            (link, "a link that user 12345 made"),
            ("ours.log", "a link that user 12345 made"),
            (pipe, "it belongs to user 12345"),
            (file, "it belongs to user 12345"),
        ] {
            let error = append(name).unwrap_err().to_string();
            assert!(error.contains(wanted), "{name}: {error}");
        }
        // The owner of a folder decides what is in it, and where a link leads from there they do not.
        let theirs = desk.path("theirs");
        fs::create_dir(&theirs).unwrap();
        fs::write(theirs.join("a.log"), "").unwrap();
        symlink(desk.path("precious"), theirs.join("b.log")).unwrap();
        for path in [theirs.clone(), theirs.join("a.log"), theirs.join("b.log")] {
            assert!(give_away(&path));
        }
        append("theirs/a.log").unwrap();
        append("theirs/b.log").unwrap_err();
    }
    desk.expect_unharmed();
}

#[test]
fn a_file_is_published_as_a_whole() {
    let desk = Desk::open_to_all();
    let (path, draft) = (desk.path("all/out"), desk.path("all/out.incomplete"));
    symlink(desk.path("precious"), &path).unwrap();
    publish_file(&path, &draft, b"whole").unwrap();
    assert!(path.symlink_metadata().unwrap().is_file() && !draft.exists());
    assert_eq!(fs::read(&path).unwrap(), b"whole");
    symlink(desk.path("precious"), &draft).unwrap();
    publish_file(&path, &draft, b"other").unwrap_err();
    desk.expect_unharmed();
}

// ---- whose a file or a folder is ----

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
