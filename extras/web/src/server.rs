//! [`PageServer`]: a thread that answers browsers.
//!
//! The server is one thread, which sleeps while there is no request, so that a sync has the processors to itself. A
//! client's resources are bounded: the number of connections ([`Guests`]), the bytes of a request's head, and the time
//! to send a request or to read an answer.

use crate::Board;
use crate::access::Token;
use crate::answer::{Answer, STATE, answer};
use crate::guests::{GuestStream, Guests};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::{Condvar, Mutex};
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// Maximum length of a request's head, in bytes. A browser sends about 1 kB.
const HEAD_BYTES: usize = 16 << 10;

/// Idle timeout of a connection: the time to send a request, or to read nothing of the answer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// A page asks every second or two, so an open one has asked within this time.
const OPEN: Duration = Duration::from_secs(6);

/// Pause after an error of `accept`, most likely too many open files; also the time to send a last answer.
const PAUSE: Duration = Duration::from_millis(200);

/// Options of a server.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The address to listen on; with port 0 the system chooses a port.
    pub address: SocketAddr,
    /// The token that a browser must present. Without one, the address must be a loopback address.
    pub token: Option<Token>,
}

/// Failure to start a server.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// The address is public and there is no token.
    #[error("{0} can be reached from other machines, so the page needs a token")]
    Open(SocketAddr),
    /// The system refuses the address.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The system cannot start a thread.
    #[error("cannot start a thread for the page: {0}")]
    Thread(io::Error),
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct PageServer {
    address: SocketAddr,
    asked: Arc<StateRequests>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Requests for the state.
#[derive(Debug, Default)]
struct StateRequests {
    count: AtomicU64,
    last: Mutex<Option<Instant>>,
    again: Condvar,
}

impl StateRequests {
    fn note(&self) {
        let mut last = self.last.lock();
        *last = Some(Instant::now());
        self.count.fetch_add(1, Ordering::Relaxed);
        self.again.notify_all();
    }
}

impl PageServer {
    /// Starts a server.
    ///
    /// # Errors
    /// If the address is not available, or is public and there is no token.
    pub fn start(options: ServerOptions, board: Arc<dyn Board>) -> Result<Self, WebError> {
        let address = options.address;
        if options.token.is_none() && !address.ip().is_loopback() {
            return Err(WebError::Open(address));
        }
        let refused = |error| WebError::Listen { address, error };
        let listener = StdListener::bind(address).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        // Check for new connections after each answer, so that a client with many requests does not delay others.
        let runtime = Builder::new_current_thread().enable_all().event_interval(1).build();
        let runtime = runtime.map_err(WebError::Thread)?;
        let (stop, stopped) = oneshot::channel();
        let asked = Arc::<StateRequests>::default();
        let served = PageContext { token: options.token, board, asked: Arc::clone(&asked) };
        let thread = std::thread::Builder::new()
            .name("page".to_owned())
            .spawn(move || serve(&runtime, listener, Arc::new(served), stopped))
            .map_err(WebError::Thread)?;
        Ok(Self { address, asked, stop: Some(stop), thread: Some(thread) })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until an open page has asked once more, for at most this long: the page keeps showing that answer when the
    /// server is gone.
    pub fn wait_for_pages(&self, at_most: Duration) {
        let mut last = self.asked.last.lock();
        if last.is_none_or(|last| last.elapsed() > OPEN) {
            return;
        }
        let count = self.asked.count.load(Ordering::Relaxed);
        let not_again = |_: &mut Option<Instant>| self.asked.count.load(Ordering::Relaxed) == count;
        self.asked.again.wait_while_for(&mut last, not_again, at_most);
        drop(last);
        // Give the server time to send the answer.
        std::thread::sleep(PAUSE);
    }
}

impl Drop for PageServer {
    fn drop(&mut self) {
        // The thread may have ended already.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// State shared by all connections.
struct PageContext {
    token: Option<Token>,
    board: Arc<dyn Board>,
    asked: Arc<StateRequests>,
}

fn serve(
    runtime: &Runtime,
    listener: StdListener,
    served: Arc<PageContext>,
    stopped: oneshot::Receiver<()>,
) {
    runtime.block_on(async {
        let Ok(listener) = TcpListener::from_std(listener) else { return };
        let ticking = Arc::clone(&served);
        tokio::spawn(async move {
            let mut second = tokio::time::interval(Duration::from_secs(1));
            second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                second.tick().await;
                ticking.board.tick();
            }
        });
        tokio::select! {
            () = accept(listener, served) => {}
            _ = stopped => {}
        }
    });
}

async fn accept(listener: TcpListener, served: Arc<PageContext>) {
    let mut guests = Guests::default();
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                guests.make_place(from.ip());
                let line = GuestStream::new(stream);
                let moved = line.moved();
                let task = tokio::spawn(converse(line, Arc::clone(&served)));
                guests.add(from.ip(), moved, task.abort_handle());
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Answers all requests of a connection. Ignores errors, which concern the browser.
async fn converse(line: GuestStream, served: Arc<PageContext>) {
    let moved = line.moved();
    let service = service_fn(move |request| {
        let served = Arc::clone(&served);
        async move {
            // After one answer it is the next connection's turn.
            tokio::task::yield_now().await;
            Ok::<_, Infallible>(respond(&served, &request))
        }
    });
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(line), service);
    let silence = async {
        while let Some(left) = IDLE_TIMEOUT.checked_sub(moved.last().elapsed()) {
            tokio::time::sleep(left.max(PAUSE)).await;
        }
    };
    tokio::select! {
        _ = conversation => {}
        () = silence => {}
    }
}

fn respond(served: &PageContext, request: &Request<Incoming>) -> Answer {
    let answer = answer(served.token.as_ref(), &*served.board, request);
    if request.uri().path() == STATE && Response::status(&answer).is_success() {
        served.asked.note();
    }
    answer
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    struct Long;

    impl Board for Long {
        fn state(&self) -> String {
            "x".repeat(100_000)
        }

        fn metrics(&self) -> String {
            "apus_up 1\n".to_owned()
        }

        fn tick(&self) {}
    }

    /// Clients that do not read their answers, or send no request, do not delay the next client.
    #[test]
    fn clients_that_do_not_read_do_not_block_others() {
        let options = ServerOptions { address: "127.0.0.1:0".parse().unwrap(), token: None };
        let server = PageServer::start(options, Arc::new(Long)).unwrap();
        let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        for asks in [request("/state.json").repeat(100), String::new()] {
            let mut held = Vec::new();
            for _ in 0..70 {
                let mut stream = TcpStream::connect(server.address()).unwrap();
                // Fails if the server has closed the connection.
                let _ = stream.write_all(asks.as_bytes());
                held.push(stream);
            }
            let began = Instant::now();
            let mut stream = TcpStream::connect(server.address()).unwrap();
            stream.set_read_timeout(Some(IDLE_TIMEOUT / 2)).unwrap();
            stream.write_all(request("/metrics").as_bytes()).unwrap();
            let (mut received, mut some) = (Vec::new(), [0; 1000]);
            while !received.ends_with(b"apus_up 1\n") {
                let read = stream.read(&mut some).unwrap();
                assert!(read > 0, "it hung up");
                received.extend_from_slice(&some[..read]);
            }
            assert!(began.elapsed() < IDLE_TIMEOUT / 2);
        }
    }
}
