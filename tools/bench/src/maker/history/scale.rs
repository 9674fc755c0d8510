//! [`Scale`]: how much smaller than the main chain a chain is, in each of three measures.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// Divisors of the main chain's numbers. Each is 1 for the full number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// Of the number of blocks. A block then has as many bytes and adds as many coins as before.
    pub blocks: NonZeroU32,
    /// Of the bytes of a block: fewer coins are made and spent again, but as many remain.
    pub bytes: NonZeroU32,
    /// Of the coins that a block adds to the set.
    pub coins: NonZeroU32,
}

impl Scale {
    /// The main chain's own size.
    pub const FULL: Self =
        Self { blocks: NonZeroU32::MIN, bytes: NonZeroU32::MIN, coins: NonZeroU32::MIN };
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocks=1/{},bytes=1/{},coins=1/{}", self.blocks, self.bytes, self.coins)
    }
}

impl FromStr for Scale {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut scale = Self::FULL;
        for part in text.split(',') {
            let wrong = || {
                format!(
                    "{part:?} is not a scale: expected blocks=1/N, bytes=1/N or coins=1/N, or several \
                         of them with commas"
                )
            };
            let (name, number) = part.split_once('=').ok_or_else(wrong)?;
            let number =
                number.strip_prefix("1/").ok_or_else(wrong)?.parse().map_err(|_| wrong())?;
            match name {
                "blocks" => scale.blocks = number,
                "bytes" => scale.bytes = number,
                "coins" => scale.coins = number,
                _ => return Err(wrong()),
            }
        }
        Ok(scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_read_and_written() {
        let scale: Scale = "bytes=1/20".parse().unwrap();
        assert_eq!(scale.to_string(), "blocks=1/1,bytes=1/20,coins=1/1");
        assert_eq!(scale.to_string().parse(), Ok(scale));
        assert_eq!("coins=1/1".parse(), Ok(Scale::FULL));
        for wrong in
            ["", "20", "bytes=20", "bytes=1/0", "bytes=1/x", "size=1/2", "bytes=1/2,", "bytes=2/3"]
        {
            assert!(wrong.parse::<Scale>().is_err_and(|text| text.contains("1/N")), "{wrong}");
        }
    }
}
