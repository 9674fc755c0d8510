//! [`HeaderTree`]: accepts headers in any order and finds the most-work chain.
//!
//! Every header in the tree passed the proof-of-work check against its own claimed target before it was
//! stored, and every *connected* header passed all of Core's contextual rules against its ancestors. The tree
//! does not check blocks: its chain may still contain an invalid block.
//!
//! A header with an unknown parent waits as an orphan and is validated when the parent connects.
//! Of two chains with equal work, the one that *connected* first wins, as in Core when it reads block files:
//! waiting orphans connect breadth first, in order of arrival. So the tip depends only on the sequence of
//! [`HeaderTree::accept`] calls.
//!
//! Memory: 48 bytes per header, plus 5.7 to 11.5 for the hash table, plus 48 for each change of the target.

mod rules;
mod stretch;
#[cfg(test)]
pub(crate) mod tests;

pub use rules::{HeaderError, is_too_new};

use crate::hashes::{BlockHash, table_hash};
use crate::header::{Header, Height};
use crate::params::Params;
use crate::work::check_proof_of_work;
use hashbrown::HashTable;
pub(crate) use rules::median_time;
use std::collections::{HashMap, VecDeque};
use stretch::Stretch;

/// Default limit of waiting orphans, see [`HeaderTree::set_orphans_max`]. Core keeps blocks within
/// 1,024 of their position in its files; this leaves room for files read out of order.
pub const ORPHANS_MAX: usize = 1 << 17;

/// Number of rejected headers stored with their reason. Further rejections are only counted, and the
/// descendants of those headers remain orphans forever.
pub const REJECTED_MAX: usize = 1024;

/// A clock that rejects no header as too new, for a tree whose chain is compared with the real clock later.
pub const ANY_TIME: i64 = i64::MAX;

const NO_PARENT: u32 = u32::MAX;
const ORPHAN: Height = u32::MAX;
const REJECTED: Height = u32::MAX - 1;
const HEADERS_MAX: usize = (u32::MAX - 2) as usize;

/// The index of a header in one [`HeaderTree`], in order of arrival: dense, from 0 (the genesis
/// block), so that callers can keep data about headers in a plain vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeaderId(u32);

impl HeaderId {
    /// Returns the id as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The result of accepting a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderAcceptance {
    /// It is connected, together with any orphans that waited for it.
    New(HeaderId),
    /// It was already in the tree, connected or waiting.
    Known(HeaderId),
    /// Its parent is not connected yet. [`HeaderTree::status`] returns its later state.
    Orphan(HeaderId),
}

impl HeaderAcceptance {
    /// Returns the header's id in any case.
    pub const fn id(self) -> HeaderId {
        match self {
            Self::New(id) | Self::Known(id) | Self::Orphan(id) => id,
        }
    }
}

/// The current state of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderStatus {
    /// Valid, like all its ancestors.
    Connected(ConnectedHeader),
    /// Its parent is not known yet.
    Orphan,
    /// It was an orphan and turned out invalid when its parent connected.
    Rejected,
}

/// A header that is connected to the genesis block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectedHeader {
    /// Its height.
    pub height: Height,
    /// Its parent; `None` for the genesis block.
    pub parent: Option<HeaderId>,
    /// Its time.
    pub time: u32,
    /// Its compact target.
    pub bits: u32,
    /// The work of the chain up to and including it.
    pub chain_work: u128,
}

/// What the tree knows of a header besides its hash.
#[derive(Debug, Clone)]
struct TreeEntry {
    parent: u32,
    height: Height,
    time: u32,
    /// The index of its [`Stretch`]. Meaningless until the header is connected.
    stretch: u32,
}

const _: () = assert!(
    size_of::<TreeEntry>() + size_of::<BlockHash>() == 48 && size_of::<Stretch>() == 48,
    "the module's documentation states these sizes"
);

impl TreeEntry {
    const fn is_connected(&self) -> bool {
        self.height < REJECTED
    }
}

/// A header that waits for its parent, with the fields that only the check needs.
#[derive(Debug, Clone)]
struct WaitingHeader {
    id: HeaderId,
    version: i32,
    bits: u32,
}

/// All headers seen, and the chain of them with the most work.
#[derive(Debug, Clone)]
pub struct HeaderTree {
    params: Params,
    /// Compact form of the easiest target.
    limit_bits: u32,
    now: i64,
    /// By id. Apart from the rest, so that a chain can take them over.
    hashes: Vec<BlockHash>,
    entries: Vec<TreeEntry>,
    stretches: Vec<Stretch>,
    by_hash: HashTable<u32>,
    tip: HeaderId,
    /// Waiting headers by the hash of the missing parent.
    orphans: HashMap<BlockHash, Vec<WaitingHeader>>,
    orphans_count: usize,
    orphans_max: usize,
    rejected: HashMap<BlockHash, HeaderError>,
    rejected_count: u64,
}

impl HeaderTree {
    /// Creates a tree that holds the genesis block of `params`. `now` is the time in seconds since
    /// 1970; headers too far ahead of it are rejected.
    pub fn new(params: &Params, now: i64) -> Self {
        Self::rooted_at(params, now, &params.genesis_header, params.genesis_hash, 0)
    }

    /// Creates a tree on any header that is assumed valid.
    fn rooted_at(
        params: &Params,
        now: i64,
        root: &Header,
        hash: BlockHash,
        height: Height,
    ) -> Self {
        let mut tree = Self {
            limit_bits: params.pow_limit.to_compact(),
            params: params.clone(),
            now,
            hashes: Vec::new(),
            entries: Vec::new(),
            stretches: vec![Stretch::new(height, 0, root.bits, root.bits)],
            by_hash: HashTable::new(),
            tip: HeaderId(0),
            orphans: HashMap::new(),
            orphans_count: 0,
            orphans_max: ORPHANS_MAX,
            rejected: HashMap::new(),
            rejected_count: 0,
        };
        let id = tree.store(hash, root.time);
        tree.entries[id.index()].height = height;
        tree
    }

    /// Reserves memory for `count` more headers at once.
    pub fn reserve(&mut self, count: usize) {
        self.entries.reserve(count);
        self.hashes.reserve(count);
        let hashes = &self.hashes;
        self.by_hash.reserve(count, |&id| table_hash(&hashes[id as usize]));
    }

    /// Sets the clock for future headers.
    pub fn set_now(&mut self, now: i64) {
        self.now = now;
    }

    /// Sets how many orphans may wait; further ones are rejected with [`HeaderError::TooManyOrphans`].
    pub fn set_orphans_max(&mut self, count: usize) {
        self.orphans_max = count;
    }

    /// Accepts a header, in any order (Core `validation.cpp`, `AcceptBlockHeader`).
    ///
    /// Connects or rejects the orphans that waited for it before returning.
    pub fn accept(&mut self, raw: &[u8; Header::SIZE]) -> Result<HeaderAcceptance, HeaderError> {
        let header = Header::parse(raw);
        let hash = header.hash();
        if let Some(id) = self.find(&hash) {
            return Ok(HeaderAcceptance::Known(id));
        }
        if !check_proof_of_work(&hash, header.bits, self.params.pow_limit) {
            return Err(HeaderError::HighHash { hash, bits: header.bits });
        }
        if self.entries.len() >= HEADERS_MAX {
            return Err(HeaderError::TooManyHeaders { hash, limit: HEADERS_MAX });
        }
        match self.find(&header.prev) {
            Some(parent) if self.entries[parent.index()].is_connected() => {
                self.accept_child(&header, hash, parent)
            }
            Some(_) => self.hold(&header, hash),
            None if header.prev == BlockHash::ZERO => Err(HeaderError::OtherGenesis { hash }),
            None => match self.rejected.get(&header.prev) {
                Some(cause) => {
                    let error = HeaderError::bad_prev(hash, header.prev, cause);
                    self.reject(hash, error.clone());
                    Err(error)
                }
                None => self.hold(&header, hash),
            },
        }
    }

    /// Validates headers, each after its parent, against all rules except the clock, and returns
    /// the last one before the first failure; `None` if the first header fails. The tree does not
    /// change; it must have no orphans.
    pub fn without_clock(
        &mut self,
        raw: impl IntoIterator<Item = [u8; Header::SIZE]>,
    ) -> Option<(BlockHash, ConnectedHeader)> {
        let (now, tip, count) = (self.now, self.tip, self.entries.len());
        let stretches = self.stretches.len();
        self.now = ANY_TIME;
        let accepted = raw.into_iter().map_while(|raw| self.accept(&raw).ok());
        let last = accepted.map(HeaderAcceptance::id).last();
        let found = last.and_then(|id| Some((*self.hash(id), self.connected(id)?)));
        (count..self.entries.len()).for_each(|index| self.forget(HeaderId(index as u32)));
        self.entries.truncate(count);
        self.hashes.truncate(count);
        self.stretches.truncate(stretches);
        (self.now, self.tip) = (now, tip);
        found
    }

    fn accept_child(
        &mut self,
        header: &Header,
        hash: BlockHash,
        parent: HeaderId,
    ) -> Result<HeaderAcceptance, HeaderError> {
        if let Err(error) =
            self.check_contextual(hash, header.version, header.time, header.bits, parent)
        {
            self.reject(hash, error.clone());
            return Err(error);
        }
        // A header may become valid later, for example if it was rejected for its time.
        self.rejected.remove(&hash);
        let id = self.store(hash, header.time);
        self.connect(id, parent, header.bits);
        self.connect_orphans_of(id);
        Ok(HeaderAcceptance::New(id))
    }

    /// Stores a header until its parent connects.
    fn hold(&mut self, header: &Header, hash: BlockHash) -> Result<HeaderAcceptance, HeaderError> {
        if self.orphans_count >= self.orphans_max {
            let (prev, limit) = (header.prev, self.orphans_max);
            return Err(HeaderError::TooManyOrphans { hash, prev, limit });
        }
        let id = self.store(hash, header.time);
        let waiting = WaitingHeader { id, version: header.version, bits: header.bits };
        self.orphans.entry(header.prev).or_default().push(waiting);
        self.orphans_count += 1;
        Ok(HeaderAcceptance::Orphan(id))
    }

    /// Adds an entry that is not connected yet.
    fn store(&mut self, hash: BlockHash, time: u32) -> HeaderId {
        let id = self.entries.len() as u32;
        self.entries.push(TreeEntry { parent: NO_PARENT, height: ORPHAN, time, stretch: 0 });
        self.hashes.push(hash);
        let hashes = &self.hashes;
        self.by_hash.insert_unique(table_hash(&hash), id, |&id| table_hash(&hashes[id as usize]));
        HeaderId(id)
    }

    /// Links a checked entry with this target to its connected parent; a chain with more work becomes the best.
    fn connect(&mut self, id: HeaderId, parent: HeaderId, bits: u32) {
        let height = self.entries[parent.index()].height + 1;
        let below = self.stretch_of(parent);
        let starts_period = height.is_multiple_of(self.params.difficulty_adjustment_interval());
        let is_real = starts_period || bits != self.limit_bits;
        let last_real_bits = if is_real { bits } else { below.last_real_bits };
        let mut stretch = self.entries[parent.index()].stretch;
        if (bits, last_real_bits) != (below.bits, below.last_real_bits) {
            let work_below = self.chain_work(parent);
            stretch = self.stretches.len() as u32;
            self.stretches.push(Stretch::new(height, work_below, bits, last_real_bits));
        }
        let time = self.entries[id.index()].time;
        self.entries[id.index()] = TreeEntry { parent: parent.0, height, time, stretch };
        if self.chain_work(id) > self.chain_work(self.tip) {
            self.tip = id;
        }
    }

    /// Returns the stretch of a connected header.
    fn stretch_of(&self, id: HeaderId) -> &Stretch {
        &self.stretches[self.entries[id.index()].stretch as usize]
    }

    /// Returns the work of the chain up to and including a connected header.
    fn chain_work(&self, id: HeaderId) -> u128 {
        self.stretch_of(id).chain_work(self.entries[id.index()].height)
    }

    fn connect_orphans_of(&mut self, id: HeaderId) {
        let mut parents = VecDeque::from([id]);
        while let Some(parent) = parents.pop_front() {
            for waiting in self.take_orphans_of(&self.hashes[parent.index()].clone()) {
                let WaitingHeader { id, version, bits } = waiting;
                let (hash, time) = (self.hashes[id.index()], self.entries[id.index()].time);
                match self.check_contextual(hash, version, time, bits, parent) {
                    Ok(()) => {
                        self.connect(id, parent, bits);
                        parents.push_back(id);
                    }
                    Err(error) => {
                        self.forget(id);
                        self.reject(hash, error);
                    }
                }
            }
        }
    }

    fn take_orphans_of(&mut self, hash: &BlockHash) -> Vec<WaitingHeader> {
        let orphans = self.orphans.remove(hash).unwrap_or_default();
        self.orphans_count -= orphans.len();
        orphans
    }

    /// Marks an entry as rejected and removes it from the hash table.
    fn forget(&mut self, id: HeaderId) {
        self.entries[id.index()].height = REJECTED;
        let key = table_hash(&self.hashes[id.index()]);
        let found = self.by_hash.find_entry(key, |&other| other == id.0);
        if let Ok(found) = found {
            found.remove();
        }
    }

    /// Records an invalid header, and rejects every orphan that descends from it.
    fn reject(&mut self, hash: BlockHash, error: HeaderError) {
        let mut invalid = VecDeque::from([(hash, error)]);
        while let Some((hash, error)) = invalid.pop_front() {
            for WaitingHeader { id, .. } in self.take_orphans_of(&hash) {
                let child = self.hashes[id.index()];
                self.forget(id);
                invalid.push_back((child, HeaderError::bad_prev(child, hash, &error)));
            }
            self.rejected_count += 1;
            if self.rejected.len() < REJECTED_MAX {
                self.rejected.insert(hash, error);
            }
        }
    }

    /// Returns the header with this hash, connected or waiting.
    pub fn find(&self, hash: &BlockHash) -> Option<HeaderId> {
        let same = |&id: &u32| self.hashes[id as usize] == *hash;
        self.by_hash.find(table_hash(hash), same).map(|&id| HeaderId(id))
    }

    /// Returns the hash of a header in this tree.
    pub fn hash(&self, id: HeaderId) -> &BlockHash {
        &self.hashes[id.index()]
    }

    /// Returns the current state of a header of this tree.
    pub fn status(&self, id: HeaderId) -> HeaderStatus {
        let entry = &self.entries[id.index()];
        match entry.height {
            ORPHAN => HeaderStatus::Orphan,
            REJECTED => HeaderStatus::Rejected,
            height => HeaderStatus::Connected(ConnectedHeader {
                height,
                parent: (entry.parent != NO_PARENT).then_some(HeaderId(entry.parent)),
                time: entry.time,
                bits: self.stretch_of(id).bits,
                chain_work: self.chain_work(id),
            }),
        }
    }

    /// Returns the data of a connected header; `None` if the header is not connected.
    pub fn connected(&self, id: HeaderId) -> Option<ConnectedHeader> {
        match self.status(id) {
            HeaderStatus::Connected(header) => Some(header),
            HeaderStatus::Orphan | HeaderStatus::Rejected => None,
        }
    }

    /// Returns the last header of the most-work chain.
    pub const fn tip(&self) -> HeaderId {
        self.tip
    }

    /// Returns a header and its ancestors, down to the genesis block; empty if it is not connected.
    pub fn lineage_of(&self, id: HeaderId) -> impl Iterator<Item = HeaderId> {
        let mut next = id;
        core::iter::from_fn(move || {
            let entry = self.entries.get(next.index()).filter(|entry| entry.is_connected())?;
            let this = next;
            next = HeaderId(entry.parent);
            Some(this)
        })
    }

    /// Returns the headers from the genesis block to `id`, by height; empty if it is not connected.
    pub fn path_to(&self, id: HeaderId) -> Vec<HeaderId> {
        let mut path: Vec<HeaderId> = self.lineage_of(id).collect();
        path.reverse();
        path
    }

    /// Returns all assigned ids, in order.
    pub fn ids(&self) -> impl Iterator<Item = HeaderId> + use<> {
        (0..self.entries.len() as u32).map(HeaderId)
    }

    /// Returns the number of assigned ids: headers connected, waiting, and rejected after waiting.
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Always false: the genesis block is always in the tree.
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of waiting orphans.
    pub const fn orphans_count(&self) -> usize {
        self.orphans_count
    }

    /// Returns the parents of orphans that are not in the tree at all, in no particular order.
    pub fn missing_parents(&self) -> impl Iterator<Item = &BlockHash> {
        self.orphans.keys().filter(|hash| self.find(hash).is_none())
    }

    /// Returns the number of orphans that descend from an unconnected block.
    pub fn orphans_above(&self, hash: &BlockHash) -> usize {
        let (mut count, mut parents) = (0, vec![*hash]);
        while let Some(parent) = parents.pop() {
            let children = self.orphans.get(&parent).map_or(&[][..], Vec::as_slice);
            count += children.len();
            parents.extend(children.iter().map(|child| self.hashes[child.id.index()]));
        }
        count
    }

    /// Returns how many times a header was rejected by a contextual rule or because of its
    /// ancestors.
    pub const fn rejected_count(&self) -> u64 {
        self.rejected_count
    }

    /// Returns why a header was rejected, if it is among the first [`REJECTED_MAX`].
    pub fn rejection(&self, hash: &BlockHash) -> Option<&HeaderError> {
        self.rejected.get(hash)
    }

    /// Returns the recorded rejections, in no particular order.
    pub fn rejections(&self) -> impl Iterator<Item = &HeaderError> {
        self.rejected.values()
    }

    /// Returns the hashes of all headers, by id, and frees the rest.
    pub(crate) fn into_hashes(self) -> Vec<BlockHash> {
        self.hashes
    }

    /// Returns the rules of this chain.
    pub const fn params(&self) -> &Params {
        &self.params
    }
}
