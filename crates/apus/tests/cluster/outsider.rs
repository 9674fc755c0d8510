//! [`Outsider`]: a client that speaks the server's protocol without the program and without the cluster's key.

use apus_testkit::nats::NatsServer;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// The subject for replies.
const INBOX: &str = "outsider.inbox";

/// A connection to a server without the key.
#[derive(Debug)]
pub(crate) struct Outsider {
    stream: BufReader<TcpStream>,
}

impl Outsider {
    /// Connects to a server that admits everyone.
    ///
    /// # Panics
    /// If the server refuses.
    pub(crate) fn connect(server: &NatsServer) -> Self {
        let url = server.url();
        let stream = TcpStream::connect(url.trim_start_matches("nats://")).unwrap();
        let mut outsider = Self { stream: BufReader::new(stream) };
        outsider.line();
        outsider.say(b"CONNECT {\"verbose\":false,\"headers\":true}\r\n");
        outsider.say(format!("SUB {INBOX} 1\r\nPING\r\n").as_bytes());
        while outsider.line() != "PONG" {}
        outsider
    }

    /// Publishes a message, and returns the first reply.
    ///
    /// # Panics
    /// If the server closes the connection.
    pub(crate) fn ask(&mut self, subject: &str, message: &[u8]) -> Vec<u8> {
        let head = format!("PUB {subject} {INBOX} {}\r\n", message.len());
        self.say(&[head.as_bytes(), message, b"\r\n"].concat());
        loop {
            let line = self.line();
            let words: Vec<&str> = line.split(' ').collect();
            let length = |place: usize| words[words.len() - place].parse::<usize>().unwrap();
            let (headers, bytes) = match words[0] {
                "PING" => {
                    self.say(b"PONG\r\n");
                    continue;
                }
                "MSG" => (0, length(1)),
                "HMSG" => (length(2), length(1)),
                _ => continue,
            };
            let mut reply = vec![0; bytes + 2];
            self.stream.read_exact(&mut reply).unwrap();
            return reply[headers..bytes].to_vec();
        }
    }

    fn say(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.stream.read_line(&mut line).unwrap() > 0, "the server closed the connection");
        line.trim_end().to_owned()
    }
}
