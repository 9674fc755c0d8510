//! Workers without block files, which get the blocks of their jobs from a real node.

use crate::cluster::world::{Process, World};
use crate::sandbox::Sandbox;
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::chain::{ChainBuilder, Shape};

/// A node with the blocks of a chain, which logs what it sends.
fn node_with(chain: &ChainBuilder) -> Bitcoind {
    let node = Bitcoind::start(&["-debug=net"]);
    for block in &chain.blocks()[1..] {
        node.submit_block(block).unwrap();
    }
    node
}

/// How many messages with this name the node sent, and their bytes.
fn sent(node: &Bitcoind, name: &str) -> (usize, u64) {
    let log = node.log();
    let sizes = log.lines().filter_map(|line| {
        let (_, rest) = line.split_once(&format!("sending {name} ("))?;
        rest.split_once(" bytes")?.0.parse::<u64>().ok()
    });
    sizes.fold((0, 0), |(count, all), bytes| (count + 1, all + bytes))
}

fn connected(world: &World, node: &Bitcoind, more: &str) -> Process {
    let (url, objects) = (world.url(), &world.objects);
    let port = node.p2p_port();
    let line =
        format!("cluster work --nats {url} --objects {objects} --connect 127.0.0.1:{port} {more}");
    world.start(&line)
}

#[test]
fn a_worker_without_blocks_asks_a_node_only_for_the_blocks_of_its_jobs() {
    let mut chain = ChainBuilder::new(61);
    chain.empty_blocks(100);
    chain.random_blocks(60, Shape::default());
    let node = node_with(&chain);
    let world = World::on(Sandbox::of(&chain), "regtest");
    let blocks = chain.blocks().len() - 1;
    for v2transport in [1, 0] {
        let before = sent(&node, "block").0;
        let worker = connected(&world, &node, &format!("--par 2 --v2transport {v2transport}"));
        world.serve("--segment-bytes 4000").wait().succeeds();
        worker.wait().succeeds();
        world.expect_done();
        assert_eq!(sent(&node, "block").0 - before, blocks, "each block is asked for once");
        for name in ["utxo.dat", "utxo.hints", "report.json"] {
            world.sandbox.remove(name);
        }
    }
    // Without hints, each block is requested twice.
    let before = sent(&node, "block").0;
    let worker = connected(&world, &node, "--par 1 --scratchdir scratch");
    world.serve_run(&world.join("--segment-bytes 9000")).wait().succeeds();
    worker.wait().succeeds();
    world.expect_done();
    assert!(sent(&node, "block").0 - before <= 2 * blocks);
    let (answers, bytes) = sent(&node, "headers");
    // The worker requests only some headers below the tip, to see that the peer is on the chain; all headers would take
    // 80 bytes per block.
    assert!(bytes < 20 * (answers * blocks) as u64, "{answers} times, {bytes} bytes");
}

/// A worker needs only a coordinator that serves its own blocks.
#[test]
fn a_coordinator_hands_its_blocks_to_workers() {
    let mut chain = ChainBuilder::new(64);
    chain.empty_blocks(100);
    chain.random_blocks(40, Shape::default());
    let world = World::on(Sandbox::of(&chain), "regtest");
    let file = world.sandbox.path("blocks/blk00000.dat");
    let mut blocks = std::fs::read(&file).unwrap();
    // These bytes are not a block; each scan of the folder reports them.
    blocks.extend([7; 100]);
    std::fs::write(&file, blocks).unwrap();
    let (url, objects) = (world.url(), &world.objects);
    // The port is free now; if another program takes it, the error says so.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let line = format!(
        "cluster work --nats {url} --objects {objects} --connect 127.0.0.1:{port} --par 2 --stay --scratchdir scratch"
    );
    let worker = world.start(&line);
    for run in [world.run("--segment-bytes 4000"), world.join("--segment-bytes 9000")] {
        let ended =
            world.serve_run(&format!("--give-blocks 127.0.0.1:{port} {run}")).wait().succeeds();
        assert!(ended.stderr.contains(&format!("--connect 127.0.0.1:{port}")), "{ended}");
        assert_eq!(ended.stderr.matches("are not blocks").count(), 1, "{ended}");
        world.expect_done();
        for name in ["utxo.dat", "utxo.hints", "report.json"] {
            world.sandbox.remove(name);
        }
    }
    worker.kill();
}

/// A node that lacks some blocks does not end the run: other machines execute those jobs.
#[test]
fn jobs_whose_blocks_a_node_lacks_go_to_other_machines() {
    let mut chain = ChainBuilder::new(62);
    chain.empty_blocks(100);
    chain.random_blocks(30, Shape::default());
    let node = Bitcoind::start(&[]);
    for block in &chain.blocks()[1..70] {
        node.submit_block(block).unwrap();
    }
    let world = World::on(Sandbox::of(&chain), "regtest");
    let serve = world.serve("--segment-bytes 9000 --progress plain");
    let poor = connected(&world, &node, "--par 1 --patience 1 --name poor");
    poor.wait().fails(3, &["no peer sent anything for"]);
    let rich = world.work("--par 1");
    let ended = serve.wait().succeeds();
    assert!(ended.stderr.contains("warning: poor could not process blocks "), "{ended}");
    rich.wait().succeeds();
    world.expect_done();
}

/// Only folders of nodes have undo data.
#[test]
fn jobs_with_undo_data_need_a_folder() {
    let mut chain = ChainBuilder::new(63);
    chain.empty_blocks(10);
    let node = node_with(&chain);
    let world = World::with(crate::sandbox::REGTEST);
    let run = world.run("--segment-bytes 9000 --assumevalid 0");
    let mut serve = world.serve_run(&run.replace("--assumevalid hints ", ""));
    assert!(serve.until(|| !world.status("").stdout.contains("no active runs")));
    let worker = connected(&world, &node, "--par 1");
    worker.wait().fails(1, &["a peer lacks undo data for some blocks", "--blocksdir"]);
    let line = format!("cluster work --nats {} --objects objects", world.url());
    world.start(&line).wait().fails(1, &["--blocksdir"]);
    let worker = world.work("--par 1");
    serve.wait().succeeds();
    worker.wait().succeeds();
    world.expect_done();
}
