//! [`Servers`]: connections to all servers of a cluster, and which of them has which keys. A server that is none of a cluster
//! has all of them.
//!
//! The client library's own cluster connection takes the answers to a pipeline one by one, and listens for as
//! long to each where a server is silent; so one with five hundred commands listens for hours. Here the first
//! trouble ends a call, with an error that says whether to ask again, and the connections are made anew then,
//! with what the servers say of the keys by that time. What is one server's is its [`ServerLine`]'s.
//!
//! For how long is listened is the caller's to say ([`patience`](crate::patience)).

use super::line::ServerLine;
use crate::url::{ClusterUrl, Password};
use redis::{
    Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind, Value, cmd,
    from_redis_value,
};
use std::collections::HashMap;

/// Slots that keys are divided into.
const SLOTS: usize = 16_384;

/// A server, as others name it.
type Address = (String, u16);

/// How servers are reached.
#[derive(Debug, Clone)]
pub(super) struct ClusterAddress {
    tls: bool,
    password: Option<Password>,
    /// Some of the servers, by which the others are found.
    seeds: Vec<Address>,
}

impl ClusterAddress {
    pub(super) fn new(place: &ClusterUrl, password: Option<Password>) -> Self {
        Self { tls: place.tls, password, seeds: place.nodes.clone() }
    }

    fn connect(&self, server: &Address) -> RedisResult<ServerLine> {
        ServerLine::connect(server, self.tls, self.password.as_ref())
    }

    /// Connects to the first seed that knows the cluster. The others are connected to once they are needed.
    pub(super) fn open(&self) -> RedisResult<Servers> {
        let mut last = None;
        for seed in &self.seeds {
            let map = self.connect(seed).and_then(|mut connection| {
                let map = match ask(&mut connection, cmd("CLUSTER").arg("SLOTS")) {
                    Err(error) if self.seeds.len() == 1 && is_alone(&error) => SlotMap::alone(seed),
                    said => SlotMap::read(said?, &seed.0)?,
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

/// Which server has which slots.
struct SlotMap {
    addresses: Vec<Address>,
    /// By slot the number of its server; none for one that no server has.
    slots: Vec<Option<u16>>,
}

/// Whether a server is none of a cluster.
pub(super) fn is_alone(error: &RedisError) -> bool {
    error.to_string().contains("cluster support disabled")
}

impl SlotMap {
    /// One server has all keys.
    fn alone(server: &Address) -> Self {
        Self { addresses: vec![server.clone()], slots: vec![Some(0); SLOTS] }
    }

    /// Reads what the server at `host` says of that.
    fn read(said: Value, host: &str) -> RedisResult<Self> {
        let strange = || RedisError::from((ErrorKind::Client, "no slots are told of"));
        // The library cuts numbers off that do not fit.
        let number = |said: Value| -> RedisResult<u16> {
            from_redis_value::<i64>(said)?.try_into().map_err(|_| strange())
        };
        // After the first and the last slot stand the servers, the first of which is the one that writes.
        let ranges: Vec<Vec<Value>> = from_redis_value(said)?;
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
            // A server that does not know how it is called is where it was asked.
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

/// See the module. After an error it is of no more use: answers may be on their way that belong to what was
/// asked before.
pub(super) struct Servers {
    reach: ClusterAddress,
    addresses: Vec<Address>,
    connections: Vec<Option<ServerLine>>,
    slots: Vec<Option<u16>>,
}

impl Servers {
    /// Asks all of the servers that write the same, and says who answered what.
    pub(super) fn everywhere<T: FromRedisValue>(
        &mut self,
        command: &Cmd,
    ) -> RedisResult<Vec<(String, T)>> {
        let numbers = 0..self.addresses.len();
        numbers
            .map(|number| {
                let said = ask(self.connection(number)?, command)?;
                let (host, port) = &self.addresses[number];
                Ok((format!("{host}:{port}"), from_redis_value(said)?))
            })
            .collect()
    }

    /// The answer to one command, which is about one key.
    pub(super) fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        let mut pipe = CommandPipe::default();
        pipe.add(&key_of(command)?, command);
        let mut answers = self.answers(&pipe)?;
        answers.pop().ok_or_else(|| (ErrorKind::Client, "nothing was asked").into())
    }

    /// Gives the commands of a pipe to their servers, all at once, and the answers in their order.
    pub(super) fn answers<T: FromRedisValue>(&mut self, pipe: &CommandPipe) -> RedisResult<Vec<T>> {
        self.send([pipe])?;
        let mut answers = Vec::with_capacity(pipe.len());
        self.receive(pipe, |answer| {
            answers.push(from_redis_value(answer)?);
            Ok(())
        })?;
        Ok(answers)
    }

    /// Gives the commands of some pipes to their servers, and waits for no answer. The answers come in the order of
    /// the pipes. Each server is written to once: that, and waking it, costs more than some hundred commands.
    pub(super) fn send<'a>(
        &mut self,
        pipes: impl IntoIterator<Item = &'a CommandPipe>,
    ) -> RedisResult<()> {
        let mut parts: Vec<Vec<u8>> = vec![Vec::new(); self.addresses.len()];
        for (slot, bytes) in pipes.into_iter().flat_map(CommandPipe::commands) {
            parts[self.server_of(slot)?].extend_from_slice(bytes);
        }
        for (number, said) in parts.iter().enumerate().filter(|(_, said)| !said.is_empty()) {
            self.connection(number)?.send(said)?;
        }
        Ok(())
    }

    /// Hands the answers to the oldest pipe that was sent to `each`, in the order of its commands.
    pub(super) fn receive(
        &mut self,
        pipe: &CommandPipe,
        mut each: impl FnMut(Value) -> RedisResult<()>,
    ) -> RedisResult<()> {
        for (slot, bytes) in pipe.commands() {
            let server = self.server_of(slot)?;
            let answer = match self.connection(server)?.receive() {
                Err(error) if is_ask(&error) => self.ask_elsewhere(&error, bytes)?,
                said => said?,
            };
            each(answer)?;
        }
        Ok(())
    }

    fn server_of(&self, slot: u16) -> RedisResult<usize> {
        let server = self.slots.get(usize::from(slot)).copied().flatten();
        // The client library's kind for what may go away by itself, as while a server is away.
        server.map(usize::from).ok_or_else(|| (ErrorKind::Client, "no server has the key").into())
    }

    fn connection(&mut self, number: usize) -> RedisResult<&mut ServerLine> {
        let connection = match self.connections[number].take() {
            Some(connection) => connection,
            None => self.reach.connect(&self.addresses[number])?,
        };
        Ok(self.connections[number].insert(connection))
    }

    /// A key that is on its way to another server is asked for there, once, and with a word that says so.
    fn ask_elsewhere(&mut self, error: &RedisError, command: &[u8]) -> RedisResult<Value> {
        let strange = || RedisError::from((ErrorKind::Client, "a key is at no server"));
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

/// Commands that go to all servers together, each about one key.
#[derive(Default)]
pub(super) struct CommandPipe {
    packed: Vec<u8>,
    /// The slot of each, and where it ends.
    ends: Vec<(u16, usize)>,
}

impl CommandPipe {
    /// One more, about `key`.
    pub(super) fn add(&mut self, key: &[u8], command: &Cmd) {
        command.write_packed_command(&mut self.packed);
        self.end(key);
    }

    /// One more of so many words, which come next; then its [end](Self::end). What [`add`](Self::add) does is this
    /// with memory of its own for each word.
    pub(super) fn begin(&mut self, words: usize) {
        self.length(b'*', words);
    }

    /// The next word of a command.
    pub(super) fn word(&mut self, word: &[u8]) {
        self.word_of([word]);
    }

    /// The next word, of some parts.
    pub(super) fn word_of<const N: usize>(&mut self, parts: [&[u8]; N]) {
        self.length(b'$', parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| self.packed.extend_from_slice(part));
        self.packed.extend_from_slice(b"\r\n");
    }

    /// The command that was begun is about `key`, and has no more words.
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

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// What they come to, in bytes.
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

/// The slot of a key without braces: its CRC (polynomial 0x1021, from 0) in the number of slots.
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
    fn slots_are_those_of_the_cluster_specification() {
        // Its reference value for the CRC itself is 0x31c3.
        assert_eq!(slot_of(b"123456789"), 0x31c3 % SLOTS as u16);
        assert_eq!(slot_of(b"b"), 3300);
    }

    #[test]
    fn who_has_which_slots_is_read() {
        let said = vec![
            range(0, 99, text("a"), 1),
            range(100, 199, Value::Nil, 2),
            range(300, 16_383, text("a"), 1),
        ];
        let map = SlotMap::read(Value::Array(said), "here").unwrap();
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
    fn a_server_that_others_name_gets_no_password_in_the_clear() {
        let place = "redis://127.0.0.1:1/x".parse().unwrap();
        let reach = ClusterAddress::new(&place, Some(Password::new("secret")));
        let named = ("192.0.2.1".to_owned(), 1);
        let Err(error) = reach.connect(&named) else { panic!("it connects") };
        assert!(error.to_string().contains("--coins-private-line"), "{error}");
        assert!(!error.to_string().contains("secret"));
    }

    #[test]
    fn keys_stand_after_names_and_scripts() {
        let mut get = cmd("GET");
        get.arg("x:c");
        assert_eq!(key_of(&get).unwrap(), b"x:c");
        let mut script = cmd("EVALSHA");
        script.arg("00ff").arg(1).arg("x:k").arg("y");
        assert_eq!(key_of(&script).unwrap(), b"x:k");
        assert!(key_of(&cmd("PING")).is_err());
    }

    #[test]
    fn commands_are_found_again_in_a_pipe() {
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
