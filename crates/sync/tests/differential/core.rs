//! Core's chain state, and its answer about a block.
//!
//! The library itself only accepts or rejects a block; its log has the reason.

use bitcoinkernel::{Block, ChainType, ChainstateManager, Context, Log, Logger};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// Lines of Core's log since the last block.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Log for Lines {
    fn log(&self, message: &str) {
        self.0.lock().unwrap().push(message.to_owned());
    }
}

/// Core's chain state on regtest.
pub(crate) struct Core {
    manager: ChainstateManager,
    lines: Lines,
    // These are dropped after the manager.
    _context: Context,
    _logger: Logger,
    _folder: TempDir,
}

/// Core's verdict on a block.
#[derive(Debug)]
pub(crate) struct Theirs {
    /// Whether the block became the tip.
    pub(crate) accepted: bool,
    log: String,
}

impl Theirs {
    /// Returns whether the log contains this reason.
    pub(crate) fn says(&self, reason: &str) -> bool {
        let word = reason.split([',', '(']).next().unwrap_or_default().trim_end();
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
        self.log.match_indices(word).any(|(at, _)| ends(&self.log[at + word.len()..]))
    }
}

impl Core {
    pub(crate) fn start() -> Self {
        let lines = Lines::default();
        let logger = Logger::new(lines.clone()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let context = Context::builder().chain_type(ChainType::Regtest).build().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let manager = ChainstateManager::builder(&context, &path("data"), &path("blocks"))
            .unwrap()
            .block_tree_db_in_memory(true)
            .chainstate_db_in_memory(true)
            .build()
            .unwrap();
        manager.import_blocks().unwrap();
        Self { manager, lines, _context: context, _logger: logger, _folder: folder }
    }

    /// Returns the tip's hash in internal byte order.
    pub(crate) fn tip(&self) -> [u8; 32] {
        use bitcoinkernel::prelude::BlockHashExt;
        self.manager.active_chain().tip().block_hash().to_bytes()
    }

    pub(crate) fn submit(&self, raw: &[u8]) -> Theirs {
        self.lines.0.lock().unwrap().clear();
        let before = self.tip();
        let Ok(block) = Block::new(raw) else {
            return Theirs { accepted: false, log: "undecodable".to_owned() };
        };
        self.manager.process_block(&block);
        Theirs { accepted: self.tip() != before, log: self.lines.0.lock().unwrap().join("") }
    }
}
