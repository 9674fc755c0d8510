//! How a network ends that cannot go on.

use super::*;

/// Who asks for a block makes the thread panic that answers.
struct Panics;

impl BlockProvider for Panics {
    fn block(&self, _: &BlockHash) -> Option<Vec<u8>> {
        panic!("as the test wants it");
    }

    fn has(&self, _: &BlockHash) -> bool {
        true
    }

    fn keeps_all(&self) -> bool {
        true
    }
}

#[test]
fn where_a_thread_panics_nobody_waits_for_good() {
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let blocks: Option<Arc<dyn BlockProvider>> = Some(Arc::new(Panics));
    let network = Network::start(NetworkOptions { listen, blocks, ..options(&[]) }).unwrap();
    network.serve(Arc::new(network.best_chain()));
    assert!(network.is_whole().is_ok());
    let address = NodeAddress::from(network.listening().unwrap());
    let mut connection = None;
    until("a connection", || {
        connection = connect(&address, &dial(9)).ok();
        connection.is_some()
    });
    let mut connection = connection.unwrap();
    let wanted = Inventory::witness_block(BlockHash([7; 32]));
    // More than may wait for their answers: the thread that reads waits for the one that writes.
    for _ in 0..50 {
        if connection.writer.write(&Message::GetData(vec![wanted])).is_err() {
            break;
        }
    }
    until("the peer to be gone", || network.status().peers.is_empty());
    until("the end", || network.is_whole().is_err());
    let error = network.has_headers().unwrap_err();
    let NetworkError::Panicked { thread } = &error else { panic!("{error}") };
    assert!(thread.starts_with("peer-") && thread.ends_with("-out"), "{error}");
    let mut wanted = network.want(HeightRange::new(1, 2));
    let next = wanted.next(PATIENCE);
    assert!(matches!(next, Next::Failed(NetworkError::Panicked { .. })), "{next:?}");
}
