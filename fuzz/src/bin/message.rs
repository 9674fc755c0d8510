//! Payloads of messages from peers: never a panic, never more memory than a few times their bytes, and an
//! accepted message, written back, reads the same.
//!
//! Input: which command, then the payload.
//!
//! Inputs: at most 8192 bytes.

#![no_main]

use apus_fuzz::Input;
use apus_p2p::message::{CommandName, Message, decode, encode};
use apus_proofs::message::UtreexoMessage;
use libfuzzer_sys::fuzz_target;

const COMMANDS: [&str; 24] = [
    "version",
    "verack",
    "sendaddrv2",
    "wtxidrelay",
    "sendheaders",
    "ping",
    "pong",
    "getaddr",
    "addr",
    "addrv2",
    "getheaders",
    "headers",
    "inv",
    "getdata",
    "notfound",
    "block",
    "tx",
    "feefilter",
    "sendcmpct",
    "cmpctblock",
    "getuproof",
    "uproof",
    "geturoot",
    "uroot",
];

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let command = COMMANDS[usize::from(input.u8()) % COMMANDS.len()];
    let Ok(message) = decode(CommandName::new(command), input.rest().to_vec()) else { return };
    let (command, payload) = encode(&message, true);
    let again = decode(command, payload.into_owned()).expect("what was written is read");
    assert_eq!(again, message);
    // Messages that p2p does not know, such as those with proofs.
    if let Message::Other { name, payload } = &message
        && let Ok(Some(proofs)) = UtreexoMessage::read(name, payload)
    {
        let Message::Other { name, payload } = proofs.to_message() else {
            panic!("there is no other kind")
        };
        assert_eq!(UtreexoMessage::read(&name, &payload).ok().flatten(), Some(proofs));
    }
});
