//! Effects of a line on bytes. Times are only compared with their minimum.

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a line whose far end echoes bytes, and a connection through it.
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

/// Sends bytes there and back; returns how long that took.
fn round_trip(stream: &TcpStream, len: usize) -> Duration {
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
fn every_line_delivers_all_bytes_in_order() {
    for line in ["0ms", "40mbit,5ms,2%", "30ms", "100mbit"] {
        let (relay, stream) = echo(line);
        for len in [1, 100, 70_000, 300_000] {
            round_trip(&stream, len);
        }
        // The relay counts bytes after it sends them, so they may arrive before they are counted.
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
    // A second's worth, minus what an idle line may catch up on.
    assert!(round_trip(&stream, 1_000_000) >= Duration::from_millis(890));
    let (_relay, stream) = echo("100ms");
    assert!(round_trip(&stream, 1) >= Duration::from_millis(200));
    // Every segment is lost at most once; at 50%, this many segments include a loss.
    let (_relay, stream) = echo("100ms,50%");
    assert!(round_trip(&stream, 60_000) >= Duration::from_millis(400));
}

#[test]
fn a_stalled_line_is_silent_and_a_cut_one_is_closed() {
    let (relay, stream) = echo("0ms");
    round_trip(&stream, 1_000);
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
    round_trip(&again, 1_000);
}

#[test]
fn line_properties_are_parsed() {
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

/// Messages sent in sequence are in transit at the same time.
#[test]
fn messages_to_a_far_server_overlap() {
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
