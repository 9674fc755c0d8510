//! Names of messages in the encrypted transport: one byte for those that have a number, thirteen
//! for others (BIP-324, "v2 Bitcoin P2P message structure", and from 29 on its list of numbers given since).

use crate::message::{COMMAND_BYTES, Command};
use crate::peer_error::PeerError;

/// The names with a number, which is their place in here plus one.
const NAMES: [&str; 36] = [
    "addr",
    "block",
    "blocktxn",
    "cmpctblock",
    "feefilter",
    "filteradd",
    "filterclear",
    "filterload",
    "getblocks",
    "getblocktxn",
    "getdata",
    "getheaders",
    "headers",
    "inv",
    "mempool",
    "merkleblock",
    "notfound",
    "ping",
    "pong",
    "sendcmpct",
    "tx",
    "getcfilters",
    "cfilter",
    "getcfheaders",
    "cfheaders",
    "getcfcheckpt",
    "cfcheckpt",
    "addrv2",
    "uproof",
    "getuproof",
    "uttls",
    "getuttls",
    "usummary",
    "utreexotx",
    "uroot",
    "geturoot",
];

/// Most bytes of a name.
pub(crate) const NAME_BYTES_MAX: usize = 1 + COMMAND_BYTES;

/// Writes a name in its shortest form.
pub(crate) fn write(command: Command, out: &mut Vec<u8>) {
    match NAMES.iter().position(|&name| command == Command::new(name)) {
        Some(place) => out.push(place as u8 + 1),
        None => {
            out.push(0);
            out.extend(command.to_bytes());
        }
    }
}

/// The name that contents begin with, and its length in bytes. Numbers without a name are left for
/// later times, so their messages mean nothing and do no harm.
pub(crate) fn read(contents: &[u8]) -> Result<(Command, usize), PeerError> {
    let Some((&first, rest)) = contents.split_first() else {
        return Err(PeerError::protocol("a packet without a message's name"));
    };
    if first == 0 {
        let name = rest.first_chunk::<COMMAND_BYTES>();
        let name = name.ok_or_else(|| PeerError::protocol("a packet ends within a name"))?;
        return Ok((Command::from_bytes(*name), NAME_BYTES_MAX));
    }
    let known = NAMES.get(usize::from(first) - 1);
    Ok((known.map_or(Command::NONE, |name| Command::new(name)), 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(name: &str) -> Vec<u8> {
        let mut out = Vec::new();
        write(Command::new(name), &mut out);
        out
    }

    #[test]
    fn numbers_are_those_of_the_table() {
        for (name, number) in
            [("addr", 1), ("block", 2), ("getdata", 11), ("headers", 13), ("notfound", 17)]
        {
            assert_eq!(written(name), [number]);
        }
        for (name, number) in [
            ("ping", 18),
            ("tx", 21),
            ("cfcheckpt", 27),
            ("addrv2", 28),
            ("uproof", 29),
            ("geturoot", 36),
        ] {
            assert_eq!(written(name), [number]);
        }
        assert_eq!(written("version"), b"\0version\0\0\0\0\0");
    }

    #[test]
    fn both_forms_read_back_and_unknown_numbers_are_nothing() {
        for name in NAMES.into_iter().chain(["version", "verack", "sendaddrv2"]) {
            let bytes = written(name);
            assert_eq!(read(&bytes).unwrap(), (Command::new(name), bytes.len()));
        }
        assert_eq!(read(b"\0block\0\0\0\0\0\0\0rest").unwrap(), (Command::new("block"), 13));
        for unknown in [37, 128, 255] {
            assert_eq!(read(&[unknown, 1, 2]).unwrap(), (Command::NONE, 1));
        }
        assert!(read(b"").is_err());
        assert!(read(b"\0version\0\0\0\0").is_err());
    }

    proptest! {
        #[test]
        fn what_is_read_lies_within_the_contents(contents: Vec<u8>) {
            if let Ok((_, len)) = read(&contents) {
                prop_assert!(len <= contents.len());
            }
        }
    }
}
