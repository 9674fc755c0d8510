//! [`Oracle`]: Bitcoin Core's LevelDB, which reports what it reads in a folder.

use crate::programs::find_program;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running program of `scripts/leveldb`. Dropping it ends it.
#[derive(Debug)]
pub struct Oracle {
    process: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// What LevelDB read in a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OracleAnswer {
    /// All entries, found by iterating.
    pub iterated: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The entries found by looking up the requested and iterated keys.
    pub found: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The keys found by seeking.
    pub sought: BTreeSet<Vec<u8>>,
    /// The fault, if any: an error, a crash, or a different answer later.
    pub faults: Vec<String>,
}

impl Oracle {
    /// Starts the oracle.
    ///
    /// # Panics
    /// If `scripts/leveldb` has not built it.
    pub fn start() -> Self {
        let program = find_program("leveldb");
        let mut process = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program of scripts/leveldb runs");
        let requests = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self { process, requests, answers }
    }

    /// Makes LevelDB create a database in an empty folder, like a node that writes at random, compacts, and is
    /// killed.
    ///
    /// # Panics
    /// If LevelDB cannot create the database.
    pub fn make(&mut self, folder: &Path, seed: u64) {
        let answer =
            self.request(&format!("make {}", folder.display()), &[seed.to_string().into()]);
        assert_eq!(answer, OracleAnswer::default(), "seed {seed}");
    }

    /// Makes LevelDB open the folder, which changes it, read all of it and also look up these keys.
    ///
    /// # Panics
    /// If the program ends.
    pub fn ask(&mut self, folder: &Path, keys: &[Vec<u8>]) -> OracleAnswer {
        self.request(&folder.display().to_string(), keys)
    }

    fn request(&mut self, what: &str, keys: &[Vec<u8>]) -> OracleAnswer {
        let mut request = format!("{what}\n{}\n", keys.len());
        for key in keys {
            request.push_str(&hex(key));
            request.push('\n');
        }
        let requests = self.requests.as_mut().unwrap();
        requests.write_all(request.as_bytes()).unwrap();
        requests.flush().unwrap();
        let (mut answer, mut line) = (OracleAnswer::default(), Vec::new());
        loop {
            line.clear();
            assert!(self.answers.read_until(b'\n', &mut line).unwrap() > 0, "the oracle has ended");
            // LevelDB's error messages may contain any bytes.
            let line = String::from_utf8_lossy(&line);
            let mut words = line.split_whitespace();
            let (kind, key, value) = (words.next(), words.next(), words.next());
            let bytes = |word: Option<&str>| unhex(word.unwrap_or_default());
            match kind {
                Some("end") => return answer,
                // After a fault, later answers do not matter.
                _ if !answer.faults.is_empty() => {}
                Some("iterated") => {
                    if answer.iterated.insert(bytes(key), bytes(value)).is_some() {
                        answer.faults.push("a key comes twice".to_owned());
                    }
                }
                Some("found") => drop(answer.found.insert(bytes(key), bytes(value))),
                Some("sought") => drop(answer.sought.insert(bytes(key))),
                Some("absent") => {}
                _ => answer.faults.push(line.trim().to_owned()),
            }
        }
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        drop(self.requests.take());
        let _ended = self.process.wait();
    }
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".to_owned();
    }
    data_encoding::HEXLOWER.encode(bytes)
}

fn unhex(word: &str) -> Vec<u8> {
    if word == "-" {
        return Vec::new();
    }
    data_encoding::HEXLOWER.decode(word.as_bytes()).unwrap()
}
