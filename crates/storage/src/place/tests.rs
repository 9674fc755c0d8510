//! Places that are as they should be, and the kernel's own, which lack something. What is mounted is in the program's tests.

use super::*;

#[test]
fn a_place_is_tried_and_left_as_it_was() {
    let desk = tempfile::tempdir().unwrap();
    assert_eq!(try_place(desk.path(), true).unwrap(), NameDurability::Durable);
    assert_eq!(look_at_place(desk.path()).unwrap(), NameDurability::Durable);
    let open = create_file(&desk.path().join("lock")).unwrap();
    assert_eq!(try_opened(&open, desk.path()).unwrap(), NameDurability::Durable);
    assert_eq!(fs::read_dir(desk.path()).unwrap().count(), 1);
    sync_names_of(desk.path()).unwrap();
}

/// Its folders cannot be made durable, and nobody makes files in it.
#[test]
fn what_a_place_lacks_is_told() {
    let place = Path::new("/proc/self");
    let why = try_place(place, false).unwrap_err();
    assert!(matches!(why, Lacking::Files(_)), "{why}");
    assert!(why.to_string().starts_with("nothing can be written there ("), "{why}");
    assert_eq!(look_at_place(place).unwrap(), NameDurability::Unknown);
    sync_names_of(place).unwrap();
    assert!(matches!(look_at_place(Path::new("/proc/missing")), Err(Lacking::Files(_))));
}

#[test]
fn a_folder_that_can_be_moved_stays_where_it_is() {
    let desk = tempfile::tempdir().unwrap();
    let folder = desk.path().join("chainstate");
    make_private_dir(&folder).unwrap();
    create_file(&folder.join("CURRENT")).unwrap();
    expect_movable(&folder).unwrap();
    expect_movable_by_looks(&folder).unwrap();
    assert!(folder.join("CURRENT").is_file());
    assert_eq!(fs::read_dir(desk.path()).unwrap().count(), 1);
    assert!(!is_mount(&folder).unwrap());
    assert!(is_mount(Path::new("/proc")).unwrap());
    assert!(matches!(expect_movable(Path::new("/proc")), Err(Unmovable::Mount)));
    let missing = expect_movable(&desk.path().join("missing"));
    assert!(matches!(missing, Err(Unmovable::Other(_))), "{missing:?}");
}
