//! The signature on a signet block (BIP-325): builds the signed transaction for a verifier.
//!
//! A block's producer proves the right to produce it with a virtual transaction, which spends a virtual
//! output locked with the network's challenge. Both follow from the block alone, with the solution removed
//! from the coinbase. This module builds them exactly like Core (`signet.cpp`); a [`ScriptVerifier`] runs the
//! scripts. The caller checks, before or after, that the transaction ids match the header's merkle root.

use crate::hashes::{BlockHash, MerkleScratch, Txid, merkle_root};
use crate::header::Header;
use crate::params::Params;
use crate::read::{ReadError, Reader, write_compact_size};
use crate::script::{
    OP_RETURN, ScriptError, ScriptVerifier, VERIFY_DERSIG, VERIFY_NULLDUMMY, VERIFY_P2SH,
    VERIFY_WITNESS, witness_commitment,
};

/// The script rules for the solution (Core `signet.cpp`, `BLOCK_SCRIPT_VERIFY_FLAGS`): no taproot.
pub const SIGNET_VERIFY_FLAGS: u32 =
    VERIFY_P2SH | VERIFY_WITNESS | VERIFY_DERSIG | VERIFY_NULLDUMMY;

/// The prefix of the push with the solution (BIP-325; Core `signet.cpp`, `SIGNET_HEADER`).
const SIGNET_HEADER: [u8; 4] = [0xec, 0xc7, 0xda, 0xa2];

const OP_0: u8 = 0x00;
const OP_PUSHDATA1: u8 = 0x4c;
const OP_PUSHDATA2: u8 = 0x4d;
const OP_PUSHDATA4: u8 = 0x4e;

/// A block's solution is missing or wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("block {hash} is not signed by its signet: {fault} (bad-signet-blksig)")]
pub struct SignetError {
    /// The block.
    pub hash: BlockHash,
    /// The fault.
    pub fault: SignetFault,
}

/// The fault of a solution.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignetFault {
    /// The coinbase is not a valid transaction.
    #[error("the coinbase cannot be read: {0}")]
    Coinbase(ReadError),
    /// The coinbase has the witness form but an unknown flag (BIP-144).
    #[error("the coinbase has the unknown flag {0:#04x}")]
    CoinbaseFlag(u8),
    /// The list of transaction ids is empty.
    #[error("the block has no transactions")]
    NoTransactions,
    /// The block has no witness commitment, which should contain the solution.
    #[error("the coinbase has no witness commitment")]
    NoWitnessCommitment,
    /// The solution is not exactly a script and a witness.
    #[error("its solution cannot be read: {0}")]
    Solution(ReadError),
    /// The scripts rejected the solution.
    #[error(transparent)]
    Script(#[from] ScriptError),
}

/// The virtual spend of a solution: valid if the scripts of input 0 of [`to_sign`](Self::to_sign)
/// allow it to spend an output of value 0 locked by [`challenge`](Self::challenge), under
/// [`SIGNET_VERIFY_FLAGS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignetSpend {
    /// The script that locks the virtual output.
    pub challenge: Vec<u8>,
    /// The transaction with that output, serialized.
    pub to_spend: Vec<u8>,
    /// The transaction that spends it, serialized.
    pub to_sign: Vec<u8>,
}

/// Builds the virtual spend for a block's solution (Core `signet.cpp`, `SignetTxs::Create`). Returns `None`
/// if no solution is required: on other chains, and for the genesis block.
///
/// `coinbase` is the block's first transaction, serialized with or without its witness; `txids` are
/// the ids of all its transactions, starting with the coinbase's.
pub fn signet_spend(
    params: &Params,
    header: &Header,
    coinbase: &[u8],
    txids: &[Txid],
) -> Result<Option<SignetSpend>, SignetError> {
    let Some(challenge) = &params.signet_challenge else { return Ok(None) };
    let hash = header.hash();
    if hash == params.genesis_hash {
        return Ok(None);
    }
    let fail = |fault| SignetError { hash, fault };
    let mut coinbase = Coinbase::read(coinbase).map_err(fail)?;
    // If several outputs have the form, the last one counts (BIP-141).
    let commitment = coinbase
        .outputs
        .iter_mut()
        .rfind(|(_, script)| witness_commitment(script).is_some())
        .ok_or_else(|| fail(SignetFault::NoWitnessCommitment))?;
    // Without a solution the spend has empty scripts, which a trivial challenge may allow.
    let mut solution = Solution { script_sig: &[], witness: &[0] };
    let extracted = take_solution(&commitment.1);
    if let Some((cleared, bytes)) = &extracted {
        commitment.1.clone_from(cleared);
        solution = Solution::read(bytes).map_err(|error| fail(SignetFault::Solution(error)))?;
    }
    let mut leaves: Vec<[u8; 32]> = txids.iter().map(|txid| txid.0).collect();
    let first = leaves.first_mut().ok_or_else(|| fail(SignetFault::NoTransactions))?;
    *first = apus_hash::sha256d(&coinbase.stripped());
    let root = merkle_root(&leaves, &mut MerkleScratch::default()).root;
    let to_spend = to_spend(header, &root, challenge);
    let to_sign = to_sign(&apus_hash::sha256d(&to_spend), &solution);
    Ok(Some(SignetSpend { challenge: challenge.to_vec(), to_spend, to_sign }))
}

/// Fails unless the block is signed as its chain requires (Core `signet.cpp`,
/// `CheckSignetBlockSolution`); always passes on chains without a challenge. The arguments are the
/// same as for [`signet_spend`].
pub fn check_signet_solution(
    params: &Params,
    header: &Header,
    coinbase: &[u8],
    txids: &[Txid],
    verifier: &dyn ScriptVerifier,
) -> Result<(), SignetError> {
    let Some(spend) = signet_spend(params, header, coinbase, txids)? else { return Ok(()) };
    verifier
        .verify(&spend.challenge, 0, &spend.to_sign, 0, SIGNET_VERIFY_FLAGS)
        .map_err(|error| SignetError { hash: header.hash(), fault: error.into() })
}

/// A coinbase parsed up to its outputs' scripts.
struct Coinbase<'a> {
    version: &'a [u8],
    /// The inputs, preceded by their count.
    inputs: &'a [u8],
    /// Value and script of each output.
    outputs: Vec<(&'a [u8], Vec<u8>)>,
    lock_time: &'a [u8],
}

impl<'a> Coinbase<'a> {
    fn read(raw: &'a [u8]) -> Result<Self, SignetFault> {
        let mut reader = Reader::new(raw);
        let version = reader.take(4).map_err(SignetFault::Coinbase)?;
        let mut inputs_start = reader.position();
        let mut has_witness = false;
        if raw.get(inputs_start) == Some(&0) {
            reader.take(1).map_err(SignetFault::Coinbase)?;
            match reader.u8().map_err(SignetFault::Coinbase)? {
                1 => has_witness = true,
                flag => return Err(SignetFault::CoinbaseFlag(flag)),
            }
            inputs_start = reader.position();
        }
        Self::read_rest(version, raw, inputs_start, has_witness, reader)
            .map_err(SignetFault::Coinbase)
    }

    fn read_rest(
        version: &'a [u8],
        raw: &'a [u8],
        inputs_start: usize,
        has_witness: bool,
        mut reader: Reader<'a>,
    ) -> Result<Self, ReadError> {
        let inputs_count = reader.compact_size()?;
        for _ in 0..inputs_count {
            reader.take(36)?;
            let length = reader.compact_size()?;
            reader.take(length)?;
            reader.take(4)?;
        }
        let inputs = &raw[inputs_start..reader.position()];
        let mut outputs = Vec::new();
        for _ in 0..reader.compact_size()? {
            let value = reader.take(8)?;
            let length = reader.compact_size()?;
            outputs.push((value, reader.take(length)?.to_vec()));
        }
        for _ in 0..if has_witness { inputs_count } else { 0 } {
            for _ in 0..reader.compact_size()? {
                let length = reader.compact_size()?;
                reader.take(length)?;
            }
        }
        let lock_time = reader.take(4)?;
        reader.finish()?;
        Ok(Self { version, inputs, outputs, lock_time })
    }

    /// Returns the form without witness, whose hash is the transaction's id.
    fn stripped(&self) -> Vec<u8> {
        let mut out = [self.version, self.inputs].concat();
        write_compact_size(&mut out, self.outputs.len() as u64);
        for (value, script) in &self.outputs {
            out.extend_from_slice(value);
            write_compact_size(&mut out, script.len() as u64);
            out.extend_from_slice(script);
        }
        out.extend_from_slice(self.lock_time);
        out
    }
}

/// The scripts that unlock the challenge.
struct Solution<'a> {
    script_sig: &'a [u8],
    /// The witness items, preceded by their count.
    witness: &'a [u8],
}

impl<'a> Solution<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, ReadError> {
        let mut reader = Reader::new(bytes);
        let length = reader.compact_size()?;
        let script_sig = reader.take(length)?;
        let witness = &bytes[reader.position()..];
        for _ in 0..reader.compact_size()? {
            let length = reader.compact_size()?;
            reader.take(length)?;
        }
        reader.finish()?;
        Ok(Self { script_sig, witness })
    }

    fn has_witness(&self) -> bool {
        self.witness != [0]
    }
}

/// Finds the solution in a commitment script and removes it, but not its prefix; returns the script without
/// it, and the solution. Like Core, it rewrites the script push by push: each push in its shortest form, an
/// empty one as its bare opcode, and no bytes after a push that runs past the end (Core `signet.cpp`,
/// `FetchAndClearCommitmentSection`).
fn take_solution(script: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut cleared = Vec::with_capacity(script.len());
    let mut solution = None;
    let mut reader = Reader::new(script);
    while let Ok((opcode, mut data)) = read_operation(&mut reader) {
        if solution.is_none()
            && let Some(rest) = data.strip_prefix(&SIGNET_HEADER)
            && !rest.is_empty()
        {
            solution = Some(rest.to_vec());
            data = &SIGNET_HEADER;
        }
        if data.is_empty() {
            cleared.push(opcode);
        } else {
            write_push(&mut cleared, data);
        }
    }
    solution.map(|solution| (cleared, solution))
}

/// Reads the next opcode and the data that it pushes (Core `script/script.cpp`, `GetScriptOp`).
fn read_operation<'a>(reader: &mut Reader<'a>) -> Result<(u8, &'a [u8]), ReadError> {
    let opcode = reader.u8()?;
    let length = match opcode {
        ..OP_PUSHDATA1 => usize::from(opcode),
        OP_PUSHDATA1 => usize::from(reader.u8()?),
        OP_PUSHDATA2 => usize::from(reader.u16()?),
        OP_PUSHDATA4 => reader.u32()? as usize,
        _ => 0,
    };
    Ok((opcode, reader.take(length)?))
}

/// Appends a push in its shortest form (Core `script/script.h`, `AppendDataSize`).
fn write_push(script: &mut Vec<u8>, data: &[u8]) {
    let length = data.len() as u32;
    let [a, b, _, _] = length.to_le_bytes();
    match length {
        0..=0x4b => script.push(a),
        0x4c..=0xff => script.extend_from_slice(&[OP_PUSHDATA1, a]),
        0x100..=0xffff => script.extend_from_slice(&[OP_PUSHDATA2, a, b]),
        _ => {
            script.push(OP_PUSHDATA4);
            script.extend_from_slice(&length.to_le_bytes());
        }
    }
    script.extend_from_slice(data);
}

/// Builds the transaction whose only output is locked by the challenge. It commits to the block.
fn to_spend(header: &Header, signet_merkle_root: &[u8; 32], challenge: &[u8]) -> Vec<u8> {
    let mut script_sig = vec![OP_0];
    let block = [
        &header.version.to_le_bytes()[..],
        &header.prev.0,
        signet_merkle_root,
        &header.time.to_le_bytes(),
    ];
    write_push(&mut script_sig, &block.concat());
    let nothing = ([0; 32], u32::MAX);
    transaction(nothing, &Solution { script_sig: &script_sig, witness: &[0] }, challenge)
}

/// Builds the transaction that spends it with the solution.
fn to_sign(spent: &[u8; 32], solution: &Solution<'_>) -> Vec<u8> {
    transaction((*spent, 0), solution, &[OP_RETURN])
}

/// Serializes a transaction of version 0 with one input of sequence 0, one output of value 0 and no
/// lock time.
fn transaction(spends: ([u8; 32], u32), scripts: &Solution<'_>, script_pubkey: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 4];
    if scripts.has_witness() {
        out.extend_from_slice(&[0, 1]);
    }
    out.push(1);
    out.extend_from_slice(&spends.0);
    out.extend_from_slice(&spends.1.to_le_bytes());
    write_compact_size(&mut out, scripts.script_sig.len() as u64);
    out.extend_from_slice(scripts.script_sig);
    out.extend_from_slice(&[0; 4]);
    out.push(1);
    out.extend_from_slice(&[0; 8]);
    write_compact_size(&mut out, script_pubkey.len() as u64);
    out.extend_from_slice(script_pubkey);
    if scripts.has_witness() {
        out.extend_from_slice(scripts.witness);
    }
    out.extend_from_slice(&[0; 4]);
    out
}

#[cfg(test)]
mod tests;
