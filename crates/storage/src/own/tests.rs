//! Tests existing files and folders and their owners. As root, the tests also create another user's files; as
//! any other user, only that user's own.

use super::*;
use crate::publish_file;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::PathBuf;
use tempfile::TempDir;

/// The id of a user without an account.
const UNUSED_ID: u32 = 12_345;

/// Makes a folder that all users can write to, and a file outside it that must not change.
struct Sandbox(TempDir);

const PRECIOUS: &str = "precious";

impl Sandbox {
    fn open_to_all() -> Self {
        let sandbox = Self(tempfile::tempdir().unwrap());
        fs::create_dir(sandbox.path("all")).unwrap();
        fs::set_permissions(sandbox.path("all"), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(sandbox.path("precious"), PRECIOUS).unwrap();
        sandbox
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn expect_unharmed(&self) {
        assert_eq!(fs::read_to_string(self.path("precious")).unwrap(), PRECIOUS);
    }
}

/// Gives a file to another user; returns false if that is not possible.
fn give_away(path: &Path) -> bool {
    rustix::process::geteuid().is_root() && lchown(path, Some(UNUSED_ID), None).is_ok()
}

fn make_pipe(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

#[test]
fn creating_never_follows_a_link() {
    let sandbox = Sandbox::open_to_all();
    for name in ["precious", "nowhere"] {
        let link = sandbox.path("all/link");
        symlink(sandbox.path(name), &link).unwrap();
        for made in [create_file(&link), create_private_file(&link)] {
            assert_eq!(made.unwrap_err().kind(), ErrorKind::AlreadyExists);
        }
        fs::remove_file(link).unwrap();
    }
    sandbox.expect_unharmed();
    assert!(!sandbox.path("nowhere").exists());
}

#[test]
fn only_a_plain_draft_of_ours_is_reused() {
    let sandbox = Sandbox::open_to_all();
    let draft = sandbox.path("all/draft");
    let refused = |wanted: &str| {
        let replaced = replace_file(&draft).map(drop);
        let opened = [open_or_create(&draft, false), open_own_file(&draft)].map(|it| it.map(drop));
        for made in [replaced].into_iter().chain(opened) {
            let error = made.unwrap_err().to_string();
            assert!(error.contains(wanted) && error.contains("remove it"), "{error}");
        }
        fs::remove_file(&draft).unwrap();
        sandbox.expect_unharmed();
    };
    for name in ["precious", "nowhere"] {
        symlink(sandbox.path(name), &draft).unwrap();
        refused("it is a link");
    }
    fs::hard_link(sandbox.path("precious"), &draft).unwrap();
    refused("2 names");
    make_pipe(&draft);
    let error = replace_file(&draft).unwrap_err().to_string();
    assert!(error.contains("neither a file nor a folder"), "{error}");
    // The pipe has no reader: an open that waits would hang forever.
    open_own_file(&draft).unwrap_err();
    open_to_lock(&draft).unwrap_err();
    open_to_read(&draft).unwrap_err();
    fs::remove_file(&draft).unwrap();
    fs::write(&draft, "theirs").unwrap();
    if give_away(&draft) {
        refused("it belongs to user 12345");
    }
    fs::write(&draft, "from an earlier start").unwrap();
    replace_file(&draft).unwrap().write_all(b"new").unwrap();
    let (mut file, mut text) = (open_or_create(&draft, true).unwrap(), String::new());
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "new");
    fs::remove_file(&draft).unwrap();
    fs::create_dir(&draft).unwrap();
    assert_eq!(replace_file(&draft).unwrap_err().kind(), ErrorKind::IsADirectory);
}

#[test]
fn appending_works_if_it_is_safe() {
    let sandbox = Sandbox::open_to_all();
    let append = |name: &str| open_to_append(&sandbox.path(name)).map(|mut it| it.write_all(b"+"));
    append("new.log").unwrap().unwrap();
    append("new.log").unwrap().unwrap();
    assert_eq!(fs::read_to_string(sandbox.path("new.log")).unwrap(), "++");
    // A chain of this user's links to a missing file.
    symlink("second", sandbox.path("first")).unwrap();
    symlink(sandbox.path("led.log"), sandbox.path("second")).unwrap();
    append("first").unwrap().unwrap();
    assert_eq!(fs::read_to_string(sandbox.path("led.log")).unwrap(), "+");
    symlink("around", sandbox.path("around")).unwrap();
    append("around").unwrap_err();
    // These are not files on a disk.
    open_to_append(Path::new("/dev/null")).unwrap();
    let open = fs::File::create(sandbox.path("open.log")).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&open);
    open_to_append(Path::new(&format!("/proc/self/fd/{number}"))).unwrap();
    open_to_append(Path::new(&format!("/dev/fd/{number}"))).unwrap();
    let pipe = sandbox.path("pipe");
    make_pipe(&pipe);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| fs::read_to_string(&pipe).unwrap());
        append("pipe").unwrap().unwrap();
        assert_eq!(read.join().unwrap(), "+");
    });
}

#[test]
fn appending_refuses_other_users_links_and_files() {
    let sandbox = Sandbox::open_to_all();
    let append = |name: &str| open_to_append(&sandbox.path(name)).map(drop);
    fs::hard_link(sandbox.path("precious"), sandbox.path("all/names.log")).unwrap();
    let error = append("all/names.log").unwrap_err().to_string();
    assert!(error.contains("2 names"), "{error}");
    let (link, pipe, file) = ("all/link.log", "all/pipe.log", "all/file.log");
    symlink(sandbox.path("precious"), sandbox.path(link)).unwrap();
    symlink(sandbox.path(link), sandbox.path("ours.log")).unwrap();
    make_pipe(&sandbox.path(pipe));
    fs::write(sandbox.path(file), "").unwrap();
    let given = [link, pipe, file].map(|name| give_away(&sandbox.path(name)));
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
        // A folder's owner controls its files, but not the target of a link in it.
        let theirs = sandbox.path("theirs");
        fs::create_dir(&theirs).unwrap();
        fs::write(theirs.join("a.log"), "").unwrap();
        symlink(sandbox.path("precious"), theirs.join("b.log")).unwrap();
        for path in [theirs.clone(), theirs.join("a.log"), theirs.join("b.log")] {
            assert!(give_away(&path));
        }
        append("theirs/a.log").unwrap();
        append("theirs/b.log").unwrap_err();
    }
    sandbox.expect_unharmed();
}

#[test]
fn a_draft_of_another_run_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let draft = folder.path().join("out.incomplete");
    let mut of_one = replace_file(&draft).unwrap();
    of_one.write_all(b"one").unwrap();
    for refused in [replace_file(&draft).map(drop), remove_draft(&draft)] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ResourceBusy);
    }
    assert_eq!(fs::read(&draft).unwrap(), b"one");
    drop(of_one);
    drop(replace_file(&draft).unwrap());
    remove_draft(&draft).unwrap();
    assert!(!draft.exists());
}

#[test]
fn a_file_is_published_completely_or_not_at_all() {
    let sandbox = Sandbox::open_to_all();
    let (path, draft) = (sandbox.path("all/out"), sandbox.path("all/out.incomplete"));
    symlink(sandbox.path("precious"), &path).unwrap();
    publish_file(&path, &draft, b"whole").unwrap();
    assert!(path.symlink_metadata().unwrap().is_file() && !draft.exists());
    assert_eq!(fs::read(&path).unwrap(), b"whole");
    symlink(sandbox.path("precious"), &draft).unwrap();
    publish_file(&path, &draft, b"other").unwrap_err();
    sandbox.expect_unharmed();
}

// ---- ownership ----

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_folder_is_ours_if_no_other_user_can_write() {
    let sandbox = tempfile::tempdir().unwrap();
    let folder = sandbox.path().join("folder");
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
            assert_eq!(found.unwrap(), Err(OwnerError::Of(UNUSED_ID)));
        }
    }
    symlink(&folder, sandbox.path().join("link")).unwrap();
    assert_eq!(expect_own_folder(&sandbox.path().join("link")).unwrap(), Err(OwnerError::Link));
    assert!(expect_own_folder(&sandbox.path().join("missing")).is_err());
    // The test file was removed again.
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn only_this_users_links_are_followed() {
    let sandbox = tempfile::tempdir().unwrap();
    let path = |name: &str| sandbox.path().join(name);
    fs::create_dir(path("folder")).unwrap();
    symlink("folder", path("first")).unwrap();
    symlink(path("first"), path("second")).unwrap();
    let target = |name: &str| follow_own_links(&path(name)).unwrap();
    assert_eq!(target("second"), Ok(path("folder")));
    assert_eq!(target("folder"), Ok(path("folder")));
    assert_eq!(target("missing"), Ok(path("missing")));
    if give_away(&path("first")) {
        assert_eq!(target("second"), Err(OwnerError::LinkOf(UNUSED_ID)));
    }
}

#[test]
fn files_of_other_users_are_found() {
    let sandbox = tempfile::tempdir().unwrap();
    let within = sandbox.path().join("coins/tree");
    fs::create_dir_all(&within).unwrap();
    let file = within.join("7");
    fs::write(&file, "").unwrap();
    assert_eq!(find_of_others(sandbox.path()).unwrap(), None);
    fs::hard_link(&file, within.join("8")).unwrap();
    let (found, why) = find_of_others(sandbox.path()).unwrap().unwrap();
    assert_eq!((found.parent(), why), (Some(&*within), OwnerError::Names(2)));
    fs::remove_file(within.join("8")).unwrap();
    if give_away(&file) {
        let found = find_of_others(sandbox.path()).unwrap();
        assert_eq!(found, Some((file, OwnerError::Of(UNUSED_ID))));
    }
}

/// If a file system shows all files as writable by everyone and as another user's, a new file of ours looks
/// the same.
#[test]
fn a_file_is_compared_with_a_new_file_of_ours() {
    let sandbox = tempfile::tempdir().unwrap();
    let there = sandbox.path().metadata().unwrap();
    let user = there.uid();
    let squashed = ShownOwner { user: user + 1, open: 0o022 };
    assert_eq!(squashed.check(&there, 0o022), Err(OwnerError::Of(user)));
    set_mode(sandbox.path(), 0o777);
    let there = sandbox.path().metadata().unwrap();
    assert_eq!(ShownOwner::usual().check(&there, 0o022), Err(OwnerError::OpenTo(0o777)));
    assert_eq!(ShownOwner { user, open: 0o022 }.check(&there, 0o022), Ok(()));
    let shown = ShownOwner::probe(sandbox.path());
    assert_eq!((shown.user, shown.open), (user, 0));
}
