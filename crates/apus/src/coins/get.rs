//! `apus coins get`: a batch of look-ups, as JSON (`docs/formats/remote-coins.md`).

use super::servers::{AccessArgs, about, place};
use crate::failure::Failure;
use crate::print::{self, hex};
use apus_chain::{Network, OutPoint, Txid};
use apus_coins::CoinsReader;
use apus_engine::utxo::CoinBytes;
use clap::Args;
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  Whether coins are there, while a run writes them or after it:
    apus coins get --coins redis://10.0.0.1:6379/main TXID:0 TXID:1

A password comes from the environment variable APUS_COINS_PASSWORD.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GetArgs {
    /// The coins, each as TXID:VOUT
    #[arg(required = true, value_name = "OUTPOINT", value_parser = outpoint)]
    outpoints: Vec<OutPoint>,

    /// Where they are: see `apus sync --help`. A writer is not held up
    #[arg(long, value_name = "URL")]
    coins: String,

    #[command(flatten)]
    access: AccessArgs,

    /// Which chain: main, test, testnet4, signet or regtest
    #[arg(long, default_value = "main")]
    chain: Network,
}

/// Runs it.
pub(super) fn get(args: &GetArgs) -> Result<(), Failure> {
    let place = place("--coins", &args.coins)?;
    let access = args.access.access(&[&place])?;
    let reader = CoinsReader::open(&place, args.chain, &access).map_err(|error| about(&error))?;
    let seen = reader.look_up(&args.outpoints).map_err(|error| about(&error))?;
    let coins: Vec<Value> = args.outpoints.iter().zip(&seen.coins).map(told).collect();
    let (height, hash) = (seen.tip.height, seen.tip.hash.to_string());
    let answer =
        json!({ "chain": args.chain.to_string(), "height": height, "hash": hash, "coins": coins });
    print::result(format_args!("{answer:#}"))
}

/// A name and what is there.
fn told((outpoint, coin): (&OutPoint, &Option<CoinBytes>)) -> Value {
    let coin = coin.as_ref().map(|coin| {
        let coin = coin.coin();
        let coin = coin.as_ref();
        let script = hex(coin.script);
        json!({
            "height": coin.height,
            "coinbase": coin.coinbase,
            "amount_sat": coin.amount,
            "script_pubkey": script,
        })
    });
    json!({ "txid": outpoint.txid.to_string(), "vout": outpoint.vout, "coin": coin })
}

fn outpoint(text: &str) -> Result<OutPoint, String> {
    let read = text.split_once(':').and_then(|(txid, vout)| {
        // Only digits: a number with a sign is no output's.
        let digits = vout.bytes().all(|byte| byte.is_ascii_digit());
        let vout = vout.parse().ok().filter(|_| digits)?;
        Some(OutPoint { txid: txid.parse::<Txid>().ok()?, vout })
    });
    read.ok_or_else(|| "name a coin as TXID:VOUT, the txid as 64 hex digits".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coins_are_named_by_transaction_and_output() {
        let txid = "0f".repeat(32);
        let read = outpoint(&format!("{txid}:4294967295")).unwrap();
        assert_eq!((read.txid, read.vout), (Txid([0x0f; 32]), u32::MAX));
        for wrong in [
            "",
            &txid,
            "0f:0",
            &format!("{txid}:"),
            &format!("{txid}:+1"),
            &format!("{txid}:4294967296"),
        ] {
            assert!(outpoint(wrong).is_err(), "{wrong}");
        }
    }
}
