//! [`UtreexoMessage`]: messages with proofs of coins, and roots, from a Utreexo bridge node.
//!
//! BIP-183 is a draft, and the deployed protocol differs from its text: this module follows **utreexod
//! 0.6.0**, and everything that depends on that version is here. `docs/utreexo.md` has the layouts, the
//! differences, and what 0.6.0 answers to which request.
//!
//! A [`PeerProof`] is raw numbers and bytes: nothing in it is verified, and parts may be left out on request.
//! Counts are checked against what a block can hold before memory is allocated.

#[cfg(test)]
mod tests;

use apus_chain::{BlockHash, MAX_MONEY, ReadError, Reader, write_compact_size};
use apus_p2p::message::{Message, Services};
use core::ops::Range;

/// Proofs of new blocks (`NODE_UTREEXO`).
pub const UTREEXO: Services = Services(1 << 12);
/// Proofs of all blocks (`NODE_UTREEXO_ARCHIVE`).
pub const UTREEXO_ARCHIVE: Services = Services(1 << 13);

/// The services of a bridge node that keeps the proofs of all blocks.
pub const BRIDGE: Services = UTREEXO.with(UTREEXO_ARCHIVE);

/// A node's hash. Zeros stand for a root whose leaves are all deleted.
pub type NodeHash = [u8; 32];

/// A Utreexo message. Transactions with proofs, and times to live, are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UtreexoMessage {
    /// A request for a block's proof: `getuproof`.
    GetProof(ProofRequest),
    /// The answer: `uproof`. A peer without a proof of the block sends no answer at all.
    Proof(PeerProof),
    /// A request for the roots after a block: `geturoot`.
    GetRoots(BlockHash),
    /// The answer: `uroot`.
    Roots(PeerRoots),
}

impl UtreexoMessage {
    /// The message's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::GetProof(_) => "getuproof",
            Self::Proof(_) => "uproof",
            Self::GetRoots(_) => "geturoot",
            Self::Roots(_) => "uroot",
        }
    }

    /// The message as sent to peers.
    #[must_use]
    pub fn to_message(&self) -> Message {
        let mut payload = Vec::new();
        encode(self, &mut payload);
        Message::Other { name: self.name().to_owned(), payload }
    }

    /// Reads the message of this name; `None` if the name is unknown.
    ///
    /// # Errors
    /// The payload does not fit the name.
    pub fn read(name: &str, payload: &[u8]) -> Result<Option<Self>, BadPayload> {
        let read = decode(name, &mut Reader::new(payload));
        read.map_err(|flaw| BadPayload { name: name.to_owned(), flaw })
    }
}

/// An invalid payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("payload of `{name}`: {flaw}")]
pub struct BadPayload {
    /// The message's name.
    pub name: String,
    /// The flaw.
    pub flaw: PayloadFlaw,
}

/// Why a payload is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadFlaw {
    /// It ends within a field, or a count in it is above its limit.
    #[error(transparent)]
    Malformed(#[from] ReadError),
    /// A leaf's script has an unknown kind.
    #[error("leaf {index} has a script of unknown kind {kind}: at most 4")]
    ScriptKind {
        /// Index of the leaf in the message, from 0.
        index: usize,
        /// The kind.
        kind: u8,
    },
    /// The number of roots is not the number of 1 bits in the number of leaves.
    #[error("{found} roots for {leaves} leaves, which need {needed}")]
    RootCount {
        /// Leaves ever added.
        leaves: u64,
        /// Roots found.
        found: u64,
        /// Roots that this number of leaves has.
        needed: u32,
    },
}

/// A request for parts of a block's proof.
///
/// utreexod 0.6.0 treats two of the fields differently: `all_hashes` gives no hashes, and `all_leaves` gives
/// all hashes too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProofRequest {
    /// The block.
    pub block: BlockHash,
    /// Whether to send the targets: all or none.
    pub targets: bool,
    /// Whether to send all hashes.
    pub all_hashes: bool,
    /// Whether to send all leaves.
    pub all_leaves: bool,
    /// Hashes to send in addition.
    pub hashes: WantedPlaces,
    /// Leaves to send in addition.
    pub leaves: WantedPlaces,
}

impl ProofRequest {
    /// A request for the whole proof.
    #[must_use]
    pub fn whole(block: BlockHash) -> Self {
        let (hashes, leaves) = (WantedPlaces::default(), WantedPlaces::default());
        Self { block, targets: true, all_hashes: true, all_leaves: true, hashes, leaves }
    }

    /// A request for the targets only. Their number is the number of leaves.
    #[must_use]
    pub fn targets(block: BlockHash) -> Self {
        Self {
            targets: true,
            ..Self::parts(block, WantedPlaces::default(), WantedPlaces::default())
        }
    }

    /// A request for some leaves only.
    #[must_use]
    pub fn leaves(block: BlockHash, places: Range<usize>) -> Self {
        Self::parts(block, WantedPlaces::default(), places.collect())
    }

    /// A request for some hashes and leaves, by their places in the whole proof, without targets.
    #[must_use]
    pub const fn parts(block: BlockHash, hashes: WantedPlaces, leaves: WantedPlaces) -> Self {
        Self { block, targets: false, all_hashes: false, all_leaves: false, hashes, leaves }
    }
}

/// A bitmap of places in a list: bit `n % 8` of byte `n / 8` is place `n`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WantedPlaces(Vec<u8>);

impl WantedPlaces {
    /// Whether a place is requested.
    #[must_use]
    pub fn has(&self, place: usize) -> bool {
        self.0.get(place / 8).is_some_and(|byte| byte >> (place % 8) & 1 == 1)
    }

    /// The number of places.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    /// The bitmap's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FromIterator<usize> for WantedPlaces {
    fn from_iter<I: IntoIterator<Item = usize>>(places: I) -> Self {
        let mut bytes = Vec::new();
        for place in places {
            if bytes.len() <= place / 8 {
                bytes.resize(place / 8 + 1, 0);
            }
            bytes[place / 8] |= 1 << (place % 8);
        }
        Self(bytes)
    }
}

/// A block's proof, or the requested parts of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerProof {
    /// The block.
    pub block: BlockHash,
    /// Hashes needed to compute the roots, by ascending position.
    pub hashes: Vec<NodeHash>,
    /// Positions of the coins that the block spends, in the order of its inputs, without the coins that it
    /// creates itself. They are numbered for a forest of 63 rows, regardless of the number of leaves.
    pub targets: Vec<u64>,
    /// These coins, in the same order.
    pub leaves: Vec<PeerLeaf>,
}

/// The data of a coin that a verifier needs; the rest is in the block that spends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerLeaf {
    /// Twice the height of the block that created it, plus 1 if a coinbase did.
    pub header_code: u32,
    /// Amount in satoshi, at most `MAX_MONEY`.
    pub amount: u64,
    /// Its script.
    pub script: PeerLeafScript,
}

/// A coin's script, or how to rebuild it from the input that spends it. The claim that the input allows it is
/// the sender's, and unverified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerLeafScript {
    /// The script itself.
    Other(Vec<u8>),
    /// P2PKH of the last push of the input's script.
    PubkeyHash,
    /// P2WPKH of the last item of the witness.
    WitnessPubkeyHash,
    /// P2SH of the last push of the input's script.
    ScriptHash,
    /// P2WSH of the last item of the witness.
    WitnessScriptHash,
}

/// The forest after a block, and the position of this state in the peer's forest of states. The position is
/// useful only to a reader that has that forest's roots from another source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRoots {
    /// The block.
    pub block: BlockHash,
    /// Leaves ever added.
    pub leaves: u64,
    /// Roots, highest tree first: one for each 1 bit of `leaves`.
    pub roots: Vec<NodeHash>,
    /// Position of this state among the states.
    pub target: u64,
    /// Proof of that position.
    pub proof: Vec<NodeHash>,
}

/// The most leaves in a message: as many as a block can delete.
pub const LEAVES_MAX: usize = apus_utreexo::TARGETS_MAX;
/// The most hashes in a proof: that many leaves far apart in a forest of 51 rows (utreexod
/// `wire/msgutreexoproof.go`, `MaxProofHashes`).
pub const HASHES_MAX: usize = 36 * LEAVES_MAX + ((1 << 15) - LEAVES_MAX);
/// The longest script of a coin (utreexod `wire/leaf.go`, `MaxScriptSize`): longer ones are unspendable.
pub const LEAF_SCRIPT_BYTES_MAX: usize = 10_000;
/// The most hashes that prove a state of the forest (utreexod `wire/msgutreexoroot.go`, `maxProofSize`).
pub const ROOT_PROOF_MAX: usize = 255;

/// Bits of the byte that selects the requested parts (utreexod `wire/msggetutreexoproof.go`).
const TARGETS: u8 = 1;
const ALL_HASHES: u8 = 1 << 1;
const ALL_LEAVES: u8 = 1 << 2;

const HASH_BYTES: usize = 32;
/// The fewest bytes of a leaf: header code, amount, kind of script.
const LEAF_BYTES_LEAST: usize = 13;
/// The most bytes of a leaf: these, and a script with its length.
pub const LEAF_BYTES_MAX: usize = LEAF_BYTES_LEAST + 3 + LEAF_SCRIPT_BYTES_MAX;

/// Reads the payload of the message of this name; `None` if the name is unknown.
fn decode(name: &str, reader: &mut Reader<'_>) -> Result<Option<UtreexoMessage>, PayloadFlaw> {
    Ok(Some(match name {
        "getuproof" => UtreexoMessage::GetProof(read_request(reader)?),
        "uproof" => UtreexoMessage::Proof(read_proof(reader)?),
        "geturoot" => UtreexoMessage::GetRoots(BlockHash(read_hash(reader)?)),
        "uroot" => UtreexoMessage::Roots(read_roots(reader)?),
        _ => return Ok(None),
    }))
}

/// Appends the payload of a message to `out`.
fn encode(message: &UtreexoMessage, out: &mut Vec<u8>) {
    match message {
        UtreexoMessage::GetProof(request) => write_request(request, out),
        UtreexoMessage::Proof(proof) => write_proof(proof, out),
        UtreexoMessage::GetRoots(block) => out.extend(block.0),
        UtreexoMessage::Roots(roots) => write_roots(roots, out),
    }
}

/// Appends leaves to `out`, in order and without their number.
pub fn write_leaves(leaves: &[PeerLeaf], out: &mut Vec<u8>) {
    leaves.iter().for_each(|leaf| write_leaf(leaf, out));
}

fn read_hash(reader: &mut Reader<'_>) -> Result<NodeHash, ReadError> {
    reader.array().copied()
}

fn read_hashes(reader: &mut Reader<'_>, most: usize) -> Result<Vec<NodeHash>, ReadError> {
    let count = reader.compact_max(most as u64)? as usize;
    // The count is limited, so the product cannot overflow.
    let bytes = reader.take(count * HASH_BYTES)?;
    Ok(bytes.as_chunks().0.to_vec())
}

fn write_hashes(hashes: &[NodeHash], out: &mut Vec<u8>) {
    write_compact_size(out, hashes.len() as u64);
    out.extend_from_slice(hashes.as_flattened());
}

/// Ignores unknown bits of the first byte, as utreexod does.
fn read_request(reader: &mut Reader<'_>) -> Result<ProofRequest, ReadError> {
    let block = BlockHash(read_hash(reader)?);
    let asked = reader.u8()?;
    let has = |bit: u8| asked & bit != 0;
    let hashes = read_wanted(reader, HASHES_MAX)?;
    let leaves = read_wanted(reader, LEAVES_MAX)?;
    let (targets, all_hashes, all_leaves) = (has(TARGETS), has(ALL_HASHES), has(ALL_LEAVES));
    Ok(ProofRequest { block, targets, all_hashes, all_leaves, hashes, leaves })
}

fn read_wanted(reader: &mut Reader<'_>, places: usize) -> Result<WantedPlaces, ReadError> {
    let len = reader.compact_max(places.div_ceil(8) as u64)? as usize;
    Ok(WantedPlaces(reader.take(len)?.to_vec()))
}

fn write_request(request: &ProofRequest, out: &mut Vec<u8>) {
    out.extend(request.block.0);
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    let all = bit(request.all_hashes, ALL_HASHES) | bit(request.all_leaves, ALL_LEAVES);
    out.push(bit(request.targets, TARGETS) | all);
    for wanted in [&request.hashes, &request.leaves] {
        write_compact_size(out, wanted.0.len() as u64);
        out.extend_from_slice(&wanted.0);
    }
}

fn read_proof(reader: &mut Reader<'_>) -> Result<PeerProof, PayloadFlaw> {
    let block = BlockHash(read_hash(reader)?);
    let hashes = read_hashes(reader, HASHES_MAX)?;
    let targets = read_targets(reader)?;
    let count = reader.compact_max(LEAVES_MAX as u64)? as usize;
    let mut leaves = Vec::with_capacity(count.min(reader.remaining() / LEAF_BYTES_LEAST));
    for index in 0..count {
        leaves.push(read_leaf(reader, index)?);
    }
    Ok(PeerProof { block, hashes, targets, leaves })
}

fn write_proof(proof: &PeerProof, out: &mut Vec<u8>) {
    out.extend(proof.block.0);
    write_hashes(&proof.hashes, out);
    write_compact_size(out, proof.targets.len() as u64);
    for &target in &proof.targets {
        write_compact_size(out, target);
    }
    write_compact_size(out, proof.leaves.len() as u64);
    write_leaves(&proof.leaves, out);
}

fn read_targets(reader: &mut Reader<'_>) -> Result<Vec<u64>, ReadError> {
    let count = reader.compact_max(LEAVES_MAX as u64)? as usize;
    let mut targets = Vec::with_capacity(count.min(reader.remaining()));
    for _ in 0..count {
        targets.push(reader.compact_u64()?);
    }
    Ok(targets)
}

fn read_leaf(reader: &mut Reader<'_>, index: usize) -> Result<PeerLeaf, PayloadFlaw> {
    let header_code = reader.u32()?;
    let amount = read_amount(reader)?;
    let script = match reader.u8()? {
        0 => PeerLeafScript::Other(read_script(reader)?),
        1 => PeerLeafScript::PubkeyHash,
        2 => PeerLeafScript::WitnessPubkeyHash,
        3 => PeerLeafScript::ScriptHash,
        4 => PeerLeafScript::WitnessScriptHash,
        kind => return Err(PayloadFlaw::ScriptKind { index, kind }),
    };
    Ok(PeerLeaf { header_code, amount, script })
}

/// Reads an amount and checks its range, which utreexod does not.
fn read_amount(reader: &mut Reader<'_>) -> Result<u64, ReadError> {
    let offset = reader.position();
    let value = reader.u64()?;
    if value > MAX_MONEY {
        return Err(ReadError::TooLarge { offset, value, limit: MAX_MONEY });
    }
    Ok(value)
}

fn read_script(reader: &mut Reader<'_>) -> Result<Vec<u8>, ReadError> {
    let len = reader.compact_max(LEAF_SCRIPT_BYTES_MAX as u64)? as usize;
    Ok(reader.take(len)?.to_vec())
}

fn write_leaf(leaf: &PeerLeaf, out: &mut Vec<u8>) {
    out.extend(leaf.header_code.to_le_bytes());
    out.extend(leaf.amount.to_le_bytes());
    match &leaf.script {
        PeerLeafScript::Other(script) => {
            out.push(0);
            write_compact_size(out, script.len() as u64);
            out.extend_from_slice(script);
        }
        PeerLeafScript::PubkeyHash => out.push(1),
        PeerLeafScript::WitnessPubkeyHash => out.push(2),
        PeerLeafScript::ScriptHash => out.push(3),
        PeerLeafScript::WitnessScriptHash => out.push(4),
    }
}

fn read_roots(reader: &mut Reader<'_>) -> Result<PeerRoots, PayloadFlaw> {
    let leaves = reader.compact_u64()?;
    let target = reader.compact_u64()?;
    let block = BlockHash(read_hash(reader)?);
    let (found, needed) = (reader.compact_u64()?, leaves.count_ones());
    if found != u64::from(needed) {
        return Err(PayloadFlaw::RootCount { leaves, found, needed });
    }
    let roots = (0..needed).map(|_| read_hash(reader)).collect::<Result<_, _>>()?;
    let proof = read_hashes(reader, ROOT_PROOF_MAX)?;
    Ok(PeerRoots { block, leaves, roots, target, proof })
}

fn write_roots(roots: &PeerRoots, out: &mut Vec<u8>) {
    write_compact_size(out, roots.leaves);
    write_compact_size(out, roots.target);
    out.extend(roots.block.0);
    write_hashes(&roots.roots, out);
    write_hashes(&roots.proof, out);
}
