//! `--web`: the page about a run, from before it begins until some time after its end.
//!
//! The server is `apus_web`'s; what it shows is what is [`Watched`], as JSON here and as metrics in
//! [`metrics`]. The program has one page at most.

use crate::args::{PageArgs, Stay};
use crate::course::{Rate, Step, StepState};
use crate::failure::{Failure, INTERRUPTED, IO};
use crate::interrupt;
use crate::machine::{Machine, rss_bytes};
use crate::metrics;
use crate::print;
use crate::version;
use crate::watched::{Ended, Shared, Stall, Watched, lock};
use apus_web::{Board, PageServer, ServerOptions, Token, WebError};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A page that is open has this long to ask for the end.
const LAST_LOOK: Duration = Duration::from_secs(3);

/// How often it is seen whether the page is to go.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The page, if there is one.
static PAGE: Mutex<Option<Page>> = Mutex::new(None);

struct Page {
    server: PageServer,
    shared: Shared,
    stay: Stay,
}

/// Begins to show a run, where that is asked for.
pub(crate) fn begin(args: &PageArgs, shared: &Shared) -> Result<(), Failure> {
    let Some(address) = args.web else { return Ok(()) };
    let token = match &args.web_token {
        Some(text) => Some(Token::new(text).map_err(|error| {
            Failure::usage(format!("--web-token: {error}; leave it out to have one made"))
        })?),
        None if address.ip().is_loopback() => None,
        None => {
            let mut bytes = [0; 16];
            getrandom::fill(&mut bytes)
                .map_err(|error| Failure::new(IO, format!("no random numbers: {error}")))?;
            Some(Token::of_random(bytes))
        }
    };
    let board = Arc::new(Shown { shared: Arc::clone(shared), machine: Machine::here() });
    let server = PageServer::start(ServerOptions { address, token: token.clone() }, board);
    let server = server.map_err(failure)?;
    let url = url(server.address(), token.as_ref());
    if !print::speaks_json() {
        print::aside(format_args!("the run can be watched at {url}"));
    }
    print::event_if_json(json!({"event": "page", "url": url}));
    let page = Page { server, shared: Arc::clone(shared), stay: args.web_stay };
    *PAGE.lock().unwrap_or_else(PoisonError::into_inner) = Some(page);
    Ok(())
}

fn failure(error: WebError) -> Failure {
    match error {
        WebError::Listen { .. } => Failure::usage(format!("{error}; name another --web")),
        WebError::Open(_) => Failure::usage(error),
        WebError::Thread(_) => Failure::new(IO, error.to_string()),
    }
}

/// What a person opens in a browser. An address that stands for all of this machine is no place to go to.
fn url(address: SocketAddr, token: Option<&Token>) -> String {
    let host = match address.ip() {
        ip if ip.is_unspecified() => "THIS-MACHINE".to_owned(),
        _ if address.is_ipv6() => format!("[{}]", address.ip()),
        ip => ip.to_string(),
    };
    let query = token.map(|token| format!("?token={}", token.as_str())).unwrap_or_default();
    format!("http://{host}:{}/{query}", address.port())
}

/// Shows how the program ends, and stays as long as the user wants.
pub(crate) fn end(result: &Result<(), Failure>) {
    let Some(page) = PAGE.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let code = result.as_ref().map_or_else(|failure| failure.code, |()| 0);
    let text = result.as_ref().err().map(|failure| failure.message.clone()).unwrap_or_default();
    lock(&page.shared).ended = Some(Ended { code, text });
    page.server.wait_for_pages(LAST_LOOK);
    let stays = page.stay != Stay::For(Duration::ZERO);
    if !stays || code == INTERRUPTED {
        return;
    }
    let until = match page.stay {
        Stay::Forever => "until Ctrl-C".to_owned(),
        Stay::For(time) => format!("for {} seconds, or until Ctrl-C", time.as_secs()),
    };
    if !print::speaks_json() {
        print::aside(format_args!("the run has ended, and its page stays {until}"));
    }
    let began = Instant::now();
    let over = || match page.stay {
        Stay::Forever => false,
        Stay::For(time) => began.elapsed() >= time,
    };
    while !over() && !interrupt::came() {
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What the server shows.
struct Shown {
    shared: Shared,
    machine: Machine,
}

impl Board for Shown {
    fn state(&self) -> String {
        state(&lock(&self.shared), &self.machine).to_string()
    }

    fn metrics(&self) -> String {
        metrics::text(&lock(&self.shared))
    }

    fn tick(&self) {
        lock(&self.shared).tick();
    }
}

fn state(watched: &Watched, machine: &Machine) -> Value {
    let Rate { blocks, bytes } = watched.course.running().map(Step::rate).unwrap_or_default();
    let succeeded = watched.ended.as_ref().is_some_and(|ended| ended.code == 0);
    let fraction = if succeeded { 1.0 } else { watched.course.fraction() };
    let map = &watched.course.map;
    let segments = (map.count() > 0).then(|| {
        json!({
            "cells": map.cells(), "done": map.done(), "begun": map.begun(), "of": map.count()
        })
    });
    json!({
        "version": version::short(), "platform": machine.platform, "sha256": machine.sha256,
        "command": watched.about.command, "chain": watched.about.chain,
        "began": watched.began(), "seconds": watched.ended_seconds(),
        "state": watched.word(), "fraction": fraction, "left_seconds": watched.course.left_seconds(),
        "limited_by": watched.limited_by(),
        "quiet_seconds": watched.quiet_seconds(), "stalled": watched.stall().map(Stall::to_json),
        "rate": {"blocks": blocks, "bytes": bytes},
        "coins": watched.coins,
        "chain_found": watched.chain_found.map(|(height, tip)| {
            json!({"height": height, "tip": tip.to_string()})
        }),
        "tip_height": watched.tip,
        "memory_bytes": rss_bytes(), "cpu_cores": watched.cores_used(),
        "cores": machine.cores,
        "phases": watched.course.steps().iter().map(phase).collect::<Vec<_>>(),
        "history": history(watched),
        "segments": segments,
        "peers": peers(watched), "workers": workers(watched),
        "events": watched.notes.iter().map(|note| {
            json!({"time": note.time, "kind": note.kind, "text": note.text})
        }).collect::<Vec<_>>(),
        "ended": watched.ended.as_ref().map(|ended| {
            json!({"code": ended.code, "text": ended.text})
        }),
        "report": watched.report,
    })
}

fn phase(step: &Step) -> Value {
    let rate = step.rate();
    let bytes = if step.state == StepState::Done { step.bytes } else { step.progress.bytes };
    json!({
        "phase": step.phase.name(), "state": step.state.name(), "fraction": step.fraction(),
        "seconds": step.seconds, "left_seconds": step.left_seconds(),
        "rate_blocks": rate.blocks, "rate_bytes": rate.bytes,
        "blocks": step.progress.blocks, "blocks_total": step.progress.blocks_total,
        "bytes": bytes, "bytes_total": step.progress.bytes_total
    })
}

fn history(watched: &Watched) -> Value {
    let of = |get: fn(&crate::watched::Point) -> Value| {
        watched.points.iter().map(get).collect::<Vec<_>>()
    };
    json!({
        "seconds": of(|point| point.seconds.into()),
        "bytes_rate": of(|point| point.rate.bytes.into()),
        "memory_bytes": of(|point| point.memory_bytes.into())
    })
}

fn peers(watched: &Watched) -> Option<Vec<Value>> {
    let status = watched.peers.as_ref()?;
    let total = status.rate.max(1) as f64;
    let mut peers: Vec<_> = status.peers.iter().collect();
    peers.sort_by(|a, b| b.rate.cmp(&a.rate).then_with(|| a.address.cmp(&b.address)));
    let peers = peers.into_iter().map(|peer| {
        json!({
            "address": peer.address, "user_agent": peer.user_agent, "inbound": peer.inbound,
            "encrypted": peer.encrypted, "rate": peer.rate,
            "share": (peer.rate as f64 / total).min(1.0), "bytes": peer.bytes,
            "in_flight": peer.in_flight, "stalled": peer.stalled
        })
    });
    Some(peers.collect())
}

fn workers(watched: &Watched) -> Option<Vec<Value>> {
    let all = &watched.workers.as_ref()?.all;
    let all = all.iter().map(|worker| {
        json!({
            "name": worker.name, "segments": worker.segments, "bytes": worker.bytes,
            "doing": worker.doing
        })
    });
    Some(all.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_to_open() {
        let token = Token::of_random([1; 16]);
        for (address, token, expected) in [
            ("127.0.0.1:80", None, "http://127.0.0.1:80/".to_owned()),
            ("[::1]:81", None, "http://[::1]:81/".to_owned()),
            (
                "0.0.0.0:82",
                Some(&token),
                format!("http://THIS-MACHINE:82/?token={}", "01".repeat(16)),
            ),
        ] {
            assert_eq!(url(address.parse().expect("an address"), token), expected);
        }
    }
}
