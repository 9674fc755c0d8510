//! [`PlainConnector`], [`TlsConnector`] and [`SocketConnector`]: the client library's connections, with limits so
//! that no call waits for a silent server longer than its caller wants ([`retry`]).
//!
//! The library itself has no time limit. It lets its user wrap a connection, which is meant for TLS. The
//! limit is enforced in that wrapper, also for connections without TLS, whose data passes through unchanged.
//! The library does not wrap a Unix socket, so there the server must answer once before each connection is made.

use crate::retry;
use ::postgres::Socket;
use ::postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use std::error::Error;
use std::future::{Future, Ready, ready};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep_until};
use tokio_postgres_rustls::MakeRustlsConnect;

/// A connection that detects silence while it is read, which is throughout every call.
pub(super) struct TimedStream<S> {
    stream: S,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<S> TimedStream<S> {
    fn new(stream: S) -> Self {
        Self { stream, alarm: None }
    }

    /// Handles a read without data: fails once the server has been silent for too long.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let until = retry::until().into();
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if alarm.deadline() != until {
            alarm.as_mut().reset(until);
        }
        ready!(alarm.as_mut().poll(context));
        Poll::Ready(Err(retry::timed_out()))
    }
}

fn note<T>(done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
    if done.is_ready() {
        retry::heard();
    }
    done
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Pending => self.poll_silence(context),
            done => note(done),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        note(Pin::new(&mut self.stream).poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl TlsStream for TimedStream<Socket> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

/// Connects without TLS. The library believes it to be direct TLS, so use it with
/// [`SslNegotiation::Direct`](::postgres::config::SslNegotiation).
#[derive(Clone, Copy)]
pub(super) struct PlainConnector;

impl MakeTlsConnect<Socket> for PlainConnector {
    type Stream = TimedStream<Socket>;
    type TlsConnect = Self;
    type Error = io::Error;

    fn make_tls_connect(&mut self, _: &str) -> io::Result<Self> {
        Ok(*self)
    }
}

impl TlsConnect<Socket> for PlainConnector {
    type Stream = TimedStream<Socket>;
    type Error = io::Error;
    type Future = Ready<io::Result<TimedStream<Socket>>>;

    fn connect(self, socket: Socket) -> Self::Future {
        ready(Ok(TimedStream::new(socket)))
    }
}

/// Connects with TLS, using another library.
#[derive(Clone)]
pub(super) struct TlsConnector {
    pub(super) tls: MakeRustlsConnect,
    pub(super) server: (String, u16),
    /// How long the server may take to accept a connection.
    pub(super) connect: Duration,
}

type Rustls = <MakeRustlsConnect as MakeTlsConnect<TimedStream<Socket>>>::TlsConnect;

/// The TLS handshake of one connection.
pub(super) struct TlsHandshake(Rustls);

impl MakeTlsConnect<Socket> for TlsConnector {
    type Stream = <Rustls as TlsConnect<TimedStream<Socket>>>::Stream;
    type TlsConnect = TlsHandshake;
    type Error = Box<dyn Error + Send + Sync>;

    fn make_tls_connect(&mut self, domain: &str) -> Result<TlsHandshake, Self::Error> {
        let (host, port) = &self.server;
        expect_answer(host, *port, self.connect)?;
        let made = MakeTlsConnect::<TimedStream<Socket>>::make_tls_connect(&mut self.tls, domain);
        Ok(TlsHandshake(made?))
    }
}

impl TlsConnect<Socket> for TlsHandshake {
    type Stream = <Rustls as TlsConnect<TimedStream<Socket>>>::Stream;
    type Error = <Rustls as TlsConnect<TimedStream<Socket>>>::Error;
    type Future = <Rustls as TlsConnect<TimedStream<Socket>>>::Future;

    fn connect(self, socket: Socket) -> Self::Future {
        self.0.connect(TimedStream::new(socket))
    }
}

/// Connects through a Unix socket, to a server that answers on another connection first.
#[derive(Clone)]
pub(super) struct SocketConnector {
    /// The path of the socket.
    pub(super) socket: PathBuf,
}

impl MakeTlsConnect<Socket> for SocketConnector {
    type Stream = TimedStream<Socket>;
    type TlsConnect = PlainConnector;
    type Error = io::Error;

    fn make_tls_connect(&mut self, _: &str) -> io::Result<PlainConnector> {
        expect_local_answer(&self.socket)?;
        Ok(PlainConnector)
    }
}

/// The question whether a server supports TLS: the message length, and the protocol's code for this request.
const ASK: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// Asks a server whether it supports TLS, through its Unix socket, where the library has just connected. Fails if it does
/// not answer in time.
fn expect_local_answer(socket: &Path) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(retry::left()?))?;
    stream.write_all(&ASK)?;
    match stream.read_exact(&mut [0]) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(retry::timed_out()),
        answer => answer.map(|()| retry::heard()),
    }
}

/// Asks a server whether it supports TLS, on a separate connection, as the library does next: at that point
/// nothing guards the library against a silent server. Fails if no server answers.
fn expect_answer(host: &str, port: u16, connect: Duration) -> io::Result<()> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the server's name has no address");
    for address in (host, port).to_socket_addrs()? {
        let answer = TcpStream::connect_timeout(&address, connect.min(retry::left()?)).and_then(
            |mut stream| {
                stream.set_read_timeout(Some(retry::left()?))?;
                stream.write_all(&ASK)?;
                stream.read_exact(&mut [0])
            },
        );
        match answer {
            Ok(()) => {
                retry::heard();
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => last = retry::timed_out(),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    #[test]
    fn a_server_that_accepts_connections_and_stays_silent_times_out() {
        // The operating system accepts the connections, although no program does.
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, started) = (server.local_addr().unwrap().port(), Instant::now());
        let _listening = retry::within(Duration::from_millis(50));
        let error = expect_answer("127.0.0.1", port, Duration::from_secs(9)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(9));
    }

    #[test]
    fn a_server_behind_a_socket_that_stays_silent_times_out() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, started) = (folder.path().join("socket"), Instant::now());
        let missing = expect_local_answer(&socket).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let _server = UnixListener::bind(&socket).unwrap();
        let _listening = retry::within(Duration::from_millis(50));
        let error = expect_local_answer(&socket).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(9));
    }
}
