//! Which `bitcoind` to run.

use crate::run::error::RunError;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// In a checkout: makes one available and prints its path.
const SCRIPT: &str = "scripts/bitcoind";

/// The bitcoind to run: the one named, else `$BITCOIND_EXE`, else the one on `PATH`, else the one
/// that a checkout around the current folder fetches for its tests.
pub fn find(named: Option<&Path>) -> Result<PathBuf, RunError> {
    let folder = env::current_dir().unwrap_or_default();
    choose(named, env::var_os("BITCOIND_EXE"), env::var_os("PATH"), &folder)
}

/// [`find`], with everything that it looks at handed in.
fn choose(
    named: Option<&Path>,
    variable: Option<OsString>,
    path: Option<OsString>,
    folder: &Path,
) -> Result<PathBuf, RunError> {
    let variable = variable.filter(|name| !name.is_empty()).map(PathBuf::from);
    for (how, program) in [("--bitcoind", named), ("BITCOIND_EXE", variable.as_deref())] {
        let Some(program) = program else { continue };
        // A wrong name is a mistake to report, no reason to take another node.
        return if program.is_file() {
            Ok(program.to_owned())
        } else {
            Err(RunError::Usage(format!(
                "{how} names {}, which is no file: name the program bitcoind itself",
                program.display()
            )))
        };
    }
    let mut on_path = path.iter().flat_map(env::split_paths).map(|dir| dir.join("bitcoind"));
    if let Some(program) = on_path.find(|program| program.is_file()) {
        return Ok(program);
    }
    let script = folder.ancestors().map(|folder| folder.join(SCRIPT)).find(|path| path.is_file());
    match script {
        Some(script) => fetched(&script),
        None => Err(RunError::Usage(
            "there is no bitcoind on PATH: install Bitcoin Core, or name its program with \
             --bitcoind or in BITCOIND_EXE"
                .to_owned(),
        )),
    }
}

/// What a checkout's own script says.
fn fetched(script: &Path) -> Result<PathBuf, RunError> {
    let failed = |why: String| {
        RunError::Usage(format!(
            "{} finds no bitcoind: {why}: name one with --bitcoind or in BITCOIND_EXE",
            script.display()
        ))
    };
    let output = Command::new(script)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    let program = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if program.is_file() {
        Ok(program)
    } else {
        Err(failed(format!("it named {}", program.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn named_first_then_variable_then_path_then_checkout_then_a_clear_message() {
        let folder = tempfile::tempdir().unwrap();
        let place = |relative: &str, content: &str| {
            let file = folder.path().join(relative);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, content).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
            file
        };
        let bin = || Some(folder.path().join("bin").into_os_string());
        let below = folder.path().join("a/b");
        let find = |named: Option<&Path>, variable: Option<&Path>| {
            let variable = variable.map(|path| path.as_os_str().to_owned());
            choose(named, variable, bin(), &below)
        };
        let none = find(None, None).unwrap_err().to_string();
        assert!(none.contains("--bitcoind"), "{none}");

        place(SCRIPT, "#!/bin/sh\necho no network >&2; exit 1\n");
        let failed = find(None, None).unwrap_err().to_string();
        assert!(failed.contains("no network"), "{failed}");
        let fetched = place("fetched/bitcoind", "");
        place(SCRIPT, &format!("#!/bin/sh\necho '{}'\n", fetched.display()));
        assert_eq!(find(None, None).unwrap(), fetched);
        let on_path = place("bin/bitcoind", "");
        assert_eq!(find(None, None).unwrap(), on_path);
        let mine = place("mine", "");
        assert_eq!(find(None, Some(&mine)).unwrap(), mine);
        let given = place("given", "");
        assert_eq!(find(Some(&given), Some(&mine)).unwrap(), given);
        for (named, variable, how) in [
            (Some(below.as_path()), Some(mine.as_path()), "--bitcoind"),
            (None, Some(below.as_path()), "BITCOIND_EXE"),
        ] {
            let wrong = find(named, variable).unwrap_err().to_string();
            assert!(wrong.starts_with(how), "{wrong}");
        }
    }
}
