//! What a line does to bytes. Times are only held against what they must be at least.

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// A line whose far end sends back what it gets, and a connection through it.
fn echo(line: &str) -> (LineRelay, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let peer = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut back = stream.try_clone().unwrap();
                io::copy(&mut stream, &mut back).ok();
            });
        }
    });
    let relay = LineRelay::start(peer, line.parse().unwrap(), 1).unwrap();
    let stream = TcpStream::connect(relay.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    (relay, stream)
}

/// Sends bytes there and back; says how long that took.
fn there_and_back(stream: &TcpStream, len: usize) -> Duration {
    let (mut rng, mut bytes) = (Rng::at(7, len as u64), Vec::new());
    rng.append(&mut bytes, len);
    let begun = Instant::now();
    let back = thread::scope(|scope| {
        let (mut up, mut down) = (stream, stream);
        let sent = &bytes;
        scope.spawn(move || up.write_all(sent).unwrap());
        let mut back = vec![0; len];
        down.read_exact(&mut back).unwrap();
        back
    });
    assert!(back == bytes, "other bytes came back");
    begun.elapsed()
}

#[test]
fn all_bytes_come_in_order_whatever_the_line() {
    for line in ["0ms", "40mbit,5ms,2%", "30ms", "100mbit"] {
        let (relay, stream) = echo(line);
        for len in [1, 100, 70_000, 300_000] {
            there_and_back(&stream, len);
        }
        // They are counted when they have been sent, and may be here before.
        let begun = Instant::now();
        while relay.passed_bytes() < 370_101 && begun.elapsed() < PATIENCE {
            sleep(LOOK_EVERY);
        }
        assert_eq!(relay.passed_bytes(), 370_101);
    }
}

#[test]
fn nothing_is_faster_than_the_line() {
    let (_relay, stream) = echo("8mbit");
    // A second's worth, less what an idle line may make up for.
    assert!(there_and_back(&stream, 1_000_000) >= Duration::from_millis(890));
    let (_relay, stream) = echo("100ms");
    assert!(there_and_back(&stream, 1) >= Duration::from_millis(200));
    // Every segment is lost once or not at all; at half of them a loss is sure in so many.
    let (_relay, stream) = echo("100ms,50%");
    assert!(there_and_back(&stream, 60_000) >= Duration::from_millis(400));
}

#[test]
fn a_stalled_line_says_nothing_and_a_cut_one_is_closed() {
    let (relay, stream) = echo("0ms");
    there_and_back(&stream, 1_000);
    relay.set(LineState::Stalled);
    (&stream).write_all(&[1; 10]).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut back = [0; 10];
    let nothing = (&stream).read(&mut back).unwrap_err();
    assert!(waits(&nothing), "{nothing}");
    relay.set(LineState::Open);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    (&stream).read_exact(&mut back).unwrap();
    assert_eq!(back, [1; 10]);

    relay.set(LineState::Cut);
    assert!(matches!((&stream).read(&mut back), Ok(0) | Err(_)));
    let refused = TcpStream::connect(relay.address()).unwrap();
    refused.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!((&refused).read(&mut back), Ok(0) | Err(_)));
    relay.set(LineState::Open);
    let again = TcpStream::connect(relay.address()).unwrap();
    again.set_read_timeout(Some(PATIENCE)).unwrap();
    there_and_back(&again, 1_000);
}

#[test]
fn a_line_is_told_in_words() {
    let line: PeerLine = "20mbit,50ms,1%".parse().unwrap();
    assert_eq!(line.bits_per_second, Some(20_000_000));
    assert_eq!((line.latency, line.lost_per_million), (Duration::from_millis(50), 10_000));
    assert_eq!(line.to_string(), "20mbit,50ms,1%");
    assert_eq!("500kbit".parse::<PeerLine>().unwrap().to_string(), "0.5mbit,0ms,0%");
    for wrong in ["", "20", "mbit", "0mbit", "50ms,,", "99%", "-1ms", "20mbit 50ms", "20000ms"] {
        let error = wrong.parse::<PeerLine>().unwrap_err();
        assert!(error.contains("a rate (20mbit)"), "{wrong}: {error}");
    }
}

/// What is said one after the other is on its way side by side.
#[test]
fn a_far_server_holds_up_nothing() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let delay = Duration::from_millis(60);
    let far = LineRelay::far(server.local_addr().unwrap().port(), 2 * delay);
    let mut client = TcpStream::connect(far.address()).unwrap();
    let (mut there, _) = server.accept().unwrap();
    let started = Instant::now();
    for number in 0..10 {
        client.write_all(&[number]).unwrap();
        sleep(Duration::from_millis(2));
    }
    let mut heard = [0; 10];
    there.read_exact(&mut heard).unwrap();
    let took = started.elapsed();
    assert_eq!(heard, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert!(took >= delay && took < 10 * delay, "{took:?}");
}
