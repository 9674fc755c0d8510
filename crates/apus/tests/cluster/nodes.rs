//! Workers without any blocks, which ask a real node for those of their jobs.

use crate::cluster::world::{Process, World};
use crate::desk::Desk;
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::chain::{ChainBuilder, Shape};

/// A node that has the blocks of a chain, and says what it sends.
fn node_with(chain: &ChainBuilder) -> Bitcoind {
    let node = Bitcoind::start(&["-debug=net"]);
    for block in &chain.blocks()[1..] {
        node.submit_block(block).unwrap();
    }
    node
}

/// How often the node sent such a message, and bytes of these.
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
fn a_worker_without_blocks_asks_a_node_for_those_of_its_jobs_alone() {
    let mut chain = ChainBuilder::new(61);
    chain.empty_blocks(100);
    chain.random_blocks(60, Shape::default());
    let node = node_with(&chain);
    let world = World::on(Desk::of(&chain), "regtest");
    let blocks = chain.blocks().len() - 1;
    for v2transport in [1, 0] {
        let before = sent(&node, "block").0;
        let worker = connected(&world, &node, &format!("--par 2 --v2transport {v2transport}"));
        world.serve("--segment-bytes 4000").wait().succeeds();
        worker.wait().succeeds();
        world.expect_done();
        assert_eq!(sent(&node, "block").0 - before, blocks, "each block is asked for once");
        for name in ["utxo.dat", "utxo.hints", "report.json"] {
            world.desk.remove(name);
        }
    }
    // Without hints, twice.
    let before = sent(&node, "block").0;
    let worker = connected(&world, &node, "--par 1 --scratch scratch");
    world.serve_run(&world.join("--segment-bytes 9000")).wait().succeeds();
    worker.wait().succeeds();
    world.expect_done();
    assert!(sent(&node, "block").0 - before <= 2 * blocks);
    let (answers, bytes) = sent(&node, "headers");
    // Some below the tip, by which a peer shows that it is on the chain; all would be eighty bytes for each block.
    assert!(bytes < 20 * (answers * blocks) as u64, "{answers} times, {bytes} bytes");
}

/// A coordinator that hands out its own blocks is all that a worker needs.
#[test]
fn a_coordinator_hands_its_blocks_to_workers() {
    let mut chain = ChainBuilder::new(64);
    chain.empty_blocks(100);
    chain.random_blocks(40, Shape::default());
    let world = World::on(Desk::of(&chain), "regtest");
    let file = world.desk.path("blocks/blk00000.dat");
    let mut blocks = std::fs::read(&file).unwrap();
    // Something that is no block, of which each look through the folder tells.
    blocks.extend([7; 100]);
    std::fs::write(&file, blocks).unwrap();
    let (url, objects) = (world.url(), &world.objects);
    // Free now; another program that takes it meanwhile would be told of.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let line = format!(
        "cluster work --nats {url} --objects {objects} --connect 127.0.0.1:{port} --par 2 --stay --scratch scratch"
    );
    let worker = world.start(&line);
    for run in [world.run("--segment-bytes 4000"), world.join("--segment-bytes 9000")] {
        let ended =
            world.serve_run(&format!("--give-blocks 127.0.0.1:{port} {run}")).wait().succeeds();
        assert!(ended.stderr.contains(&format!("--connect 127.0.0.1:{port}")), "{ended}");
        assert_eq!(ended.stderr.matches("are no blocks").count(), 1, "{ended}");
        world.expect_done();
        for name in ["utxo.dat", "utxo.hints", "report.json"] {
            world.desk.remove(name);
        }
    }
    worker.kill();
}

/// A node that has not all blocks is no reason to end the run: others have them.
#[test]
fn what_a_node_lacks_is_done_by_others() {
    let mut chain = ChainBuilder::new(62);
    chain.empty_blocks(100);
    chain.random_blocks(30, Shape::default());
    let node = Bitcoind::start(&[]);
    for block in &chain.blocks()[1..70] {
        node.submit_block(block).unwrap();
    }
    let world = World::on(Desk::of(&chain), "regtest");
    let serve = world.serve("--segment-bytes 9000 --progress plain");
    let poor = connected(&world, &node, "--par 1 --patience 1 --name poor");
    poor.wait().fails(3, &["nothing useful came from any peer"]);
    let rich = world.work("--par 1");
    let ended = serve.wait().succeeds();
    assert!(ended.stderr.contains("warning: poor could not do blocks "), "{ended}");
    rich.wait().succeeds();
    world.expect_done();
}

/// Undo data are in folders of nodes alone.
#[test]
fn where_undo_data_are_wanted_a_folder_is_asked_for() {
    let mut chain = ChainBuilder::new(63);
    chain.empty_blocks(10);
    let node = node_with(&chain);
    let world = World::with(crate::desk::REGTEST);
    let run = world.run("--segment-bytes 9000 --assumevalid 0");
    let mut serve = world.serve_run(&run.replace("--assumevalid hints ", ""));
    assert!(serve.until(|| !world.status("").stdout.contains("no run goes on")));
    let worker = connected(&world, &node, "--par 1");
    worker.wait().fails(1, &["a peer has not those of all blocks", "--blocksdir"]);
    let line = format!("cluster work --nats {} --objects objects", world.url());
    world.start(&line).wait().fails(1, &["--blocksdir"]);
    let worker = world.work("--par 1");
    serve.wait().succeeds();
    worker.wait().succeeds();
    world.expect_done();
}
