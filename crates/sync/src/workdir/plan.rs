//! The plan of a sync: what it computes, under which key, and in which segments.
//!
//! A sync makes its plan when it first starts, and keeps it in the work folder. Every later start follows it,
//! regardless of its own budgets. A start with another chain, other hints or another aggregate is refused, so
//! that results are not mixed.
//!
//! ```text
//! 8     41 50 55 53 50 4c 41 4e   "APUSPLAN"
//! 4     version, 6
//! 4     magic of the network
//! 4     the first block: 1, or the one above the block whose roots a sync began with
//! 4     height H where the hints stop
//! 32    hash of that block
//! 32    SHA-256 of the hints: of the hintsfile, or of the snapshot; zeros without hints
//! 1     aggregate: 0 keyed SHA-256, 1 MuHash3072, 2 none, 3 keyed SHA-256 of whole coins
//! 4     last block whose scripts are assumed valid, if everything else is checked with undo data; otherwise 0
//! 4     last block whose witnesses are skipped; 0 if all are checked
//! 1     1 if segments leave leaves of the Utreexo forest, or their numbers with mergesync
//! 1     1 if the set's MuHash is computed
//! 32    the secret
//! 4     number of segments n
//! 4·n   the first height after each segment; the first begins at the first block, the last ends at H + 1 or lower
//! 32    SHA-256 of all bytes before
//! ```
//!
//! The plan's id is the SHA-256 of the whole file. For the engine utreexo, the hash of the hints is the SHA-256
//! of `ranges of proofs`, the roots before the first block, then each range's heights (4 bytes each) and the roots
//! before and after it; if peers give the proofs, of `ranges of proofs from peers` and the roots before the first
//! block.

use super::names;
use crate::engines::swiftsync::aggregate::{AggregateKind, Secret};
use apus_chain::{BlockHash, Height, HeightRange, Network};

/// First bytes of a plan file.
const MAGIC: &[u8; 8] = b"APUSPLAN";

/// Version of a plan file.
const VERSION: u32 = 6;

/// Stands for the hash of hints in a plan without hints.
pub const NO_HINTS: [u8; 32] = [0; 32];

/// Everything that distinguishes two syncs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunIdentity {
    /// The chain.
    pub network: Network,
    /// The first block: 1, or the one above the block whose state the user trusts.
    pub first: Height,
    /// The height whose UTXO set is wanted.
    pub stop: Height,
    /// The block at that height.
    pub stop_hash: BlockHash,
    /// SHA-256 of the hints.
    pub hints: [u8; 32],
    /// The aggregate.
    pub aggregate: AggregateKind,
    /// The last block whose scripts are assumed valid, if everything else is checked with undo data; otherwise
    /// 0.
    pub assumed: Height,
    /// The last block whose witnesses are skipped; 0 if all are checked.
    pub unseen: Height,
    /// Whether outputs have numbers, and segments under hints leave hashes of the surviving coins.
    pub numbered: bool,
    /// Whether the MuHash of the set is computed.
    pub muhash: bool,
}

/// The plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What is computed.
    pub identity: RunIdentity,
    /// The secret of this sync.
    pub secret: Secret,
    /// The heights from the first block to the last one under hints, divided into segments, none of which is
    /// empty. The last height is the stop height, or below it if the last blocks are connected.
    pub segments: Vec<HeightRange>,
}

impl RunIdentity {
    /// Describes the first difference to `other`, for messages; `None` if they are equal.
    pub fn difference(&self, other: &Self) -> Option<String> {
        if self.network != other.network {
            return Some(format!("chain {}, not {}", self.network, other.network));
        }
        // The order matters: the kind of sync determines which parts it uses.
        match (self.hints == NO_HINTS, other.hints == NO_HINTS) {
            (true, false) => return Some("without hints".to_owned()),
            (false, true) => return Some("with hints, or by another engine".to_owned()),
            _ => {}
        }
        if self.first != other.first {
            return Some(format!("from block {} on, not {}", self.first, other.first));
        }
        if (self.stop, self.stop_hash) != (other.stop, other.stop_hash) {
            return Some(format!(
                "up to block {} ({}), not {} ({})",
                self.stop, self.stop_hash, other.stop, other.stop_hash
            ));
        }
        if self.hints != other.hints {
            return Some("with other hints".to_owned());
        }
        if self.aggregate == other.aggregate && self.assumed != other.assumed {
            let (is, not) = (self.assumed, other.assumed);
            return Some(format!("with scripts assumed valid up to block {is}, not {not}"));
        }
        if self.unseen != other.unseen {
            return Some(unseen_difference(self.unseen, other.unseen));
        }
        if self.numbered != other.numbered {
            return Some(match self.numbered {
                true => "by a build of Apus that makes Utreexo roots or proofs, which this build cannot",
                false => "without the data for Utreexo roots and proofs (--out utreexo:FILE, apus utreexo prove)",
            }
            .to_owned());
        }
        if self.muhash != other.muhash {
            return Some("without the set's MuHash (--muhash)".to_owned());
        }
        (self.aggregate != other.aggregate).then(|| match (self.aggregate, other.aggregate) {
            (AggregateKind::Coins, _) => "with undo data, which is unavailable now".to_owned(),
            (_, AggregateKind::Coins) => "without undo data".to_owned(),
            (AggregateKind::None, _) | (_, AggregateKind::None) => {
                "by another engine, or with --aggregate none".to_owned()
            }
            _ => "with another --aggregate".to_owned(),
        })
    }
}

impl Plan {
    /// Returns the last block under hints.
    pub fn last(&self) -> Height {
        self.segments.last().map_or(0, |segment| segment.end - 1)
    }

    /// Whether a range is a segment or a part of one.
    pub fn has_within_one(&self, range: HeightRange) -> bool {
        let at = self.segments.partition_point(|segment| segment.end <= range.start);
        let segment = self.segments.get(at);
        let is_within =
            |segment: &HeightRange| segment.start <= range.start && range.end <= segment.end;
        !range.is_empty() && segment.is_some_and(is_within)
    }

    /// Returns the byte form, as described in the module.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Destructured, so that a new field is not forgotten here.
        let RunIdentity {
            network,
            first,
            stop,
            stop_hash,
            hints,
            aggregate,
            assumed,
            unseen,
            numbered,
            muhash,
        } = &self.identity;
        let mut out = names::begin(MAGIC, VERSION);
        out.extend_from_slice(&network.magic());
        out.extend_from_slice(&first.to_le_bytes());
        out.extend_from_slice(&stop.to_le_bytes());
        out.extend_from_slice(&stop_hash.0);
        out.extend_from_slice(hints);
        out.push(aggregate.code());
        out.extend_from_slice(&assumed.to_le_bytes());
        out.extend_from_slice(&unseen.to_le_bytes());
        out.push(u8::from(*numbered));
        out.push(u8::from(*muhash));
        out.extend_from_slice(&self.secret.0);
        out.extend_from_slice(&(self.segments.len() as u32).to_le_bytes());
        for segment in &self.segments {
            out.extend_from_slice(&segment.end.to_le_bytes());
        }
        names::seal(out)
    }

    /// Reads the byte form; `None` if it is damaged or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = names::open(bytes, MAGIC, VERSION)?;
        let flag = |byte: u8| matches!(byte, 0 | 1).then_some(byte == 1);
        let identity = RunIdentity {
            network: Network::from_magic(*reader.array().ok()?)?,
            first: reader.u32().ok()?,
            stop: reader.u32().ok()?,
            stop_hash: BlockHash(*reader.array().ok()?),
            hints: *reader.array().ok()?,
            aggregate: AggregateKind::from_code(reader.u8().ok()?)?,
            assumed: reader.u32().ok()?,
            unseen: reader.u32().ok()?,
            numbered: flag(reader.u8().ok()?)?,
            muhash: flag(reader.u8().ok()?)?,
        };
        let secret = Secret(*reader.array().ok()?);
        let mut segments = Vec::new();
        let mut start = identity.first;
        for _ in 0..reader.u32().ok()? {
            let end = reader.u32().ok()?;
            if end <= start {
                return None;
            }
            segments.push(HeightRange::new(start, end));
            start = end;
        }
        reader.finish().ok()?;
        let first = identity.first;
        let covers = first >= 1 && start > first && start - 1 <= identity.stop;
        covers.then_some(Self { identity, secret, segments })
    }
}

/// Describes, for messages, the difference between syncs that skip the witnesses of blocks up to different
/// heights.
pub(super) fn unseen_difference(is: Height, not: Height) -> String {
    let up_to = |height: Height| match height {
        0 => "for all blocks".to_owned(),
        height => format!("for blocks above {height}"),
    };
    format!("with witnesses checked {}, not {} (--witnesses)", up_to(is), up_to(not))
}

/// Divides a range of heights so that each segment has about `bytes_target` of blocks.
pub fn divide(
    range: HeightRange,
    bytes_target: u64,
    block_bytes: impl Fn(Height) -> u64,
) -> Vec<HeightRange> {
    /// Maximum number of heights in a segment. Early blocks are tiny, so only this bounds the memory that a
    /// segment needs for each height.
    const HEIGHTS_MAX: u32 = 50_000;
    let mut segments = Vec::new();
    let (mut start, mut bytes) = (range.start, 0);
    for height in range.heights() {
        bytes += block_bytes(height);
        let full = bytes >= bytes_target || height + 1 - start >= HEIGHTS_MAX;
        if full || height + 1 == range.end {
            segments.push(HeightRange::new(start, height + 1));
            (start, bytes) = (height + 1, 0);
        }
    }
    segments
}

/// Divides heights for syncs with `under_way` segments at a time: the last segments are a quarter as long, but
/// no shorter than `bytes_min`, so that no thread waits long for the others at the end.
pub fn divide_tapered(
    range: HeightRange,
    (bytes_target, bytes_min): (u64, u64),
    under_way: usize,
    block_bytes: impl Fn(Height) -> u64,
) -> Vec<HeightRange> {
    let (mut end, mut left) = (range.end, bytes_target * under_way as u64);
    while end > range.start && block_bytes(end - 1) <= left {
        end -= 1;
        left -= block_bytes(end);
    }
    let mut segments = divide(HeightRange::new(range.start, end), bytes_target, &block_bytes);
    let last_bytes = (bytes_target / 4).max(bytes_min);
    segments.extend(divide(HeightRange::new(end, range.end), last_bytes, &block_bytes));
    segments
}

/// Plans for tests.
#[cfg(test)]
pub mod testing {
    use super::*;

    /// Makes a plan for eight blocks, in two segments.
    pub fn plan(secret: u8) -> Plan {
        let identity = RunIdentity {
            network: Network::Regtest,
            first: 1,
            stop: 8,
            stop_hash: BlockHash([1; 32]),
            hints: [2; 32],
            aggregate: AggregateKind::Sha256,
            assumed: 0,
            unseen: 0,
            numbered: false,
            muhash: false,
        };
        let segments = vec![HeightRange::new(1, 5), HeightRange::new(5, 9)];
        Plan { identity, secret: Secret([secret; 32]), segments }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(first: u32, ends: Vec<u32>, muhash: bool) -> Plan {
        let stop = ends.last().map_or(0, |end| end - 1);
        let starts = [first].into_iter().chain(ends.iter().copied());
        let segments = starts.zip(&ends).map(|(a, &b)| HeightRange::new(a, b)).collect();
        Plan {
            identity: RunIdentity {
                network: Network::Signet,
                first,
                stop,
                stop_hash: BlockHash([7; 32]),
                hints: [9; 32],
                aggregate: if muhash { AggregateKind::MuHash } else { AggregateKind::Sha256 },
                assumed: stop / 2,
                unseen: stop / 3,
                numbered: stop % 2 == 1,
                muhash: stop % 4 < 2,
            },
            secret: Secret([3; 32]),
            segments,
        }
    }

    proptest! {
        #[test]
        fn round_trips_and_any_flipped_bit_is_noticed(
            first in 1u32..1000,
            steps in proptest::collection::vec(1u32..1000, 1..20),
            muhash: bool,
            place: proptest::sample::Index,
            bit in 0u8..8,
        ) {
            let ends = steps.iter().scan(first, |end, step| { *end += step; Some(*end) }).collect();
            let plan = plan(first, ends, muhash);
            let mut bytes = plan.to_bytes();
            prop_assert_eq!(Plan::from_bytes(&bytes), Some(plan));
            let place = place.index(bytes.len());
            bytes[place] ^= 1 << bit;
            prop_assert_eq!(Plan::from_bytes(&bytes), None);
            prop_assert_eq!(Plan::from_bytes(&bytes[..place]), None);
        }

        #[test]
        fn segments_cover_every_height_once(
            sizes in proptest::collection::vec(1u64..100, 1..300),
            target in 1u64..1000,
        ) {
            let stop = sizes.len() as u32;
            let range = HeightRange::new(1, stop + 1);
            let segments = divide(range, target, |height| sizes[height as usize - 1]);
            let heights: Vec<u32> = segments.iter().flat_map(|s| s.heights()).collect();
            prop_assert_eq!(heights, (1..=stop).collect::<Vec<_>>());
            prop_assert!(segments.iter().all(|s| !s.is_empty()));
        }

        #[test]
        fn the_last_segments_are_short(
            sizes in proptest::collection::vec(1u64..100, 1..300),
            target in 400u64..1000,
            under_way in 1usize..5,
        ) {
            let (stop, size) = (sizes.len() as u32, |height: Height| sizes[height as usize - 1]);
            let range = HeightRange::new(1, stop + 1);
            let segments = divide_tapered(range, (target, 1), under_way, size);
            let heights: Vec<u32> = segments.iter().flat_map(|s| s.heights()).collect();
            prop_assert_eq!(heights, (1..=stop).collect::<Vec<_>>());
            let bytes = |range: &HeightRange| range.heights().map(size).sum::<u64>();
            let mut left = target * under_way as u64;
            for segment in segments.iter().rev() {
                let bytes = bytes(segment);
                prop_assert!(bytes < target + 100);
                prop_assert!(left < 100 || bytes < target / 4 + 100, "{segments:?}");
                left = left.saturating_sub(bytes);
            }
            // No segment is shorter than that.
            let whole = divide_tapered(range, (target, target), under_way, size);
            prop_assert!(whole.iter().rev().skip(1).filter(|it| bytes(it) < target).count() < 2);
        }
    }

    #[test]
    fn names_what_differs() {
        let here = plan(1, vec![5], false).identity;
        assert_eq!(here.difference(&here), None);
        for (other, word) in [
            (RunIdentity { network: Network::Main, ..here.clone() }, "chain"),
            (RunIdentity { first: 3, ..here.clone() }, "from block 1 on, not 3"),
            (RunIdentity { stop_hash: BlockHash([8; 32]), ..here.clone() }, "block"),
            (RunIdentity { hints: [0; 32], ..here.clone() }, "hints"),
            (RunIdentity { aggregate: AggregateKind::MuHash, ..here.clone() }, "--aggregate"),
            (RunIdentity { aggregate: AggregateKind::Coins, ..here.clone() }, "without undo data"),
            (RunIdentity { assumed: here.assumed + 1, ..here.clone() }, "scripts assumed valid"),
            (RunIdentity { unseen: 0, ..here.clone() }, "blocks above 1, not for all"),
            (RunIdentity { numbered: !here.numbered, ..here.clone() }, "Utreexo"),
            (RunIdentity { muhash: !here.muhash, ..here.clone() }, "--muhash"),
        ] {
            assert!(here.difference(&other).is_some_and(|text| text.contains(word)));
        }
    }
}
