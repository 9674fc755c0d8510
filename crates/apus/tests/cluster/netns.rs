//! [`Net`]: private network namespaces for a test, connected by lines that are slow, lose packets and can be cut.
//!
//! A hub has places around it, each with a line only to the hub: a TUN device at each end, and threads between them
//! that forward packets with a delay and lose some of them. Nothing outside these namespaces can see the net. The
//! namespaces need root; a test that cannot create them fails and is never skipped. Dropping the net removes them.

use apus_testkit::rng::Rng;
use std::process::{Command, id};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tun::Device;

/// Upper bound on the length of a packet.
const PACKET_BYTES_MAX: usize = 2048;

/// The error of a device that is down.
const EIO: i32 = 5;

/// The hub's address, from all places and from the hub.
pub(crate) const HUB: &str = "10.231.255.1";

/// The properties of a line.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NetLine {
    /// The latency of a packet, in either direction.
    pub(crate) delay: Duration,
    /// How many of a thousand packets are lost.
    pub(crate) lost_per_mille: u64,
}

/// A hub with places around it.
#[derive(Debug)]
pub(crate) struct Net {
    hub: String,
    places: Vec<NetHost>,
}

/// A place with a line to the hub.
#[derive(Debug)]
struct NetHost {
    name: String,
    device: String,
    /// Packets that arrived at either end, and packets that were lost.
    carried: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
}

impl Net {
    /// Creates a hub, and a place for each of these lines.
    ///
    /// # Panics
    /// If this process may not create namespaces or devices.
    pub(crate) fn new(lines: &[NetLine], seed: u64) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let hub = format!("apus-{}-{number}-hub", id());
        let mut net = Self { hub, places: Vec::new() };
        ip(&format!("netns add {}", net.hub));
        ip(&format!("-n {} link set lo up", net.hub));
        ip(&format!("-n {} address add {HUB}/32 dev lo", net.hub));
        for (index, line) in lines.iter().enumerate() {
            net.add(number, index, *line, seed);
        }
        net
    }

    fn add(&mut self, number: u32, index: usize, line: NetLine, seed: u64) {
        let name = format!("apus-{}-{number}-{index}", id());
        // Until they are moved, the devices of all nets are in the same namespace. A name has at most 15 bytes.
        let device = |end: &str| format!("ap{}{end}{number}-{index}", id() % 100_000);
        let (near, far) = (device("n"), device("f"));
        ip(&format!("netns add {name}"));
        // From here on, dropping it also removes this place.
        let (carried, lost) = (Arc::default(), Arc::default());
        let place = NetHost { name: name.clone(), device: far.clone(), carried, lost };
        let ends = [(&near, &self.hub), (&far, &place.name)].map(|(device, space)| {
            let mut about = tun::Configuration::default();
            about.tun_name(device);
            let end = tun::create(&about).unwrap_or_else(|error| panic!("/dev/net/tun: {error}"));
            ip(&format!("link set {device} netns {space}"));
            Arc::new(end)
        });
        let hub = self.hub.clone();
        ip(&format!("-n {hub} address add 10.231.{index}.1/30 dev {near}"));
        ip(&format!("-n {hub} link set {near} up"));
        ip(&format!("-n {name} link set lo up"));
        ip(&format!("-n {name} address add 10.231.{index}.2/30 dev {far}"));
        for (from, to) in [(0, 1), (1, 0)] {
            let ends = [Arc::clone(&ends[from]), Arc::clone(&ends[to])];
            let rng = Rng::new(seed ^ (index as u64) << 8 ^ from as u64);
            carry(ends, line, rng, [Arc::clone(&place.carried), Arc::clone(&place.lost)]);
        }
        self.places.push(place);
        self.restore(index);
    }

    /// The command prefix that runs a program in the hub.
    pub(crate) fn in_hub(&self) -> Vec<String> {
        runs_in(&self.hub)
    }

    /// The command prefix that runs a program in a place.
    pub(crate) fn in_place(&self, place: usize) -> Vec<String> {
        runs_in(&self.places[place].name)
    }

    /// Cuts off a place.
    pub(crate) fn cut(&self, place: usize) {
        let NetHost { name, device, .. } = &self.places[place];
        ip(&format!("-n {name} link set {device} down"));
    }

    /// Reconnects a place.
    pub(crate) fn restore(&self, place: usize) {
        let NetHost { name, device, .. } = &self.places[place];
        ip(&format!("-n {name} link set {device} up"));
        ip(&format!("-n {name} route replace {HUB}/32 via 10.231.{place}.1"));
    }

    /// The numbers of packets to and from a place that arrived, and that were lost.
    pub(crate) fn packets(&self, place: usize) -> (u64, u64) {
        let place = &self.places[place];
        (place.carried.load(Ordering::Relaxed), place.lost.load(Ordering::Relaxed))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in self.places.iter().map(|place| &place.name).chain([&self.hub]) {
            // Its devices vanish with it, and the threads between them end.
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn runs_in(space: &str) -> Vec<String> {
    ["ip", "netns", "exec", space].map(str::to_owned).into()
}

/// Runs `ip` with these arguments.
fn ip(line: &str) {
    let ended = Command::new("ip").args(line.split(' ')).output();
    let ended = ended.unwrap_or_else(|error| panic!("ip {line}: {error}; install iproute2"));
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.success(),
        "ip {line}: {said}; tests with network namespaces need root: run them as root, or leave them out by \
         `-- --skip namespaces`"
    );
}

/// Forwards packets from one end to the other until an end is gone.
fn carry(ends: [Arc<Device>; 2], line: NetLine, mut rng: Rng, counts: [Arc<AtomicU64>; 2]) {
    let ([from, to], [carried, lost]) = (ends, counts);
    let (put, taken) = channel();
    std::thread::spawn(move || {
        let mut packet = vec![0; PACKET_BYTES_MAX];
        loop {
            match from.recv(&mut packet) {
                Ok(_) if rng.below(1000) < line.lost_per_mille => {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
                Ok(length) => {
                    let arrives = Instant::now() + line.delay;
                    if put.send((arrives, packet[..length].to_vec())).is_err() {
                        return;
                    }
                }
                // The device vanished with its namespace.
                Err(error) if error.raw_os_error() != Some(EIO) => return,
                // The device is down.
                Err(_) => sleep(Duration::from_millis(5)),
            }
        }
    });
    std::thread::spawn(move || deliver(&taken, &to, &carried));
}

/// Delivers packets when their delay is over.
fn deliver(taken: &Receiver<(Instant, Vec<u8>)>, to: &Device, carried: &AtomicU64) {
    while let Ok((arrives, packet)) = taken.recv() {
        sleep(arrives.saturating_duration_since(Instant::now()));
        // An end that is down accepts no packets; they are lost, as on a cut line.
        if to.send(&packet).is_ok() {
            carried.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ping(net: &Net, place: usize) -> bool {
        let by = net.in_place(place);
        let script = format!("exec 3<>/dev/tcp/{HUB}/9; echo never");
        // Nothing listens there, so the hub refuses the connection, which is an answer.
        let ended = Command::new(&by[0])
            .args(&by[1..])
            .args(["timeout", "2", "bash", "-c", &script])
            .output()
            .unwrap();
        String::from_utf8_lossy(&ended.stderr).contains("Connection refused")
    }

    #[test]
    fn namespaces_have_lines_with_latency_that_can_be_cut() {
        let slow = NetLine { delay: Duration::from_millis(60), lost_per_mille: 0 };
        let net = Net::new(&[NetLine::default(), slow], 1);
        assert!(ping(&net, 0));
        let began = Instant::now();
        assert!(ping(&net, 1) && began.elapsed() >= 2 * slow.delay);
        net.cut(0);
        assert!(!ping(&net, 0));
        assert!(ping(&net, 1));
        net.restore(0);
        assert!(ping(&net, 0));
        let dead = Net::new(&[NetLine { lost_per_mille: 1000, ..NetLine::default() }], 2);
        assert!(!ping(&dead, 0));
        assert!(dead.packets(0).1 > 0 && net.packets(0).0 > 0);
    }
}
