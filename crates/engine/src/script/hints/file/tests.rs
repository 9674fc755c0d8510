use super::super::HintTable;
use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::fs;
use tempfile::TempDir;

const STOP: Height = 9;

fn hash(number: u8) -> BlockHash {
    BlockHash([number; 32])
}

/// Hints of a block: keys that only this block has, and their bits.
fn hints(block: u64, count: u64) -> Vec<(u64, bool)> {
    let key = |at: u64| (block << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..count).map(key).map(|key| (key, key >> 17 & 1 == 1)).collect()
}

struct Sandbox(TempDir);

impl Sandbox {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("hints")
    }

    fn draft(&self) -> PathBuf {
        self.0.path().join("hints.incomplete")
    }

    fn writer(&self) -> SignatureHintsWriter {
        SignatureHintsWriter::create_or_continue(&self.path(), Network::Regtest).unwrap()
    }

    fn open(&self) -> Result<SignatureHintsReader, SignatureHintsError> {
        SignatureHintsReader::open(&self.path(), Network::Regtest)
    }

    /// Opens a file with these bytes.
    fn open_bytes(&self, bytes: &[u8]) -> Result<SignatureHintsReader, SignatureHintsError> {
        fs::write(self.path(), bytes).unwrap();
        self.open()
    }
}

/// Blocks 2, 3, 5 and 7 with a few signatures each, in another order.
const BLOCKS: [(Height, u64); 4] = [(5, 40), (2, 1), (7, 300), (3, 0)];

fn add_blocks(writer: &SignatureHintsWriter) {
    for (height, count) in BLOCKS {
        writer.add(height, &hash(height as u8), &hints(height.into(), count)).unwrap();
    }
}

/// Returns the bytes of the file with these blocks.
fn small_file(sandbox: &Sandbox) -> Vec<u8> {
    let writer = sandbox.writer();
    add_blocks(&writer);
    writer.finish(STOP, &hash(9)).unwrap();
    fs::read(sandbox.path()).unwrap()
}

/// Returns whether the reader has all of these hints for a block. Fails if it has others.
fn has(
    reader: &SignatureHintsReader,
    height: Height,
    hash: &BlockHash,
    hints: &[(u64, bool)],
) -> bool {
    let Some(table) = reader.block(height, hash) else { return false };
    assert_eq!(table, HintTable::build(hints).unwrap());
    true
}

fn has_all(reader: &SignatureHintsReader) -> bool {
    let all = |(height, count): &(Height, u64)| {
        *count == 0 || has(reader, *height, &hash(*height as u8), &hints((*height).into(), *count))
    };
    // No short circuit: each block that is there must be right.
    BLOCKS.iter().filter(|block| !all(block)).count() == 0
}

#[test]
fn a_file_gives_each_blocks_hints_back() {
    let sandbox = Sandbox::new();
    let writer = sandbox.writer();
    add_blocks(&writer);
    assert_eq!(writer.blocks(), 3);
    let summary = writer.finish(STOP, &hash(9)).unwrap();
    let bytes = fs::metadata(sandbox.path()).unwrap().len();
    assert_eq!(summary, SignatureHintsSummary { blocks: 3, signatures: 341, bytes });
    assert!(!sandbox.draft().exists());
    let reader = sandbox.open().unwrap();
    assert!(has_all(&reader));
    assert_eq!((reader.stop_height(), reader.stop_hash()), (9, &hash(9)));
    assert_eq!((reader.blocks(), reader.signatures()), (3, 341));
    // No record, not covered, or another block.
    for (height, hash) in
        [(3, hash(3)), (0, hash(0)), (10, hash(10)), (u32::MAX, hash(1)), (5, hash(4))]
    {
        assert_eq!(reader.block(height, &hash), None);
    }
    assert_eq!(reader.damaged(), 0);
}

#[test]
fn an_empty_file_has_no_hints() {
    let sandbox = Sandbox::new();
    let summary = sandbox.writer().finish(0, &hash(0)).unwrap();
    assert_eq!(summary, SignatureHintsSummary { blocks: 0, signatures: 0, bytes: 96 });
    assert_eq!(sandbox.open().unwrap().block(0, &hash(0)), None);
}

#[test]
fn the_last_record_of_a_height_counts() {
    let sandbox = Sandbox::new();
    let writer = sandbox.writer();
    writer.add(4, &hash(1), &hints(1, 30)).unwrap();
    writer.add(4, &hash(2), &hints(2, 50)).unwrap();
    let length = fs::metadata(sandbox.draft()).unwrap().len();
    // The same record again is not stored.
    writer.add(4, &hash(2), &hints(2, 50)).unwrap();
    assert_eq!(fs::metadata(sandbox.draft()).unwrap().len(), length);
    drop(writer);
    let writer = sandbox.writer();
    writer.add(8, &hash(8), &hints(8, 5)).unwrap();
    // Block 8 is above the stop block.
    let summary = writer.finish(6, &hash(6)).unwrap();
    assert_eq!((summary.blocks, summary.signatures), (1, 50));
    let reader = sandbox.open().unwrap();
    assert!(has(&reader, 4, &hash(2), &hints(2, 50)));
    assert_eq!((reader.block(4, &hash(1)), reader.block(8, &hash(8))), (None, None));
    assert_eq!(reader.damaged(), 0);
}

/// Files depend on these bytes.
#[test]
fn the_layout_stays() {
    let sandbox = Sandbox::new();
    let writer = sandbox.writer();
    writer.add(1, &hash(0xab), &[(7, true)]).unwrap();
    writer.finish(1, &hash(0xab)).unwrap();
    let bytes = fs::read(sandbox.path()).unwrap();
    let text = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let parts = [0..16, 16..35, 35..51, 51..99, 99..123].map(|part| text(&bytes[part]));
    let hash = "ab".repeat(32);
    let foot = format!("01000000{hash}010000000100000000000000");
    let wanted = [
        "415055535349474801000000fabfb5da",
        "b7ab527c01000000abababab03000000010001",
        "00000000000000001000000000130000",
        &foot,
        "23000000000000007d4f5d692f315c434150555353494745",
    ];
    assert_eq!(parts, wanted);
}

#[test]
fn a_cut_file_is_refused() {
    let sandbox = Sandbox::new();
    let bytes = small_file(&sandbox);
    for end in 0..bytes.len() {
        let error = sandbox.open_bytes(&bytes[..end]).unwrap_err();
        let is_foreign = matches!(error, SignatureHintsError::Foreign { .. });
        assert_eq!(is_foreign, end < HEAD, "{end}: {error}");
    }
    let error = sandbox.open_bytes(&[&bytes[..], &[0]].concat()).unwrap_err();
    assert!(matches!(error, SignatureHintsError::Damaged { .. }));
}

#[test]
fn a_changed_bit_is_found() {
    let sandbox = Sandbox::new();
    let mut bytes = small_file(&sandbox);
    let index = bytes.len() - FOOT - ENTRY * (STOP as usize + 1);
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        match sandbox.open_bytes(&bytes) {
            Ok(reader) => {
                assert!((HEAD..index).contains(&(bit / 8)), "bit {bit} is not checked");
                assert!(!has_all(&reader));
                assert_eq!(reader.damaged(), 1);
            }
            Err(_) => assert!(!(HEAD..index).contains(&(bit / 8))),
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(has_all(&sandbox.open_bytes(&bytes).unwrap()));
}

#[test]
fn a_file_that_shrinks_while_open_gives_no_hints() {
    let sandbox = Sandbox::new();
    small_file(&sandbox);
    let reader = sandbox.open().unwrap();
    fs::OpenOptions::new().write(true).open(sandbox.path()).unwrap().set_len(20).unwrap();
    assert!(!has_all(&reader));
    assert_eq!(reader.damaged(), 3);
}

#[test]
fn an_index_with_a_right_checksum_can_still_be_refused() {
    let sandbox = Sandbox::new();
    let bytes = small_file(&sandbox);
    let foot = bytes.len() - FOOT;
    let entry = foot - ENTRY;
    let repaired = |at: usize, with: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        let index = foot - ENTRY * (STOP as usize + 1);
        let end = bytes.len() - 16;
        let checksum = xxh3_64(&[&bytes[..HEAD], &bytes[index..end]].concat());
        bytes[end..end + 8].copy_from_slice(&checksum.to_le_bytes());
        sandbox.open_bytes(&bytes).err().map(|error| error.to_string())
    };
    assert_eq!(repaired(0, MAGIC), None);
    for (at, with, what) in [
        (entry, [1, 0, 0, 0, 0, 16, 0, 0].as_slice(), "outside of the records"),
        (entry, &[16, 0, 0, 0, 0, 15, 0, 0], "outside of the records"),
        (entry, &[16, 0, 0, 0, 0, 0, 0, 1], "outside of the records"),
        (entry, &[16, 0, 0, 0, 0, 20, 0, 0], "another number of blocks"),
        (foot, &[10], "does not fit the file's length"),
        (foot, &[0xff; 4], "its stop height is too large"),
        (foot + 48, &[0xff; 8], "does not fit the file's length"),
    ] {
        let error = repaired(at, with).unwrap();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn errors_say_what_to_do() {
    let sandbox = Sandbox::new();
    let error = sandbox.open().unwrap_err().to_string();
    assert!(error.starts_with("cannot open /") && error.contains("No such file"), "{error}");
    assert!(error.ends_with(". Check its name, and who may use it"), "{error}");
    let mut bytes = small_file(&sandbox);
    let error = SignatureHintsReader::open(&sandbox.path(), Network::Main).unwrap_err().to_string();
    assert!(error.contains("are of the network regtest, not of the network main: name"), "{error}");
    bytes[12] = 1;
    let error = sandbox.open_bytes(&bytes).unwrap_err().to_string();
    assert!(error.contains("an unknown network (magic [01, bf, b5, da])"), "{error}");
    bytes[8] = 2;
    let error = sandbox.open_bytes(&bytes).unwrap_err().to_string();
    assert!(error.contains("has version 2 of the format"), "{error}");
    bytes[0] = 0;
    let error = sandbox.open_bytes(&bytes).unwrap_err().to_string();
    assert!(error.contains("is not a file of signature hints: name another file"), "{error}");
    let error = SignatureHintsReader::open(sandbox.0.path(), Network::Main).unwrap_err();
    assert!(matches!(error, SignatureHintsError::Foreign { .. }));
}

#[test]
fn heights_have_a_limit() {
    let sandbox = Sandbox::new();
    let writer = sandbox.writer();
    let error = writer.add(HEIGHTS_MAX, &hash(1), &hints(1, 1)).unwrap_err();
    assert!(matches!(error, SignatureHintsError::Height { height: HEIGHTS_MAX, .. }));
    assert!(writer.finish(HEIGHTS_MAX, &hash(1)).is_err());
    assert!(sandbox.draft().exists() && !sandbox.path().exists());
}

#[test]
fn a_killed_writer_continues() {
    let sandbox = Sandbox::new();
    let writer = sandbox.writer();
    add_blocks(&writer);
    let whole = fs::metadata(sandbox.draft()).unwrap().len();
    writer.add(8, &hash(8), &hints(8, 20)).unwrap();
    drop(writer);
    let draft = fs::read(sandbox.draft()).unwrap();
    for end in whole as usize..=draft.len() {
        // A power cut may also leave zeros in place of the rest.
        for rest in [0, draft.len() - end, draft.len() - end + 100] {
            fs::write(sandbox.draft(), [&draft[..end], &vec![0; rest]].concat()).unwrap();
            let writer = sandbox.writer();
            let is_whole = end == draft.len();
            let kept = if is_whole { draft.len() as u64 } else { whole };
            assert_eq!(fs::metadata(sandbox.draft()).unwrap().len(), kept, "{end}, {rest}");
            writer.add(9, &hash(9), &hints(9, 3)).unwrap();
            writer.finish(STOP, &hash(9)).unwrap();
            let reader = sandbox.open().unwrap();
            assert!(has_all(&reader) && has(&reader, 9, &hash(9), &hints(9, 3)));
            assert_eq!(has(&reader, 8, &hash(8), &hints(8, 20)), is_whole);
            assert_eq!((reader.blocks(), reader.damaged()), (4 + u32::from(is_whole), 0));
        }
    }
}

/// A kill may come while the index is written, or before the file has its name.
#[test]
fn a_writer_killed_at_its_end_continues() {
    let sandbox = Sandbox::new();
    let bytes = small_file(&sandbox);
    let records = bytes.len() - FOOT - ENTRY * (STOP as usize + 1);
    for end in records..=bytes.len() {
        fs::write(sandbox.draft(), &bytes[..end]).unwrap();
        let writer = sandbox.writer();
        assert_eq!(writer.blocks(), 3);
        writer.finish(STOP, &hash(9)).unwrap();
        assert_eq!(fs::read(sandbox.path()).unwrap(), bytes);
    }
}

#[test]
fn a_draft_cut_in_its_head_begins_anew() {
    let sandbox = Sandbox::new();
    for end in 0..HEAD {
        fs::write(sandbox.draft(), &head_bytes(Network::Regtest)[..end]).unwrap();
        let writer = sandbox.writer();
        assert_eq!(writer.blocks(), 0);
        assert_eq!(fs::read(sandbox.draft()).unwrap(), head_bytes(Network::Regtest));
    }
}

#[test]
fn foreign_drafts_are_refused_and_kept() {
    let sandbox = Sandbox::new();
    drop(SignatureHintsWriter::create_or_continue(&sandbox.path(), Network::Main).unwrap());
    let open = || SignatureHintsWriter::create_or_continue(&sandbox.path(), Network::Regtest);
    let error = open().unwrap_err();
    assert!(matches!(error, SignatureHintsError::OtherNetwork { wanted: Network::Regtest, .. }));
    assert_eq!(fs::read(sandbox.draft()).unwrap(), head_bytes(Network::Main));
    // The last one begins like the head of a draft of the main chain.
    let cut = &head_bytes(Network::Main)[..15];
    for bytes in [b"notes, and more notes", b"notes".as_slice(), cut] {
        fs::write(sandbox.draft(), bytes).unwrap();
        assert!(matches!(open().unwrap_err(), SignatureHintsError::Foreign { .. }));
        assert_eq!(fs::read(sandbox.draft()).unwrap(), bytes);
    }
}

#[test]
fn a_draft_has_one_writer() {
    let sandbox = Sandbox::new();
    let writer = sandbox.writer();
    let again = SignatureHintsWriter::create_or_continue(&sandbox.path(), Network::Regtest);
    assert!(matches!(again.unwrap_err(), SignatureHintsError::InUse { .. }));
    drop(writer);
    sandbox.writer();
}

#[test]
fn a_finished_file_replaces_the_one_before() {
    let sandbox = Sandbox::new();
    let first = small_file(&sandbox);
    let writer = sandbox.writer();
    assert_eq!(writer.blocks(), 0);
    writer.add(1, &hash(1), &hints(1, 9)).unwrap();
    assert_eq!(fs::read(sandbox.path()).unwrap(), first);
    writer.finish(STOP, &hash(9)).unwrap();
    let reader = sandbox.open().unwrap();
    assert!(has(&reader, 1, &hash(1), &hints(1, 9)) && reader.blocks() == 1);
}

#[test]
fn threads_add_and_read_at_the_same_time() {
    let sandbox = Sandbox::new();
    let writer = sandbox.writer();
    let block = |height: Height| (hash(height as u8), hints(height.into(), 50 + u64::from(height)));
    std::thread::scope(|scope| {
        for half in 0..2 {
            let writer = &writer;
            scope.spawn(move || {
                for height in (half..200).step_by(2) {
                    let (hash, hints) = block(height);
                    writer.add(height, &hash, &hints).unwrap();
                }
            });
        }
    });
    assert_eq!(writer.finish(199, &hash(199)).unwrap().blocks, 200);
    let reader = sandbox.open().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for height in 0..200 {
                    let (hash, hints) = block(height);
                    assert!(has(&reader, height, &hash, &hints));
                }
            });
        }
    });
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        let sandbox = Sandbox::new();
        let head = head_bytes(Network::Regtest);
        for bytes in [bytes.clone(), [&head[..], &bytes[..], END_MAGIC].concat()] {
            prop_assert!(sandbox.open_bytes(&bytes).is_err());
        }
        fs::write(sandbox.draft(), [&head[..], &bytes[..]].concat()).unwrap();
        prop_assert_eq!(sandbox.writer().blocks(), 0);
    }

    #[test]
    fn entries_keep_places(offset in 0u64..1 << 41, length in 0usize..1 << 25) {
        let place = Place { offset, length };
        match place.entry() {
            Some(entry) => prop_assert_eq!(Place::of_entry(entry), place),
            None => prop_assert!(offset >= 1 << 40 || length > 1 << 19),
        }
    }
}
