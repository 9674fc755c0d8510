//! [`UtreexoMessage`]: proofs of coins, and roots, from a bridge node of Utreexo.
//!
//! BIP-183 is a draft, and what is spoken differs from its text: here all is as **utreexod 0.6.0** speaks it, and
//! all that depends on that version is here. `docs/formats/utreexo-wire.md` has the layouts, where the two differ, and
//! what 0.6.0 answers to which request.
//!
//! A [`Proof`] is numbers and bytes: nothing in it is checked against anything, and parts of it may have been left out
//! as asked. Counts are held against what a block can hold before memory is taken.

#[cfg(test)]
mod tests;

use crate::message::Services;
use apus_chain::{BlockHash, MAX_MONEY, ReadError, Reader, write_compact_size};

/// Proofs of new blocks (`NODE_UTREEXO`).
pub const UTREEXO: Services = Services(1 << 12);
/// Proofs of all blocks (`NODE_UTREEXO_ARCHIVE`).
pub const UTREEXO_ARCHIVE: Services = Services(1 << 13);

/// What a bridge node offers that keeps the proof of each block.
pub const BRIDGE: Services = UTREEXO.with(UTREEXO_ARCHIVE);

/// A node's hash. Zeros stand for a root whose leaves are all deleted.
pub type NodeHash = [u8; 32];

/// What is said about Utreexo. Transactions with proofs, and times to live, are not listened to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UtreexoMessage {
    /// A request for a block's proof: `getuproof`.
    GetProof(ProofRequest),
    /// What was asked for: `uproof`. Of a block that the peer has no proof of there is no answer at all.
    Proof(Proof),
    /// A request for the roots after a block: `geturoot`.
    GetRoots(BlockHash),
    /// What was asked for: `uroot`.
    Roots(Roots),
}

/// Which parts of a block's proof are asked for.
///
/// Two of the fields do not do what they say when utreexod 0.6.0 answers: `all_hashes` gives none, and
/// `all_leaves` gives all hashes too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProofRequest {
    /// The block.
    pub block: BlockHash,
    /// Whether to tell the targets: all or none.
    pub targets: bool,
    /// Whether to give all hashes.
    pub all_hashes: bool,
    /// Whether to give all leaves.
    pub all_leaves: bool,
    /// Which hashes to give besides.
    pub hashes: Wanted,
    /// Which leaves to give besides.
    pub leaves: Wanted,
}

impl ProofRequest {
    /// A request for all that there is.
    #[must_use]
    pub fn whole(block: BlockHash) -> Self {
        let (hashes, leaves) = (Wanted::default(), Wanted::default());
        Self { block, targets: true, all_hashes: true, all_leaves: true, hashes, leaves }
    }

    /// A request for the targets alone. They say how many leaves there are.
    #[must_use]
    pub fn targets(block: BlockHash) -> Self {
        Self { targets: true, ..Self::parts(block, Wanted::default(), Wanted::default()) }
    }

    /// A request for some hashes and some leaves, by their places in the whole proof, and not for targets.
    #[must_use]
    pub const fn parts(block: BlockHash, hashes: Wanted, leaves: Wanted) -> Self {
        Self { block, targets: false, all_hashes: false, all_leaves: false, hashes, leaves }
    }
}

/// Places in a list: bit `n % 8` of byte `n / 8` stands for place `n`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wanted(Vec<u8>);

impl Wanted {
    /// Whether the thing at a place is wanted.
    #[must_use]
    pub fn has(&self, place: usize) -> bool {
        self.0.get(place / 8).is_some_and(|byte| byte >> (place % 8) & 1 == 1)
    }

    /// The bits as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FromIterator<usize> for Wanted {
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

/// A block's proof, or the parts of it that were asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The block.
    pub block: BlockHash,
    /// Hashes that the roots are computed with, by ascending position.
    pub hashes: Vec<NodeHash>,
    /// Positions of the coins that the block spends, in the order of its inputs without those that it made itself. They
    /// count as in a forest of 63 rows, whatever the number of leaves.
    pub targets: Vec<u64>,
    /// Those coins, in the same order.
    pub leaves: Vec<Leaf>,
}

/// What a spender needs to know of a coin; the rest stands in the block that spends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Twice the height of the block that made it, and one more if a coinbase did.
    pub header_code: u32,
    /// Its satoshi, at most all there can be.
    pub amount: u64,
    /// Its script.
    pub script: LeafScript,
}

/// A coin's script, or how it is made from the input that spends it. That it can be made is the sender's claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeafScript {
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

/// The forest after a block, and where the peer's forest of such states has this one. The latter is of use only to
/// who has that forest's roots from elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// The block.
    pub block: BlockHash,
    /// Leaves that there have ever been.
    pub leaves: u64,
    /// Roots, that of the highest tree first: one for each one bit of `leaves`.
    pub roots: Vec<NodeHash>,
    /// Position of this state among the states.
    pub target: u64,
    /// Proof of it.
    pub proof: Vec<NodeHash>,
}

/// Most leaves that a block deletes: inputs of 41 bytes in the million bytes that are no witnesses (utreexod
/// `wire/utreexoblocksummary.go`, `MaxPossibleInputsPerBlock`).
pub const LEAVES_MAX: usize = 24_386;
/// Most hashes of a proof: that many leaves apart from each other in a forest of 51 rows (utreexod
/// `wire/msgutreexoproof.go`, `MaxProofHashes`).
pub const HASHES_MAX: usize = 36 * LEAVES_MAX + ((1 << 15) - LEAVES_MAX);
/// Greatest script of a coin (utreexod `wire/leaf.go`, `MaxScriptSize`): a longer one can't be spent.
pub const LEAF_SCRIPT_BYTES_MAX: usize = 10_000;
/// Most hashes that prove a state of the forest (utreexod `wire/msgutreexoroot.go`, `maxProofSize`).
pub const ROOT_PROOF_MAX: usize = 255;

/// Bits of the byte that says what is asked for (utreexod `wire/msggetutreexoproof.go`).
const TARGETS: u8 = 1;
const ALL_HASHES: u8 = 1 << 1;
const ALL_LEAVES: u8 = 1 << 2;

const HASH_BYTES: usize = 32;
/// Least bytes of a leaf: header code, amount, kind of script.
const LEAF_BYTES_LEAST: usize = 13;
/// Most bytes of a leaf: these, and a script with its length.
pub const LEAF_BYTES_MAX: usize = LEAF_BYTES_LEAST + 3 + LEAF_SCRIPT_BYTES_MAX;

/// A payload that is no message of Utreexo's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UtreexoError {
    /// It ends within a field, or a number in it is above its limit.
    #[error("payload of `{command}`: {source}")]
    Malformed {
        /// The message's name.
        command: &'static str,
        /// What is wrong, and at which byte of the payload.
        source: ReadError,
    },
    /// A script of a kind that there is not.
    #[error(
        "payload of `uproof`: leaf {index} has a script of kind {kind}; 4 is the greatest known"
    )]
    ScriptKind {
        /// Place of the leaf in the message, from 0.
        index: usize,
        /// The kind.
        kind: u8,
    },
    /// Not as many roots as the number of leaves has one bits.
    #[error("payload of `uroot`: {found} roots for {leaves} leaves, which have {needed}")]
    RootCount {
        /// Leaves that there have ever been.
        leaves: u64,
        /// Roots found.
        found: u64,
        /// Roots that so many leaves have.
        needed: u32,
    },
}

/// Reads the payload of the message of this name; `None` if it is none of those listened to.
///
/// # Errors
/// When the payload is not what the command's name promises.
pub fn decode(name: &str, payload: &[u8]) -> Option<Result<UtreexoMessage, UtreexoError>> {
    let reader = &mut Reader::new(payload);
    Some(match name {
        "getuproof" => malformed("getuproof", read_request(reader)).map(UtreexoMessage::GetProof),
        "uproof" => read_proof(reader).map(UtreexoMessage::Proof),
        "geturoot" => malformed("geturoot", read_hash(reader))
            .map(|hash| UtreexoMessage::GetRoots(BlockHash(hash))),
        "uroot" => read_roots(reader).map(UtreexoMessage::Roots),
        _ => return None,
    })
}

/// Name of a message of Utreexo's, and its payload at the end of `out`.
///
/// Limits are the caller's to keep: no peer takes a message that passes them.
#[must_use]
pub fn encode(message: &UtreexoMessage, out: &mut Vec<u8>) -> &'static str {
    match message {
        UtreexoMessage::GetProof(request) => {
            write_request(request, out);
            "getuproof"
        }
        UtreexoMessage::Proof(proof) => {
            write_proof(proof, out);
            "uproof"
        }
        UtreexoMessage::GetRoots(block) => {
            out.extend(block.0);
            "geturoot"
        }
        UtreexoMessage::Roots(roots) => {
            write_roots(roots, out);
            "uroot"
        }
    }
}

/// Leaves, one after the other and without their number, at the end of `out`.
pub fn write_leaves(leaves: &[Leaf], out: &mut Vec<u8>) {
    leaves.iter().for_each(|leaf| write_leaf(leaf, out));
}

fn malformed<T>(command: &'static str, read: Result<T, ReadError>) -> Result<T, UtreexoError> {
    read.map_err(|source| UtreexoError::Malformed { command, source })
}

fn read_hash(reader: &mut Reader<'_>) -> Result<NodeHash, ReadError> {
    reader.array().copied()
}

fn read_hashes(reader: &mut Reader<'_>, most: usize) -> Result<Vec<NodeHash>, ReadError> {
    let count = reader.compact_max(most as u64)? as usize;
    // The count is at most what there can be, so the product is far below its type's limit.
    let bytes = reader.take(count * HASH_BYTES)?;
    Ok(bytes.as_chunks().0.to_vec())
}

fn write_hashes(hashes: &[NodeHash], out: &mut Vec<u8>) {
    write_compact_size(out, hashes.len() as u64);
    out.extend_from_slice(hashes.as_flattened());
}

/// Bits of the first byte without a meaning are passed over, as utreexod does.
fn read_request(reader: &mut Reader<'_>) -> Result<ProofRequest, ReadError> {
    let block = BlockHash(read_hash(reader)?);
    let asked = reader.u8()?;
    let has = |bit: u8| asked & bit != 0;
    let hashes = read_wanted(reader, HASHES_MAX)?;
    let leaves = read_wanted(reader, LEAVES_MAX)?;
    let (targets, all_hashes, all_leaves) = (has(TARGETS), has(ALL_HASHES), has(ALL_LEAVES));
    Ok(ProofRequest { block, targets, all_hashes, all_leaves, hashes, leaves })
}

fn read_wanted(reader: &mut Reader<'_>, places: usize) -> Result<Wanted, ReadError> {
    let len = reader.compact_max(places.div_ceil(8) as u64)? as usize;
    Ok(Wanted(reader.take(len)?.to_vec()))
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

fn read_proof(reader: &mut Reader<'_>) -> Result<Proof, UtreexoError> {
    let block = BlockHash(malformed("uproof", read_hash(reader))?);
    let hashes = malformed("uproof", read_hashes(reader, HASHES_MAX))?;
    let targets = malformed("uproof", read_targets(reader))?;
    let count = malformed("uproof", reader.compact_max(LEAVES_MAX as u64))? as usize;
    let mut leaves = Vec::with_capacity(count.min(reader.remaining() / LEAF_BYTES_LEAST));
    for index in 0..count {
        leaves.push(read_leaf(reader, index)?);
    }
    Ok(Proof { block, hashes, targets, leaves })
}

fn write_proof(proof: &Proof, out: &mut Vec<u8>) {
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

fn read_leaf(reader: &mut Reader<'_>, index: usize) -> Result<Leaf, UtreexoError> {
    let header_code = malformed("uproof", reader.u32())?;
    let amount = malformed("uproof", read_amount(reader))?;
    let script = match malformed("uproof", reader.u8())? {
        0 => LeafScript::Other(malformed("uproof", read_script(reader))?),
        1 => LeafScript::PubkeyHash,
        2 => LeafScript::WitnessPubkeyHash,
        3 => LeafScript::ScriptHash,
        4 => LeafScript::WitnessScriptHash,
        kind => return Err(UtreexoError::ScriptKind { index, kind }),
    };
    Ok(Leaf { header_code, amount, script })
}

/// The amount of a coin that there is; utreexod reads any.
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

fn write_leaf(leaf: &Leaf, out: &mut Vec<u8>) {
    out.extend(leaf.header_code.to_le_bytes());
    out.extend(leaf.amount.to_le_bytes());
    match &leaf.script {
        LeafScript::Other(script) => {
            out.push(0);
            write_compact_size(out, script.len() as u64);
            out.extend_from_slice(script);
        }
        LeafScript::PubkeyHash => out.push(1),
        LeafScript::WitnessPubkeyHash => out.push(2),
        LeafScript::ScriptHash => out.push(3),
        LeafScript::WitnessScriptHash => out.push(4),
    }
}

fn read_roots(reader: &mut Reader<'_>) -> Result<Roots, UtreexoError> {
    let leaves = malformed("uroot", reader.compact_u64())?;
    let target = malformed("uroot", reader.compact_u64())?;
    let block = BlockHash(malformed("uroot", read_hash(reader))?);
    let (found, needed) = (malformed("uroot", reader.compact_u64())?, leaves.count_ones());
    if found != u64::from(needed) {
        return Err(UtreexoError::RootCount { leaves, found, needed });
    }
    let roots = (0..needed).map(|_| read_hash(reader)).collect::<Result<_, _>>();
    let roots = malformed("uroot", roots)?;
    let proof = malformed("uroot", read_hashes(reader, ROOT_PROOF_MAX))?;
    Ok(Roots { block, leaves, roots, target, proof })
}

fn write_roots(roots: &Roots, out: &mut Vec<u8>) {
    write_compact_size(out, roots.leaves);
    write_compact_size(out, roots.target);
    out.extend(roots.block.0);
    write_hashes(&roots.roots, out);
    write_hashes(&roots.proof, out);
}
