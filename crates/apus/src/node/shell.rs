//! Commands for a POSIX shell, as users are told them.

use crate::print::hex;
use apus_chain::{Network, Params};
use std::path::Path;

/// How a node is started on a data directory, for a POSIX shell.
pub(crate) fn start_command(datadir: &Path, chain: Network, pruned: bool) -> String {
    let mut command = format!("bitcoind -datadir={}", quoted(&datadir.display().to_string()));
    command.push_str(&option_of(chain));
    command.push_str(&challenge_of(chain));
    if pruned {
        command.push_str(" -prune=550");
    }
    command
}

/// What chooses the chain; nothing for the main one.
pub(super) fn option_of(chain: Network) -> String {
    match chain {
        Network::Main => String::new(),
        chain => format!(" -chain={chain}"),
    }
}

/// What makes a signet that of one's own.
pub(super) fn challenge_of(chain: Network) -> String {
    match (chain, &Params::of(chain).signet_challenge) {
        (Network::OwnSignet(_), Some(challenge)) => {
            format!(" -signetchallenge={}", hex(challenge))
        }
        _ => String::new(),
    }
}

/// One word of a command, for a POSIX shell. Where a shell would make something of it, in single
/// quotes, within which only these themselves mean anything.
pub(crate) fn quoted(word: &str) -> String {
    // Letters of other scripts are no different from ours; their spaces are to some shells.
    let plain = |letter: char| letter.is_alphanumeric() || "%+,-./:=@_".contains(letter);
    if word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_command_is_one_that_a_shell_takes_as_it_is_meant() {
        let plain = start_command(Path::new("/data/a-b_1.0"), Network::Main, false);
        assert_eq!(plain, "bitcoind -datadir=/data/a-b_1.0");
        for name in ["a b", "it's", "$HOME", "`date`", "a\"b\\", "~x", "a;b", "a\nb", "*", "für"] {
            let command = start_command(Path::new(name), Network::Signet, true);
            // The shell says the words that it makes of the command.
            let said = Command::new("sh")
                .arg("-c")
                .arg(format!("bitcoind() {{ printf '%s|' \"$@\"; }}; {command}"))
                .output()
                .unwrap();
            assert!(said.status.success(), "{command}");
            let said = String::from_utf8(said.stdout).unwrap();
            assert_eq!(said, format!("-datadir={name}|-chain=signet|-prune=550|"), "{command}");
        }
    }
}
