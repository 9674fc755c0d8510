//! [`PlainConnector`] and [`TlsConnector`]: what the client library connects through, so that no call listens to a silent
//! server for longer than its caller wants ([`patience`]).
//!
//! The library listens for ever. It lets its user put something over the connection, which is meant for TLS;
//! that is the place here, for connections without TLS too, which pass through as they are.

use crate::patience;
use ::postgres::Socket;
use ::postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use std::error::Error;
use std::future::{Future, Ready, ready};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep_until};
use tokio_postgres_rustls::MakeRustlsConnect;

/// A connection whose silence is noticed while something is read from it, which is all the time that a call
/// is under way.
pub(super) struct TimedStream<S> {
    stream: S,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<S> TimedStream<S> {
    fn new(stream: S) -> Self {
        Self { stream, alarm: None }
    }

    /// Nothing was said: an error once it has been long enough.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let until = patience::until().into();
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if alarm.deadline() != until {
            alarm.as_mut().reset(until);
        }
        ready!(alarm.as_mut().poll(context));
        Poll::Ready(Err(patience::timed_out()))
    }
}

fn note<T>(done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
    if done.is_ready() {
        patience::heard();
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

/// Without TLS. The library takes it for one that needs no word before, so it goes with
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

/// With TLS, which is the other library's.
#[derive(Clone)]
pub(super) struct TlsConnector {
    pub(super) tls: MakeRustlsConnect,
    pub(super) server: (String, u16),
    /// How long the server may take to accept a connection.
    pub(super) connect: Duration,
}

type Rustls = <MakeRustlsConnect as MakeTlsConnect<TimedStream<Socket>>>::TlsConnect;

/// How it is begun for one connection.
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

/// Asks a server whether it encrypts, on a connection of its own, as the library does next: there nothing stands yet
/// between the library and a silent server. An error where none answers.
fn expect_answer(host: &str, port: u16, connect: Duration) -> io::Result<()> {
    /// The length, and the number that the protocol has for it.
    const ASK: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the server's name has no address");
    for address in (host, port).to_socket_addrs()? {
        let answer = TcpStream::connect_timeout(&address, connect.min(patience::left()?)).and_then(
            |mut stream| {
                stream.set_read_timeout(Some(patience::left()?))?;
                stream.write_all(&ASK)?;
                stream.read_exact(&mut [0])
            },
        );
        match answer {
            Ok(()) => {
                patience::heard();
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => last = patience::timed_out(),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::Instant;

    #[test]
    fn a_server_that_takes_connections_and_says_nothing_is_given_up() {
        // Its system takes connections that it does not.
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, started) = (server.local_addr().unwrap().port(), Instant::now());
        let _listening = patience::within(Duration::from_millis(50));
        let error = expect_answer("127.0.0.1", port, Duration::from_secs(9)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(9));
    }
}
