//! Passes the commit that the program is built from to `src/machine.rs`. Builds nothing else.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=APUS_COMMIT");
    // A packager who builds from an archive sets the commit; otherwise the checkout gives it.
    let given = std::env::var("APUS_COMMIT").ok().filter(|commit| !commit.is_empty());
    if let Some(commit) = given.or_else(head) {
        println!("cargo:rustc-env=APUS_COMMIT={commit}");
    }
}

/// The checkout's commit; `None` if this is not a checkout, or a folder within another project's.
fn head() -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let git = |words: &[&str]| {
        let output = Command::new("git").current_dir(&root).args(words).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let folder = git(&["rev-parse", "--show-toplevel"])?;
    if root.canonicalize().ok()? != Path::new(&folder).canonicalize().ok()? {
        return None;
    }
    // This file changes when another commit is checked out or made.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo:rerun-if-changed={}", root.join(log).display());
    git(&["rev-parse", "--short=12", "HEAD"])
}
