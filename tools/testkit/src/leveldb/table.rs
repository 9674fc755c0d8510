//! [`SortedTable`]: a table of versions of keys, and faults within one.

use super::format::{TableBlock, internal, masked_crc, put_varint};
use crate::rng::Rng;

/// The maximum sequence number, so that a look-up sees all versions.
const SEQUENCE_MAX: u64 = (1 << 56) - 1;
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
const FOOTER_HANDLES: usize = 40;
const FILTER_NAME: &[u8] = b"filter.leveldb.BuiltinBloomFilter2";
const FILTER_BASE_LOG2: u8 = 11;
const PROBES: u8 = 6;

/// A put (1) or a deletion (0) of a key.
#[derive(Clone, Debug)]
pub(super) struct InternalEntry {
    pub(super) key: Vec<u8>,
    pub(super) sequence: u64,
    pub(super) kind: u8,
    pub(super) value: Vec<u8>,
}

impl InternalEntry {
    pub(super) fn internal(&self) -> Vec<u8> {
        internal(&self.key, self.sequence, self.kind)
    }
}

/// A fault within a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Harm {
    Separator,
    EmptyBlock,
    BlockTwice,
    BlocksSwapped,
    BlockLeftOut,
    LongHandle,
    Restarts,
    FilterBit,
    FilterPlaces,
    FilterOfAnother,
    FilterForm,
    Bit,
    Compressed,
}

#[derive(Clone, Debug)]
pub(super) struct SortedTable {
    pub(super) number: u64,
    pub(super) level: u64,
    /// In LevelDB's order.
    pub(super) versions: Vec<InternalEntry>,
    /// Entries in a block.
    pub(super) per_block: usize,
    /// Interval between whole keys.
    pub(super) interval: usize,
    pub(super) has_filters: bool,
    pub(super) harms: Vec<Harm>,
    /// `sst`, as in old versions of LevelDB, or `ldb`.
    pub(super) ending: &'static str,
}

/// The position of a block.
type Handle = (usize, usize);

fn handle_bytes((offset, size): Handle) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_varint(&mut bytes, offset as u64);
    put_varint(&mut bytes, size as u64);
    bytes
}

fn put_block(out: &mut Vec<u8>, bytes: &[u8]) -> Handle {
    let handle = (out.len(), bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(&[0; 5]);
    seal(out, handle);
    handle
}

/// Corrects the checksum of a block.
fn seal(out: &mut [u8], (offset, size): Handle) {
    let sum = masked_crc(&out[offset..offset + size + 1]);
    out[offset + size + 1..][..4].copy_from_slice(&sum);
}

impl SortedTable {
    pub(super) fn name(&self) -> String {
        format!("{:06}.{}", self.number, self.ending)
    }

    fn does(&self, harm: Harm) -> bool {
        self.harms.contains(&harm)
    }

    pub(super) fn bytes(&self, rng: &mut Rng) -> Vec<u8> {
        let mut blocks: Vec<&[InternalEntry]> = self.versions.chunks(self.per_block).collect();
        let mut separators = self.separators(&blocks, rng);
        if self.does(Harm::Separator) {
            let at = rng.index(separators.len());
            separators[at] = self.other_separator(rng);
        }
        if self.does(Harm::EmptyBlock) {
            let at = rng.index(blocks.len() + 1);
            blocks.insert(at, &[]);
            separators.insert(at, self.other_separator(rng));
        }
        let (mut out, mut handles) = (Vec::new(), Vec::new());
        let harmed = rng.index(blocks.len());
        for (at, versions) in blocks.iter().enumerate() {
            let pairs: Vec<_> =
                versions.iter().map(|it| (it.internal(), it.value.clone())).collect();
            let mut block = TableBlock::new(&pairs, self.interval);
            if at == harmed && self.does(Harm::Restarts) {
                harm_restarts(&mut block, rng);
            }
            handles.push(put_block(&mut out, &block.bytes()));
        }
        let mut parts = handles.clone();
        let mut further = Vec::new();
        if self.has_filters {
            let filters = self.filters(&blocks, &handles, rng);
            let handle = put_block(&mut out, &filters);
            parts.push(handle);
            further.push((FILTER_NAME.to_vec(), handle_bytes(handle)));
        }
        let list = put_block(&mut out, &TableBlock::new(&further, 1).bytes());
        let index = self.index(separators, &handles, rng);
        let index = put_block(&mut out, &TableBlock::new(&index, 1).bytes());
        parts.extend([list, index]);
        let (offset, size) = parts[rng.index(parts.len())];
        if self.does(Harm::Bit) && size > 0 {
            out[offset + rng.index(size)] ^= 1 << rng.below(8);
        }
        if self.does(Harm::Compressed) {
            out[offset + size] = 1 + rng.below(2) as u8;
        }
        seal(&mut out, (offset, size));
        let mut footer = [handle_bytes(list), handle_bytes(index)].concat();
        footer.resize(FOOTER_HANDLES, 0);
        out.extend_from_slice(&footer);
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out
    }

    /// Returns a key for each block, at or above all its keys and below all later ones: a short one, as in
    /// LevelDB, or the last key.
    fn separators(&self, blocks: &[&[InternalEntry]], rng: &mut Rng) -> Vec<Vec<u8>> {
        let last = |at: usize| blocks[at].last().unwrap();
        let separator = |at: usize| {
            let next = blocks.get(at + 1).map(|block| &block[0].key);
            let key = &last(at).key;
            let short = next.map_or_else(|| successor(key), |next| between(key, next));
            short
                .filter(|_| rng.below(3) > 0)
                .map_or_else(|| last(at).internal(), |short| internal(&short, SEQUENCE_MAX, 1))
        };
        (0..blocks.len()).map(separator).collect()
    }

    fn other_separator(&self, rng: &mut Rng) -> Vec<u8> {
        let version = &self.versions[rng.index(self.versions.len())];
        let sequence = version.sequence;
        match rng.below(6) {
            0 => version.internal(),
            1 => internal(&version.key, sequence.saturating_sub(1), 1),
            2 => internal(&version.key, sequence.wrapping_add(1), 0),
            3 => internal(&version.key[..version.key.len() / 2], SEQUENCE_MAX, 1),
            4 => internal(&[0xff; 3], 0, 0),
            _ => vec![b'k'; rng.index(9)],
        }
    }

    fn index(
        &self,
        separators: Vec<Vec<u8>>,
        handles: &[Handle],
        rng: &mut Rng,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let values = handles.iter().map(|handle| handle_bytes(*handle));
        let mut index: Vec<_> = separators.into_iter().zip(values).collect();
        let (at, other) = (rng.index(index.len()), rng.index(index.len()));
        if self.does(Harm::BlockTwice) {
            index.insert(other, index[at].clone());
        }
        if self.does(Harm::BlocksSwapped) {
            let value = index[at].1.clone();
            index[at].1 = core::mem::replace(&mut index[other].1, value);
        }
        if self.does(Harm::BlockLeftOut) && index.len() > 1 {
            index.remove(at);
        }
        let at = rng.index(index.len());
        if self.does(Harm::LongHandle) {
            index[at].1.push(rng.below(200) as u8);
        }
        index
    }

    /// Makes one filter for the blocks that begin within the same 2 KiB.
    fn filters(&self, blocks: &[&[InternalEntry]], handles: &[Handle], rng: &mut Rng) -> Vec<u8> {
        let mut keys: Vec<Vec<&[u8]>> = Vec::new();
        for (block, (offset, _)) in blocks.iter().zip(handles) {
            keys.resize(keys.len().max((offset >> FILTER_BASE_LOG2) + 1), Vec::new());
            keys.last_mut().unwrap().extend(block.iter().map(|version| &version.key[..]));
        }
        if self.does(Harm::FilterOfAnother) {
            let at = rng.index(keys.len());
            keys[at] = vec![b"another"];
        }
        let (mut out, mut places) = (Vec::new(), Vec::new());
        for keys in &keys {
            places.push(out.len() as u32);
            if !keys.is_empty() {
                out.extend(filter(keys));
            }
        }
        if self.does(Harm::FilterBit) {
            let at = rng.index(out.len());
            out[at] &= !(1 << rng.below(8));
        }
        let mut end = out.len() as u32;
        if self.does(Harm::FilterPlaces) {
            let at = rng.index(places.len() + 1);
            *places.get_mut(at).unwrap_or(&mut end) = rng.below(out.len() as u64 + 9) as u32;
        }
        for place in places.iter().chain([&end]) {
            out.extend_from_slice(&place.to_le_bytes());
        }
        out.push(FILTER_BASE_LOG2);
        if self.does(Harm::FilterForm) {
            match rng.below(3) {
                0 => out.truncate(rng.index(out.len())),
                1 => *out.last_mut().unwrap() = rng.below(64) as u8,
                _ => out.push(FILTER_BASE_LOG2),
            }
        }
        out
    }
}

/// Makes a bloom filter with ten bits for each key.
fn filter(keys: &[&[u8]]) -> Vec<u8> {
    let bytes = (keys.len() * 10).max(64).div_ceil(8);
    let mut filter = vec![0; bytes];
    for key in keys {
        let mut hash = hash(key);
        let step = hash.rotate_right(17);
        for _ in 0..PROBES {
            let bit = hash as usize % (bytes * 8);
            filter[bit / 8] |= 1 << (bit % 8);
            hash = hash.wrapping_add(step);
        }
    }
    filter.push(PROBES);
    filter
}

/// Computes the hash of LevelDB's `util/hash.cc`, with the seed of its filters.
fn hash(key: &[u8]) -> u32 {
    const FACTOR: u32 = 0xc6a4_a793;
    let mut hash = 0xbc9f_1d34 ^ (key.len() as u32).wrapping_mul(FACTOR);
    let mut words = key.chunks_exact(4);
    for word in &mut words {
        hash = hash.wrapping_add(u32::from_le_bytes(word.try_into().unwrap()));
        hash = hash.wrapping_mul(FACTOR);
        hash ^= hash >> 16;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let mut word = [0; 4];
        word[..rest.len()].copy_from_slice(rest);
        hash = hash.wrapping_add(u32::from_le_bytes(word)).wrapping_mul(FACTOR);
        hash ^= hash >> 24;
    }
    hash
}

/// Finds a key between these two that is shorter than the first, if there is one.
fn between(key: &[u8], next: &[u8]) -> Option<Vec<u8>> {
    let same = key.iter().zip(next).take_while(|(a, b)| a == b).count();
    let (byte, limit) = (*key.get(same)?, *next.get(same)?);
    (byte < 0xff && byte + 1 < limit && same + 1 < key.len())
        .then(|| [&key[..same], &[byte + 1]].concat())
}

fn successor(key: &[u8]) -> Option<Vec<u8>> {
    let same = key.iter().take_while(|byte| **byte == 0xff).count();
    (same + 1 < key.len()).then(|| [&key[..same], &[key[same] + 1]].concat())
}

fn harm_restarts(block: &mut TableBlock, rng: &mut Rng) {
    let end = block.entries.len() as u32;
    let at = rng.index(block.restarts.len());
    match rng.below(7) {
        0 => block.restarts[at] = rng.below(u64::from(end) + 5) as u32,
        1 => block.restarts[at] = u32::MAX - rng.below(9) as u32,
        2 => block.restarts.clear(),
        3 => block.restarts.push(end),
        4 => block.restarts.reverse(),
        5 => block.restarts.insert(at, block.restarts[at]),
        _ => {
            block.restarts.remove(at);
        }
    }
}
