//! [`ServerLine`]: a connection to one server.
//!
//! Plaintext answers are parsed here (RESP version 2, the default of every server). A block takes as many
//! answers as it has coins, and parsing one with the client library costs more than the server's own work.
//! The library handles TLS connections and parses their answers. It also encodes commands, and defines errors
//! and values.
//!
//! The length of an answer is bounded, even if the server announces more, and memory grows only with the bytes
//! received.

use crate::retry;
use crate::url::{Password, PasswordExposed};
use redis::io::tcp::TcpSettings;
use redis::{
    Client, Connection, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, RedisResult, Value, cmd, parse_redis_value,
};
use std::io::{self, BufRead, BufReader, ErrorKind as IoKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(3);

/// Bytes per read.
const READ_BYTES: usize = 32 << 10;

/// Longest answer, including the memory that its parts take here, in bytes. Several thousand coins with the
/// longest scripts fit.
const ANSWER_BYTES_MAX: u64 = 512 << 20;

/// Longest line: an error, or the header of a longer value, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Deepest nesting of arrays.
const DEPTH_MAX: usize = 8;

/// Maximum bytes to allocate at once.
const AT_ONCE: usize = 64 << 10;

/// A connection to one server, plaintext or TLS.
pub(super) enum ServerLine {
    Clear(Box<ClearLine>),
    Tls(Box<Connection>),
}

impl ServerLine {
    /// Connects to a server.
    pub(super) fn connect(
        (host, port): &(String, u16),
        tls: bool,
        (user, password): (Option<&str>, Option<&Password>),
    ) -> RedisResult<Self> {
        let line = match tls {
            true => Self::Tls(Box::new(library((host, *port), user, password)?)),
            false => {
                let password = password.map(|password| reveal(password, host, tls)).transpose()?;
                Self::Clear(Box::new(ClearLine::connect((host, *port), (user, password))?))
            }
        };
        retry::heard();
        Ok(line)
    }

    /// Sends commands.
    pub(super) fn send(&mut self, packed: &[u8]) -> RedisResult<()> {
        match self {
            Self::Clear(line) => line.send(packed)?,
            Self::Tls(connection) => {
                let left = Some(retry::left()?);
                connection.set_write_timeout(left)?;
                connection.set_read_timeout(left)?;
                connection.send_packed_command(packed)?;
            }
        }
        retry::heard();
        Ok(())
    }

    /// Receives the next answer. An error answer is an error.
    pub(super) fn receive(&mut self) -> RedisResult<Value> {
        let answer = match self {
            Self::Clear(line) => line.answers.next(),
            Self::Tls(connection) => connection.recv_response(),
        };
        match answer.and_then(extract_error) {
            // The system only says that the call would block, which is not helpful.
            Err(error) if error.is_timeout() => Err(retry::timed_out().into()),
            answer => {
                retry::heard();
                answer
            }
        }
    }
}

/// Returns an answer, or the error that it is or contains. The library rebuilds every array to search it for
/// errors; coins are arrays of strings, which cannot contain any.
fn extract_error(answer: Value) -> RedisResult<Value> {
    let is_string = |value: &Value| matches!(value, Value::BulkString(_) | Value::Nil);
    match &answer {
        Value::Array(found) if found.iter().all(is_string) => Ok(answer),
        _ => answer.extract_error(),
    }
}

/// The password for a server. A server that others announced may be anyone's, so TLS is checked for each.
fn reveal<'p>(password: &'p Password, host: &str, tls: bool) -> RedisResult<&'p str> {
    let exposed = |error: PasswordExposed| {
        (ErrorKind::InvalidClientConfig, "password withheld", error.to_string()).into()
    };
    password.reveal(host, tls).map_err(exposed)
}

/// Creates a connection of the client library.
fn library(
    (host, port): (&str, u16),
    user: Option<&str>,
    password: Option<&Password>,
) -> RedisResult<Connection> {
    let password = password.map(|password| reveal(password, host, true)).transpose()?;
    let host = host.to_owned();
    let address = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
    let mut login = RedisConnectionInfo::default();
    if let Some(user) = user {
        login = login.set_username(user);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    // Disable Nagle's algorithm, which would delay the end of a request.
    let settings = TcpSettings::default().set_nodelay(true);
    let info = address.into_connection_info()?;
    let info = info.set_redis_settings(login).set_tcp_settings(settings);
    Client::open(info)?.get_connection_with_timeout(CONNECT.min(retry::left()?))
}

/// A plaintext connection.
pub(super) struct ClearLine {
    answers: ServerAnswers<BufReader<TcpStream>>,
}

impl ClearLine {
    fn connect(address: (&str, u16), login: (Option<&str>, Option<&str>)) -> RedisResult<Self> {
        let mut last = io::Error::new(IoKind::NotFound, "the server's name has no address");
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT.min(retry::left()?)) {
                Ok(stream) => return Self::greet(stream, login),
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }

    fn greet(
        stream: TcpStream,
        (user, password): (Option<&str>, Option<&str>),
    ) -> RedisResult<Self> {
        // Disable Nagle's algorithm, which would delay the end of a request.
        stream.set_nodelay(true)?;
        let mut line =
            Self { answers: ServerAnswers::new(BufReader::with_capacity(READ_BYTES, stream)) };
        if user.is_some() || password.is_some() {
            let mut login = cmd("AUTH");
            if let Some(user) = user {
                login.arg(user);
            }
            line.send(&login.arg(password.unwrap_or_default()).get_packed_command())?;
            line.answers.next().and_then(Value::extract_error).map_err(|error| {
                match error.is_io_error() {
                    true => error,
                    // Keep only the code: a server that does not know the command quotes the password.
                    false => {
                        let code = error.code().unwrap_or("no code").to_owned();
                        (ErrorKind::AuthenticationFailed, "refused", code).into()
                    }
                }
            })?;
        }
        Ok(line)
    }

    fn send(&mut self, packed: &[u8]) -> io::Result<()> {
        let stream = self.answers.from.get_mut();
        let left = Some(retry::left()?);
        stream.set_write_timeout(left)?;
        stream.set_read_timeout(left)?;
        stream.write_all(packed)
    }
}

/// Parses answers from a byte stream.
pub(crate) struct ServerAnswers<R> {
    from: R,
    /// The last line read, without its end.
    line: Vec<u8>,
    /// How many more bytes the answer may have.
    left: u64,
}

impl<R: BufRead> ServerAnswers<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, line: Vec::new(), left: 0 }
    }

    /// Reads the next answer. After an error there are no more.
    pub(crate) fn next(&mut self) -> RedisResult<Value> {
        self.left = ANSWER_BYTES_MAX;
        self.value(0)
    }

    fn value(&mut self, depth: usize) -> RedisResult<Value> {
        self.read_line()?;
        let (kind, rest) = self.line.split_first().ok_or_else(strange)?;
        match kind {
            b'$' => match length(rest)? {
                Some(length) => self.string(length).map(Value::BulkString),
                None => Ok(Value::Nil),
            },
            b'*' => match length(rest)? {
                Some(length) => self.array(length, depth),
                None => Ok(Value::Nil),
            },
            b':' => number(rest).map(Value::Int),
            b'+' if rest == b"OK" => Ok(Value::Okay),
            b'+' => match std::str::from_utf8(rest) {
                Ok(rest) => Ok(Value::SimpleString(rest.to_owned())),
                Err(_) => Err(strange()),
            },
            // The library knows the error codes.
            b'-' => parse_redis_value(&[&self.line[..], b"\r\n"].concat()),
            _ => Err(strange()),
        }
    }

    /// Reduces the remaining bytes.
    fn take(&mut self, bytes: u64) -> RedisResult<()> {
        self.left = self.left.checked_sub(bytes).ok_or_else(strange)?;
        Ok(())
    }

    fn read_line(&mut self) -> RedisResult<()> {
        self.line.clear();
        let mut from = (&mut self.from).take(LINE_BYTES_MAX);
        from.read_until(b'\n', &mut self.line)?;
        self.take(self.line.len() as u64)?;
        if self.line.ends_with(b"\r\n") {
            self.line.truncate(self.line.len() - 2);
            return Ok(());
        }
        match self.line.last() {
            Some(b'\n') => Err(strange()),
            _ if self.line.len() as u64 == LINE_BYTES_MAX => Err(strange()),
            // The stream ends within an answer, or before one.
            _ => Err(io::Error::from(IoKind::UnexpectedEof).into()),
        }
    }

    fn string(&mut self, length: u64) -> RedisResult<Vec<u8>> {
        self.take(length)?;
        let mut string = Vec::with_capacity(length.min(AT_ONCE as u64) as usize);
        (&mut self.from).take(length).read_to_end(&mut string)?;
        let mut end = [0; 2];
        self.from.read_exact(&mut end)?;
        if end == *b"\r\n" { Ok(string) } else { Err(strange()) }
    }

    fn array(&mut self, length: u64, depth: usize) -> RedisResult<Value> {
        if depth == DEPTH_MAX {
            return Err(strange());
        }
        self.take(length.saturating_mul(size_of::<Value>() as u64))?;
        let most = AT_ONCE / size_of::<Value>();
        let mut values = Vec::with_capacity(length.min(most as u64) as usize);
        for _ in 0..length {
            values.push(self.value(depth + 1)?);
        }
        Ok(Value::Array(values))
    }
}

/// The error for invalid answers.
fn strange() -> RedisError {
    (ErrorKind::Parse, "the server's answer is invalid").into()
}

fn number(digits: &[u8]) -> RedisResult<i64> {
    let text = std::str::from_utf8(digits).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(strange)
}

/// Parses a length. `None` stands for a null value.
fn length(digits: &[u8]) -> RedisResult<Option<u64>> {
    match number(digits)? {
        -1 => Ok(None),
        length => u64::try_from(length).map(Some).map_err(|_| strange()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::net::TcpListener;

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            Just(Value::Okay),
            any::<i64>().prop_map(Value::Int),
            vec(any::<u8>(), 0..200).prop_map(Value::BulkString),
            "[ -~]{0,20}".prop_map(|text| match &*text {
                "OK" => Value::Okay,
                _ => Value::SimpleString(text),
            }),
        ];
        leaf.prop_recursive(3, 30, 6, |inner| vec(inner, 0..6).prop_map(Value::Array))
    }

    fn write(value: &Value, to: &mut Vec<u8>) {
        match value {
            Value::Nil => to.extend_from_slice(b"$-1\r\n"),
            Value::Okay => to.extend_from_slice(b"+OK\r\n"),
            Value::Int(number) => to.extend_from_slice(format!(":{number}\r\n").as_bytes()),
            Value::SimpleString(text) => to.extend_from_slice(format!("+{text}\r\n").as_bytes()),
            Value::BulkString(bytes) => {
                to.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
                to.extend_from_slice(bytes);
                to.extend_from_slice(b"\r\n");
            }
            Value::Array(values) => {
                to.extend_from_slice(format!("*{}\r\n", values.len()).as_bytes());
                values.iter().for_each(|value| write(value, to));
            }
            other => unreachable!("{other:?} is not made"),
        }
    }

    /// Parses answers from bytes that arrive in pieces of `some` bytes.
    fn read(bytes: &[u8], some: usize) -> ServerAnswers<BufReader<&[u8]>> {
        ServerAnswers::new(BufReader::with_capacity(some, bytes))
    }

    proptest! {
        #[test]
        fn answers_are_read_as_the_library_reads_them(
            answer in vec(value(), 1..5),
            some in 1usize..100,
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = Vec::new();
            answer.iter().for_each(|value| write(value, &mut bytes));
            let mut answers = read(&bytes, some);
            for value in &answer {
                prop_assert_eq!(&answers.next().unwrap(), value);
            }
            prop_assert!(answers.next().unwrap_err().is_io_error(), "no answer follows");
            prop_assert_eq!(&parse_redis_value(&bytes).unwrap(), &answer[0]);
            // A truncated answer is an error.
            let mut answers = read(&bytes[..cut.index(bytes.len())], some);
            prop_assert!(answer.iter().any(|_| answers.next().is_err()));
        }

        #[test]
        fn input_that_the_library_rejects_is_an_error(
            answer in value(),
            at in any::<prop::sample::Index>(),
            byte: u8,
        ) {
            let mut bytes = Vec::new();
            write(&answer, &mut bytes);
            *at.get_mut(&mut bytes) = byte;
            if let Ok(read) = read(&bytes, 50).next() {
                prop_assert_eq!(parse_redis_value(&bytes).ok(), Some(read));
            }
        }
    }

    #[test]
    fn errors_are_those_of_the_library() {
        let mut answers = read(b"-MOVED 3999 127.0.0.1:6381\r\n-ERR no\r\n+OK\r\n", 9);
        let error = answers.next().and_then(Value::extract_error).unwrap_err();
        assert_eq!(error.redirect_node(), Some(("127.0.0.1:6381", 3999)));
        assert!(answers.next().and_then(Value::extract_error).is_err());
        assert_eq!(answers.next().unwrap(), Value::Okay);
    }

    #[test]
    fn a_refused_password_is_not_repeated() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = ("127.0.0.1".to_owned(), listener.local_addr().unwrap().port());
        let serve = move || {
            let (mut stream, _) = listener.accept().unwrap();
            let answer = b"-ERR unknown command 'AUTH', with args beginning with: 'hidden'\r\n";
            stream.write_all(answer).unwrap();
            // Close the connection only when the other side has: it might lose the answer.
            stream.read_to_end(&mut Vec::new()).unwrap();
        };
        let server_thread = std::thread::spawn(serve);
        let password = Password::new("hidden");
        let error = ServerLine::connect(&server, false, (None, Some(&password))).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::AuthenticationFailed);
        let text = error.to_string();
        assert!(text.contains("ERR") && !text.contains("hidden"), "{text}");
        server_thread.join().unwrap();
    }

    #[test]
    fn too_long_or_too_deep_answers_use_no_memory() {
        let deep = b"*1\r\n".repeat(DEPTH_MAX + 1);
        let long_line = [b"+", &[b'a'; LINE_BYTES_MAX as usize][..], b"\r\n"].concat();
        for bytes in [
            &b"$999999999999\r\n"[..],
            b"*999999999999\r\n",
            b"*9223372036854775807\r\n",
            b"$-2\r\n",
            b"$1\r\nab\r\n",
            b":\r\n",
            b"%1\r\n",
            b"+a\n",
            b"\r\n",
            &[&deep[..], b":1\r\n"].concat(),
            &long_line,
        ] {
            let error = read(bytes, 100).next().unwrap_err();
            assert_eq!(
                error.kind(),
                ErrorKind::Parse,
                "{:?}: {error}",
                &bytes[..bytes.len().min(20)]
            );
        }
        let shallow = [&b"*1\r\n".repeat(DEPTH_MAX)[..], b":1\r\n"].concat();
        assert!(read(&shallow, 100).next().is_ok());
        // An announced array with missing elements ends as a truncated stream.
        let error = read(b"*1000000\r\n:1\r\n", 100).next().unwrap_err();
        assert!(error.is_io_error(), "{error}");
    }
}
