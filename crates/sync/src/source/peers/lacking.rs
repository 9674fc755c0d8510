//! What peers have, or say that they have, and a run did not get: to tell where it ends.

use super::Peers;
use crate::progress::{Event, Observer};
use crate::warning::Warning;
use apus_chain::{HeaderChain, KnownBlock};

impl Peers<'_> {
    /// Tells what peers have beyond the end of `chain`, where a run ends, and that was refused or did not come.
    pub fn tell_lacking(&self, chain: &HeaderChain, observer: &dyn Observer) {
        let end = KnownBlock { height: chain.tip_height(), hash: *chain.tip_hash() };
        let warn = |warning| observer.event(Event::Warning(warning));
        if let Some(doubt) = self.network.clock_doubt() {
            warn(Warning::TooNew { end, doubt });
        }
        let refused = self.network.refused_headers();
        if refused.count > 0 {
            warn(Warning::HeadersRefused { end, refused });
        }
        if let Some((peers, height)) = self.network.claims_above(end.height) {
            warn(Warning::PeersClaimMore { end, peers, height });
        }
    }
}
