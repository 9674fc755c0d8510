//! Chains of headers for tests, and a peer that has one.

use apus_chain::{BlockHash, Header, MerkleRoot, Network, Params, U256, check_proof_of_work};
use std::collections::HashMap;
use std::num::NonZeroU32;

/// A time after every header that tests use.
pub(crate) const NOW: i64 = 1_900_000_000;

/// All headers of a file in `fixtures/headers`.
pub(crate) fn raw_headers(name: &str) -> Vec<[u8; 80]> {
    let path = format!("{}/../../fixtures/headers/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).unwrap().as_chunks::<80>().0.to_vec()
}

/// Regtest with this minimum work. Each header has a work of 2.
pub(crate) fn regtest(minimum_chain_work: u128) -> Params {
    Params { minimum_chain_work, ..Params::of(Network::Regtest).clone() }
}

/// Parameters that retarget every third header, to 3 seconds between headers. The easiest target takes about
/// 32 hashes.
pub(crate) fn retargeting(minimum_chain_work: u128) -> Params {
    let mut params = regtest(minimum_chain_work);
    params.pow_allow_min_difficulty_blocks = false;
    params.pow_no_retargeting = false;
    params.pow_target_timespan_seconds = NonZeroU32::new(6).unwrap();
    params.pow_target_spacing_seconds = NonZeroU32::new(2).unwrap();
    // Four timespans of a target must fit into 256 bits.
    params.genesis_header.bits = 0x2007_ffff;
    params.genesis_hash = params.genesis_header.hash();
    params.pow_limit = U256::from_compact(0x2007_ffff).value;
    params
}

/// Finds a valid nonce.
pub(crate) fn mine(mut header: Header) -> Header {
    let any = U256::from_le_bytes(&[0xff; 32]);
    while !check_proof_of_work(&header.hash(), header.bits, any) {
        header.nonce = header.nonce.wrapping_add(1);
    }
    header
}

/// `count` regtest headers above `parent`, or above the genesis block, ten minutes apart. `salt`
/// distinguishes branches.
pub(crate) fn mined(parent: Option<&[u8; 80]>, count: usize, salt: u32) -> Vec<[u8; 80]> {
    let mut chain: Vec<[u8; 80]> = parent.into_iter().copied().collect();
    let above = chain.len();
    mine_on(&regtest(0), &mut chain, count, 600, salt);
    chain.split_off(above)
}

/// Appends `count` headers to a chain, which must start above the genesis block if there are retargets.
pub(crate) fn mine_on(
    params: &Params,
    chain: &mut Vec<[u8; 80]>,
    count: usize,
    spacing: u32,
    salt: u32,
) {
    let mut merkle_root = [0; 32];
    merkle_root[..4].copy_from_slice(&salt.to_le_bytes());
    for _ in 0..count {
        let at = |height: usize| match height.checked_sub(1) {
            Some(index) => Header::parse(&chain[index]),
            None => params.genesis_header,
        };
        let last = at(chain.len());
        let header = Header {
            version: 0x2000_0000,
            prev: last.hash(),
            merkle_root: MerkleRoot(merkle_root),
            time: last.time + spacing,
            bits: next_bits(params, chain.len() + 1, at),
            nonce: 0,
        };
        chain.push(mine(header).to_bytes());
    }
}

/// The target at a height, without the exception for minimum-difficulty blocks.
fn next_bits(params: &Params, height: usize, at: impl Fn(usize) -> Header) -> u32 {
    let interval = params.difficulty_adjustment_interval() as usize;
    let last = at(height - 1);
    if params.pow_no_retargeting || !height.is_multiple_of(interval) {
        return last.bits;
    }
    let timespan = params.pow_target_timespan_seconds.get();
    let took = (last.time - at(height - interval).time).clamp(timespan / 4, timespan * 4);
    let product = U256::from_compact(last.bits).value.wrapping_mul_u32(took);
    let target = product.checked_div(U256::from_u32(timespan)).unwrap();
    target.min(params.pow_limit).to_compact()
}

/// A node that answers requests as Core does (`net_processing.cpp`, `ProcessGetHeaders`).
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// Its headers from height 1 on.
    pub(crate) chain: Vec<[u8; 80]>,
    heights: HashMap<BlockHash, usize>,
}

impl Node {
    pub(crate) fn new(params: &Params, chain: &[[u8; 80]]) -> Self {
        let hashes = chain.iter().map(|raw| Header::parse(raw).hash());
        let heights = std::iter::once(params.genesis_hash).chain(hashes).zip(0..).collect();
        Self { chain: chain.to_vec(), heights }
    }

    /// The headers after the first locator hash that is in its chain.
    pub(crate) fn answer(&self, locator: &[BlockHash]) -> Vec<[u8; 80]> {
        let from = locator.iter().find_map(|hash| self.heights.get(hash)).copied().unwrap_or(0);
        self.chain[from..].iter().take(2000).copied().collect()
    }

    pub(crate) fn tip(&self) -> BlockHash {
        Header::parse(&self.chain[self.chain.len() - 1]).hash()
    }
}
