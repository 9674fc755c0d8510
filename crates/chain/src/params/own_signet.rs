//! A signet of one's own (BIP-325): the rules of the public signet under another challenge, from which its
//! magic follows.
//!
//! One is known to a process at most, from when its challenge was told. Where a network is then named by its
//! magic, in files and by peers, it is one like the others. Nothing that Core knows of the public signet's chain
//! holds for it.

use super::{Params, networks};
use crate::network::{Network, SignetMagic};
use crate::read::write_compact_size;
use std::borrow::Cow;
use std::sync::OnceLock;

/// The one that is known.
static KNOWN: OnceLock<Params> = OnceLock::new();

/// Another signet is known already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is one signet at a time, and another challenge was given before")]
pub struct OtherSignet;

impl Params {
    /// Makes the signet of this challenge known (Core `kernel/chainparams.cpp`, `SigNetParams`).
    ///
    /// # Errors
    /// Where another one is.
    pub fn know_signet(challenge: &[u8]) -> Result<Network, OtherSignet> {
        let known = KNOWN.get_or_init(|| of_challenge(challenge));
        match known.signet_challenge.as_deref() == Some(challenge) {
            true => Ok(known.network.make_known()),
            false => Err(OtherSignet),
        }
    }

    /// The signet that is known, if one is.
    pub fn known_signet() -> Option<&'static Self> {
        KNOWN.get()
    }
}

fn of_challenge(challenge: &[u8]) -> Params {
    let mut pushed = Vec::with_capacity(challenge.len() + 9);
    write_compact_size(&mut pushed, challenge.len() as u64);
    pushed.extend_from_slice(challenge);
    let [m0, m1, m2, m3, ..] = apus_hash::sha256d(&pushed);
    Params {
        network: Network::OwnSignet(SignetMagic::new([m0, m1, m2, m3])),
        signet_challenge: Some(Cow::Owned(challenge.to_vec())),
        minimum_chain_work: 0,
        default_assume_valid: None,
        assumeutxo: Cow::Borrowed(&[]),
        ..networks::SIGNET.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_magic_follows_from_the_challenge() {
        let public = Params::of(Network::Signet);
        let own = of_challenge(public.signet_challenge.as_deref().unwrap());
        assert_eq!(own.network.magic(), Network::Signet.magic());
        assert_eq!((own.genesis_hash, own.pow_limit), (public.genesis_hash, public.pow_limit));
        assert_eq!((own.minimum_chain_work, own.default_assume_valid), (0, None));
        // OP_TRUE, as the first bytes of `sha256d 0151` have it.
        assert_eq!(of_challenge(&[0x51]).network.magic(), [0x54, 0xd2, 0x6f, 0xbd]);
        let long = of_challenge(&[0x51; 300]).network.magic();
        assert_eq!(long, apus_hash::sha256d(&[&[0xfd, 44, 1][..], &[0x51; 300]].concat())[..4]);
    }

    #[test]
    fn a_signet_that_is_known_is_a_network_like_the_others() {
        let challenge = [0x51, 0x51];
        let magic = of_challenge(&challenge).network.magic();
        assert_eq!(Network::from_magic(magic), None);
        let own = Params::know_signet(&challenge).unwrap();
        assert_eq!((own.magic(), Network::from_magic(magic)), (magic, Some(own)));
        assert_eq!((own.name(), "signet".parse()), ("signet", Ok(own)));
        assert_eq!((own.data_folder(), Params::of(own).network), (Some("signet"), own));
        assert_eq!(Params::know_signet(&challenge), Ok(own));
        assert_eq!(Params::know_signet(&[0x51]), Err(OtherSignet));
        assert_eq!(Network::from_magic(Network::Signet.magic()), Some(Network::Signet));
    }
}
