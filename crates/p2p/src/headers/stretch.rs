//! [`Stretch`]: the headers of one message, each the child of the one before and with its work.

use super::{MAX_HEADERS_RESULTS, Misbehaviour};
use apus_chain::{BlockHash, Header, Params, block_work, check_proof_of_work};

/// One or more headers, in order, whose proof of work holds against the targets that they claim.
/// Nothing says that those targets are the right ones.
#[derive(Debug)]
pub(super) struct Stretch<'a> {
    raw: &'a [[u8; Header::SIZE]],
    hashes: Vec<BlockHash>,
}

impl<'a> Stretch<'a> {
    /// Checks a message (Core `net_processing.cpp`, `CheckHeadersPoW`); none where it is empty.
    pub(super) fn check(
        params: &Params,
        raw: &'a [[u8; Header::SIZE]],
    ) -> Result<Option<Self>, Misbehaviour> {
        if raw.len() > MAX_HEADERS_RESULTS {
            return Err(Misbehaviour::TooManyHeaders { count: raw.len() });
        }
        let mut hashes: Vec<BlockHash> = Vec::with_capacity(raw.len());
        for (index, raw) in raw.iter().enumerate() {
            let header = Header::parse(raw);
            let hash = header.hash();
            if hashes.last().is_some_and(|last| *last != header.prev) {
                return Err(Misbehaviour::NotContinuous { index, hash });
            }
            if !check_proof_of_work(&hash, header.bits, params.pow_limit) {
                if header.is_extended() {
                    return Err(Misbehaviour::OfKnots { index });
                }
                return Err(Misbehaviour::HighHash { index, hash, bits: header.bits });
            }
            hashes.push(hash);
        }
        Ok((!raw.is_empty()).then_some(Self { raw, hashes }))
    }

    /// The parent of the first.
    pub(super) fn parent(&self) -> BlockHash {
        self.raw.first().map_or(BlockHash::ZERO, |raw| Header::parse(raw).prev)
    }

    /// Whether the message holds as many as one can, so that more may come.
    pub(super) const fn is_full(&self) -> bool {
        self.raw.len() == MAX_HEADERS_RESULTS
    }

    pub(super) fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    pub(super) fn raw(&self) -> &'a [[u8; Header::SIZE]] {
        self.raw
    }

    /// The work of those from `first` on.
    pub(super) fn work_from(&self, first: usize) -> u128 {
        let mut memo = (0, 0);
        let works = self.raw[first..].iter().map(|raw| {
            let bits = Header::parse(raw).bits;
            if memo.0 != bits {
                memo = (bits, block_work(bits));
            }
            memo.1
        });
        works.fold(0, u128::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::testing::{mined, regtest};

    #[test]
    fn takes_a_row_of_headers_and_nothing_else() {
        let params = regtest(0);
        let chain = mined(None, 2001, 1);
        assert!(Stretch::check(&params, &[]).unwrap().is_none());
        let stretch = Stretch::check(&params, &chain[..2000]).unwrap().unwrap();
        assert!(stretch.is_full());
        assert_eq!(stretch.parent(), params.genesis_hash);
        assert_eq!(stretch.work_from(1990), 20);
        assert_eq!(stretch.hashes()[1999], Header::parse(&chain[1999]).hash());
        let many = Stretch::check(&params, &chain).unwrap_err();
        assert_eq!(many, Misbehaviour::TooManyHeaders { count: 2001 });

        let gap = [chain[0], chain[2]];
        let error = Stretch::check(&params, &gap).unwrap_err();
        assert!(matches!(error, Misbehaviour::NotContinuous { index: 1, .. }), "{error}");

        let mut header = Header::parse(&chain[7]);
        while check_proof_of_work(&header.hash(), header.bits, params.pow_limit) {
            header.nonce = header.nonce.wrapping_add(1);
        }
        let bad = [chain[6], header.to_bytes()];
        let error = Stretch::check(&params, &bad).unwrap_err();
        assert!(matches!(error, Misbehaviour::HighHash { index: 1, .. }), "{error}");
    }
}
