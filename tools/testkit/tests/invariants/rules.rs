//! The rules: functions of a path and a text, or of an arrow between packages, that complain.
//!
//! They read no file and run nothing, so that each can be shown an offender. Code is told from
//! comments and from test modules by its lines, as rustfmt leaves them.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What is wrong, with where.
pub(crate) type Complaints = Vec<String>;

/// Greatest number of lines of a source file.
pub(crate) const LINES_MAX: usize = 700;

/// Where `unsafe` may stand outside `crates/hash/src`, and why.
pub(crate) const UNSAFE_ALLOWED: &[(&str, &str)] = &[
    (
        "crates/apus/src/allocator.rs",
        "two calls of glibc's, with numbers: how it keeps free memory",
    ),
    ("crates/engine/src/script/verify.rs", "calls of C++: Core's interpreter"),
    ("tools/testkit/tests/invariants/rules.rs", "it looks for the word"),
    ("tools/testkit/tests/invariants/offenders.rs", "it has the word looked for"),
];

/// Where the kernel library may be named outside `engine::script`, and why.
pub(crate) const KERNEL_ALLOWED: &[(&str, &str)] = &[
    ("crates/sync/tests/differential/core.rs", "Core's chain state, which ours is held against"),
    ("crates/engine/build.rs", "compiles the C++ of `engine::script` against its headers"),
];

/// The crates that link it.
const KERNEL: &[&str] = &["bitcoinkernel", "libbitcoinkernel", "libbitcoinkernel_sys"];

/// Ways to make a file, or to open one to write, each of which follows a link that another user left.
const CREATING: &[&str] = &[
    "File::create",
    "File::create_new",
    "File::options",
    "OpenOptions::new",
    "fs::write",
    "fs::copy",
    "fs::hard_link",
];

/// Where files are made all the same, and why.
pub(crate) const CREATING_ALLOWED: &[(&str, &str)] = &[
    ("crates/storage/src/", "here it is seen whose a file is"),
    ("tools/testkit/", "never shipped"),
    ("crates/engine/build.rs", "in the folder that cargo gives it"),
    ("tools/bench/src/", "measures in folders that it makes for that"),
];

/// The crates from the bottom up. An arrow goes from a higher rank to a lower one, so those of one
/// rank don't know each other.
pub(crate) const RANKS: &[(&str, u32)] = &[
    ("apus-hash", 0),
    ("apus-rig", 0),
    ("apus-storage", 0),
    ("apus-web", 0),
    ("apus-chain", 1),
    ("apus-utreexo", 2),
    ("apus-datadir", 3),
    ("apus-engine", 3),
    ("apus-p2p", 3),
    ("apus-coins", 4),
    ("apus-sync", 4),
    ("apus-cluster", 5),
    ("apus-bench", 6),
    ("apus", 7),
];

/// Where crates stand: what everybody builds, what a feature of the program adds, and what no product has.
pub(crate) const ROOMS: &[&str] = &["crates/", "extras/", "tools/"];
const EXTRAS: &[&str] = &["apus-cluster", "apus-coins", "apus-web"];
const TOOLS: &[&str] = &["apus-bench", RIG, TESTKIT];

/// The room of a crate.
pub(crate) fn room(name: &str) -> &'static str {
    match (EXTRAS.contains(&name), TOOLS.contains(&name)) {
        (true, _) => "extras/",
        (_, true) => "tools/",
        _ => "crates/",
    }
}

/// What tests use and products never do.
pub(crate) const TESTKIT: &str = "apus-testkit";

/// What the benchmarks and the testkit share, and products never use.
pub(crate) const RIG: &str = "apus-rig";
pub(crate) const RIG_USERS: &[&str] = &["apus-bench", TESTKIT];

/// Parts of `std` that reach beyond the bytes handed in.
pub(crate) const IMPURE: &[&str] = &["fs", "io", "net", "os", "process", "thread", "time"];

pub(crate) const PRINTING: &[&str] = &["print!", "println!", "eprint!", "eprintln!", "dbg!"];

pub(crate) const LOGGING: &[&str] = &["env_logger", "log", "tracing", "tracing-subscriber"];

/// Words that stand for work not done, spelled so that this file has none of them.
pub(crate) const UNFINISHED: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Phrases that point outside the product.
pub(crate) const FOREIGN: &[&str] = &[concat!("issue ", "#"), concat!("crates", ".io")];

/// Folders that exist on one machine only.
pub(crate) const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Use", "rs/")];

/// A page of `docs/formats` for each format, and the sources that write or read it.
pub(crate) const FORMATS: &[(&str, &str)] = &[
    ("addresses.md", "crates/p2p/src/addresses/file.rs"),
    ("bench.md", "tools/bench/src/run/record.rs"),
    ("blocks.md", "crates/datadir/src/files.rs"),
    ("blocksdir.md", "crates/datadir/src/index/write.rs"),
    ("blocksdir.md", "crates/datadir/src/store.rs"),
    ("chainstate.md", "crates/datadir/src/chainstate/mod.rs"),
    ("cluster-wire.md", "crates/sync/src/queue/spec.rs"),
    ("cluster-wire.md", "crates/sync/src/queue/message.rs"),
    ("cluster-wire.md", "crates/sync/src/queue/hints.rs"),
    ("cluster-wire.md", "crates/sync/src/queue/result.rs"),
    ("cluster-wire.md", "crates/sync/src/queue/shuffle.rs"),
    ("cluster-wire.md", "extras/cluster/src/beat.rs"),
    ("coins-store.md", "crates/engine/src/utxo/store/disk/folder.rs"),
    ("forest-store.md", "crates/engine/src/utxo/store/disk/forest.rs"),
    ("headers.md", "crates/p2p/src/headers/store.rs"),
    ("hints.md", "crates/engine/src/swiftsync/hints/file.rs"),
    ("proofs.md", "crates/utreexo/src/range_file.rs"),
    ("remote-coins.md", "extras/coins/src/cluster/record.rs"),
    ("metrics.md", "crates/apus/src/metrics.rs"),
    ("report.md", "crates/apus/src/report.rs"),
    ("report.md", "crates/apus/src/report/failed.rs"),
    ("snapshot.md", "crates/datadir/src/snapshot.rs"),
    ("submit.md", "crates/sync/src/chainman/log.rs"),
    ("utreexo-wire.md", "crates/p2p/src/utreexo/codec.rs"),
    ("workdir.md", "crates/datadir/src/store/log.rs"),
    ("workdir.md", "crates/sync/src/workdir/segment.rs"),
    ("workdir.md", "crates/sync/src/workdir/record.rs"),
];

// ---- the tree ----

/// Whether a file or folder of this name is ours and is read by people: neither made by a tool, nor data.
pub(crate) fn is_read(name: &str) -> bool {
    let made = ["Cargo.lock", "target", "corpus", "artifacts", "proptest-regressions"];
    let data = ["fixtures", "shared"];
    let hidden = name.starts_with('.') && name != ".ci";
    !hidden && !made.contains(&name) && !data.contains(&name) && !name.starts_with("mutants.out")
}

// ---- reading source text ----

pub(crate) fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Whether `word` stands in `line` by itself.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let ends_open = !word.ends_with(is_word) || !after.is_some_and(is_word);
        !before.is_some_and(is_word) && ends_open
    })
}

/// Lines with their numbers, without those that are comments.
pub(crate) fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// The same lines without the modules that only tests compile.
pub(crate) fn product_code(text: &str) -> Vec<(usize, &str)> {
    let mut kept = Vec::new();
    let (mut test_next, mut inside) = (false, None);
    for (number, line) in code(text) {
        let indent = line.len() - line.trim_start().len();
        if let Some(depth) = inside {
            if line.trim_start() == "}" && indent == depth {
                inside = None;
            }
        } else if line.trim() == "#[cfg(test)]" {
            test_next = true;
        } else if test_next && line.trim_start().starts_with("#[") {
            // Further attributes of the same item.
        } else if std::mem::take(&mut test_next) {
            if line.ends_with('{') {
                inside = Some(indent);
            }
        } else {
            kept.push((number, line));
        }
    }
    kept
}

/// Files of modules that only tests compile: `#[cfg(test)] mod name;` in `path` means
/// `name.rs` beside or below it, and all below that.
pub(crate) fn test_module_paths(path: &str, text: &str) -> Vec<String> {
    let path = Path::new(path);
    let folder = path.parent().unwrap_or(Path::new(""));
    let stem = path.file_stem().unwrap_or_default();
    let home = match stem.to_str() {
        Some("lib" | "main" | "mod") => folder.to_owned(),
        _ => folder.join(stem),
    };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let names = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]").filter_map(|pair| {
        let (_, name) = pair[1].split_once("mod ")?;
        name.strip_suffix(';')
    });
    names.map(|name| home.join(name).display().to_string()).collect()
}

/// The parts of `std` that `line` names, one or several in braces.
pub(crate) fn std_parts(line: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for (at, _) in line.match_indices("std::") {
        let rest = &line[at + 5..];
        let group = match rest.strip_prefix('{') {
            Some(group) => group,
            None => rest.split(|c| !is_word(c)).next().unwrap_or_default(),
        };
        let mut depth = 0;
        let mut start = true;
        for (at, c) in group.char_indices() {
            if start && depth == 0 && is_word(c) {
                parts.push(group[at..].split(|c| !is_word(c)).next().unwrap_or_default());
                start = false;
            }
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' => start = true,
                _ => {}
            }
        }
    }
    parts
}

// ---- rules about one file ----

pub(crate) fn check_pure(path: &str, text: &str) -> Complaints {
    let mut complaints = Vec::new();
    for (number, line) in product_code(text) {
        for part in std_parts(line).into_iter().filter(|part| IMPURE.contains(part)) {
            complaints.push(format!("{path}:{number}: std::{part} in a crate without I/O"));
        }
    }
    complaints
}

/// A build script is no exception for the program: it speaks to cargo.
pub(crate) fn check_prints(path: &str, text: &str) -> Complaints {
    let mut complaints = Vec::new();
    if path.ends_with("/build.rs") {
        return complaints;
    }
    for (number, line) in product_code(text) {
        for word in PRINTING.iter().filter(|word| has_word(line, word)) {
            complaints.push(format!("{path}:{number}: {word} outside the program"));
        }
    }
    complaints
}

/// Product code makes files by `apus_storage` alone.
pub(crate) fn check_creates(path: &str, text: &str) -> Complaints {
    if CREATING_ALLOWED.iter().any(|(of, _)| path.starts_with(of)) {
        return Complaints::new();
    }
    let creates = |line: &str| CREATING.iter().any(|word| line.contains(&format!("{word}(")));
    product_code(text)
        .into_iter()
        .filter(|(_, line)| creates(line))
        .map(|(number, _)| {
            format!("{path}:{number}: a file is made elsewhere than in crates/storage")
        })
        .collect()
}

pub(crate) fn check_unsafe(path: &str, text: &str) -> Complaints {
    let allows = |line: &str| line.contains("allow(") && has_word(line, "unsafe_code");
    code(text)
        .filter(|(_, line)| has_word(line, "unsafe") || allows(line))
        .map(|(number, _)| format!("{path}:{number}: unsafe outside crates/hash"))
        .collect()
}

pub(crate) fn check_kernel(path: &str, text: &str) -> Complaints {
    code(text)
        .filter(|(_, line)| KERNEL.iter().any(|word| has_word(line, word)))
        .map(|(number, _)| format!("{path}:{number}: Core's kernel library outside engine::script"))
        .collect()
}

/// What reads a database back names no other module of its crate.
pub(crate) fn check_foreign(path: &str, text: &str) -> Complaints {
    let names = |line: &str| line.contains("crate::") || line.contains("super::super::");
    code(text)
        .filter(|(_, line)| names(line))
        .map(|(number, _)| format!("{path}:{number}: the second reader uses code of the first"))
        .collect()
}

pub(crate) fn check_length(path: &str, text: &str) -> Complaints {
    let lines = text.lines().count();
    if lines < LINES_MAX { vec![] } else { vec![format!("{path}: {lines} lines")] }
}

pub(crate) fn check_opening(path: &str, text: &str) -> Complaints {
    if text.starts_with("//! ") {
        vec![]
    } else {
        vec![format!("{path}: no //! on its first line")]
    }
}

pub(crate) fn check_words(path: &str, text: &str) -> Complaints {
    let mut complaints = Vec::new();
    let mut complain = |number: usize, what: &str| {
        complaints.push(format!("{path}:{number}: {what}"));
    };
    for (number, line) in (1..).zip(text.lines()) {
        UNFINISHED.iter().filter(|w| has_word(line, w)).for_each(|w| complain(number, w));
        let lower = line.to_lowercase();
        FOREIGN.iter().filter(|w| lower.contains(**w)).for_each(|w| complain(number, w));
        for folder in MACHINE_PATHS {
            // `$home/root/` and `../work/` go on from somewhere; they are no absolute paths.
            let goes_on = |c: char| is_word(c) || "-.}~".contains(c);
            let absolute = |at: usize| !line[..at].chars().next_back().is_some_and(goes_on);
            if line.match_indices(folder).any(|(at, _)| absolute(at)) {
                complain(number, folder);
            }
        }
    }
    complaints
}

/// Pages that a text refers to as `docs/…`.
pub(crate) fn docs_named(text: &str) -> BTreeSet<String> {
    let is_path = |c: char| is_word(c) || "/.-".contains(c);
    let from = |at: usize| text[at..].split(|c| !is_path(c)).next().unwrap_or_default();
    let names = text.match_indices("docs/").map(|(at, _)| from(at).trim_end_matches('.'));
    names.filter(|name| name.ends_with(".md")).map(str::to_owned).collect()
}

/// Files that a page links to, as it writes them; not places in the net.
pub(crate) fn links(page: &str) -> Vec<&str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = targets.map(|target| target.split('#').next().unwrap_or_default());
    files.filter(|file| !file.is_empty() && !file.contains("://")).collect()
}

/// The literals of constants named `…MAGIC`.
pub(crate) fn magics(text: &str) -> Vec<Vec<u8>> {
    let mut magics = Vec::new();
    for (_, line) in product_code(text).into_iter().filter(|(_, line)| line.contains("const ")) {
        let Some((name, value)) = line.split_once('=') else { continue };
        let Some((_, literal)) = value.split_once("b\"") else { continue };
        if name.split(':').next().is_some_and(|name| name.trim_end().ends_with("MAGIC")) {
            let literal = literal.split('"').next().unwrap_or_default();
            magics.push(unescape(literal));
        }
    }
    magics
}

pub(crate) fn unescape(literal: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = literal;
    while let Some(c) = rest.chars().next() {
        match rest.strip_prefix("\\x") {
            Some(hex) => {
                bytes.push(u8::from_str_radix(&hex[..2], 16).unwrap());
                rest = &hex[2..];
            }
            None => {
                bytes.push(u8::try_from(c).unwrap());
                rest = &rest[1..];
            }
        }
    }
    bytes
}

/// Whether a page has these bytes, spelled or in hex, however grouped.
pub(crate) fn shows(page: &str, bytes: &[u8]) -> bool {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let spelled = std::str::from_utf8(bytes).is_ok_and(|text| page.contains(text));
    spelled || page.replace(' ', "").to_lowercase().contains(&hex)
}

/// Items that a page names with their files, as [`Type::method`](file.rs): name and file, as it writes them.
pub(crate) fn items(page: &str) -> Vec<(&str, &str)> {
    let names = page.split("[`").skip(1).filter_map(|rest| rest.split_once("`]("));
    let linked = names.filter_map(|(name, rest)| Some((name, rest.split(')').next()?)));
    linked.filter(|(name, file)| !name.contains('`') && file.ends_with(".rs")).collect()
}

/// Methods and functions that the prose of a page names without a link to their file.
pub(crate) fn unlinked(page: &str) -> Vec<&str> {
    let mut unlinked = Vec::new();
    for prose in page.split("```").step_by(2) {
        let pieces: Vec<&str> = prose.split('`').collect();
        for piece in pieces.windows(3).step_by(2) {
            let is_linked = piece[0].ends_with('[') && piece[2].starts_with("](");
            let is_item = piece[1].contains("::") || piece[1].ends_with("()");
            unlinked.extend((is_item && !is_linked).then_some(piece[1]));
        }
    }
    unlinked
}

/// Every target has a row in the page's table, by its first cell, and every row a target.
pub(crate) fn check_rows(path: &str, page: &str, targets: &BTreeSet<&str>) -> Complaints {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let rows: BTreeSet<&str> = cells.map(|(name, _)| name).collect();
    let lacking = targets.difference(&rows).map(|name| format!("{path}: what does {name} assert?"));
    let gone = rows.difference(targets).map(|name| format!("{path}: {name} is no target"));
    lacking.chain(gone).collect()
}

/// Whether a file has this function or type, or, for `Type::method`, this method in an `impl` or a trait of
/// that name.
pub(crate) fn defines(text: &str, item: &str) -> bool {
    let has = |line: &str, kinds: &[&str], name: &str| {
        kinds.iter().any(|kind| has_word(line, &format!("{kind} {name}")))
    };
    let Some((owner, method)) = item.rsplit_once("::") else {
        let kinds = &["fn", "struct", "enum", "trait"];
        return product_code(text)
            .iter()
            .any(|(_, line)| !line.starts_with(' ') && has(line, kinds, item));
    };
    let mut inside = false;
    product_code(text).iter().any(|(_, line)| {
        if line.starts_with("impl") || (!line.starts_with(' ') && has_word(line, "trait")) {
            inside = has_word(line, owner);
        }
        inside &= !line.starts_with('}');
        let indent = line.len() - line.trim_start().len();
        inside && indent == 4 && has(line, &["fn"], method)
    })
}

/// Names of the fields of structs that are written as JSON.
pub(crate) fn json_fields(text: &str) -> BTreeSet<&str> {
    let mut fields = BTreeSet::new();
    let mut json = false;
    for (_, line) in code(text) {
        match line.trim() {
            line if line.starts_with("#[derive(") => json = has_word(line, "Serialize"),
            "}" => json = false,
            line if json => {
                let field = line.strip_prefix("pub(crate) ").and_then(|f| f.split_once(':'));
                fields.extend(field.map(|(name, _)| name));
            }
            _ => {}
        }
    }
    fields
}

// ---- rules about modules ----

/// Crates whose modules know each other in one direction only.
pub(crate) const LAYERED: &[&str] = &[
    "apus", "bench", "chain", "cluster", "coins", "datadir", "engine", "hash", "p2p", "plot",
    "rig", "storage", "sync", "testkit", "utreexo",
];

/// Which of a crate's outermost modules names which others.
pub(crate) type Modules = BTreeMap<String, BTreeSet<String>>;

/// Adds what the file at `path`, from the crate's `src`, names of other modules.
pub(crate) fn add_modules(modules: &mut Modules, path: &str, text: &str) {
    let (module, depth) = (path.split('/').next().unwrap_or(path), path.matches('/').count());
    let module = module.trim_end_matches(".rs");
    if ["lib", "main"].contains(&module) {
        return;
    }
    // From an outermost module's own file the others are `super`.
    let ways: &[&str] = if depth == 0 { &["crate::", "super::"] } else { &["crate::"] };
    let named = modules.entry(module.to_owned()).or_default();
    for (_, line) in product_code(text) {
        for way in ways {
            for (at, _) in line.match_indices(way) {
                let rest = &line[at + way.len()..];
                let name: String = rest.chars().take_while(|c| is_word(*c)).collect();
                if !name.is_empty() && name != module {
                    named.insert(name);
                }
            }
        }
    }
}

/// Modules that lead back to themselves: what is left once those are taken away that name none of the
/// others, and those that none of the others names.
pub(crate) fn knot(modules: &Modules) -> Vec<String> {
    let mut left = modules.clone();
    loop {
        let is_bottom = |of: &str| !left[of].iter().any(|name| left.contains_key(name));
        let is_top = |of: &str| !left.values().any(|named| named.contains(of));
        let next: Vec<String> =
            left.keys().filter(|of| is_bottom(of) || is_top(of)).cloned().collect();
        if next.is_empty() {
            return left.into_keys().collect();
        }
        left.retain(|name, _| !next.contains(name));
    }
}

// ---- rules about packages ----

/// A dependency as cargo tells it.
pub(crate) struct Arrow {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) dev: bool,
    pub(crate) optional: bool,
}

pub(crate) fn arrows(metadata: &Value) -> Vec<Arrow> {
    let mut arrows = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        for dependency in package["dependencies"].as_array().unwrap() {
            arrows.push(Arrow {
                from: package["name"].as_str().unwrap().to_owned(),
                to: dependency["name"].as_str().unwrap().to_owned(),
                dev: dependency["kind"].as_str() == Some("dev"),
                optional: dependency["optional"].as_bool().unwrap(),
            });
        }
    }
    arrows
}

/// `apus → sync → {engine, datadir} → chain → hash`; extras only by a feature of the program, tools only in
/// tests, and the rig only below the other tools.
pub(crate) fn check_arrow(arrow: &Arrow) -> Option<String> {
    let Arrow { from, to, dev, optional } = arrow;
    let rank = |name: &str| RANKS.iter().find(|(of, _)| *of == name).map(|(_, rank)| *rank);
    let complaint = |why: &str| Some(format!("{from} → {to}: {why}"));
    if to == "bitcoinkernel" && !(from == "apus-engine" && *optional) {
        return complaint("only the engine links C++, and only on demand");
    }
    if LOGGING.contains(&to.as_str()) && from != "apus" {
        return complaint("libraries emit events and log nothing");
    }
    if !to.starts_with("apus") {
        return None;
    }
    if to == TESTKIT {
        return if *dev { None } else { complaint("the testkit is for tests alone") };
    }
    if to == RIG && !RIG_USERS.contains(&from.as_str()) {
        return complaint("the rig is for the benchmarks and the testkit alone");
    }
    let by_feature = from == "apus" && *optional;
    match (room(from), room(to)) {
        _ if *dev => {}
        ("crates/" | "extras/", "tools/") => {
            return complaint("a tool is for tests and tools alone");
        }
        ("crates/", "extras/") if !by_feature => {
            return complaint("only the program knows an extra, and only by a feature");
        }
        _ => {}
    }
    let Some(to_rank) = rank(to) else { return complaint("this crate has no rank") };
    if from == TESTKIT {
        let door = ["apus-storage", RIG].contains(&to.as_str()) || *dev;
        return if door {
            None
        } else {
            complaint("the testkit shares no code with what it checks")
        };
    }
    match rank(from) {
        Some(from_rank) if to_rank < from_rank => None,
        Some(_) => complaint("an arrow must point downwards"),
        None => complaint("this crate has no rank"),
    }
}
