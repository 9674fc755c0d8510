//! Folders that others can write to, and places that are not plain disks: Apus never writes a draft through a link,
//! never resumes in a folder that others can change, and tests at the start the operations that only the end needs.

use crate::sandbox::{REGTEST, Sandbox, fixtures};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

const SYNC: &str = "sync --chain regtest --blocksdir blocks --hints msb.hints --par 1";

const PRECIOUS: &[u8] = b"precious";

/// Puts another user's link at the name of a draft.
fn plant(sandbox: &Sandbox, name: &str, hard: bool) {
    let (from, to) = (sandbox.path("precious"), sandbox.path(name));
    match hard {
        true => fs::hard_link(from, to).unwrap(),
        false => symlink(from, to).unwrap(),
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn no_draft_is_written_through_a_link() {
    let sandbox = Sandbox::with(REGTEST);
    sandbox.write("precious", PRECIOUS);
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
            plant(&sandbox, "a.incomplete", hard);
            sandbox.apus(&line).fails(1, &["a.incomplete: ", why, "remove that file"]);
            assert_eq!(sandbox.read("precious"), PRECIOUS, "{line}");
            sandbox.remove("a.incomplete");
            assert!(!sandbox.has("a"), "{line}");
        }
    }
    plant(&sandbox, "folder.incomplete", false);
    sandbox.apus(&run("--out chainstate:folder")).fails(1, &["folder.incomplete exists already"]);
}

#[test]
fn a_draft_of_a_folder_is_resumed_only_if_no_other_user_can_write_to_it() {
    let sandbox = Sandbox::with(REGTEST);
    let line = format!("{SYNC} --out chainstate:folder");
    for mode in [0o777, 0o1777] {
        fs::create_dir(sandbox.path("folder.incomplete")).unwrap();
        sandbox.write("folder.incomplete/apus.incomplete", b"");
        set_mode(&sandbox.path("folder.incomplete"), mode);
        let said = ["folder.incomplete: other users can write to it", "remove that folder (rm -r)"];
        sandbox.apus(&line).fails(1, &said);
        sandbox.remove("folder.incomplete");
    }
    sandbox.apus(&line).succeeds();
}

/// If other users could put their own plan in it, they would control what this run writes.
#[test]
fn a_work_folder_belongs_only_to_its_user() {
    let sandbox = Sandbox::with(REGTEST);
    let line = format!("{SYNC} --workdir w.work --out snapshot:utxo.dat");
    let own = sandbox.path("w.work");
    fs::create_dir(&own).unwrap();
    for mode in [0o777, 0o1777, 0o775] {
        set_mode(&own, mode);
        let said = ["w.work is not safe as a work folder", "other users can write", "chmod go-w"];
        sandbox.apus(&line).fails(1, &said);
        assert_eq!(sandbox.names("w.work"), [""; 0]);
    }
    set_mode(&own, 0o755);
    sandbox.write("precious", PRECIOUS);
    plant(&sandbox, "w.work/plan.tmp", true);
    sandbox.apus(&line).fails(1, &["w.work/plan.tmp", "2 names", "rm -r w.work"]);
    sandbox.remove("w.work/plan.tmp");
    if own.metadata().unwrap().uid() == 0 {
        lchown(&own, Some(12_345), None).unwrap();
        let said = ["it belongs to user 12345", "chown -R", "rm -r w.work", "--workdir"];
        sandbox.apus(&line).fails(1, &said);
        sandbox.remove("w.work");
        fs::create_dir(sandbox.path("real")).unwrap();
        symlink("real", &own).unwrap();
        lchown(&own, Some(12_345), None).unwrap();
        sandbox.apus(&line).fails(1, &["it is a link that user 12345 made", "rm w.work"]);
        assert_eq!(sandbox.names("real"), [""; 0]);
        fs::remove_file(&own).unwrap();
    } else {
        sandbox.remove("w.work");
        fs::create_dir(sandbox.path("real")).unwrap();
    }
    // The user's own link leads to the work folder.
    symlink("real", &own).unwrap();
    sandbox.start(&line).wait().succeeds();
    assert!(sandbox.read("utxo.dat") == sandbox.read("node.dat"));
    assert_eq!(sandbox.read("precious"), PRECIOUS);
}

/// The user may send a log through their own links and pipes.
#[test]
fn a_log_follows_the_users_links_and_pipes() {
    let sandbox = Sandbox::with(REGTEST);
    symlink("real.log", sandbox.path("a.log")).unwrap();
    sandbox.start(&format!("{SYNC} --log a.log")).wait().succeeds();
    assert!(String::from_utf8(sandbox.read("real.log")).unwrap().contains("done"));
    let ended = sandbox.start(&format!("{SYNC} --log /dev/stderr")).wait().succeeds();
    assert!(ended.stderr.contains("done: at block 315"), "{ended}");
}

/// A sandbox with the node's folder from the fixtures.
fn with_node() -> Sandbox {
    let sandbox = Sandbox::empty();
    sandbox.copy(&fixtures().join("regtest-315/regtest"), "node/regtest");
    sandbox
}

/// Runs a command line in a private mount namespace, after these mounts.
fn where_mounted(sandbox: &Sandbox, mounts: &str, line: &str) -> crate::sandbox::Ended {
    let script = format!("unshare -m sh -e -c '{mounts}; exec \"$0\" \"$@\"' \"$0\" \"$@\"");
    sandbox.start_in_shell(&script, line).wait()
}

#[test]
fn namespaces_with_a_chainstate_mount() {
    let sandbox = with_node();
    let mount = "mv node/regtest/chainstate coins; mkdir node/regtest/chainstate; \
                 mount --bind coins node/regtest/chainstate";
    let again = "mount --bind coins node/regtest/chainstate";
    let said = ["chainstate is a mount point", "ln -s", "`apus reindex` follows it"];
    where_mounted(&sandbox, mount, "reindex --datadir node --replace").fails(1, &said);
    where_mounted(&sandbox, again, "plan --datadir node").fails(1, &said);
    let names = [".lock", "blocks", "chainstate"];
    assert_eq!(sandbox.names("node/regtest"), names, "nothing but Core's lock is left");
    // The remedy in the message works.
    fs::remove_dir(sandbox.path("node/regtest/chainstate")).unwrap();
    fs::create_dir(sandbox.path("disk")).unwrap();
    fs::rename(sandbox.path("coins"), sandbox.path("disk/coins")).unwrap();
    symlink("../../disk/coins", sandbox.path("node/regtest/chainstate")).unwrap();
    sandbox.start("reindex --datadir node --replace").wait().succeeds();
    assert_eq!(sandbox.names("disk"), ["coins", "coins.old"]);
}

#[test]
fn namespaces_with_a_node_in_a_lower_layer() {
    let sandbox = with_node();
    let mount = "mkdir -p mem over; mount -t tmpfs none mem; mkdir mem/up mem/work; mount -t overlay overlay \
                 -o lowerdir=node,upperdir=mem/up,workdir=mem/work over";
    let said = ["chainstate is in a lower layer of an overlay", "cp -a ", "rm -r "];
    where_mounted(&sandbox, mount, "reindex --datadir over --replace").fails(1, &said);
    where_mounted(&sandbox, mount, "plan --datadir over").fails(1, &said);
    let copied = format!(
        "{mount}; cd over/regtest; cp -a chainstate chainstate.old; rm -r chainstate; cd ../.."
    );
    where_mounted(&sandbox, &copied, "reindex --datadir over --replace").succeeds();
    assert_eq!(sandbox.names("node/regtest"), ["blocks", "chainstate"]);
}
