//! Folders that others can write to, and places that are no plain disks: nothing is written where a link leads, no folder
//! is gone on with that others can change, and what only the end needs is tried at the beginning.

use crate::desk::{Desk, REGTEST, fixtures};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

const SYNC: &str = "sync --chain regtest --blocksdir blocks --hints msb.hints --par 1";

const PRECIOUS: &[u8] = b"precious";

/// What others left at the name of a draft.
fn plant(desk: &Desk, name: &str, hard: bool) {
    let (from, to) = (desk.path("precious"), desk.path(name));
    match hard {
        true => fs::hard_link(from, to).unwrap(),
        false => symlink(from, to).unwrap(),
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn no_draft_is_written_where_a_link_leads() {
    let desk = Desk::with(REGTEST);
    desk.write("precious", PRECIOUS);
    let run = |out: &str| format!("{SYNC} {out}");
    let convert = || "hints convert msb.hints --to btcd --out a".to_owned();
    for (hard, why) in [(false, "it is a link"), (true, "2 names")] {
        for line in [
            run("--out snapshot:a"),
            run("--out hints:a"),
            run("--out utreexo:a"),
            run("--report a"),
            convert(),
        ] {
            plant(&desk, "a.incomplete", hard);
            desk.apus(&line).fails(1, &["a.incomplete: ", why, "remove it"]);
            assert_eq!(desk.read("precious"), PRECIOUS, "{line}");
            desk.remove("a.incomplete");
            assert!(!desk.has("a"), "{line}");
        }
    }
    plant(&desk, "folder.incomplete", false);
    desk.apus(&run("--out chainstate:folder")).fails(1, &["folder.incomplete exists already"]);
}

#[test]
fn a_draft_of_a_folder_is_gone_on_with_where_no_other_can_write() {
    let desk = Desk::with(REGTEST);
    let line = format!("{SYNC} --out chainstate:folder");
    for mode in [0o777, 0o1777] {
        fs::create_dir(desk.path("folder.incomplete")).unwrap();
        desk.write("folder.incomplete/apus.incomplete", b"");
        set_mode(&desk.path("folder.incomplete"), mode);
        let said = ["folder.incomplete: other users can write to it", "remove it (rm -r)"];
        desk.apus(&line).fails(1, &said);
        desk.remove("folder.incomplete");
    }
    desk.apus(&line).succeeds();
}

/// With a plan of another's in it, they would have computed what this run writes.
#[test]
fn a_folder_for_progress_is_the_users_alone() {
    let desk = Desk::with(REGTEST);
    let line = format!("{SYNC} --workdir w.work --out snapshot:utxo.dat");
    let own = desk.path("w.work");
    fs::create_dir(&own).unwrap();
    for mode in [0o777, 0o1777, 0o775] {
        set_mode(&own, mode);
        let said = ["w.work is no folder for progress", "other users can write", "chmod go-w"];
        desk.apus(&line).fails(1, &said);
        assert_eq!(desk.names("w.work"), [""; 0]);
    }
    set_mode(&own, 0o755);
    desk.write("precious", PRECIOUS);
    plant(&desk, "w.work/plan.tmp", true);
    desk.apus(&line).fails(1, &["w.work/plan.tmp", "2 names", "rm -r w.work"]);
    desk.remove("w.work/plan.tmp");
    if own.metadata().unwrap().uid() == 0 {
        lchown(&own, Some(12_345), None).unwrap();
        let said = ["it belongs to user 12345", "chown -R", "rm -r w.work", "--workdir"];
        desk.apus(&line).fails(1, &said);
        desk.remove("w.work");
        fs::create_dir(desk.path("real")).unwrap();
        symlink("real", &own).unwrap();
        lchown(&own, Some(12_345), None).unwrap();
        desk.apus(&line).fails(1, &["it is a link that user 12345 made", "rm w.work"]);
        assert_eq!(desk.names("real"), [""; 0]);
        fs::remove_file(&own).unwrap();
    } else {
        desk.remove("w.work");
        fs::create_dir(desk.path("real")).unwrap();
    }
    // A link of the user's own leads to where progress is to be.
    symlink("real", &own).unwrap();
    desk.start(&line).wait().succeeds();
    assert!(desk.read("utxo.dat") == desk.read("node.dat"));
    assert_eq!(desk.read("precious"), PRECIOUS);
}

/// Links and pipes of the user's own are where a log may go.
#[test]
fn a_log_goes_where_the_user_leads() {
    let desk = Desk::with(REGTEST);
    symlink("real.log", desk.path("a.log")).unwrap();
    desk.start(&format!("{SYNC} --log a.log")).wait().succeeds();
    assert!(String::from_utf8(desk.read("real.log")).unwrap().contains("done"));
    let ended = desk.start(&format!("{SYNC} --log /dev/stderr")).wait().succeeds();
    assert!(ended.stderr.contains("done: at block 315"), "{ended}");
}

/// The folder of a node, of the fixtures.
fn with_node() -> Desk {
    let desk = Desk::empty();
    desk.copy(&fixtures().join("regtest-315/regtest"), "node/regtest");
    desk
}

/// Runs a line where something was mounted before, which nobody else sees.
fn where_mounted(desk: &Desk, mounts: &str, line: &str) -> crate::desk::Ended {
    let script = format!("unshare -m sh -e -c '{mounts}; exec \"$0\" \"$@\"' \"$0\" \"$@\"");
    desk.start_in_shell(&script, line).wait()
}

#[test]
fn namespaces_with_a_chainstate_that_is_mounted_by_itself() {
    let desk = with_node();
    let mount = "mv node/regtest/chainstate coins; mkdir node/regtest/chainstate; \
                 mount --bind coins node/regtest/chainstate";
    let again = "mount --bind coins node/regtest/chainstate";
    let said = ["chainstate is where a disk is mounted", "ln -s", "`apus reindex` follows it"];
    where_mounted(&desk, mount, "reindex --datadir node --replace").fails(1, &said);
    where_mounted(&desk, again, "plan --datadir node").fails(1, &said);
    let names = [".lock", "blocks", "chainstate"];
    assert_eq!(desk.names("node/regtest"), names, "nothing but Core's lock is left");
    // What is said to do does help.
    fs::remove_dir(desk.path("node/regtest/chainstate")).unwrap();
    fs::create_dir(desk.path("disk")).unwrap();
    fs::rename(desk.path("coins"), desk.path("disk/coins")).unwrap();
    symlink("../../disk/coins", desk.path("node/regtest/chainstate")).unwrap();
    desk.start("reindex --datadir node --replace").wait().succeeds();
    assert_eq!(desk.names("disk"), ["coins", "coins.old"]);
}

#[test]
fn namespaces_with_a_node_in_a_lower_layer() {
    let desk = with_node();
    let mount = "mkdir -p mem over; mount -t tmpfs none mem; mkdir mem/up mem/work; mount -t overlay overlay \
                 -o lowerdir=node,upperdir=mem/up,workdir=mem/work over";
    let said = ["chainstate lies in a lower layer of an overlay", "cp -a ", "rm -r "];
    where_mounted(&desk, mount, "reindex --datadir over --replace").fails(1, &said);
    where_mounted(&desk, mount, "plan --datadir over").fails(1, &said);
    let copied = format!(
        "{mount}; cd over/regtest; cp -a chainstate chainstate.old; rm -r chainstate; cd ../.."
    );
    where_mounted(&desk, &copied, "reindex --datadir over --replace").succeeds();
    assert_eq!(desk.names("node/regtest"), ["blocks", "chainstate"]);
}
