//! Test machinery shared by all crates: chains, oracles, faulty disks and a real bitcoind.
//!
//! All other tests rely on this crate. So it is obvious rather than fast, shares no code with what it checks
//! (except for the storage trait that it implements), and is itself checked against a real node and its data.
//! The benchmarks take random numbers, relays and node calls from here, which involve neither blocks nor coins:
//! the coins computed here serve to check the chains that the benchmarks make. Nothing here is part of the
//! product.
//!
//! - [`chain`]: builds valid and broken regtest chains in memory, and knows their coins.
//! - [`oracle`]: an independent implementation of the formats: snapshots, set hashes, hints.
//! - [`blkfile`]: writes blocks to block files as Bitcoin Core does, and damages them.
//! - [`storage`]: a disk that loses unsynced data, and a disk that fails on demand.
//! - [`bitcoind`]: starts and talks to a real node.
//! - [`btcd`]: a node of another implementation.
//! - [`utreexod`]: a node that serves proofs of coins.
//! - [`programs`]: finding other programs, and waiting until they are ready.
//! - [`nats`]: a queue.
//! - [`redis`]: a cluster of three Redis servers, and a single one.
//! - [`postgres`]: a PostgreSQL server.
//! - [`leveldb`]: LevelDB folders with faults, and LevelDB itself.
//! - [`http`]: one request.
//! - [`peer`]: a peer on a real socket that behaves as the test wants.
//! - [`line`](mod@line): a relay to a peer or a server, with the quality that the test wants.
//! - [`streams`]: Core's recorded tests, block by block.
//! - [`effort`]: how long random tests run.
//! - [`rpc`]: one call to a node.
//! - [`rng`]: the only source of randomness, always the same for a seed.

#![allow(clippy::unwrap_used, reason = "test machinery: a failure here is a failed test")]

pub mod bitcoind;
pub mod blkfile;
pub mod btcd;
pub mod chain;
pub mod effort;
pub mod http;
pub mod leveldb;
pub mod line;
pub mod nats;
pub mod oracle;
pub mod peer;
pub mod postgres;
pub mod programs;
pub mod redis;
pub mod rng;
pub mod rpc;
pub mod storage;
pub mod streams;
pub mod utreexod;
