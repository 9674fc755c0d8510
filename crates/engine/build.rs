//! With the feature `kernel`: compiles `src/script/verify.cpp`, which calls Core's interpreter,
//! against the headers of the sources from which that interpreter is built. The headers are in the
//! crate `libbitcoinkernel-sys`, which does not export its path; cargo knows it.

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

    /// The manifest with the crate's version.
    const WORKSPACE: &str = "../../Cargo.toml";

    pub(super) fn compile() {
        println!("cargo:rerun-if-changed={SOURCE}");
        println!("cargo:rerun-if-changed={WORKSPACE}");
        let headers = core().join("bitcoin/src");
        let header = headers.join("script/interpreter.h");
        assert!(header.is_file(), "Core's header {} is missing", header.display());
        cc::Build::new()
            .cpp(true)
            .std("c++20")
            // Core's headers have unused parameters.
            .extra_warnings(false)
            // The crate with the rest of the interpreter links it.
            .cpp_link_stdlib(None)
            .include(headers)
            .file(SOURCE)
            .compile("apus_verify");
    }

    /// Returns the folder of the crate that contains Core's sources.
    ///
    /// It runs `cargo metadata` on a package that depends only on this crate. This build needed the
    /// crate too, so everything is already on the machine and cargo can work offline.
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
        let metadata = cargo_metadata(&manifest);
        let path = metadata
            .split("\"manifest_path\":\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next());
        // Undoes the JSON escaping, which doubles each separator on Windows.
        let path = path.map(|path| PathBuf::from(path.replace("\\\\", "\\")));
        let mut folders = path.filter_map(|path| path.parent().map(Path::to_owned));
        let found = folders.find(|folder| folder.join("bitcoin").is_dir());
        found.expect("cargo metadata does not contain libbitcoinkernel-sys")
    }

    fn cargo_metadata(manifest: &Path) -> String {
        let output = Command::new(variable("CARGO"))
            .args(["metadata", "--offline", "--format-version", "1", "--manifest-path"])
            .arg(manifest)
            .output()
            .expect("cannot run cargo to find libbitcoinkernel-sys");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo metadata: {error}");
        String::from_utf8(output.stdout).expect("JSON is UTF-8")
    }

    /// Returns the manifest line that pins the linked version. The version is exact, so Cargo
    /// resolves no other.
    fn dependency() -> String {
        let workspace = fs::read_to_string(WORKSPACE).expect("the workspace has a manifest");
        let mut lines = workspace.lines();
        let line = lines.find(|line| line.starts_with("libbitcoinkernel-sys = \"="));
        line.expect("the workspace pins an exact version of libbitcoinkernel-sys").to_owned()
    }

    fn variable(name: &str) -> String {
        env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}
