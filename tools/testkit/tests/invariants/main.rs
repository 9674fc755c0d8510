//! The rules of the house that a machine can check, checked on the tree as it lies.
//!
//! Each rule is a function of a path and a text, or of what cargo says, that returns complaints;
//! one test holds it against made-up offenders, another against the tree. Code inside test modules
//! is free of the rules about purity and printing. Only what a search for words can see is seen:
//! this finds slips, not malice.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod offenders;
mod rules;

use rules::*;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every file of ours that people read, by its path from the root. Fixtures are data.
fn tree() -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if !is_read(&name) {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else if let Ok(text) = fs::read_to_string(entry.path()) {
                let path = entry.path().strip_prefix(root()).unwrap().display().to_string();
                files.insert(path, text);
            }
        }
    }
    let readme = "fixtures/README.md";
    files.insert(readme.to_owned(), read(readme));
    files
}

/// The Rust files under these folders; of test code only where `tests` says so.
fn sources<'a>(
    tree: &'a BTreeMap<String, String>,
    crates: &'a [&'a str],
    tests: bool,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let modules: Vec<String> =
        tree.iter().flat_map(|(path, text)| test_module_paths(path, text)).collect();
    let is_test = move |path: &str| {
        let outside = ["/tests/", "/examples/", "/benches/"];
        let module = modules.iter().any(|module| {
            path.strip_prefix(module.as_str()).is_some_and(|r| r == ".rs" || r.starts_with('/'))
        });
        module || outside.iter().any(|folder| path.contains(folder) && !path.contains("/src/"))
    };
    tree.iter()
        .filter(|(path, _)| path.ends_with(".rs"))
        .filter(|(path, _)| crates.iter().any(|name| path.starts_with(name)))
        .filter(move |(path, _)| tests || !is_test(path))
        .map(|(path, text)| (path.as_str(), text.as_str()))
}

fn hold(complaints: Complaints) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const ALL: &[&str] = &["crates/", "extras/", "tools/", "fuzz/"];

#[test]
fn chain_and_hash_are_pure() {
    let tree = tree();
    let pure = &["crates/chain/src/", "crates/hash/src/"];
    hold(sources(&tree, pure, false).flat_map(|(p, t)| check_pure(p, t)).collect());
    assert!(sources(&tree, pure, false).count() > 30, "the rule looks at nothing");
}

#[test]
fn only_the_program_prints() {
    let tree = tree();
    let libraries =
        sources(&tree, ROOMS, false).filter(|(path, _)| !path.starts_with("crates/apus/src/"));
    hold(libraries.flat_map(|(p, t)| check_prints(p, t)).collect());
}

/// In a folder that others can write to, a name may be a link that one of them left.
#[test]
fn only_storage_makes_files() {
    let tree = tree();
    hold(sources(&tree, ROOMS, false).flat_map(|(p, t)| check_creates(p, t)).collect());
}

#[test]
fn only_hash_is_unsafe() {
    let tree = tree();
    let others = sources(&tree, ALL, true).filter(|(path, _)| {
        let allowed = UNSAFE_ALLOWED.iter().any(|(of, _)| of == path);
        !path.starts_with("crates/hash/src/") && !allowed
    });
    hold(others.flat_map(|(p, t)| check_unsafe(p, t)).collect());
    let manifests = tree
        .iter()
        .filter(|(path, _)| ROOMS.iter().any(|room| path.starts_with(room)))
        .filter(|(path, _)| path.ends_with("/Cargo.toml"));
    for (path, text) in manifests {
        assert!(text.contains("[lints]\nworkspace = true"), "{path} has lints of its own");
    }
    assert!(tree["Cargo.toml"].contains("unsafe_code = \"deny\""));
}

/// What reads a database back would find no mistake of code that it shares with the writer.
#[test]
fn what_reads_back_shares_nothing_with_what_writes() {
    let tree = tree();
    let readers = || sources(&tree, &["crates/datadir/src/independent"], true);
    hold(readers().flat_map(|(p, t)| check_independent(p, t)).collect());
    assert!(readers().count() > 3, "the rule looks at nothing");
}

/// Optimised it breaks on ARM (`docs/decisions/0002-dependencies.md`), where nothing here is run but `scripts/arm64`.
#[test]
fn tests_alone_use_the_library_that_cannot_be_optimised() {
    let tree = tree();
    let level = "[profile.dev.package.rusty-leveldb]\nopt-level = 0\n";
    assert!(tree["Cargo.toml"].contains(level), "Cargo.toml lacks {level}");
    let uses = |text: &str| text.contains("rusty-leveldb.workspace");
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with("/Cargo.toml")) {
        let products = text.split("[dev-dependencies]").next().unwrap();
        assert!(!uses(products), "{path}: a product uses rusty-leveldb");
    }
    assert!(tree.values().any(|text| uses(text)), "the rule looks at nothing");
}

#[test]
fn only_engine_script_knows_the_kernel_library() {
    let tree = tree();
    let others = sources(&tree, ALL, true)
        .filter(|(path, _)| !path.starts_with("crates/engine/src/script"))
        .filter(|(path, _)| !KERNEL_ALLOWED.iter().any(|(allowed, _)| path == allowed))
        .filter(|(path, _)| !path.starts_with("tools/testkit/tests/invariants/"));
    hold(others.flat_map(|(p, t)| check_kernel(p, t)).collect());
}

#[test]
fn files_are_short_and_say_what_they_are() {
    let tree = tree();
    hold(sources(&tree, ALL, true).flat_map(|(p, t)| check_length(p, t)).collect());
    hold(sources(&tree, ALL, false).flat_map(|(p, t)| check_opening(p, t)).collect());
}

#[test]
fn no_word_points_outside_or_to_work_undone() {
    hold(tree().iter().flat_map(|(path, text)| check_words(path, text)).collect());
}

#[test]
fn every_page_that_is_named_exists() {
    for (path, text) in tree() {
        let missing = |page: &String| !root().join(page).is_file();
        let dead: Vec<String> = docs_named(&text).into_iter().filter(missing).collect();
        assert!(dead.is_empty(), "{path} names {dead:?}");
        let folder = root().join(Path::new(&path).parent().unwrap());
        for link in links(&text).into_iter().filter(|_| path.ends_with(".md")) {
            assert!(folder.join(link).exists(), "{path} links to {link}");
        }
    }
}

#[test]
fn every_item_that_is_named_is_in_its_file() {
    let tree = tree();
    let mut count = 0;
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".md")) {
        let folder = root().join(Path::new(path).parent().unwrap());
        for (item, file) in items(text) {
            let code = fs::read_to_string(folder.join(file));
            let code = code.unwrap_or_else(|error| panic!("{path} links to {file}: {error}"));
            assert!(defines(&code, item), "{path} names {item}, which is not in {file}");
            count += 1;
        }
    }
    assert!(count > 50, "{count}: the rule looks at nothing");
    let unlinked = unlinked(&tree["ARCHITECTURE.md"]);
    assert!(unlinked.is_empty(), "say in ARCHITECTURE.md by a link where {unlinked:?} are");
}

#[test]
fn every_format_has_a_page_that_shows_its_first_bytes() {
    let tree = tree();
    let mut pages = String::new();
    for (page, source) in FORMATS {
        assert!(tree.contains_key(*source), "{source} is gone: is {page} still true?");
        pages.push_str(&read(&format!("docs/formats/{page}")));
    }
    let found: Vec<Vec<u8>> =
        sources(&tree, ROOMS, false).flat_map(|(_, text)| magics(text)).collect();
    assert!(found.len() >= 4, "{found:?}");
    for magic in found {
        assert!(shows(&pages, &magic), "no page of docs/formats shows {magic:02x?}");
    }
}

#[test]
fn every_field_of_the_report_is_documented() {
    let (source, page) = (read("crates/apus/src/report.rs"), read("docs/formats/report.md"));
    let machine = read("crates/apus/src/machine.rs");
    let fields = &json_fields(&source) | &json_fields(&machine);
    assert!(fields.len() > 40, "{fields:?}");
    for field in fields {
        assert!(page.contains(&format!("`{field}`")), "docs/formats/report.md lacks `{field}`");
    }
}

#[test]
fn every_folder_of_fixtures_is_explained() {
    let readme = read("fixtures/README.md");
    for entry in fs::read_dir(root().join("fixtures")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let explained = readme.contains(&format!("`{name}/`"));
        assert!(!entry.file_type().unwrap().is_dir() || explained, "{name}");
    }
}

/// A target is a file in one folder. It says how long its inputs are, and the page what it asserts.
#[test]
fn every_fuzz_target_is_described() {
    let (mut targets, tree) = (BTreeSet::new(), tree());
    for (path, text) in tree.iter().filter(|(path, _)| path.starts_with("fuzz/src/bin/")) {
        let is_length = |line: &str| {
            let number = line.strip_prefix("//! Inputs: at most ");
            let number = number.and_then(|number| number.strip_suffix(" bytes."));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        };
        assert_eq!(text.lines().filter(|line| is_length(line)).count(), 1, "{path}");
        targets.insert(Path::new(path).file_stem().unwrap().to_str().unwrap());
    }
    assert!(targets.len() > 10, "{targets:?}");
    assert!(targets.remove("canary"), "no fault is planted");
    let page = "docs/fuzzing.md";
    hold(check_rows(page, &tree[page], &targets));
}

#[test]
fn decisions_are_numbered_without_gaps() {
    let names = fs::read_dir(root().join("docs/decisions")).unwrap();
    let mut numbers: Vec<u32> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap()[..4].parse().unwrap())
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=numbers.len() as u32).collect::<Vec<_>>());
}

#[test]
fn crates_know_only_those_below_them() {
    let arrows = arrows(&metadata());
    assert!(arrows.len() > 40, "the rule looks at nothing");
    hold(arrows.iter().filter_map(check_arrow).collect());
}

/// The core can be read and built without the other two rooms.
#[test]
fn every_crate_stands_in_its_room() {
    for package in metadata()["packages"].as_array().unwrap() {
        let (name, manifest) = (&package["name"], package["manifest_path"].as_str().unwrap());
        let path = Path::new(manifest).strip_prefix(root()).unwrap().display().to_string();
        let room = room(name.as_str().unwrap());
        assert!(path.starts_with(room), "{path}: its arrows are those of {room}");
    }
}

/// What a module needs lies below it, so a reader can begin at the bottom, and a part can be taken out.
#[test]
fn modules_know_only_those_below_them() {
    let (tree, mut arrows) = (tree(), 0);
    for name in LAYERED {
        let mut modules = Modules::new();
        for src in ROOMS.iter().map(|room| format!("{room}{name}/src/")) {
            for (path, text) in sources(&tree, &[&src], false) {
                add_modules(&mut modules, &path[src.len()..], text);
            }
        }
        assert!(!modules.is_empty(), "there is no crate {name}");
        arrows += modules.values().map(BTreeSet::len).sum::<usize>();
        assert_eq!(knot(&modules), [""; 0], "of crate {name}");
    }
    assert!(arrows > 100, "{arrows}: the rule looks at nothing");
}

#[test]
fn every_dependency_has_its_reason() {
    let page = read("docs/decisions/0002-dependencies.md");
    for Arrow { from, to, .. } in arrows(&metadata()) {
        let ours = to.starts_with("apus");
        assert!(ours || page.contains(&format!("`{to}`")), "{from} → {to}: no reason given");
    }
}
