//! Stands between a client and a server on this machine, as if they were far apart: `far PORT MICROSECONDS`
//! says where it listens, and does so until it is killed.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a tool for measurements")]

use apus_testkit::far::Far;
use std::time::Duration;

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().unwrap());
    let (server, delay) = (args.next().unwrap(), args.next().unwrap());
    let far = Far::to(server.try_into().unwrap(), Duration::from_micros(delay));
    println!("{}", far.port());
    loop {
        std::thread::park();
    }
}
