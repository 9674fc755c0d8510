//! [`Servers`]: connections to all servers of a cluster, and the map from keys to servers. A standalone
//! server has all keys.
//!
//! The client library's own cluster connection reads the answers of a pipeline one by one, with the full
//! timeout for each. With a silent server, a pipeline of five hundred commands would wait for hours. Here the
//! first problem ends the call with an error that shows whether to retry. The next call connects again, with
//! a fresh map of the keys. [`ServerLine`] is the connection to one server.
//!
//! The caller sets the time limit ([`retry`](crate::retry)).

use super::line::ServerLine;
use crate::url::{ClusterUrl, Password};
use redis::{
    Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind, Value, cmd,
    from_redis_value,
};
use std::collections::HashMap;

/// Number of slots that keys are divided into.
const SLOTS: usize = 16_384;

/// A server's address, as other servers announce it.
type Address = (String, u16);

/// How to reach the servers.
#[derive(Debug, Clone)]
pub(super) struct ClusterAddress {
    tls: bool,
    user: Option<String>,
    password: Option<Password>,
    /// Some of the servers, used to find the others.
    seeds: Vec<Address>,
}

impl ClusterAddress {
    pub(super) fn new(place: &ClusterUrl, password: Option<Password>) -> Self {
        Self { tls: place.tls, user: place.user.clone(), password, seeds: place.nodes.clone() }
    }

    fn connect(&self, server: &Address) -> RedisResult<ServerLine> {
        ServerLine::connect(server, self.tls, (self.user.as_deref(), self.password.as_ref()))
    }

    /// Connects to the first seed that knows the cluster. Other servers are connected on demand.
    pub(super) fn open(&self) -> RedisResult<Servers> {
        let mut last = None;
        for seed in &self.seeds {
            let map = self.connect(seed).and_then(|mut connection| {
                let map = match ask(&mut connection, cmd("CLUSTER").arg("SLOTS")) {
                    Err(error) if self.seeds.len() == 1 && is_alone(&error) => SlotMap::alone(seed),
                    answer => SlotMap::read(answer?, &seed.0)?,
                };
                Ok((map, connection))
            });
            match map {
                Ok((SlotMap { addresses, slots }, connection)) => {
                    let mut connections: Vec<_> = addresses.iter().map(|_| None).collect();
                    if let Some(number) = addresses.iter().position(|address| address == seed) {
                        connections[number] = Some(connection);
                    }
                    return Ok(Servers { reach: self.clone(), addresses, connections, slots });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| (ErrorKind::Client, "no server is named").into()))
    }
}

/// The map from slots to servers.
struct SlotMap {
    addresses: Vec<Address>,
    /// For each slot the index of its server, or `None` if no server has it.
    slots: Vec<Option<u16>>,
}

/// Returns true if a server is not part of a cluster.
pub(super) fn is_alone(error: &RedisError) -> bool {
    error.to_string().contains("cluster support disabled")
}

impl SlotMap {
    /// Creates the map of a standalone server, which has all keys.
    fn alone(server: &Address) -> Self {
        Self { addresses: vec![server.clone()], slots: vec![Some(0); SLOTS] }
    }

    /// Parses the map that the server at `host` sends.
    fn read(answer: Value, host: &str) -> RedisResult<Self> {
        let strange = || RedisError::from((ErrorKind::Client, "the answer has no valid slot map"));
        // The library truncates numbers that do not fit.
        let number = |answer: Value| -> RedisResult<u16> {
            from_redis_value::<i64>(answer)?.try_into().map_err(|_| strange())
        };
        // Each range has the first slot, the last slot and the servers; the first server is the primary.
        let ranges: Vec<Vec<Value>> = from_redis_value(answer)?;
        let mut map = Self { addresses: Vec::new(), slots: vec![None; SLOTS] };
        let mut numbers: HashMap<Address, u16> = HashMap::new();
        for range in ranges {
            let mut range = range.into_iter();
            let mut next = || range.next().ok_or_else(strange);
            let (first, last) = (number(next()?)?, number(next()?)?);
            let mut server = from_redis_value::<Vec<Value>>(next()?)?.into_iter();
            let mut next = || server.next().ok_or_else(strange);
            let named: Option<String> = from_redis_value(next()?)?;
            let port = number(next()?)?;
            // A server that does not know its own name is at the address where it was asked.
            let named = named.filter(|name| !name.is_empty() && name != "?");
            let address = (named.unwrap_or_else(|| host.to_owned()), port);
            if map.addresses.len() == SLOTS {
                return Err(strange());
            }
            let server = *numbers.entry(address.clone()).or_insert_with(|| {
                map.addresses.push(address);
                map.addresses.len() as u16 - 1
            });
            let slots = map.slots.get_mut(usize::from(first)..=usize::from(last));
            slots.ok_or_else(strange)?.fill(Some(server));
        }
        if map.addresses.is_empty() { Err(strange()) } else { Ok(map) }
    }
}

/// Connections to all servers. Unusable after an error, because answers to earlier requests may still be in
/// flight.
pub(super) struct Servers {
    reach: ClusterAddress,
    addresses: Vec<Address>,
    connections: Vec<Option<ServerLine>>,
    slots: Vec<Option<u16>>,
}

impl Servers {
    /// Sends a command to every primary, and returns each answer with its server's address.
    pub(super) fn everywhere<T: FromRedisValue>(
        &mut self,
        command: &Cmd,
    ) -> RedisResult<Vec<(String, T)>> {
        let numbers = 0..self.addresses.len();
        numbers
            .map(|number| {
                let answer = ask(self.connection(number)?, command)?;
                let (host, port) = &self.addresses[number];
                Ok((format!("{host}:{port}"), from_redis_value(answer)?))
            })
            .collect()
    }

    /// Sends one command, which must use one key, and returns the answer.
    pub(super) fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        let mut pipe = CommandPipe::default();
        pipe.add(&key_of(command)?, command);
        let mut answers = self.answers(&pipe)?;
        answers.pop().ok_or_else(|| (ErrorKind::Client, "nothing was asked").into())
    }

    /// Like [`ask`](Self::ask), but does not follow the key to another server, which may order its entries differently.
    pub(super) fn ask_there<T: FromRedisValue>(
        &mut self,
        key: &str,
        command: &Cmd,
    ) -> RedisResult<T> {
        let server = self.server_of(slot_of(key.as_bytes()))?;
        from_redis_value(ask(self.connection(server)?, command)?).map_err(RedisError::from)
    }

    /// Sends the commands of a pipe to their servers, all at once, and returns the answers in order.
    pub(super) fn answers<T: FromRedisValue>(&mut self, pipe: &CommandPipe) -> RedisResult<Vec<T>> {
        self.send([pipe])?;
        let mut answers = Vec::with_capacity(pipe.len());
        self.receive(pipe, |answer| {
            answers.push(from_redis_value(answer)?);
            Ok(())
        })?;
        Ok(answers)
    }

    /// Sends the commands of several pipes to their servers without waiting for answers, which arrive in the
    /// order of the pipes. Writes to each server only once: a write, and the wake-up that it causes, cost
    /// more than several hundred commands.
    pub(super) fn send<'a>(
        &mut self,
        pipes: impl IntoIterator<Item = &'a CommandPipe>,
    ) -> RedisResult<()> {
        let mut parts: Vec<Vec<u8>> = vec![Vec::new(); self.addresses.len()];
        for (slot, bytes) in pipes.into_iter().flat_map(CommandPipe::commands) {
            parts[self.server_of(slot)?].extend_from_slice(bytes);
        }
        for (number, part) in parts.iter().enumerate().filter(|(_, part)| !part.is_empty()) {
            self.connection(number)?.send(part)?;
        }
        Ok(())
    }

    /// Passes the answers to the oldest pipe sent to `each`, in the order of its commands.
    pub(super) fn receive(
        &mut self,
        pipe: &CommandPipe,
        mut each: impl FnMut(Value) -> RedisResult<()>,
    ) -> RedisResult<()> {
        for (slot, bytes) in pipe.commands() {
            let server = self.server_of(slot)?;
            let answer = match self.connection(server)?.receive() {
                Err(error) if is_ask(&error) => self.follow_ask(&error, bytes)?,
                answer => answer?,
            };
            each(answer)?;
        }
        Ok(())
    }

    fn server_of(&self, slot: u16) -> RedisResult<usize> {
        let server = self.slots.get(usize::from(slot)).copied().flatten();
        // The client library uses this error kind for temporary failures, such as an unavailable server.
        server.map(usize::from).ok_or_else(|| (ErrorKind::Client, "no server has the key").into())
    }

    fn connection(&mut self, number: usize) -> RedisResult<&mut ServerLine> {
        let connection = match self.connections[number].take() {
            Some(connection) => connection,
            None => self.reach.connect(&self.addresses[number])?,
        };
        Ok(self.connections[number].insert(connection))
    }

    /// Follows an ASK redirection: requests a migrating key from its new server, once, with the ASKING
    /// command.
    fn follow_ask(&mut self, error: &RedisError, command: &[u8]) -> RedisResult<Value> {
        let strange = || RedisError::from((ErrorKind::Client, "a key has no server"));
        let (address, _) = error.redirect_node().ok_or_else(strange)?;
        let (host, port) = address.rsplit_once(':').ok_or_else(strange)?;
        let port = port.parse().map_err(|_| strange())?;
        let mut connection = self.reach.connect(&(host.to_owned(), port))?;
        ask(&mut connection, &cmd("ASKING"))?;
        connection.send(command)?;
        connection.receive()
    }
}

fn is_ask(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::Ask)
}

fn ask(line: &mut ServerLine, command: &Cmd) -> RedisResult<Value> {
    line.send(&command.get_packed_command())?;
    line.receive()
}

/// The key of a command: after its name, or after a script and the number of its keys.
fn key_of(command: &Cmd) -> RedisResult<Vec<u8>> {
    let mut words = command.args_iter().filter_map(|arg| match arg {
        redis::Arg::Simple(word) => Some(word),
        _ => None,
    });
    let is_script = words.next().is_some_and(|name| name.starts_with(b"EVAL"));
    let key = words.nth(if is_script { 2 } else { 0 });
    key.map(<[u8]>::to_vec).ok_or_else(|| (ErrorKind::Client, "a command without a key").into())
}

/// Commands that go to all servers together. Each uses one key.
#[derive(Default)]
pub(super) struct CommandPipe {
    packed: Vec<u8>,
    /// The slot of each command, and where it ends.
    ends: Vec<(u16, usize)>,
}

impl CommandPipe {
    /// Adds a command that uses `key`.
    pub(super) fn add(&mut self, key: &[u8], command: &Cmd) {
        command.write_packed_command(&mut self.packed);
        self.end(key);
    }

    /// Starts a command of this many words; call [`word`](Self::word) for each, then [`end`](Self::end).
    /// Unlike [`add`](Self::add), this needs no allocation for each word.
    pub(super) fn begin(&mut self, words: usize) {
        self.length(b'*', words);
    }

    /// Adds the next word of a command.
    pub(super) fn word(&mut self, word: &[u8]) {
        self.word_of([word]);
    }

    /// Adds the next word, from several parts.
    pub(super) fn word_of<const N: usize>(&mut self, parts: [&[u8]; N]) {
        self.length(b'$', parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| self.packed.extend_from_slice(part));
        self.packed.extend_from_slice(b"\r\n");
    }

    /// Ends the current command, which uses `key`.
    pub(super) fn end(&mut self, key: &[u8]) {
        self.ends.push((slot_of(key), self.packed.len()));
    }

    fn length(&mut self, kind: u8, length: usize) {
        let mut digits = [0; 20];
        let (mut left, mut first) = (length, digits.len());
        loop {
            first -= 1;
            digits[first] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        self.packed.push(kind);
        self.packed.extend_from_slice(&digits[first..]);
        self.packed.extend_from_slice(b"\r\n");
    }

    /// The number of commands.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Their total size, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.packed.len()
    }

    fn command(&self, place: usize) -> (u16, &[u8]) {
        let (slot, end) = self.ends[place];
        let start = place.checked_sub(1).map_or(0, |before| self.ends[before].1);
        (slot, &self.packed[start..end])
    }

    fn commands(&self) -> impl Iterator<Item = (u16, &[u8])> {
        (0..self.ends.len()).map(|place| self.command(place))
    }
}

/// The slot of a key without braces: its CRC (polynomial 0x1021, initial value 0) modulo the number of slots.
fn slot_of(key: &[u8]) -> u16 {
    const TABLE: [u16; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let (mut sum, mut bit) = ((byte as u16) << 8, 0);
            while bit < 8 {
                sum = if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 };
                bit += 1;
            }
            table[byte] = sum;
            byte += 1;
        }
        table
    };
    let sum = key
        .iter()
        .fold(0_u16, |sum, byte| (sum << 8) ^ TABLE[usize::from((sum >> 8) as u8 ^ byte)]);
    sum % SLOTS as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let server = Value::Array(vec![host, Value::Int(port), text("id")]);
        Value::Array(vec![Value::Int(first), Value::Int(last), server])
    }

    #[test]
    fn slots_match_the_cluster_specification() {
        // The specification's reference value of the CRC is 0x31c3.
        assert_eq!(slot_of(b"123456789"), 0x31c3 % SLOTS as u16);
        assert_eq!(slot_of(b"b"), 3300);
    }

    #[test]
    fn the_slot_map_is_parsed() {
        let answer = vec![
            range(0, 99, text("a"), 1),
            range(100, 199, Value::Nil, 2),
            range(300, 16_383, text("a"), 1),
        ];
        let map = SlotMap::read(Value::Array(answer), "here").unwrap();
        assert_eq!(map.addresses, [("a".to_owned(), 1), ("here".to_owned(), 2)]);
        let at = [0, 99, 100, 199, 200, 299, 300, 16_383].map(|slot| map.slots[slot]);
        assert_eq!(at, [Some(0), Some(0), Some(1), Some(1), None, None, Some(0), Some(0)]);
        for wrong in [
            vec![],
            vec![range(0, 16_384, text("a"), 1)],
            vec![range(9, 3, text("a"), 1)],
            vec![range(0, 1, text("a"), 70_000)],
            vec![Value::Array(vec![Value::Int(0)])],
            vec![text("a")],
        ] {
            assert!(SlotMap::read(Value::Array(wrong.clone()), "here").is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_announced_server_gets_no_password_without_tls() {
        let place = "redis://127.0.0.1:1/x".parse().unwrap();
        let reach = ClusterAddress::new(&place, Some(Password::new("secret")));
        let named = ("192.0.2.1".to_owned(), 1);
        let Err(error) = reach.connect(&named) else { panic!("it connects") };
        assert!(error.to_string().contains("--coins-private-line"), "{error}");
        assert!(!error.to_string().contains("secret"));
    }

    #[test]
    fn keys_are_found_after_names_and_scripts() {
        let mut get = cmd("GET");
        get.arg("x:c");
        assert_eq!(key_of(&get).unwrap(), b"x:c");
        let mut script = cmd("EVALSHA");
        script.arg("00ff").arg(1).arg("x:k").arg("y");
        assert_eq!(key_of(&script).unwrap(), b"x:k");
        assert!(key_of(&cmd("PING")).is_err());
    }

    #[test]
    fn a_pipe_returns_its_commands() {
        let mut pipe = CommandPipe::default();
        for key in ["one", "another"] {
            pipe.add(key.as_bytes(), cmd("GET").arg(key));
        }
        assert_eq!(pipe.len(), 2);
        assert_eq!(
            pipe.command(1),
            (slot_of(b"another"), &b"*2\r\n$3\r\nGET\r\n$7\r\nanother\r\n"[..])
        );
        assert_eq!(pipe.commands().map(|(_, bytes)| bytes.len()).sum::<usize>(), pipe.bytes());
    }
}
