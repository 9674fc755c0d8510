//! [`KernelInterpreter`]: Bitcoin Core's interpreter, from its kernel library.
//!
//! Its result is the verdict, unchanged. Invalid requests (a nonexistent input, inconsistent flags,
//! missing outputs) are setup errors and never a verdict.

use super::interpreter::{Interpreter, PreparedTx, Refusal, error_text};
use super::recorded::{CheckRoom, KnownChecks};
use super::verify::{InterpreterTx, SpentOutput};
use crate::coin::CoinBytes;
use apus_chain::{
    ScriptError, ScriptVerifier, VERIFY_CHECKLOCKTIMEVERIFY, VERIFY_CHECKSEQUENCEVERIFY,
    VERIFY_DERSIG, VERIFY_NULLDUMMY, VERIFY_P2SH, VERIFY_TAPROOT, VERIFY_WITNESS,
};
use core::ffi::c_int;

/// All rules that a block can enable.
const VERIFY_ALL: u32 = VERIFY_P2SH
    | VERIFY_DERSIG
    | VERIFY_NULLDUMMY
    | VERIFY_CHECKLOCKTIMEVERIFY
    | VERIFY_CHECKSEQUENCEVERIFY
    | VERIFY_WITNESS
    | VERIFY_TAPROOT;

/// Bitcoin Core's interpreter.
pub(super) struct KernelInterpreter;

impl Interpreter for KernelInterpreter {
    fn prepare(&self, raw: &[u8], spent: &[CoinBytes]) -> Result<Box<dyn PreparedTx>, ScriptError> {
        let mut tx = read(raw)?;
        let (inputs, count) = (tx.inputs(), spent.len());
        if inputs == 0 || inputs != count {
            let why = format!("a transaction with {inputs} inputs came with {count} spent outputs");
            return Err(ScriptError::Setup(why));
        }
        // Only taproot signatures cover all outputs, so only these need copies. A transaction may
        // spend a quarter of a gigabyte of scripts; without taproot they stay in the shared coins.
        if spent.iter().any(|coin| is_taproot(&coin.coin().script)) {
            let coins: Vec<_> = spent.iter().map(CoinBytes::coin).collect();
            let spent = coins.iter().map(|coin| output(&coin.script, coin.amount));
            share(&mut tx, &spent.collect::<Result<Vec<_>, _>>()?)?;
        } else {
            share(&mut tx, &[])?;
        }
        Ok(Box::new(KernelTx { tx, spent: spent.to_vec() }))
    }
}

impl ScriptVerifier for KernelInterpreter {
    /// Only the output spent by this input is known. Taproot rules need the outputs of all inputs,
    /// so they are available only if there is one input.
    fn verify(
        &self,
        script_pubkey: &[u8],
        amount: u64,
        tx: &[u8],
        input: usize,
        flags: u32,
    ) -> Result<(), ScriptError> {
        let (mut tx, spent) = (read(tx)?, output(script_pubkey, amount)?);
        let all_known = tx.inputs() == 1;
        if flags & VERIFY_TAPROOT != 0 && !all_known {
            return Err(setup("taproot rules need all spent outputs"));
        }
        share(&mut tx, if all_known { std::slice::from_ref(&spent) } else { &[] })?;
        run(&tx, input, flags, || tx.verify(input, spent, flags)).map_err(|refusal| refusal.error)
    }
}

/// A transaction read by the interpreter, with the coins that it spends.
struct KernelTx {
    tx: InterpreterTx,
    spent: Vec<CoinBytes>,
}

impl KernelTx {
    /// Runs the scripts of an input with the output that it spends.
    fn run(
        &self,
        input: usize,
        flags: u32,
        verify: impl FnOnce(SpentOutput<'_>) -> c_int,
    ) -> Result<(), Refusal> {
        let Some(coin) = self.spent.get(input) else {
            let why = format!("no input {input} in a transaction with {} inputs", self.spent.len());
            return Err(ScriptError::Setup(why).into());
        };
        let coin = coin.coin();
        let output = output(&coin.script, coin.amount)?;
        run(&self.tx, input, flags, || verify(output))
    }
}

impl PreparedTx for KernelTx {
    fn verify(&self, input: usize, flags: u32) -> Result<(), Refusal> {
        self.run(input, flags, |output| self.tx.verify(input, output, flags))
    }

    fn verify_deferred(
        &self,
        input: usize,
        flags: u32,
        known: &KnownChecks,
        room: CheckRoom<'_>,
    ) -> Result<usize, Refusal> {
        let mut used = 0;
        self.run(input, flags, |output| {
            let error;
            (error, used) = self.tx.verify_deferred(input, output, flags, known, room);
            error
        })?;
        Ok(used)
    }
}

fn read(raw: &[u8]) -> Result<InterpreterTx, ScriptError> {
    InterpreterTx::read(raw).ok_or_else(|| setup("the transaction cannot be read"))
}

fn share(tx: &mut InterpreterTx, spent: &[SpentOutput<'_>]) -> Result<(), ScriptError> {
    let shared = tx.share(spent);
    shared
        .then_some(())
        .ok_or_else(|| setup("not enough memory for the data that the inputs share"))
}

/// Returns whether an output is locked by taproot rules (BIP-341), if these are enabled. Core
/// checks the flag for no other script (`script/interpreter.cpp`, `VerifyWitnessProgram`).
fn is_taproot(script: &[u8]) -> bool {
    matches!(script, [0x51, 32, program @ ..] if program.len() == 32)
}

fn output(script: &[u8], amount: u64) -> Result<SpentOutput<'_>, ScriptError> {
    let amount = i64::try_from(amount)
        .map_err(|_| ScriptError::Setup(format!("{amount} satoshi is not a valid amount")))?;
    Ok(SpentOutput::new(script, amount))
}

/// Runs the scripts of an input, if that is possible.
fn run(
    tx: &InterpreterTx,
    input: usize,
    flags: u32,
    verify: impl FnOnce() -> c_int,
) -> Result<(), Refusal> {
    if input >= tx.inputs() {
        return Err(setup("there is no such input").into());
    }
    // Core aborts the process if only the witness rules are enabled.
    if flags & !VERIFY_ALL != 0 || flags & (VERIFY_WITNESS | VERIFY_P2SH) == VERIFY_WITNESS {
        return Err(setup(&format!("the flags {flags:#x} are invalid")).into());
    }
    match verify() {
        0 => Ok(()),
        error @ 1.. => Err(Refusal { error: ScriptError::Invalid, name: error_text(error) }),
        _ => Err(setup("the interpreter returned no verdict").into()),
    }
}

fn setup(why: &str) -> ScriptError {
    ScriptError::Setup(why.to_owned())
}
