//! Test machinery shared by all crates: chains, oracles, faulty disks and a real bitcoind.
//!
//! What is here decides what the tests of everything else mean, so it is written to be obvious
//! rather than fast, shares no code with what it checks (only the storage seam that it stands in for), and is itself
//! checked against a real node and its data. The benchmarks take random numbers, lines and calls to a node from here, which know
//! neither blocks nor coins: the account of those here is held against the chains that the benchmarks make. Nothing here is
//! part of the product.
//!
//! - [`chain`]: builds regtest chains in memory, valid ones and broken ones, and knows their coins.
//! - [`oracle`]: an independent account of the formats: snapshots, set hashes, hints.
//! - [`blkfile`]: lays blocks down in block files as Bitcoin Core does, and damages them.
//! - [`storage`]: a disk that loses what was not synced, and a disk that fails on demand.
//! - [`bitcoind`]: starts and talks to a real node.
//! - [`btcd`]: a node of another make.
//! - [`utreexod`]: one that proves coins.
//! - [`programs`]: other programs: which to run, and when they are ready.
//! - [`nats`]: a queue.
//! - [`redis`]: three Redis servers as one cluster, and one alone.
//! - [`postgres`]: a PostgreSQL server.
//! - [`leveldb`]: LevelDB folders that lie, and LevelDB itself.
//! - [`http`]: one request.
//! - [`peer`]: a peer on a real socket that behaves as told.
//! - [`line`](mod@line): a line to a peer or a server, as good or bad as is wanted.
//! - [`streams`]: recorded tests of Core's, block by block.
//! - [`effort`]: how long random tests go on.
//! - [`rpc`]: one call to a node.
//! - [`rng`]: the one source of randomness, the same everywhere for a seed.

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
