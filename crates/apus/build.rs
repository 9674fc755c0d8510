//! Tells the program which commit it is built from (`src/machine.rs`). Nothing is built here.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=APUS_COMMIT");
    // A packager who builds from an archive says which commit that was; elsewhere the checkout tells.
    let given = std::env::var("APUS_COMMIT").ok().filter(|commit| !commit.is_empty());
    if let Some(commit) = given.or_else(head) {
        println!("cargo:rustc-env=APUS_COMMIT={commit}");
    }
}

/// The checkout's commit; none where this is no checkout, or a folder within another project's.
fn head() -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let git = |words: &[&str]| {
        let output = Command::new("git").current_dir(&root).args(words).output().ok()?;
        let said = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| said.trim().to_owned())
    };
    let folder = git(&["rev-parse", "--show-toplevel"])?;
    if root.canonicalize().ok()? != Path::new(&folder).canonicalize().ok()? {
        return None;
    }
    // What moves when another commit is checked out or made.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo:rerun-if-changed={}", root.join(log).display());
    git(&["rev-parse", "--short=12", "HEAD"])
}
