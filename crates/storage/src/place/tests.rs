//! Tests ordinary folders, and the kernel's own, which lack some operations. The program's tests cover
//! mounts.

use super::*;

#[test]
fn trying_a_folder_leaves_nothing_behind() {
    let sandbox = tempfile::tempdir().unwrap();
    assert_eq!(try_place(sandbox.path(), true).unwrap(), NameDurability::Durable);
    assert_eq!(look_at_place(sandbox.path()).unwrap(), NameDurability::Durable);
    let open = create_file(&sandbox.path().join("lock")).unwrap();
    assert_eq!(try_opened(&open, sandbox.path()).unwrap(), NameDurability::Durable);
    assert_eq!(fs::read_dir(sandbox.path()).unwrap().count(), 1);
    sync_names_of(sandbox.path()).unwrap();
}

/// A kernel folder: it cannot be synced, and no user can create files in it.
#[test]
fn a_missing_ability_is_reported() {
    let place = Path::new("/proc/self");
    let why = try_place(place, false).unwrap_err();
    assert!(matches!(why, MissingAbility::Files(_)), "{why}");
    assert!(why.to_string().starts_with("nothing can be written there ("), "{why}");
    assert_eq!(look_at_place(place).unwrap(), NameDurability::Unknown);
    sync_names_of(place).unwrap();
    assert!(matches!(look_at_place(Path::new("/proc/missing")), Err(MissingAbility::Files(_))));
}

#[test]
fn a_movable_folder_stays_in_place() {
    let sandbox = tempfile::tempdir().unwrap();
    let folder = sandbox.path().join("chainstate");
    make_private_dir(&folder).unwrap();
    create_file(&folder.join("CURRENT")).unwrap();
    expect_movable(&folder).unwrap();
    expect_movable_by_looks(&folder).unwrap();
    assert!(folder.join("CURRENT").is_file());
    assert_eq!(fs::read_dir(sandbox.path()).unwrap().count(), 1);
    assert!(!is_mount(&folder).unwrap());
    assert!(is_mount(Path::new("/proc")).unwrap());
    assert!(matches!(expect_movable(Path::new("/proc")), Err(MoveAsideError::Mount)));
    let missing = expect_movable(&sandbox.path().join("missing"));
    assert!(matches!(missing, Err(MoveAsideError::Other(_))), "{missing:?}");
}
