//! The metrics, checked by a real Prometheus, and the dashboard that shows them.

use super::prometheus::{Prometheus, complaints};
use crate::page::{Follower, start_with_page};
use crate::sandbox::{MAIN, Sandbox, fixtures};
use apus_testkit::http::get;
use serde_json::Value;
use std::collections::BTreeSet;

/// The names of the metrics in a text.
fn names(metrics: &str) -> BTreeSet<String> {
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn prometheus_accepts_the_metrics() {
    let sandbox = Sandbox::with(MAIN);
    let token = "prometheus-shows-this-token";
    let line = format!(
        "sync --chain main --blocksdir blocks --hints msb.hints --out snapshot:utxo.dat \
         --web-token {token} --web-stay forever"
    );
    let (run, port) = start_with_page(&sandbox, &line);
    let prometheus = Prometheus::scraping(port, Some(token));
    let done = prometheus.samples("apus_run_state{state=\"done\"} == 1");
    assert_eq!(done[0].0["chain"], "main");
    let one = |expression: &str| prometheus.samples(expression)[0].1;
    assert_eq!(one("apus_run_progress_ratio"), 1.0);
    assert_eq!(one("apus_chain_height"), 4521.0);
    assert_eq!(one("up{job=\"apus\"}"), 1.0);
    assert!(one("process_resident_memory_bytes") > 1e6);
    let phases = prometheus.samples("apus_phase_progress_ratio == 1");
    let phases: BTreeSet<_> =
        phases.iter().map(|(labels, _)| labels["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["blocks", "coins", "headers", "hints"].into());
    let bearer = format!("Authorization: Bearer {token}");
    let answer = get(port, "/metrics", &[&bearer]);
    assert!(answer.head.contains("text/plain; version=0.0.4"), "{}", answer.head);
    assert_eq!(complaints(&answer.body), "", "{}", answer.body);
    run.signal(&["INT"]);
    run.wait().succeeds();
}

/// All metrics on the dashboard and in the documentation exist, and all existing ones are documented.
#[test]
fn the_dashboard_and_the_documentation_name_existing_metrics() {
    let Follower { run, port, node: _node, lived: _lived } = Follower::start();
    let prometheus = Prometheus::scraping(port, None);
    prometheus.samples("apus_run_state{state=\"waiting\"} == 1");
    prometheus.samples("apus_peers{direction=\"outbound\"} == 1");
    let metrics = get(port, "/metrics", &[]).body;
    assert_eq!(complaints(&metrics), "", "{metrics}");
    let there = names(&metrics);
    assert!(there.len() > 20, "{there:?}");
    let root = fixtures().join("..");
    let page = std::fs::read_to_string(root.join("docs/web.md")).unwrap();
    for name in &there {
        assert!(page.contains(&format!("`{name}`")), "docs/web.md lacks {name}");
    }
    let dashboard = std::fs::read(root.join("contrib/grafana/apus.json")).unwrap();
    let dashboard: Value = serde_json::from_slice(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let expressions: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    assert!(expressions.len() >= 8, "{expressions:?}");
    let sometimes = ["apus_run_remaining_seconds", "apus_phase_remaining_seconds"];
    for expression in &expressions {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = expression.split(|c| !is_part(c));
        let named = words.filter(|word| word.starts_with("apus_") || word.starts_with("process_"));
        for name in named {
            assert!(there.contains(name) || sometimes.contains(&name), "{name} in {expression}");
        }
    }
    // The expressions are well-formed, too.
    for expression in
        expressions.iter().filter(|it| !sometimes.iter().any(|name| it.contains(name)))
    {
        let expression = expression
            .replace("$__rate_interval", "1m")
            .replace("$instance", ".*")
            .replace("$job", ".*");
        prometheus.samples(&format!("({expression}) or vector(0)"));
    }
    run.signal(&["INT"]);
    run.wait().succeeds();
}
