//! [`ActivationHeight`]: a deployment and the height from which a test wants it.
//!
//! `NAME@HEIGHT`, as bitcoind takes it on a test network (Core `chainparams.cpp`,
//! `ReadRegTestArgs`). On which networks that is allowed is for the caller to say.

use crate::height::Height;
use crate::params::Params;
use core::str::FromStr;

/// The greatest height that can be asked for: Core keeps heights in an `int` and keeps its greatest
/// value back.
const HEIGHT_MAX: Height = i32::MAX as Height - 1;

/// A rule of [`Params`] whose first height can be moved (Core `consensus/params.h`,
/// `BuriedDeployment`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Deployment {
    /// The height in the coinbase: [`Params::bip34_height`].
    Bip34,
    /// Strict DER signatures: [`Params::bip66_height`].
    Dersig,
    /// CHECKLOCKTIMEVERIFY: [`Params::bip65_height`].
    Cltv,
    /// Relative lock times: [`Params::csv_height`].
    Csv,
    /// Witness commitments: [`Params::segwit_height`].
    Segwit,
}

impl Deployment {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Segwit, Self::Bip34, Self::Dersig, Self::Cltv, Self::Csv];

    /// The name that Core takes (Core `deploymentinfo.cpp`, `GetBuriedDeployment`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bip34 => "bip34",
            Self::Dersig => "dersig",
            Self::Cltv => "cltv",
            Self::Csv => "csv",
            Self::Segwit => "segwit",
        }
    }
}

/// Why a deployment's height could not be set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ActivationError {
    /// No `@` between the two.
    #[error("{0:?} is not of the form NAME@HEIGHT, such as segwit@100")]
    Form(String),
    /// A name that is none of the five.
    #[error(
        "there is no deployment {0:?}; those with a height are segwit, bip34, dersig, cltv, csv"
    )]
    Name(String),
    /// A height that is no number, or too great a one.
    #[error("{0:?} is no height: a whole number from 0 to {HEIGHT_MAX}")]
    Height(String),
}

/// A deployment and the first height at which it is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActivationHeight {
    /// Which rule.
    pub deployment: Deployment,
    /// From which height.
    pub height: Height,
}

impl FromStr for ActivationHeight {
    type Err = ActivationError;

    fn from_str(text: &str) -> Result<Self, ActivationError> {
        let (name, number) =
            text.split_once('@').ok_or_else(|| ActivationError::Form(text.to_owned()))?;
        let wrong = || ActivationError::Height(number.to_owned());
        // Rust would take a plus sign, Core does not.
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        let height =
            number.parse().ok().filter(|&height| height <= HEIGHT_MAX).ok_or_else(wrong)?;
        Ok(Self { deployment: name.parse()?, height })
    }
}

impl FromStr for Deployment {
    type Err = ActivationError;

    fn from_str(name: &str) -> Result<Self, ActivationError> {
        let found = Self::ALL.into_iter().find(|deployment| deployment.name() == name);
        found.ok_or_else(|| ActivationError::Name(name.to_owned()))
    }
}

impl Params {
    /// Moves the first height of a deployment, by the name that Core gives it (Core
    /// `kernel/chainparams.cpp`, `activation_heights`).
    pub fn set_activation_height(
        &mut self,
        name: &str,
        height: Height,
    ) -> Result<(), ActivationError> {
        let deployment = name.parse()?;
        if height > HEIGHT_MAX {
            return Err(ActivationError::Height(height.to_string()));
        }
        self.activate(ActivationHeight { deployment, height });
        Ok(())
    }

    /// Moves the first height of a deployment.
    pub fn activate(&mut self, ActivationHeight { deployment, height }: ActivationHeight) {
        *match deployment {
            Deployment::Bip34 => &mut self.bip34_height,
            Deployment::Dersig => &mut self.bip66_height,
            Deployment::Cltv => &mut self.bip65_height,
            Deployment::Csv => &mut self.csv_height,
            Deployment::Segwit => &mut self.segwit_height,
        } = height;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Network;

    fn regtest_with(activations: &[(&str, Height)]) -> Params {
        let mut params = Params::of(Network::Regtest).clone();
        for (name, height) in activations {
            params.set_activation_height(name, *height).unwrap();
        }
        params
    }

    #[test]
    fn each_name_moves_its_own_height_and_no_other() {
        let plain = regtest_with(&[]);
        for (name, expected) in [
            ("segwit", Params { segwit_height: 77, ..plain.clone() }),
            ("bip34", Params { bip34_height: 77, ..plain.clone() }),
            ("dersig", Params { bip66_height: 77, ..plain.clone() }),
            ("cltv", Params { bip65_height: 77, ..plain.clone() }),
            ("csv", Params { csv_height: 77, ..plain.clone() }),
        ] {
            assert_ne!(expected, plain);
            assert_eq!(regtest_with(&[(name, 77)]), expected, "{name}");
            let mut parsed = plain.clone();
            parsed.activate(format!("{name}@77").parse().unwrap());
            assert_eq!(parsed, expected, "{name}");
        }
        assert_eq!(regtest_with(&[("csv", 5), ("csv", 6)]).csv_height, 6);
    }

    #[test]
    fn other_forms_are_refused() {
        let parse = |text: &str| text.parse::<ActivationHeight>();
        let form = |text: &str| Err(ActivationError::Form(text.to_owned()));
        let name = |text: &str| Err(ActivationError::Name(text.to_owned()));
        let height = |text: &str| Err(ActivationError::Height(text.to_owned()));
        for (text, expected) in [
            ("segwit", form("segwit")),
            ("", form("")),
            ("@1", name("")),
            ("taproot@1", name("taproot")),
            ("bip65@1", name("bip65")),
            ("bip66@1", name("bip66")),
            ("Segwit@1", name("Segwit")),
            ("segwit @1", name("segwit ")),
            ("segwit@", height("")),
            ("segwit@+1", height("+1")),
            ("segwit@-1", height("-1")),
            ("segwit@ 1", height(" 1")),
            ("segwit@1@2", height("1@2")),
            ("segwit@0x1", height("0x1")),
            ("segwit@2147483647", height("2147483647")),
            ("segwit@99999999999", height("99999999999")),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
        let most = ActivationHeight { deployment: Deployment::Segwit, height: HEIGHT_MAX };
        assert_eq!(parse("segwit@2147483646"), Ok(most));
        assert_eq!(parse("segwit@007").map(|parsed| parsed.height), Ok(7));
        let mut params = regtest_with(&[]);
        let too_great = params.set_activation_height("segwit", HEIGHT_MAX + 1);
        assert_eq!(too_great, Err(ActivationError::Height("2147483647".to_owned())));
        assert_eq!(params, regtest_with(&[]));
        assert_eq!(params.set_activation_height("segwit", HEIGHT_MAX), Ok(()));
        assert_eq!(params.segwit_height, HEIGHT_MAX);
    }

    #[test]
    fn errors_say_what_would_do() {
        let text = ActivationError::Name("taproot".to_owned()).to_string();
        for deployment in Deployment::ALL {
            assert!(text.contains(deployment.name()), "{text}");
        }
    }
}
