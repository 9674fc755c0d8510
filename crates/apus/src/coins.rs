//! `--coins`: a run's coins on servers, instead of in its work folder; and `apus coins`, for such coins.

#[cfg(feature = "remote-coins")]
mod copy;

#[cfg(feature = "remote-coins")]
pub(crate) use servers::{CoinsArgs, CoinsCommandArgs, command};

use apus_chain::Network;
use apus_engine::utxo::{CoinsStore, StoreError};
use std::sync::Arc;

/// Opens a store for the coins of a chain, with so many bytes for coins on their way from it.
type Open = dyn Fn(Network, u64) -> Result<Arc<dyn CoinsStore>, StoreError> + Sync;

/// A store that lies beyond the work folder.
pub(crate) struct Beyond {
    /// What errors call it.
    pub(crate) place: String,
    open: Box<Open>,
}

impl Beyond {
    /// Opens it for the coins of a chain. Coins on their way from it take `bytes` at most, or what a few
    /// batches take.
    pub(crate) fn open(
        &self,
        network: Network,
        bytes: u64,
    ) -> Result<Arc<dyn CoinsStore>, StoreError> {
        (self.open)(network, bytes)
    }
}

#[cfg(feature = "remote-coins")]
mod servers {
    use super::Beyond;
    use super::copy::{CopyArgs, copy};
    use super::copy::{GetArgs, get};
    use crate::failure::{Failure, INTERRUPTED, IO, USAGE, WRONG};
    use apus_coins::{Access, BatchedStore, BatcherOptions, Password, StoreUrl};
    use apus_engine::utxo::{CoinsStore, StoreError};
    use clap::{Args, Subcommand};
    use std::env;
    use std::fs::File;
    use std::io::Read;
    use std::ops::RangeInclusive;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::time::Duration;

    /// Where a password is looked for.
    const PASSWORD: &str = "APUS_COINS_PASSWORD";

    /// Coins of a batch, and batches under way. More of either gains nothing on servers nearby, and smaller
    /// batches cost more ways there and back.
    const SIZE: RangeInclusive<usize> = 100..=500;
    const IN_FLIGHT: usize = 16;

    /// Batches under way where memory is short.
    const IN_FLIGHT_MIN: usize = 8;

    /// How to ask, where answers may take so many bytes if every coin has the longest script.
    fn batches(bytes: u64) -> BatcherOptions {
        let coins = bytes / (IN_FLIGHT_MIN as u64 * BatcherOptions::ANSWER_BYTES_MAX);
        let size = usize::try_from(coins).unwrap_or(usize::MAX).clamp(*SIZE.start(), *SIZE.end());
        BatcherOptions { size, in_flight: IN_FLIGHT, bytes_max: bytes, ..BatcherOptions::default() }
    }

    /// No password is longer.
    const PASSWORD_BYTES_MAX: u64 = 4096;

    /// Where the coins of the engine `utxo` are kept.
    #[derive(Args)]
    pub(crate) struct CoinsArgs {
        /// Keep the coins on servers, and check blocks in order
        ///
        /// By the engine utxo, instead of in the work folder; they stay there when the run ends: redis://HOST:PORT,.../NAME names one server of Redis or some of a Redis Cluster, rediss:// with
        /// TLS, and postgres://USER@HOST:PORT/DATABASE/NAME a database of PostgreSQL, with
        /// ?sslmode=verify-full for TLS. NAME tells these coins from others there. A password comes from the
        /// environment variable APUS_COINS_PASSWORD.
        #[arg(long, value_name = "URL", hide_short_help = true)]
        coins: Option<String>,

        /// Read the servers' password from the first line of this file
        #[arg(long, value_name = "FILE", hide_short_help = true, requires = "coins")]
        coins_password_file: Option<PathBuf>,

        /// Send the password to servers on other machines without TLS: nobody else reads what goes to them
        #[arg(long, hide_short_help = true, requires = "coins")]
        coins_private_line: bool,

        /// End with an error when the servers were not heard for so long, whether they are gone or silent; what was
        /// written stays there, and the next start goes on from it
        #[arg(long, value_name = "SECONDS", hide_short_help = true, requires = "coins", default_value_t = TIMEOUT, value_parser = timeouts())]
        coins_timeout: u64,
    }

    /// The bound on the servers' silence in seconds: a server that starts again is there by then, if it has not
    /// hundreds of gigabytes to read.
    pub(super) const TIMEOUT: u64 = 60;

    /// What can be asked for.
    pub(super) fn timeouts() -> clap::builder::RangedU64ValueParser {
        clap::value_parser!(u64).range(1..=24 * 3600)
    }

    /// How a command speaks to servers.
    #[derive(Args)]
    pub(super) struct AccessArgs {
        /// Read the servers' password from the first line of this file
        #[arg(long, value_name = "FILE")]
        coins_password_file: Option<PathBuf>,

        /// Send the password to servers on other machines without TLS: nobody else reads what goes to them
        #[arg(long)]
        coins_private_line: bool,

        /// For how long the servers may be away, or silent, before that is an error
        #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT, value_parser = timeouts())]
        coins_timeout: u64,
    }

    impl AccessArgs {
        /// The same for the library. The password has to be safe on its way to all of these places.
        pub(super) fn access(&self, places: &[&StoreUrl]) -> Result<Access, Failure> {
            let mut password = password(self.coins_password_file.as_deref())?;
            if self.coins_private_line {
                password = password.map(Password::on_a_private_line);
            }
            for (place, password) in places.iter().zip(password.iter().cycle()) {
                let exposed = |error| Failure::usage(format!("{place}: {error}"));
                place.may_have(password).map_err(exposed)?;
            }
            Ok(Access { password, patience: Duration::from_secs(self.coins_timeout) })
        }
    }

    impl CoinsArgs {
        /// Whether a store is asked for.
        pub(crate) fn are_named(&self) -> bool {
            self.coins.is_some()
        }

        /// The store that is asked for, if one is. Nothing is opened yet.
        pub(crate) fn beyond(&self, engine_is_utxo: bool) -> Result<Option<Beyond>, Failure> {
            let Some(text) = &self.coins else { return Ok(None) };
            let place = place("--coins", text)?;
            if !engine_is_utxo {
                return Err(Failure::usage(
                    "coins on servers are for the engine utxo: leave out --engine, or --coins",
                ));
            }
            let access = AccessArgs {
                coins_password_file: self.coins_password_file.clone(),
                coins_private_line: self.coins_private_line,
                coins_timeout: self.coins_timeout,
            };
            let access = access.access(&[&place])?;
            Ok(Some(beyond(place, access)))
        }
    }

    /// The store at a place.
    fn beyond(place: StoreUrl, access: Access) -> Beyond {
        let name = place.to_string();
        let open = move |network, bytes| {
            let store = apus_coins::open(&place, network, &access)?;
            let batched = BatchedStore::new(store, batches(bytes));
            let batched = batched.map_err(|error| StoreError::Io {
                place: place.to_string(),
                error: format!("cannot start threads: {error}"),
            })?;
            Ok(Arc::new(batched) as Arc<dyn CoinsStore>)
        };
        Beyond { place: name, open: Box::new(open) }
    }

    /// The place that an option names.
    pub(super) fn place(option: &str, text: &str) -> Result<StoreUrl, Failure> {
        // The text is not repeated: it may have a password in it.
        text.parse().map_err(|error| Failure::usage(format!("the value of {option}: {error}")))
    }

    /// The password, from a file or from the environment.
    fn password(file: Option<&Path>) -> Result<Option<Password>, Failure> {
        let password = match file {
            Some(path) => Some(first_line(path)?),
            None => env::var(PASSWORD).ok().filter(|password| !password.is_empty()),
        };
        Ok(password.map(Password::new))
    }

    /// What is wrong with a store, as an ending of the program.
    pub(super) fn about(error: &StoreError) -> Failure {
        let code = match error {
            StoreError::OtherNetwork { .. } | StoreError::Newer { .. } => USAGE,
            StoreError::Damaged { .. } | StoreError::Coin { .. } => WRONG,
            StoreError::Stopped => INTERRUPTED,
            _ => IO,
        };
        Failure::new(code, error.to_string())
    }

    /// `apus coins`.
    #[derive(Args)]
    pub(crate) struct CoinsCommandArgs {
        #[command(subcommand)]
        command: CoinsCommand,
    }

    #[derive(Subcommand)]
    enum CoinsCommand {
        /// Look coins up, all of one block, and print them as JSON
        Get(GetArgs),
        /// Copy a whole set of coins to servers, and compare what is there then
        Copy(CopyArgs),
    }

    /// Runs `apus coins`.
    pub(crate) fn command(args: &CoinsCommandArgs) -> Result<(), Failure> {
        match &args.command {
            CoinsCommand::Get(args) => get(args),
            CoinsCommand::Copy(args) => copy(args),
        }
    }

    fn first_line(path: &Path) -> Result<String, Failure> {
        let failed = |error| Failure::io(path, error);
        let (mut text, file) = (String::new(), File::open(path).map_err(failed)?);
        file.take(PASSWORD_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        match text.lines().next().filter(|line| !line.is_empty()) {
            Some(line) => Ok(line.to_owned()),
            None => Err(Failure::usage(format!("{}: its first line is empty", path.display()))),
        }
    }
}
