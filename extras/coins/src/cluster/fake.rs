//! [`FakeServer`]: a standalone server whose answers a test decides.

use super::ClusterOptions;
use super::connections::ClusterConnections;
use super::line::ServerAnswers;
use redis::from_redis_value;
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// Answers a command, given the number of its connection; `None` closes the connection.
type Answer = dyn Fn(usize, &[Vec<u8>]) -> Option<Vec<u8>> + Send + Sync;

/// A server that listens until the test ends.
pub(crate) struct FakeServer(SocketAddr);

impl FakeServer {
    /// Starts a server. Its connections are numbered from 0 on.
    pub(crate) fn start(
        answer: impl Fn(usize, &[Vec<u8>]) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let (listener, answer): (_, Arc<Answer>) =
            (TcpListener::bind("127.0.0.1:0").unwrap(), Arc::new(answer));
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let answer = Arc::clone(&answer);
                thread::spawn(move || serve(stream.unwrap(), number, &*answer));
            }
        });
        Self(address)
    }

    /// The URL of a store on this server.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}/fake", self.0)
    }

    /// Connections to this server.
    pub(in crate::cluster) fn connections(&self) -> ClusterConnections {
        let place = self.url().parse().unwrap();
        ClusterConnections::open(&place, &ClusterOptions::default()).unwrap()
    }
}

fn serve(stream: TcpStream, number: usize, answer: &Answer) {
    let mut to = stream.try_clone().unwrap();
    // A command has the form of an answer.
    let mut commands = ServerAnswers::new(BufReader::new(stream));
    while let Ok(command) = commands.next() {
        let words: Vec<Vec<u8>> = from_redis_value(command).unwrap();
        let answer = match &words[0][..] {
            b"CLUSTER" => Some(b"-ERR This instance has cluster support disabled\r\n".to_vec()),
            _ => answer(number, &words),
        };
        match answer {
            Some(answer) if to.write_all(&answer).is_ok() => {}
            _ => return,
        }
    }
}

/// A string as an answer.
pub(crate) fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// A list of answers as an answer.
pub(crate) fn list(answers: Vec<Vec<u8>>) -> Vec<u8> {
    [format!("*{}\r\n", answers.len()).into_bytes(), answers.concat()].concat()
}
