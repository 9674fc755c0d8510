//! `--coins`, which stores a sync's coins on remote servers instead of in its work folder, and `apus coins`, which
//! reads and copies such coins.

#[cfg(feature = "remote-coins")]
mod copy;
#[cfg(feature = "remote-coins")]
mod out;

#[cfg(feature = "remote-coins")]
pub(crate) use out::SetOnServers;
#[cfg(feature = "remote-coins")]
pub(crate) use servers::{CoinsArgs, CoinsCommandArgs, command};

use apus_chain::Network;
use apus_engine::utxo::{CoinsStore, StoreError};
use std::sync::Arc;

/// Opens a store for the coins of a chain. The second argument bounds the bytes of coins in flight from the store.
type Open = dyn Fn(Network, u64) -> Result<Arc<dyn CoinsStore>, StoreError> + Sync;

/// A coin store on remote servers, outside the work folder.
pub(crate) struct RemoteStore {
    /// The store's name in error messages.
    pub(crate) place: String,
    open: Box<Open>,
}

impl RemoteStore {
    /// Opens the store for the coins of a chain. Coins in flight from it take at most `bytes`, or as much as a few
    /// batches need if that is more.
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
    use super::RemoteStore;
    use super::copy::{CopyArgs, copy};
    use super::copy::{GetArgs, get};
    use crate::failure::{Failure, INTERRUPTED, IO, USAGE, WRONG};
    use crate::print;
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

    /// The environment variable that may hold the password.
    const PASSWORD: &str = "APUS_COINS_PASSWORD";

    /// Number of coins per batch, and of batches in flight. More of either gains nothing with servers nearby; smaller
    /// batches need more round trips.
    const SIZE: RangeInclusive<usize> = 100..=500;
    const IN_FLIGHT: usize = 16;

    /// Batches in flight when memory is short.
    const IN_FLIGHT_MIN: usize = 8;

    /// How the user wants look-ups to be batched.
    ///
    /// There is no option for the time that a coin may wait for others: a sync knows all coins of a block at once, so
    /// none waits.
    #[derive(Args, Clone, Copy)]
    pub(super) struct BatchArgs {
        /// Coins looked up in one request, as far as memory allows. By default 100 to 500, depending on memory
        #[arg(long, value_name = "N", hide_short_help = true, value_parser = clap::value_parser!(u16).range(1..=10_000))]
        coins_batch: Option<u16>,

        /// Requests under way at a time, as far as the memory for their answers allows. By default 16
        #[arg(long, value_name = "N", hide_short_help = true, value_parser = clap::value_parser!(u16).range(1..=256))]
        coins_requests: Option<u16>,
    }

    impl BatchArgs {
        /// Sizes the batches so that all answers fit into `bytes` even if every coin has the longest script.
        fn options(self, bytes: u64) -> BatcherOptions {
            let fit = |batches: usize| {
                let coins = bytes / (batches as u64 * BatcherOptions::ANSWER_BYTES_MAX);
                usize::try_from(coins).unwrap_or(usize::MAX)
            };
            let size = match self.coins_batch {
                Some(wanted) => usize::from(wanted).min(fit(1).max(*SIZE.start())),
                None => fit(IN_FLIGHT_MIN).clamp(*SIZE.start(), *SIZE.end()),
            };
            BatcherOptions {
                size,
                in_flight: self.coins_requests.map_or(IN_FLIGHT, usize::from),
                bytes_max: bytes,
                ..BatcherOptions::default()
            }
        }

        fn are_given(self) -> bool {
            self.coins_batch.or(self.coins_requests).is_some()
        }
    }

    /// Upper bound on the length of a password.
    const PASSWORD_BYTES_MAX: u64 = 4096;

    /// Options for the place of the coins of the engine `utxo`.
    #[derive(Args)]
    pub(crate) struct CoinsArgs {
        /// Keep the coins on servers, and check blocks in order
        ///
        /// Uses the engine utxo, with the coins on servers instead of in the work folder. They stay there when the sync
        /// ends. redis://HOST:PORT,.../NAME names a Redis server, or several of a Redis Cluster (rediss:// for TLS).
        /// postgres://USER@HOST:PORT/DATABASE/NAME names a PostgreSQL database (?sslmode=verify-full for TLS). NAME
        /// distinguishes these coins from others on the same server. Set the password in the environment variable
        /// APUS_COINS_PASSWORD.
        #[arg(long, value_name = "URL", hide_short_help = true)]
        coins: Option<String>,

        /// File whose first line is the servers' password
        #[arg(long, value_name = "FILE", hide_short_help = true)]
        coins_password_file: Option<PathBuf>,

        /// Send the password to other machines without TLS, over a network that no one else can read
        #[arg(long, hide_short_help = true)]
        coins_private_line: bool,

        /// Fail if the servers are unreachable or silent for this long. Written coins stay on the servers, and the
        /// next start resumes from them. By default 60
        #[arg(long, value_name = "SECONDS", hide_short_help = true, value_parser = timeouts())]
        coins_timeout: Option<u64>,

        #[command(flatten)]
        batches: BatchArgs,
    }

    /// Default idle timeout of the servers, in seconds. A restarting server is back within it, unless it has hundreds
    /// of gigabytes to load.
    pub(super) const TIMEOUT: u64 = 60;

    /// Accepts timeouts from a second to a day.
    pub(super) fn timeouts() -> clap::builder::RangedU64ValueParser {
        clap::value_parser!(u64).range(1..=24 * 3600)
    }

    /// Options for how a command connects to servers.
    #[derive(Args)]
    pub(super) struct AccessArgs {
        /// File whose first line is the servers' password
        #[arg(long, value_name = "FILE")]
        coins_password_file: Option<PathBuf>,

        /// Send the password to other machines without TLS, over a network that no one else can read
        #[arg(long)]
        coins_private_line: bool,

        /// Fail if the servers are unreachable or silent for this long
        #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT, value_parser = timeouts())]
        coins_timeout: u64,
    }

    impl AccessArgs {
        /// Converts the options for the library.
        ///
        /// # Errors
        /// If the password would reach any of these places unprotected.
        pub(super) fn access(&self, places: &[&StoreUrl]) -> Result<Access, Failure> {
            let mut password = password(self.coins_password_file.as_deref())?;
            if self.coins_private_line {
                password = password.map(Password::on_a_private_line);
            }
            for (place, password) in places.iter().zip(password.iter().cycle()) {
                let exposed = |error| Failure::usage(format!("{place}: {error}"));
                place.may_have(password).map_err(exposed)?;
            }
            let notice = |text: &str| print::aside(format_args!("warning: {text}"));
            Ok(Access { password, patience: Duration::from_secs(self.coins_timeout), notice })
        }
    }

    impl CoinsArgs {
        /// Whether the options name a remote store.
        pub(crate) fn are_named(&self) -> bool {
            self.coins.is_some()
        }

        /// Returns the remote store that the options name, if any, without opening it.
        pub(crate) fn beyond(&self, engine_is_utxo: bool) -> Result<Option<RemoteStore>, Failure> {
            let Some(text) = &self.coins else { return Ok(None) };
            let place = place("--coins", text)?;
            if !engine_is_utxo {
                return Err(Failure::usage(
                    "coins on servers need the engine utxo: leave out --engine, or --coins",
                ));
            }
            let access = self.access_args().access(&[&place])?;
            Ok(Some(remote_store(place, access, self.batches)))
        }

        /// Returns the stores for the set, which `--out coins:URL` names, without opening them.
        pub(crate) fn for_sets<'u>(
            &self,
            urls: impl Iterator<Item = &'u str>,
        ) -> Result<Vec<RemoteStore>, Failure> {
            let mut stores = Vec::new();
            for text in urls {
                let place = place("--out coins", text)?;
                let access = self.access_args().access(&[&place])?;
                stores.push(remote_store(place, access, self.batches));
            }
            let has_options = self.coins_password_file.is_some()
                || self.coins_private_line
                || self.coins_timeout.is_some()
                || self.batches.are_given();
            if has_options && stores.is_empty() && self.coins.is_none() {
                return Err(Failure::usage(
                    "options about servers need a server: add --coins URL, or --out coins:URL",
                ));
            }
            Ok(stores)
        }

        fn access_args(&self) -> AccessArgs {
            AccessArgs {
                coins_password_file: self.coins_password_file.clone(),
                coins_private_line: self.coins_private_line,
                coins_timeout: self.coins_timeout.unwrap_or(TIMEOUT),
            }
        }
    }

    /// Returns the store at a place, without opening it.
    fn remote_store(place: StoreUrl, access: Access, batches: BatchArgs) -> RemoteStore {
        let name = place.to_string();
        let open = move |network, bytes| {
            let store = apus_coins::open(&place, network, &access)?;
            let batched = BatchedStore::new(store, batches.options(bytes));
            let batched = batched.map_err(|error| StoreError::Io {
                place: place.to_string(),
                error: format!("cannot start threads: {error}"),
            })?;
            Ok(Arc::new(batched) as Arc<dyn CoinsStore>)
        };
        RemoteStore { place: name, open: Box::new(open) }
    }

    /// Parses the place that an option names.
    pub(super) fn place(option: &str, text: &str) -> Result<StoreUrl, Failure> {
        // Do not quote the text: it may contain a password.
        text.parse().map_err(|error| Failure::usage(format!("{option}: {error}")))
    }

    /// Reads the password from a file or from the environment.
    fn password(file: Option<&Path>) -> Result<Option<Password>, Failure> {
        let password = match file {
            Some(path) => Some(first_line(path)?),
            None => env::var(PASSWORD).ok().filter(|password| !password.is_empty()),
        };
        Ok(password.map(Password::new))
    }

    /// Converts a store's error to a failure of the program.
    pub(super) fn store_failure(error: &StoreError) -> Failure {
        let code = match error {
            StoreError::OtherNetwork { .. } | StoreError::Newer { .. } => USAGE,
            StoreError::Damaged { .. } | StoreError::Coin { .. } => WRONG,
            StoreError::Stopped => INTERRUPTED,
            _ => IO,
        };
        Failure::new(code, error.to_string())
    }

    /// Options of `apus coins`.
    #[derive(Args)]
    pub(crate) struct CoinsCommandArgs {
        #[command(subcommand)]
        command: CoinsCommand,
    }

    #[derive(Subcommand)]
    enum CoinsCommand {
        /// Look up coins as of one block, and print them as JSON
        Get(GetArgs),
        /// Copy a whole set of coins to servers, then read it back and compare
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
            None => Err(Failure::usage(format!(
                "{}: the first line is empty: write the password there",
                path.display()
            ))),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn batches_are_as_the_user_wants_them_as_far_as_memory_allows() {
            let options = |coins_batch, coins_requests, answers: u64| {
                let bytes = answers * BatcherOptions::ANSWER_BYTES_MAX;
                let options = BatchArgs { coins_batch, coins_requests }.options(bytes);
                assert_eq!(options.bytes_max, bytes);
                (options.size, options.in_flight)
            };
            for (batch, requests, answers, expected) in [
                (None, None, 0, (100, 16)),
                (None, None, 8 * 300, (300, 16)),
                (None, None, 1 << 40, (500, 16)),
                (Some(1), Some(1), 1 << 40, (1, 1)),
                (Some(10_000), Some(256), 1 << 40, (10_000, 256)),
                // One answer of this size would exceed the memory.
                (Some(10_000), None, 4_000, (4_000, 16)),
                (Some(10_000), None, 0, (100, 16)),
            ] {
                assert_eq!(options(batch, requests, answers), expected, "{batch:?} {requests:?}");
            }
        }
    }
}
