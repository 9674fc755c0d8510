//! Whether all runs came to the same result. A run that did not is named.

use super::chain::Chain;
use super::error::RunError;
use super::record::Counts;
use super::report::{Report, SetResult};
use crate::manifest::Manifest;

/// The result that all others are held against: the first one.
#[derive(Debug, Clone)]
pub(super) struct Agreed {
    pub(super) who: String,
    pub(super) set: SetResult,
    pub(super) counts: Counts,
}

impl Agreed {
    /// The first result, if it is what the chain's maker said.
    pub(super) fn first(chain: &Chain, who: &str, report: &Report) -> Result<Self, RunError> {
        let counts = Counts {
            blocks: report.set.stop_height.into(),
            transactions: report.transactions,
            inputs: report.inputs,
            outputs: report.outputs,
            bytes: report.bytes,
        };
        let agreed = Self { who: who.to_owned(), set: report.set.clone(), counts };
        let wrong = chain.manifest.as_ref().map(|said| agreed.against(said)).unwrap_or_default();
        different(chain, who, "the chain's manifest", &wrong)?;
        Ok(agreed)
    }

    /// The fields that a manifest has otherwise, with both values.
    fn against(&self, said: &Manifest) -> Vec<String> {
        let (set, counts) = (&self.set, &self.counts);
        let numbers = [
            ("stop_height", u64::from(set.stop_height), u64::from(said.height)),
            ("coins", set.coins, said.coins),
            ("total_amount_sat", set.total_amount_sat, said.total_amount_sat),
            ("transactions", counts.transactions, said.transactions),
            ("inputs", counts.inputs, said.inputs),
            ("outputs", counts.outputs, said.outputs),
            ("bytes", counts.bytes, said.bytes),
        ];
        let mut wrong: Vec<String> = numbers
            .iter()
            .filter(|(_, found, said)| found != said)
            .map(|(name, found, said)| format!("{name} {found} and {said}"))
            .collect();
        if set.stop_hash != said.tip_hash {
            wrong.push(format!("stop_hash {} and {}", set.stop_hash, said.tip_hash));
        }
        wrong
    }

    /// Another result must be the same, as far as both tell.
    pub(super) fn expect(
        &mut self,
        chain: &Chain,
        who: &str,
        other: &SetResult,
    ) -> Result<(), RunError> {
        different(chain, &self.who, who, &self.set.differences(other))?;
        self.set.complete(other);
        Ok(())
    }
}

fn different(chain: &Chain, one: &str, two: &str, what: &[String]) -> Result<(), RunError> {
    if what.is_empty() {
        return Ok(());
    }
    Err(RunError::Different(format!(
        "{}: {one} and {two} do not agree: {}: one of them is wrong, so no time counts",
        chain.name,
        what.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::testing::manifest;
    use apus_chain::Network;
    use std::path::PathBuf;

    fn report() -> Report {
        serde_json::from_value(serde_json::json!({
            "version": 1, "engine": "swiftsync", "validation": "assumevalid", "aggregate": "sha256",
            "script_blocks": 0, "stop_height": 2_400, "stop_hash": "ab",
            "coins": 2, "total_amount_sat": 3, "muhash": "c", "hash_serialized_3": "d",
            "transactions": 4, "inputs": 5, "outputs": 6, "bytes": 7, "cpu_seconds": null, "rss_peak_bytes": null,
            "phases": []
        }))
        .unwrap()
    }

    fn chain(manifest: Option<Manifest>) -> Chain {
        Chain {
            name: "small".to_owned(),
            folder: PathBuf::new(),
            network: Network::Regtest,
            blocksdir: PathBuf::new(),
            hints: PathBuf::new(),
            manifest,
        }
    }

    #[test]
    fn what_the_maker_said_must_be_found() {
        assert!(Agreed::first(&chain(None), "a", &report()).is_ok());
        assert!(Agreed::first(&chain(Some(manifest())), "a", &report()).is_ok());
        let others = [
            Manifest { height: 8, ..manifest() },
            Manifest { tip_hash: "ba".to_owned(), ..manifest() },
            Manifest { transactions: 0, ..manifest() },
            Manifest { inputs: 0, ..manifest() },
            Manifest { outputs: 0, ..manifest() },
            Manifest { coins: 0, ..manifest() },
            Manifest { total_amount_sat: 0, ..manifest() },
            Manifest { bytes: 0, ..manifest() },
        ];
        for other in others {
            let error = Agreed::first(&chain(Some(other.clone())), "a", &report()).unwrap_err();
            assert!(matches!(error, RunError::Different(_)), "{other:?}");
        }
        let other = Manifest { coins: 8, ..manifest() };
        let error = Agreed::first(&chain(Some(other)), "a", &report()).unwrap_err().to_string();
        assert!(
            error.starts_with("small: a and the chain's manifest do not agree: coins 2 and 8:")
        );
    }

    #[test]
    fn another_result_must_be_the_same() {
        let chain = chain(None);
        let mut agreed = Agreed::first(&chain, "a", &report()).unwrap();
        assert!(agreed.expect(&chain, "b", &report().set).is_ok());
        let other = SetResult { muhash: Some("x".to_owned()), ..report().set };
        let error = agreed.expect(&chain, "b", &other).unwrap_err().to_string();
        assert!(error.starts_with("small: a and b do not agree: muhash c and x"), "{error}");
    }
}
