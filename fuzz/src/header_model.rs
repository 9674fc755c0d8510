//! A header tree computed the slow way: lists searched from end to end, big numbers, and Core's rules as
//! written (`pow.cpp`, `chain.cpp`, `validation.cpp`).

use apus_chain::{BlockHash, Header, Params};
use num_bigint::BigUint;
use std::collections::VecDeque;

/// A header connected to the genesis block.
#[derive(Clone)]
pub struct ConnectedBlock {
    pub hash: BlockHash,
    pub header: Header,
    pub height: u32,
    pub work: BigUint,
}

/// The state of a tree.
pub struct Model {
    params: Params,
    limit: BigUint,
    pub now: i64,
    pub orphans_max: usize,
    pub connected: Vec<ConnectedBlock>,
    /// In order of arrival.
    pub orphans: Vec<(BlockHash, Header)>,
    pub rejected: Vec<BlockHash>,
}

/// The result for a header, or Core's reason for rejecting it.
pub type Verdict = Result<Kept, String>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    New,
    Known,
    Orphan,
}

impl Model {
    pub fn new(params: &Params, limit: BigUint, now: i64) -> Self {
        let genesis = ConnectedBlock {
            hash: params.genesis_hash,
            header: params.genesis_header,
            height: 0,
            work: work(params.genesis_header.bits),
        };
        Self {
            params: params.clone(),
            limit,
            now,
            orphans_max: usize::MAX,
            connected: vec![genesis],
            orphans: Vec::new(),
            rejected: Vec::new(),
        }
    }

    pub fn accept(&mut self, header: &Header) -> Verdict {
        let hash = header.hash();
        let waits = |hash| self.orphans.iter().any(|(orphan, _)| *orphan == hash);
        if self.find(&hash).is_some() || waits(hash) {
            return Ok(Kept::Known);
        }
        let reached = target(header.bits).is_some_and(|target| {
            target <= self.limit && BigUint::from_bytes_le(&hash.0) <= target
        });
        if !reached {
            return Err("high-hash".into());
        }
        if let Some(parent) = self.find(&header.prev).cloned() {
            return match self.check(header, &parent) {
                Ok(()) => {
                    self.connect(header, &parent);
                    Ok(Kept::New)
                }
                Err(reason) => {
                    self.reject(hash);
                    Err(reason)
                }
            };
        }
        if !waits(header.prev) {
            if header.prev == BlockHash::ZERO {
                return Err("prev-blk-not-found".into());
            }
            if self.rejected.contains(&header.prev) {
                self.reject(hash);
                return Err("bad-prevblk".into());
            }
        }
        if self.orphans.len() >= self.orphans_max {
            return Err("prev-blk-not-found".into());
        }
        self.orphans.push((hash, *header));
        Ok(Kept::Orphan)
    }

    /// Returns the first header with the most work.
    pub fn tip(&self) -> &ConnectedBlock {
        let mut tip = &self.connected[0];
        for entry in &self.connected {
            if entry.work > tip.work {
                tip = entry;
            }
        }
        tip
    }

    pub fn find(&self, hash: &BlockHash) -> Option<&ConnectedBlock> {
        self.connected.iter().find(|entry| entry.hash == *hash)
    }

    fn connect(&mut self, header: &Header, parent: &ConnectedBlock) {
        let mut queue = VecDeque::from([(*header, parent.clone())]);
        while let Some((header, parent)) = queue.pop_front() {
            let hash = header.hash();
            if self.check(&header, &parent).is_err() {
                self.reject(hash);
                continue;
            }
            let entry = ConnectedBlock {
                hash,
                header,
                height: parent.height + 1,
                work: &parent.work + work(header.bits),
            };
            self.rejected.retain(|rejected| *rejected != hash);
            for (_, child) in self.take_children(&hash) {
                queue.push_back((child, entry.clone()));
            }
            self.connected.push(entry);
        }
    }

    fn reject(&mut self, hash: BlockHash) {
        self.rejected.push(hash);
        for (child, _) in self.take_children(&hash) {
            self.reject(child);
        }
    }

    fn take_children(&mut self, hash: &BlockHash) -> Vec<(BlockHash, Header)> {
        let children = self.orphans.iter().filter(|(_, orphan)| orphan.prev == *hash);
        let children = children.copied().collect();
        self.orphans.retain(|(_, orphan)| orphan.prev != *hash);
        children
    }

    /// Returns the header and its ancestors, downwards.
    pub fn lineage<'a>(
        &'a self,
        entry: &'a ConnectedBlock,
    ) -> impl Iterator<Item = &'a ConnectedBlock> {
        std::iter::successors(Some(entry), |entry| self.find(&entry.header.prev))
    }

    fn check(&self, header: &Header, parent: &ConnectedBlock) -> Result<(), String> {
        let height = parent.height + 1;
        if header.bits != self.next_bits(parent, header.time) {
            return Err("bad-diffbits".into());
        }
        let mut times: Vec<u32> = self.lineage(parent).take(11).map(|e| e.header.time).collect();
        times.sort_unstable();
        if header.time <= times[times.len() / 2] {
            return Err("time-too-old".into());
        }
        let starts_period = height.is_multiple_of(self.params.difficulty_adjustment_interval());
        let warped = i64::from(header.time) < i64::from(parent.header.time) - 600;
        if self.params.enforce_bip94 && starts_period && warped {
            return Err("time-timewarp-attack".into());
        }
        if i64::from(header.time) > self.now + 7200 {
            return Err("time-too-new".into());
        }
        let outdated = |version, from| header.version < version && height >= from;
        if outdated(2, self.params.bip34_height)
            || outdated(3, self.params.bip66_height)
            || outdated(4, self.params.bip65_height)
        {
            return Err(format!("bad-version(0x{:08x})", header.version));
        }
        Ok(())
    }

    /// Returns the target that a child of `parent` with this time must have.
    pub fn next_bits(&self, parent: &ConnectedBlock, time: u32) -> u32 {
        let params = &self.params;
        let interval = params.difficulty_adjustment_interval();
        let limit_bits = compact(&self.limit);
        if !(parent.height + 1).is_multiple_of(interval) {
            if !params.pow_allow_min_difficulty_blocks {
                return parent.header.bits;
            }
            let spacing = i64::from(params.pow_target_spacing_seconds.get());
            if i64::from(time) > i64::from(parent.header.time) + 2 * spacing {
                return limit_bits;
            }
            let mut real = self
                .lineage(parent)
                .skip_while(|e| !e.height.is_multiple_of(interval) && e.header.bits == limit_bits);
            return real.next().expect("the genesis block ends the search").header.bits;
        }
        if params.pow_no_retargeting {
            return parent.header.bits;
        }
        let first = self.lineage(parent).nth(interval as usize - 1).expect("a whole period");
        let bits = if params.enforce_bip94 { first.header.bits } else { parent.header.bits };
        let timespan = i64::from(params.pow_target_timespan_seconds.get());
        let actual = i64::from(parent.header.time) - i64::from(first.header.time);
        let actual = actual.clamp(timespan / 4, timespan * 4) as u32;
        // The number has 256 bits and wraps.
        let product: BigUint = target(bits).expect("it was checked") * actual;
        let wrapped: BigUint = product % (BigUint::from(1u32) << 256u32);
        compact(&(wrapped / timespan as u32).min(self.limit.clone()))
    }
}

/// Returns the target that a compact number stands for, if blocks can have it.
pub fn target(bits: u32) -> Option<BigUint> {
    let (size, word) = (bits >> 24, bits & 0x007f_ffff);
    let value: BigUint = (BigUint::from(word) << (8 * size)) >> 24u32;
    let negative = bits & 0x0080_0000 != 0;
    (!negative && value != BigUint::ZERO && value.bits() <= 256).then_some(value)
}

/// Returns whether the hash, read as a number, is at most the target.
pub fn reaches(hash: &BlockHash, bits: u32) -> bool {
    let target = target(bits).unwrap_or_default().to_bytes_be();
    let mut padded = [0; 32];
    padded[32 - target.len()..].copy_from_slice(&target);
    hash.0.iter().rev().le(&padded)
}

/// Returns the compact form of a target, rounded down.
fn compact(target: &BigUint) -> u32 {
    let bytes = target.to_bytes_be();
    // A first byte with its top bit set would read as a sign.
    let padded = if bytes[0] >= 0x80 { [&[0], &bytes[..]].concat() } else { bytes };
    let digit = |place: usize| u32::from(padded.get(place).copied().unwrap_or(0));
    (padded.len() as u32) << 24 | digit(0) << 16 | digit(1) << 8 | digit(2)
}

fn work(bits: u32) -> BigUint {
    let target = target(bits).expect("it was checked");
    (BigUint::from(1u32) << 256u32) / (target + 1u32)
}
