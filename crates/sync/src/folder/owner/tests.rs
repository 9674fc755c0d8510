//! Run as root, these tests give folders to another user and check the result; otherwise they only set modes.

use super::*;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::PathBuf;
use tempfile::TempDir;

/// A user id and a group id that no account has.
const UNUSED_IDS: (u32, u32) = (12_345, 23_456);

fn rights(path: &Path) -> (u32, u32, u32) {
    let there = path.symlink_metadata().unwrap();
    (there.uid(), there.gid(), there.mode() & RIGHTS)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Gives a path to another user if possible; otherwise this user keeps it.
fn give_away(path: &Path) -> (u32, u32) {
    if geteuid().is_root() {
        lchown(path, Some(UNUSED_IDS.0), Some(UNUSED_IDS.1)).unwrap();
    }
    let (uid, gid, _) = rights(path);
    (uid, gid)
}

/// Makes a folder with files and folders in it.
fn made(sandbox: &TempDir) -> PathBuf {
    let folder = sandbox.path().join("made");
    fs::create_dir_all(folder.join("blocks/index")).unwrap();
    for name in ["CURRENT", "blocks/blk00000.dat", "blocks/index/000003.ldb"] {
        fs::write(folder.join(name), "").unwrap();
        set_mode(&folder.join(name), 0o644);
    }
    folder
}

#[test]
fn a_replacement_gets_the_owner_and_modes_of_the_original() {
    for file in ["CURRENT", "000003.log"] {
        let sandbox = tempfile::tempdir().unwrap();
        let place = sandbox.path().join("place");
        fs::create_dir(&place).unwrap();
        fs::write(place.join(file), "").unwrap();
        fs::write(place.join("LOCK"), "").unwrap();
        for name in [file, "LOCK"] {
            set_mode(&place.join(name), 0o640);
        }
        set_mode(&place, 0o710);
        let (uid, gid) = give_away(&place);
        let owner = Owner::of_place(&place).unwrap().unwrap();
        assert_eq!(owner, Owner { uid, gid, folders: Some(0o710), files: Some(0o640) });
        let folder = made(&sandbox);
        owner.give(&folder).unwrap();
        for name in ["", "blocks", "blocks/index"] {
            assert_eq!(rights(&folder.join(name)), (uid, gid, 0o710), "{name}");
        }
        for name in ["CURRENT", "blocks/blk00000.dat", "blocks/index/000003.ldb"] {
            assert_eq!(rights(&folder.join(name)), (uid, gid, 0o640), "{name}");
        }
        // An interrupted change of owner is repeated, which must be harmless.
        owner.give(&folder).unwrap();
        assert_eq!(owner_out_of_reach(&place).unwrap(), None);
    }
}

#[test]
fn files_that_root_makes_belong_to_the_folders_owner() {
    let sandbox = tempfile::tempdir().unwrap();
    let place = sandbox.path().join("place");
    let owner = Owner::of_place(&place).unwrap();
    assert_eq!(owner, None, "the folder around is this process's own");
    let (uid, gid) = give_away(sandbox.path());
    let folder = made(&sandbox);
    let before = rights(&folder);
    let owner = Owner::of_place(&place).unwrap();
    assert_eq!(owner.is_some(), geteuid().is_root());
    if let Some(owner) = owner {
        owner.give(&folder).unwrap();
    }
    for (name, mode) in [("", before.2), ("blocks/index/000003.ldb", 0o644)] {
        assert_eq!(rights(&folder.join(name)), (uid, gid, mode), "{name}");
    }
}

#[test]
fn only_files_that_root_made_change_owner() {
    let sandbox = tempfile::tempdir().unwrap();
    let secret = sandbox.path().join("secret");
    fs::write(&secret, "").unwrap();
    set_mode(&secret, 0o600);
    let before = rights(&secret);
    let owner = Owner { uid: before.0, gid: before.1, folders: None, files: Some(0o666) };
    let owner = match geteuid().is_root() {
        true => Owner { uid: UNUSED_IDS.0, gid: UNUSED_IDS.1, ..owner },
        false => owner,
    };
    let folder = made(&sandbox);
    let within = folder.join("blocks/000009.ldb");
    fs::hard_link(&secret, &within).unwrap();
    let error = owner.give(&folder).unwrap_err().to_string();
    assert!(error.contains("not made by this sync"), "{error}");
    fs::remove_file(&within).unwrap();
    symlink(&secret, &within).unwrap();
    owner.give(&folder).unwrap_err();
    fs::remove_file(&within).unwrap();
    let (moved, link) = (sandbox.path().join("moved"), sandbox.path().join("made"));
    fs::rename(&folder, &moved).unwrap();
    symlink(&moved, &link).unwrap();
    owner.give(&link).unwrap_err();
    assert_eq!(rights(&secret), before);
}

/// If root is killed while it changes a folder's owner, the next start continues with the folder, unless
/// another user may have put it there.
#[test]
fn a_partial_change_of_owner_is_resumed() {
    let sandbox = tempfile::tempdir().unwrap();
    let folder = made(&sandbox);
    let (uid, gid) = give_away(sandbox.path());
    let found = given(&folder, &sandbox.path().join("place")).unwrap();
    if !geteuid().is_root() {
        assert_eq!(found, None);
        return;
    }
    assert_eq!(found, Some(Owner { uid, gid, folders: None, files: None }));
    let owner = found.unwrap();
    owner.give(&folder.join("blocks")).unwrap();
    assert_eq!(rights(&folder.join("blocks/blk00000.dat")).0, uid);
    owner.take_back(&folder).unwrap();
    for name in ["", "CURRENT", "blocks", "blocks/blk00000.dat", "blocks/index/000003.ldb"] {
        assert_eq!(rights(&folder.join(name)).0, 0, "{name}");
    }
    symlink("/nowhere", folder.join("link")).unwrap();
    assert!(owner.take_back(&folder).is_err());
    lchown(sandbox.path(), Some(0), None).unwrap();
    set_mode(sandbox.path(), 0o1777);
    give_away(&folder);
    assert_eq!(given(&folder, &folder).unwrap(), None);
}
