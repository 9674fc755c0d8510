//! Rules of the tree that no tool checks: the direction of dependencies between crates and between modules;
//! which crates do no I/O; where `unsafe` is allowed; that links point to existing files. The lints in
//! `Cargo.toml` and `clippy.toml` check the rest. These tests find slips, not malice.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates from the bottom up, without the testkit. Crates on one line do not depend on each other.
const LAYERS: [&[&str]; 11] = [
    &["apus-hash", "apus-storage", "apus-web"],
    &["apus-chain", "apus-curve"],
    &["apus-datadir", "apus-engine", "apus-p2p"],
    &["apus-sync"],
    &["apus-indexes"],
    &["apus-coins", "apus-tables", "apus-utreexo"],
    &["apus-proofs"],
    &["apus-jobs"],
    &["apus-cluster"],
    &["apus-bench"],
    &["apus"],
];
const TESTKIT: &str = "apus-testkit";

/// Parts of `std` for I/O, processes, threads and clocks.
const IMPURE: [&str; 7] = ["fs", "io", "net", "os", "process", "thread", "time"];

/// Where `unsafe` is allowed: kernels, glibc memory settings, calls of Core's interpreter, and here.
const UNSAFE: [&str; 5] = [
    "crates/curve/src/",
    "crates/hash/src/",
    "crates/apus/src/allocator.rs",
    "crates/engine/src/script/verify.rs",
    "tools/testkit/tests/invariants.rs",
];

fn root() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap()
}

fn said(command: &mut Command) -> Vec<u8> {
    let output = command.current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Returns every text file known to git, by its path from the root, without data.
fn tree() -> BTreeMap<String, String> {
    let paths = String::from_utf8(said(Command::new("git").arg("ls-files"))).unwrap();
    let read = |path: &str| Some((path.to_owned(), fs::read_to_string(root().join(path)).ok()?));
    let is_data = |path: &&str| path.starts_with("fixtures/") && !path.ends_with(".md");
    paths.lines().filter(|path| !is_data(path)).filter_map(read).collect()
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_word(c))
}

/// Returns lines of code with their numbers, without modules that only tests compile.
fn product_code(text: &str) -> Vec<(usize, &str)> {
    let (mut kept, mut test_next, mut inside) = (Vec::new(), false, None);
    for (number, line) in (1..).zip(text.lines()) {
        let (code, indent) = (line.trim_start(), line.len() - line.trim_start().len());
        if let Some(depth) = inside {
            inside = (code != "}" || indent != depth).then_some(depth);
        } else if code == "#[cfg(test)]" {
            test_next = true;
        } else if test_next && !code.starts_with("#[") {
            test_next = false;
            inside = line.ends_with('{').then_some(indent);
        } else if !test_next && !code.starts_with("//") {
            kept.push((number, line));
        }
    }
    kept
}

/// Returns the paths of modules that only tests compile: `#[cfg(test)] mod name;` means `name.rs`, and the
/// folder `name`.
fn test_modules(path: &str, text: &str) -> Vec<String> {
    let path = Path::new(path);
    let folder = path.parent().unwrap();
    let home = match path.file_stem().unwrap().to_str().unwrap() {
        "lib" | "main" | "mod" => folder.to_owned(),
        stem => folder.join(stem),
    };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let tests = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]");
    let names = tests.filter_map(|pair| pair[1].split_once("mod ")?.1.strip_suffix(';'));
    names.map(|name| home.join(name).display().to_string()).collect()
}

/// Returns the sources under a folder that are compiled without tests, by their relative paths.
fn products<'a>(tree: &'a BTreeMap<String, String>, src: &str) -> Vec<(&'a str, &'a str)> {
    let sources = || tree.iter().filter(|(path, _)| path.starts_with(src) && path.ends_with(".rs"));
    let tests: Vec<_> = sources().flat_map(|(path, text)| test_modules(path, text)).collect();
    let is_test = |path: &str| {
        let mut rest = tests.iter().filter_map(|module| path.strip_prefix(module.as_str()));
        rest.any(|rest| rest == ".rs" || rest.starts_with('/'))
    };
    let products = sources().filter(|(path, _)| !is_test(path));
    let products: Vec<_> = products.map(|(path, text)| (&path[src.len()..], &**text)).collect();
    assert!(!products.is_empty(), "there is nothing in {src}");
    products
}

fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim_start().starts_with("//"))
}

#[test]
fn chain_and_hash_are_pure() {
    let tree = tree();
    for src in ["crates/chain/src/", "crates/hash/src/"] {
        for (path, text) in products(&tree, src) {
            for (number, line) in product_code(text) {
                let reaches = words(line).any(|word| IMPURE.contains(&word));
                let reaches = reaches && line.contains("std::");
                assert!(!reaches, "{src}{path}:{number}: I/O in a crate without any");
            }
        }
    }
}

/// `clippy.toml` names the functions. A root without the line would let a product create files with any of
/// them.
#[test]
fn products_make_files_only_through_storage() {
    const LINE: &str = "#![cfg_attr(not(test), deny(clippy::disallowed_methods))]";
    let tree = tree();
    let is_root = |path: &str| path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs");
    let is_product = |path: &str| path.starts_with("crates/") || path.starts_with("extras/");
    let roots = tree.iter().filter(|(path, _)| is_root(path) && is_product(path));
    let (storage, others): (Vec<_>, Vec<_>) =
        roots.partition(|(path, _)| path.starts_with("crates/storage/"));
    assert!(storage.len() == 1 && others.len() > 10, "the sources of the products were not found");
    for (path, text) in others {
        assert!(text.lines().any(|line| line == LINE), "{path} lacks {LINE}");
    }
    let mut sources = tree.iter().filter(|(path, _)| is_product(path) && path.ends_with(".rs"));
    let allowed = |text: &str| code(text).any(|line| line.contains("allow(clippy::disallowed_"));
    let other = sources.find(|(path, text)| *path != "crates/storage/src/lib.rs" && allowed(text));
    assert!(other.is_none(), "{other:?} allows functions that only storage may call");
}

#[test]
fn unsafe_is_only_in_allowed_files() {
    let has = |line: &str| words(line).any(|word| ["unsafe", "unsafe_code"].contains(&word));
    for (path, text) in tree().iter().filter(|(path, _)| path.ends_with(".rs")) {
        let allowed = UNSAFE.iter().any(|place| path.starts_with(place));
        assert!(allowed || !code(text).any(has), "{path} has unsafe code");
    }
}

/// A reader that shares code with the writer would miss that code's mistakes.
#[test]
fn readers_share_no_code_with_writers() {
    let tree = tree();
    let readers =
        || tree.iter().filter(|(path, _)| path.starts_with("crates/datadir/src/independent"));
    assert!(readers().count() > 3, "the rule matches no file");
    for (path, text) in readers() {
        let shares = |line: &&str| line.contains("crate::") || line.contains("super::super::");
        assert_eq!(code(text).find(shares), None, "{path} uses code of the first reader");
    }
}

/// `apus → sync → {engine, datadir} → chain → hash`; the program uses extras only by a feature, and tools only
/// in tests.
#[test]
fn crates_depend_only_on_lower_ones() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    let metadata: Value = serde_json::from_slice(&said(&mut cargo)).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let room = |name: &str| {
        let package = packages.iter().find(|package| package["name"] == name).unwrap();
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        manifest.strip_prefix(root()).unwrap().iter().next().unwrap()
    };
    let layer = |name: &str| LAYERS.iter().position(|layer| layer.contains(&name));
    let reasons = fs::read_to_string(root().join("docs/decisions/0002-dependencies.md")).unwrap();
    for package in packages {
        let from = package["name"].as_str().unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let to = dependency["name"].as_str().unwrap();
            let (dev, optional) = (dependency["kind"] == "dev", dependency["optional"] == true);
            let allowed = match to {
                // To run scripts with Core's interpreter, and to compare a chain with Core's.
                "bitcoinkernel" => ["apus-engine", "apus-sync"].contains(&from) && optional,
                "log" | "tracing" => from == "apus",
                // It cannot be optimised: see `Cargo.toml`.
                "rusty-leveldb" => dev,
                TESTKIT => dev || from == "apus-bench",
                _ if !to.starts_with("apus") => true,
                // The testkit shares no code with what it checks.
                _ if from == TESTKIT => dev || to == "apus-storage",
                // Crates, extras and tools, in this alphabetical order.
                _ if dev || (from == "apus" && optional) => layer(to) < layer(from),
                _ => layer(to) < layer(from) && room(to) <= room(from),
            };
            assert!(allowed, "{from} → {to}: this dependency is not allowed");
            let reason = to.starts_with("apus") || reasons.contains(&format!("`{to}`"));
            assert!(reason, "{from} → {to}: docs/decisions/0002-dependencies.md gives no reason");
        }
        assert!(from == TESTKIT || layer(from).is_some(), "{from} has no layer");
    }
}

/// A module's dependencies are below it, so that a reader can begin at the bottom, and a part can be removed.
#[test]
fn modules_depend_only_on_lower_ones() {
    let tree = tree();
    // In this crate, the outermost modules depend on each other: a request names the traits of engines, indexes and
    // machines, and their methods take the request.
    const KNOTS: [&str; 1] = ["crates/sync"];
    let crates = tree.keys().filter_map(|path| path.strip_suffix("/Cargo.toml"));
    for krate in crates.filter(|krate| !KNOTS.contains(krate)) {
        // For each outermost module, the others that it names.
        let mut modules: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (path, text) in products(&tree, &format!("{krate}/src/")) {
            let module = path.split('/').next().unwrap().trim_end_matches(".rs");
            // In an outermost module's own file the others are `super`.
            let ways: &[&str] =
                if path.contains('/') { &["crate::"] } else { &["crate::", "super::"] };
            let named = modules.entry(module).or_default();
            for (_, line) in product_code(text) {
                let after = ways.iter().flat_map(|way| line.split(way).skip(1));
                let names = after.filter_map(|rest| words(rest).next());
                named.extend(names.filter(|name| *name != module));
            }
        }
        modules.retain(|module, _| !["lib", "main", "bin"].contains(module));
        // Repeatedly removes the modules that name no other module, and the modules that no other module names.
        while !modules.is_empty() {
            let is_bottom =
                |named: &BTreeSet<&str>| !named.iter().any(|of| modules.contains_key(of));
            let is_top = |module: &str| !modules.values().any(|named| named.contains(module));
            let ends = modules.iter().filter(|(module, named)| is_bottom(named) || is_top(module));
            let ends: Vec<&str> = ends.map(|(module, _)| *module).collect();
            assert!(!ends.is_empty(), "{krate}: a dependency cycle among {:?}", modules.keys());
            modules.retain(|module, _| !ends.contains(module));
        }
    }
}

/// Checks links to a file, and the item that a link names: [`Type::method`](file.rs).
#[test]
fn links_point_to_existing_files() {
    for (path, text) in tree() {
        let folder = root().join(Path::new(&path).parent().unwrap());
        let pieces: Vec<&str> = text.split("](").filter(|_| path.ends_with(".md")).collect();
        for pair in pieces.windows(2) {
            let link = pair[1].split([')', '#']).next().unwrap();
            if link.is_empty() || link.contains("://") {
                continue;
            }
            assert!(folder.join(link).exists(), "{path} links to {link}");
            let item = pair[0].strip_suffix('`').and_then(|text| Some(text.rsplit_once("[`")?.1));
            if let Some(item) = item.filter(|_| link.ends_with(".rs")) {
                let code = fs::read_to_string(folder.join(link)).unwrap();
                let lost = words(item).find(|name| !words(&code).any(|word| word == *name));
                assert_eq!(lost, None, "{path} names {item}, which is not in {link}");
            }
        }
        // Sources and scripts name pages by their paths from the root.
        for rest in text.split("docs/").skip(1) {
            let page = rest.split(|c| !is_word(c) && !"/.-".contains(c)).next().unwrap();
            let page = page.trim_end_matches('.');
            let exists = !page.ends_with(".md") || root().join("docs").join(page).is_file();
            assert!(exists, "{path} names docs/{page}");
        }
    }
}
