//! What `apus --version` says, and reports: which program this is.

use crate::machine::Machine;
use serde::Serialize;
use std::sync::OnceLock;

/// The commit that the program was built from, if its builder knew.
const COMMIT: Option<&str> = option_env!("APUS_COMMIT");

/// What was built in that can be left out.
fn features() -> Vec<&'static str> {
    let built_in = [
        ("kernel", cfg!(feature = "kernel")),
        ("cluster", cfg!(feature = "cluster")),
        ("remote-coins", cfg!(feature = "remote-coins")),
        ("s3", cfg!(feature = "s3")),
        ("web", cfg!(feature = "web")),
    ];
    built_in.into_iter().filter(|(_, is_in)| *is_in).map(|(name, _)| name).collect()
}

/// The program, for reports.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Program {
    /// Of its release.
    pub(crate) apus: &'static str,
    /// The commit that it was built from.
    pub(crate) commit: Option<&'static str>,
    /// What was built in that can be left out.
    pub(crate) features: Vec<&'static str>,
}

impl Program {
    pub(crate) fn this() -> Self {
        Self { apus: short(), commit: COMMIT, features: features() }
    }
}

/// The version alone, for one line.
pub(crate) fn short() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The version and what else tells one build on one machine from another.
pub(crate) fn long() -> &'static str {
    static LONG: OnceLock<String> = OnceLock::new();
    LONG.get_or_init(|| {
        let Machine { platform, sha256, .. } = Machine::here();
        let features = features();
        let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
        let commit = COMMIT.unwrap_or("not known");
        format!(
            "{}\ncommit    {commit}\nfeatures  {features}\nplatform  {platform}\nSHA-256   {sha256}",
            short()
        )
    })
}
