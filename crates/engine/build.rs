//! With the feature `kernel`: compiles `src/script/verify.cpp`, which calls Core's interpreter, against the headers of
//! the sources that this interpreter is built from. They lie in the crate `libbitcoinkernel-sys`, which tells no one
//! where it is; cargo knows.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "kernel")]
    verify::compile();
}

#[cfg(feature = "kernel")]
mod verify {
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::{env, fs};

    const SOURCE: &str = "src/script/verify.cpp";

    /// Where the version of the crate stands.
    const WORKSPACE: &str = "../../Cargo.toml";

    pub(super) fn compile() {
        println!("cargo:rerun-if-changed={SOURCE}");
        println!("cargo:rerun-if-changed={WORKSPACE}");
        let headers = core().join("bitcoin/src");
        let header = headers.join("script/interpreter.h");
        assert!(header.is_file(), "Core's {} is not there", header.display());
        cc::Build::new()
            .cpp(true)
            .std("c++20")
            // Core's headers have parameters that are not used.
            .extra_warnings(false)
            // The crate with the rest of the interpreter links it.
            .cpp_link_stdlib(None)
            .include(headers)
            .file(SOURCE)
            .compile("apus_verify");
    }

    /// The folder of the crate that has Core's sources.
    ///
    /// The question is about a package that needs this crate alone. Everything for the answer is on the machine then, because
    /// this build needed it, too: cargo can answer offline.
    fn core() -> PathBuf {
        let probe = PathBuf::from(variable("OUT_DIR")).join("probe");
        let manifest = probe.join("Cargo.toml");
        let text = format!(
            "[package]\nname = \"probe\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n\
             [workspace]\n[dependencies]\n{}\n",
            dependency()
        );
        let written = fs::create_dir_all(&probe)
            .and_then(|()| fs::write(probe.join("lib.rs"), ""))
            .and_then(|()| fs::write(&manifest, text));
        written.unwrap_or_else(|error| panic!("{}: {error}", probe.display()));
        let said = ask(&manifest);
        let path =
            said.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
        // As JSON has it: on Windows, each separator twice.
        let path = path.map(|path| PathBuf::from(path.replace("\\\\", "\\")));
        let mut folders = path.filter_map(|path| path.parent().map(Path::to_owned));
        let found = folders.find(|folder| folder.join("bitcoin").is_dir());
        found.expect("cargo does not say where libbitcoinkernel-sys is")
    }

    fn ask(manifest: &Path) -> String {
        let output = Command::new(variable("CARGO"))
            .args(["metadata", "--offline", "--format-version", "1", "--manifest-path"])
            .arg(manifest)
            .output()
            .expect("cargo has to be there to say where libbitcoinkernel-sys is");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo metadata: {error}");
        String::from_utf8(output.stdout).expect("JSON is UTF-8")
    }

    /// The line of the workspace that says which version is linked: this one exactly, so that no other is found.
    fn dependency() -> String {
        let workspace = fs::read_to_string(WORKSPACE).expect("the workspace has a manifest");
        let mut lines = workspace.lines();
        let line = lines.find(|line| line.starts_with("libbitcoinkernel-sys = \"="));
        line.expect("the workspace says which libbitcoinkernel-sys, exactly").to_owned()
    }

    fn variable(name: &str) -> String {
        env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}
