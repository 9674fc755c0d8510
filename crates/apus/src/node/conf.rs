//! [`NodeConf`]: the options in a node's `bitcoin.conf` and `settings.json`, read as Bitcoin Core reads them
//! (`common/config.cpp`, `common/settings.cpp`, `common/args.cpp`).
//!
//! Only a few options matter here: the place of the node's blocks, and its chain. Apus skips a line that the node
//! itself would refuse, and leaves it to the node to report it.

use crate::failure::Failure;
use crate::node::reach;
use apus_chain::Network;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Name of a node's configuration file in its data directory.
const BITCOIN_CONF: &str = "bitcoin.conf";

/// Name of the file with overriding settings, in the chain's folder.
const SETTINGS: &str = "settings.json";

/// Maximum size of a file, in bytes: far more than all options need.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of files that one file may include.
const INCLUDED_MAX: usize = 100;

/// The settings in a node's files.
#[derive(Debug, Default)]
pub(crate) struct NodeConf {
    /// The data directory that has the files.
    datadir: PathBuf,
    lines: Vec<ConfLine>,
}

/// A line with a setting.
#[derive(Debug)]
struct ConfLine {
    section: Vec<u8>,
    name: Vec<u8>,
    /// The option's value; `None` if the option is negated.
    value: Option<Vec<u8>>,
}

impl NodeConf {
    /// Reads the files of a data directory. If there are none, there are no settings.
    ///
    /// # Errors
    /// If a file exists and cannot be read.
    pub(crate) fn read(datadir: &Path) -> Result<Self, Failure> {
        let path = datadir.join(BITCOIN_CONF);
        let mut conf = Self { datadir: datadir.to_owned(), lines: Vec::new() };
        if !reach(&path)?.is_some_and(|it| it.is_file()) {
            return Ok(conf);
        }
        conf.lines = lines(&content(&path)?);
        for included in conf.includes() {
            let path = datadir.join(included);
            conf.lines.extend(lines(&content(&path)?));
        }
        Ok(conf)
    }

    /// Returns the included files: first those of the chain's section, then those outside sections. Includes do not
    /// nest.
    fn includes(&self) -> Vec<PathBuf> {
        let chain = self.chain().unwrap_or(Network::Main).name();
        let of = |section: &str| self.values(section, "includeconf").0;
        let paths = of(chain).into_iter().chain(of(""));
        paths.take(INCLUDED_MAX).map(path_of).collect()
    }

    /// Returns an option's values in a section, ignoring lines before a negation; and whether the last line negates the
    /// option.
    fn values(&self, section: &str, name: &str) -> (Vec<&[u8]>, bool) {
        let is_it =
            |line: &&ConfLine| line.section == section.as_bytes() && line.name == name.as_bytes();
        let all: Vec<_> =
            self.lines.iter().filter(is_it).map(|line| line.value.as_deref()).collect();
        let after = all.iter().rposition(Option::is_none).map_or(0, |at| at + 1);
        let negated = after > 0 && after == all.len();
        (all[after..].iter().copied().flatten().collect(), negated)
    }

    /// Returns the value of an option on a chain: from `settings.json`, the chain's section, or outside sections, in
    /// this order; of several lines in the same place, the first counts. `None` if the option is unset or negated.
    fn option(&self, chain: Network, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        if let Some(set) = self.setting(chain, name)? {
            return Ok(set);
        }
        for section in [chain.name(), ""] {
            let (values, negated) = self.values(section, name);
            if negated || !values.is_empty() {
                return Ok(values.first().map(|value| value.to_vec()));
            }
        }
        Ok(None)
    }

    /// Returns the value of an option in `settings.json`, if the file has it.
    fn setting(&self, chain: Network, name: &str) -> Result<Option<Option<Vec<u8>>>, Failure> {
        let path = apus_datadir::chain_folder(&self.datadir, chain).join(SETTINGS);
        if !reach(&path)?.is_some_and(|it| it.is_file()) {
            return Ok(None);
        }
        // If the file is not JSON, the node reports that when it starts.
        let all: Value = serde_json::from_slice(&content(&path)?).unwrap_or_default();
        let of = |value: &Value| match value {
            Value::String(text) => Some(text.clone().into_bytes()),
            _ => None,
        };
        Ok(match all.get(name) {
            None | Some(Value::Null) => None,
            Some(Value::Array(several)) => several.last().map(of),
            Some(one) => Some(of(one)),
        })
    }

    /// Returns the node's chain according to its `bitcoin.conf`, if that names exactly one.
    pub(crate) fn chain(&self) -> Option<Network> {
        let named = |name: &str| {
            let last = self.values("", name).0.last().copied();
            last.is_some_and(|value| value.is_empty() || is_not_zero(value))
        };
        let by_name = self.values("", "chain").0.first().copied();
        let by_name = by_name.map(|name| String::from_utf8_lossy(name).parse().ok());
        let switches = [
            ("regtest", Network::Regtest),
            ("signet", Network::Signet),
            ("testnet", Network::Testnet3),
            ("testnet4", Network::Testnet4),
        ];
        let switched = switches.into_iter().filter(|(name, _)| named(name));
        let mut found = switched.map(|(_, chain)| Some(chain)).chain(by_name);
        // If two settings name the chain, the node refuses both.
        found.next().flatten().filter(|_| found.next().is_none())
    }

    /// Returns the data directory that `bitcoin.conf` redirects the node to.
    pub(crate) fn datadir(&self) -> Option<PathBuf> {
        self.values("", "datadir").0.first().map(|path| path_of(path))
    }

    /// Returns the folder of the option `-blocksdir`.
    pub(crate) fn blocksdir(&self, chain: Network) -> Result<Option<PathBuf>, Failure> {
        let path = self.option(chain, "blocksdir")?.filter(|path| !path.is_empty());
        Ok(path.map(|path| path_of(&path)))
    }

    /// Returns the challenge of a custom signet.
    pub(crate) fn signet_challenge(&self) -> Result<Option<String>, Failure> {
        let digits = self.option(Network::Signet, "signetchallenge")?;
        Ok(digits.map(|digits| String::from_utf8_lossy(&digits).into_owned()))
    }
}

/// Converts a value to a path literally: quotes are part of it.
fn path_of(value: &[u8]) -> PathBuf {
    OsStr::from_bytes(value).into()
}

/// Whether a value begins with a number other than 0.
fn is_not_zero(value: &[u8]) -> bool {
    let value = value.strip_prefix(b"-").unwrap_or(value);
    value.iter().take_while(|digit| digit.is_ascii_digit()).any(|digit| *digit != b'0')
}

fn content(path: &Path) -> Result<Vec<u8>, Failure> {
    let found = reach(path)?.ok_or_else(|| {
        Failure::io(path, "missing, but the node's bitcoin.conf includes this file: restore it")
    })?;
    if !found.is_file() {
        return Err(Failure::io(path, "not a file, so it cannot hold the options of a node"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| Failure::opening(path, &error))?;
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::io(path, error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let what =
            format!("larger than {FILE_BYTES_MAX} bytes, too large for the options of a node");
        return Err(Failure::io(path, what));
    }
    Ok(bytes)
}

fn lines(text: &[u8]) -> Vec<ConfLine> {
    let (mut section, mut lines) = (Vec::new(), Vec::new());
    for line in text.split(|byte| *byte == b'\n') {
        let line = line.split(|byte| *byte == b'#').next().unwrap_or_default().trim_ascii();
        if let Some(name) = line.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]")) {
            section = name.to_vec();
            continue;
        }
        let Some(at) = line.iter().position(|byte| *byte == b'=') else { continue };
        let (mut name, value) = (line[..at].trim_ascii(), line[at + 1..].trim_ascii());
        let mut of = section.clone();
        // [regtest] and regtest.NAME mean the same.
        if let Some(dot) = name.iter().position(|byte| *byte == b'.').filter(|_| of.is_empty()) {
            of = name[..dot].to_vec();
            name = &name[dot + 1..];
        }
        let (name, negated) = match name.strip_prefix(b"no") {
            Some(rest) => (rest, true),
            None => (name, false),
        };
        let value = match negated {
            false => Some(value.to_vec()),
            true if value.is_empty() || is_not_zero(value) => None,
            // A negation with the value 0 sets the option.
            true => Some(b"1".to_vec()),
        };
        lines.push(ConfLine { section: of, name: name.to_vec(), value });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Reads the settings of a `bitcoin.conf` with this text, and of further files next to it.
    fn conf(text: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, Result<NodeConf, Failure>) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [(BITCOIN_CONF, text)].iter().chain(files) {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let read = NodeConf::read(folder.path());
        (folder, read)
    }

    #[test]
    fn the_chain_must_be_named_exactly_once() {
        for (text, chain) in [
            ("", None),
            ("regtest=1\n", Some(Network::Regtest)),
            ("regtest=\n", Some(Network::Regtest)),
            (" chain = signet # mine\r\n", Some(Network::Signet)),
            ("testnet=1\ntestnet=0\n", None),
            ("testnet4=0\ntestnet4=2", Some(Network::Testnet4)),
            ("noregtest=1\nregtest=1", Some(Network::Regtest)),
            ("regtest=1\nnoregtest=1", None),
            ("noregtest=0", Some(Network::Regtest)),
            ("[regtest]\nregtest=1\n", None),
            ("regtest=1\nchain=main\n", None),
            ("chain=other\n", None),
            ("#regtest=1\nregtest\n-regtest=1\n", None),
        ] {
            assert_eq!(conf(text, &[]).1.unwrap().chain(), chain, "{text:?}");
        }
    }

    #[test]
    fn blocksdir_matches_the_nodes_reading() {
        let settings = [("regtest/settings.json", r#"{"blocksdir": "/set", "x": 1}"#)];
        let negated = [("regtest/settings.json", r#"{"blocksdir": false}"#)];
        let included = [("more.conf", "blocksdir=/more\n"), ("regtest.conf", "blocksdir=/r\n")];
        let files: [&[(&str, &str)]; 4] = [&[], &settings, &negated, &included];
        for (text, which, path) in [
            ("blocksdir=/a\nblocksdir=/b", 0, Some("/a")),
            ("blocksdir=/a\n[regtest]\nblocksdir=/b", 0, Some("/b")),
            ("regtest.blocksdir=/b\nblocksdir=/a\n", 0, Some("/b")),
            ("blocksdir=/a\n[main]\nblocksdir=/b\n[test]\n", 0, Some("/a")),
            ("blocksdir=/a\nnoblocksdir=1\n", 0, None),
            ("blocksdir=/a\nnoblocksdir=1\nblocksdir=/b", 0, Some("/b")),
            ("blocksdir=/a\n[regtest]\nnoblocksdir=1\n", 0, None),
            ("blocksdir=\"/a b\"", 0, Some("\"/a b\"")),
            ("blocksdir=/a b/ # here", 0, Some("/a b/")),
            ("blocksdir=", 0, None),
            ("blocksdir=/a", 1, Some("/set")),
            ("blocksdir=/a", 2, None),
            (
                "regtest=1\nincludeconf=more.conf\n[regtest]\nincludeconf=regtest.conf",
                3,
                Some("/r"),
            ),
            ("includeconf=more.conf\nblocksdir=/a", 3, Some("/a")),
            ("includeconf=more.conf\n[regtest]\nincludeconf=regtest.conf", 3, Some("/more")),
        ] {
            let (_folder, conf) = conf(text, files[which]);
            let found = conf.unwrap().blocksdir(Network::Regtest).unwrap();
            assert_eq!(found, path.map(PathBuf::from), "{text:?} {which}");
        }
    }

    #[test]
    fn errors_name_the_file_that_cannot_be_read() {
        let (folder, missing) = conf("includeconf=none.conf\n", &[]);
        let failure = missing.unwrap_err();
        assert_eq!(failure.code, crate::failure::IO);
        assert!(failure.message.contains("none.conf: "), "{}", failure.message);
        fs::write(folder.path().join(BITCOIN_CONF), vec![b'x'; FILE_BYTES_MAX as usize + 1])
            .unwrap();
        assert!(NodeConf::read(folder.path()).is_err());
        let nothing = NodeConf::read(&folder.path().join("nowhere")).unwrap();
        assert_eq!((nothing.chain(), nothing.datadir()), (None, None));
    }
}
