//! Made-up offenders: each rule must find what it is for, and nothing else.

use crate::rules::*;
use crate::sources;
use std::collections::BTreeMap;

#[test]
fn purity() {
    for offence in [
        "use std::fs;",
        "use std::{collections::HashMap, time::Instant};",
        "use std::{sync::{Arc, Mutex}, thread};",
        "    let now = std::time::Instant::now();",
    ] {
        assert_eq!(check_pure("a.rs", offence).len(), 1, "{offence}");
    }
    for fine in [
        "// not std::fs",
        "use std::collections::{HashMap, hash_map::Entry};",
        "use std::{sync::{time, fs}, borrow::Cow};",
        "#[cfg(test)]\nmod tests {\n    use std::fs;\n}",
    ] {
        assert_eq!(check_pure("a.rs", fine), Complaints::new(), "{fine}");
    }
    let after = "#[cfg(test)]\nmod tests {\n    fn f() {\n    }\n}\nuse std::fs;";
    assert_eq!(check_pure("a.rs", after).len(), 1);
    let one_item = "#[cfg(test)]\nuse std::fs;\nuse std::fs;";
    assert_eq!(check_pure("a.rs", one_item).len(), 1);
}

#[test]
fn printing() {
    assert_eq!(check_prints("a.rs", "    println!(\"{x}\");").len(), 1);
    assert_eq!(check_prints("a.rs", "let x = dbg!(y);").len(), 1);
    assert_eq!(check_prints("crates/a/build.rs", "println!(\"cargo:x\");"), Complaints::new());
    assert_eq!(check_prints("a.rs", "/// println!\nsprintln!()"), Complaints::new());
}

#[test]
fn making_files() {
    let made = "let file = fs::File::create(path)?;";
    assert_eq!(check_creates("crates/sync/src/a.rs", made).len(), 1);
    assert_eq!(check_creates("a.rs", "let open = OpenOptions::new().append(true);").len(), 1);
    assert_eq!(check_creates("a.rs", "fs::write(path, bytes)?;").len(), 1);
    assert_eq!(check_creates("crates/storage/src/made.rs", made), Complaints::new());
    assert_eq!(
        check_creates("a.rs", "// File::create(path)\ncreate_file(path)?"),
        Complaints::new()
    );
}

#[test]
fn unsafety() {
    assert_eq!(check_unsafe("a.rs", "let x = unsafe { f() };").len(), 1);
    assert_eq!(check_unsafe("a.rs", "#![allow(unsafe_code)]").len(), 1);
    assert_eq!(check_unsafe("a.rs", "#![deny(unsafe_code)] // unsafely"), Complaints::new());
}

#[test]
fn the_kernel_library() {
    assert_eq!(check_kernel("a.rs", "use bitcoinkernel::verify;").len(), 1);
    assert_eq!(check_kernel("a.rs", "use libbitcoinkernel_sys as _;").len(), 1);
    assert_eq!(check_kernel("build.rs", "\"libbitcoinkernel-sys = 1\"").len(), 1);
    assert_eq!(check_kernel("a.rs", "// bitcoinkernel"), Complaints::new());
}

#[test]
fn readers_of_other_hands() {
    assert_eq!(check_foreign("a.rs", "use crate::leveldb::masked_crc32c;").len(), 1);
    assert_eq!(check_foreign("a.rs", "    let x = super::super::leveldb::x();").len(), 1);
    assert_eq!(check_foreign("a.rs", "/// [`leveldb`](crate::leveldb)"), Complaints::new());
    assert_eq!(check_foreign("a.rs", "use super::bytes::Bytes;"), Complaints::new());
}

#[test]
fn length_and_opening() {
    assert_eq!(check_length("a.rs", &"\n".repeat(LINES_MAX)).len(), 1);
    assert_eq!(check_length("a.rs", &"\n".repeat(LINES_MAX - 1)), Complaints::new());
    assert_eq!(check_opening("a.rs", "use std::fs;\n//! late").len(), 1);
    assert_eq!(check_opening("a.rs", "//! What it is."), Complaints::new());
}

#[test]
fn words() {
    for folder in MACHINE_PATHS {
        assert_eq!(check_words("a.md", &format!("see {folder}x")).len(), 1, "{folder}");
        assert_eq!(check_words("a.md", &format!("\"{folder}x\"")).len(), 1, "{folder}");
        assert_eq!(check_words("a.sh", &format!("$here{folder}x")), Complaints::new());
    }
    for word in UNFINISHED.iter().chain(FOREIGN) {
        assert_eq!(check_words("a.rs", &format!("// {word} 7")).len(), 1, "{word}");
        let within = format!("MA{}S", word.to_uppercase());
        assert!(FOREIGN.contains(word) || check_words("a.rs", &within).is_empty(), "{word}");
    }
}

#[test]
fn test_modules_are_told_from_products() {
    let text = "#[cfg(test)]\nmod tests;\nmod real;\n#[cfg(test)]\npub(crate) mod testing;";
    let found = test_module_paths("crates/x/src/scan.rs", text);
    assert_eq!(found, ["crates/x/src/scan/tests", "crates/x/src/scan/testing"]);
    assert_eq!(test_module_paths("src/lib.rs", text)[0], "src/tests");
    let tree = BTreeMap::from([
        ("c/src/scan.rs".to_owned(), text.to_owned()),
        ("c/src/scan/tests.rs".to_owned(), String::new()),
        ("c/src/scan/tests/more.rs".to_owned(), String::new()),
        ("c/src/scan/tests_of_life.rs".to_owned(), String::new()),
        ("c/tests/all.rs".to_owned(), String::new()),
    ]);
    let product: Vec<&str> = sources(&tree, &["c/"], false).map(|(path, _)| path).collect();
    assert_eq!(product, ["c/src/scan.rs", "c/src/scan/tests_of_life.rs"]);
    assert_eq!(sources(&tree, &["c/"], true).count(), 5);
}

#[test]
fn documents() {
    // Put together, or this file would name pages that are not there.
    let docs = ["do", "cs/"].concat();
    let named = docs_named(&format!("see `{docs}formats/a.md`, {docs}b-c.md. And {docs}formats."));
    assert!(named.into_iter().eq([format!("{docs}b-c.md"), format!("{docs}formats/a.md")]));
    let page = "[a](x/y.md), [b](z.md#part), [c](#here), [d](https://bitcoin.org/)";
    assert_eq!(links(page), ["x/y.md", "z.md"]);
    let text = "const MAGIC: [u8; 5] = *b\"utxo\\xff\";\nconst OTHER: &[u8; 1] = b\"x\";";
    assert_eq!(magics(text), [b"utxo\xff"]);
    assert!(shows("it begins with 75 74 78 6F ff", b"utxo\xff"));
    assert!(shows("\"APUS\"", b"APUS") && !shows("utxo", b"utxo\xff"));
    let json = "#[derive(Debug, Serialize)]\npub(crate) struct A {\n    pub(crate) x: u8,\n}\n\
                #[derive(Debug)]\npub(crate) struct B {\n    pub(crate) y: u8,\n}";
    assert!(json_fields(json).into_iter().eq(["x"]));
}

#[test]
fn items_and_their_files() {
    let page =
        "[`A::f`](a.rs), `B`, [b](b.rs), [`c`](c.md), `x`, [`T`](../t.rs)\n```\n`D::g`\n```\n";
    assert_eq!(items(page), [("A::f", "a.rs"), ("T", "../t.rs")]);
    assert_eq!(unlinked(page), [""; 0]);
    assert_eq!(unlinked("`a` [`A::f`](a.rs) `B::f`, [`C::f`] and `g()`"), ["B::f", "C::f", "g()"]);
    let text = "struct A;\nimpl A {\n    pub fn f() {\n        fn inner() {}\n    }\n}\n\
                impl<T> Put for B<T>\nwhere\n    T: A,\n{\n    fn put(self) {}\n}\nfn free() {}\n\
                // fn said() {}\npub trait Put {\n    fn put(self);\n}\n\
                #[cfg(test)]\nmod tests {\n    struct C;\n}\n#[cfg(test)]\nfn tested() {\n}\n";
    for there in ["A", "A::f", "B::put", "Put", "Put::put", "free"] {
        assert!(defines(text, there), "{there}");
    }
    for not in ["B", "C", "f", "fre", "A::put", "A::inner", "A::free", "B::f", "said", "tested"] {
        assert!(!defines(text, not), "{not}");
    }
}

#[test]
fn names_in_the_tree() {
    for ours in ["crates", "extras", "target.rs", "README.md", ".ci", "mutants"] {
        assert!(is_read(ours), "{ours}");
    }
    for other in ["target", "corpus", ".git", "mutants.out", "mutants.out.old", "Cargo.lock"] {
        assert!(!is_read(other), "{other}");
    }
}

#[test]
fn rows_and_targets() {
    let page =
        "| target | what |\n|---|---|\n| `a` | of `b` |\n| `c_d` | |\n`e` | f |\n| g `h` | |";
    let check = |targets: &[&str]| check_rows("a.md", page, &targets.iter().copied().collect());
    assert_eq!(check(&["a", "c_d"]), Complaints::new());
    assert_eq!(check(&["a"]), ["a.md: c_d is no target"]);
    assert_eq!(check(&["a", "b", "c_d"]), ["a.md: what does b assert?"]);
    assert_eq!(check(&["c", "e", "h"]).len(), 5);
}

#[test]
fn knots_of_modules() {
    let of = |files: &[(&str, &str)]| {
        let mut modules = Modules::new();
        files.iter().for_each(|(path, text)| add_modules(&mut modules, path, text));
        knot(&modules).join(" ")
    };
    let straight = [
        ("lib.rs", "mod a;"),
        ("a.rs", "use crate::b::B;\n// crate::c\n#[cfg(test)]\nmod tests {\n    use crate::c;\n}"),
        ("a/x.rs", "use super::c;\nuse crate::a::y;"),
        ("b.rs", "use crate::c::C;"),
        ("c.rs", ""),
    ];
    assert_eq!(of(&straight), "");
    let back = |file| of(&[&straight[..], &[file]].concat());
    assert_eq!(back(("c/deep/er.rs", "fn f(a: &crate::a::A) {}")), "a b c");
    assert_eq!(back(("c.rs", "use super::b;")), "b c");
    assert_eq!(back(("d.rs", "use crate::a;")), "");
}

#[test]
fn arrows_between_crates() {
    let arrow = |from: &str, to: &str, dev, optional| {
        check_arrow(&Arrow { from: from.to_owned(), to: to.to_owned(), dev, optional })
    };
    for (from, to, dev) in [
        ("apus-chain", "apus-engine", false),
        ("apus-engine", "apus-datadir", false),
        ("apus-datadir", "apus-engine", true),
        ("apus-hash", "apus-hash", false),
        ("apus-sync", "apus-testkit", false),
        ("apus-testkit", "apus-chain", false),
        ("apus-testkit", "apus-engine", false),
        ("apus-sync", "apus-rig", false),
        ("apus-engine", "apus-rig", true),
        ("apus", "apus-rig", false),
        ("apus-cluster", "apus-bench", false),
        ("apus-sync", "apus-cluster", false),
        ("apus-rig", "apus-hash", false),
        ("apus-rig", "apus-testkit", false),
        ("apus", "apus-bench", false),
        ("apus", "apus-cluster", false),
        ("apus-sync", "apus-coins", false),
        ("apus-new", "apus-chain", false),
        ("apus", "apus-new", false),
        ("apus-chain", "log", false),
        ("apus-engine", "bitcoinkernel", false),
        ("apus-sync", "bitcoinkernel", true),
    ] {
        assert!(arrow(from, to, dev, false).is_some(), "{from} → {to}");
    }
    for (from, to, dev, optional) in [
        ("apus", "apus-chain", false, false),
        ("apus-sync", "apus-datadir", false, false),
        ("apus-hash", "apus-testkit", true, false),
        ("apus-testkit", "apus-storage", false, false),
        ("apus-testkit", "apus-rig", false, false),
        ("apus-bench", "apus-rig", false, false),
        ("apus-bench", "apus-coins", false, true),
        ("apus", "apus-bench", true, false),
        ("apus", "apus-cluster", false, true),
        ("apus-engine", "bitcoinkernel", false, true),
        ("apus-chain", "thiserror", false, false),
    ] {
        assert_eq!(arrow(from, to, dev, optional), None, "{from} → {to}");
    }
}
