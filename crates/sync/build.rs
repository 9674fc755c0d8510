//! Tells the linker to let Core's interpreter be overheard: see `src/script/last_error.rs` in the
//! engine. This is for the tests of this crate; a program has the same line. Nothing is built or
//! looked for here.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let kernel = std::env::var_os("CARGO_FEATURE_KERNEL").is_some();
    let os = std::env::var("CARGO_CFG_TARGET_OS");
    if kernel && os.as_deref() == Ok("linux") {
        println!(
            "cargo:rustc-link-arg=-Wl,--wrap=_Z12VerifyScriptRK7CScriptS1_PK14CScriptWitness\
             19script_verify_flagsRK20BaseSignatureCheckerP13ScriptError_t"
        );
    }
}
