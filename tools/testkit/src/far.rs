//! [`Far`]: a line to a server that is far away.
//!
//! What is said to the server arrives later by a given time, each byte by as much; what it answers comes
//! at once. So a way there and back takes that time longer, and what is said meanwhile is not held up
//! by it. It knows nothing of what is said.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Pieces that may be on their way, of as many bytes each.
const PIECES_MAX: usize = 64;
const PIECE_BYTES: usize = 1 << 16;

/// See the module. Dropping it takes no further connection; those that are there stay.
#[derive(Debug)]
pub struct Far {
    port: u16,
    over: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl Far {
    /// Listens on 127.0.0.1, and leads each connection to a port there.
    ///
    /// # Panics
    /// When it cannot listen.
    pub fn to(server: u16, delay: Duration) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let listening = thread::spawn(move || {
            for client in listener.incoming() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(client) = client else { continue };
                // How a connection ends is of no matter here.
                thread::spawn(move || drop(carry(&client, server, delay)));
            }
        });
        Self { port, over, listening: Some(listening) }
    }

    /// Where it listens, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // The thread that waits for connections is woken by a last one.
        let _ = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)));
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
    }
}

/// Carries one connection until either side ends it.
fn carry(client: &TcpStream, server: u16, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
    [client, &server].into_iter().try_for_each(|stream| stream.set_nodelay(true))?;
    let (sender, receiver) = sync_channel(PIECES_MAX);
    let [from_client, to_server] = [client, &server].map(TcpStream::try_clone);
    let (from_client, to_server) = (from_client?, to_server?);
    let taking = thread::spawn(move || drop(take_in(from_client, &sender)));
    let handing = thread::spawn(move || {
        let _ = hand_on(&to_server, &receiver, delay);
        let _ = to_server.shutdown(Shutdown::Both);
    });
    // What it answers.
    let _ = io::copy(&mut &server, &mut &*client);
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
    let _ = taking.join();
    let _ = handing.join();
    Ok(())
}

/// What was said, and when it is to arrive.
type Piece = (Instant, Vec<u8>);

fn take_in(mut client: TcpStream, pieces: &SyncSender<Piece>) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let count = client.read(&mut buffer)?;
        if count == 0 || pieces.send((Instant::now(), buffer[..count].to_vec())).is_err() {
            return Ok(());
        }
    }
}

fn hand_on(mut server: &TcpStream, pieces: &Receiver<Piece>, delay: Duration) -> io::Result<()> {
    for (said, bytes) in pieces {
        sleep((said + delay).saturating_duration_since(Instant::now()));
        server.write_all(&bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_takes_longer_and_holds_up_nothing() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let delay = Duration::from_millis(60);
        let far = Far::to(server.local_addr().unwrap().port(), delay);
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, far.port())).unwrap();
        let (mut there, _) = server.accept().unwrap();
        let started = Instant::now();
        // Said one after the other, it is on its way side by side.
        for number in 0..10 {
            client.write_all(&[number]).unwrap();
            sleep(Duration::from_millis(2));
        }
        let mut heard = [0; 10];
        there.read_exact(&mut heard).unwrap();
        let took = started.elapsed();
        assert_eq!(heard, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(took >= delay && took < 10 * delay, "{took:?}");
        there.write_all(b"answer").unwrap();
        drop(there);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");
    }
}
