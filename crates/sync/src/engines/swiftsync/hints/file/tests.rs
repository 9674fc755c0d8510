use super::super::block::tests::fault;
use super::super::order::OrderEvidence;
use super::super::writer::HintsWriter;
use super::*;
use BitOrder::{LsbFirst as Lsb, MsbFirst as Msb};
use proptest::prelude::*;
use std::sync::Mutex;

const LAYOUTS: [Layout; 3] =
    [Layout::FromHeightOne, Layout::FromGenesis, Layout::CountedFromGenesis];

/// Writes the index sets of heights 1, 2, … as a file.
fn write(blocks: &[Vec<u32>], order: BitOrder, layout: Layout) -> Vec<u8> {
    let stop = blocks.len() as u32;
    let mut writer = HintsWriter::with(Vec::new(), stop, order, layout).unwrap();
    if layout.start_height() == 0 {
        writer.put(&[]).unwrap();
    }
    blocks.iter().for_each(|indices| writer.put(indices).unwrap());
    writer.finish().unwrap()
}

fn open(bytes: &[u8]) -> Result<HintsFile, HintsError> {
    HintsFile::open(bytes.to_vec(), &HintsOptions::default())
}

fn sets(file: &HintsFile, heights: HeightRange) -> Result<Vec<Vec<u32>>, HintsError> {
    let mut range = file.range(heights)?;
    let mut sets = Vec::new();
    for height in heights.heights() {
        let hints = range.next()?.expect("one for each height");
        assert_eq!(hints.height, height);
        sets.push(hints.indices.to_vec());
    }
    assert!(range.next()?.is_none());
    Ok(sets)
}

/// The index sets of heights 1, 2, …
fn all_sets(file: &HintsFile) -> Result<Vec<Vec<u32>>, HintsError> {
    sets(file, HeightRange::new(1, file.info().stop_height + 1))
}

fn sample() -> Vec<Vec<u32>> {
    vec![vec![0], vec![], vec![3, 7, 12], (13..=40).step_by(3).collect(), vec![0, 65_536]]
}

fn any_blocks() -> impl Strategy<Value = Vec<Vec<u32>>> {
    let set = proptest::collection::btree_set(0u32..200, 0..20);
    let set = set.prop_map(|set| set.into_iter().collect());
    // A first block that determines the order and the start, as on most chains.
    proptest::collection::vec(set, 0..40).prop_map(|mut blocks| {
        blocks.insert(0, vec![0]);
        blocks
    })
}

proptest! {
    #[test]
    fn written_hints_round_trip(blocks in any_blocks(), cut in any::<[prop::sample::Index; 2]>()) {
        for order in [Msb, Lsb] {
            for layout in LAYOUTS {
                let bytes = write(&blocks, order, layout);
                let file = open(&bytes).unwrap();
                let info = file.info();
                prop_assert_eq!((info.order, info.layout), (order, layout));
                prop_assert_eq!(info.order_evidence, OrderEvidence::Settled(1));
                prop_assert_eq!(info.stop_height as usize, blocks.len());
                prop_assert_eq!(info.coins as usize, blocks.iter().map(Vec::len).sum::<usize>());
                prop_assert_eq!(info.bytes as usize, bytes.len());
                prop_assert_eq!(info.sha256, apus_hash::sha256(&bytes));
                prop_assert_eq!(&all_sets(&file).unwrap(), &blocks);
                let [a, b] = cut.map(|index| index.index(blocks.len() + 2) as u32);
                let part = HeightRange::new(a.min(b), a.max(b));
                let with_genesis = [&[vec![]], &blocks[..]].concat();
                let wanted = &with_genesis[part.start as usize..part.end as usize];
                prop_assert_eq!(&sets(&file, part).unwrap(), wanted);
            }
        }
    }

    #[test]
    fn any_bytes_end_in_a_file_or_an_error(
        height in 0u32..6, body in proptest::collection::vec(0u8..20, 0..60), any in any::<[u8; 12]>(),
    ) {
        let mut bytes = [&MAGIC[..], &[VERSION], &height.to_le_bytes(), &body, &any].concat();
        for order in [None, Some(Msb), Some(Lsb)] {
            for layout in [None, Some(LAYOUTS[0]), Some(LAYOUTS[1]), Some(LAYOUTS[2])] {
                let options = HintsOptions { order, layout };
                if let Ok(file) = HintsFile::open(bytes.clone(), &options) {
                    all_sets(&file).unwrap();
                }
            }
        }
        bytes.truncate(body.len());
        if let Ok(file) = open(&bytes) {
            all_sets(&file).unwrap();
        }
    }
}

#[test]
fn every_truncation_error_names_its_offset() {
    let blocks = sample();
    for (order, layout) in [(Msb, LAYOUTS[0]), (Lsb, LAYOUTS[0]), (Msb, LAYOUTS[2])] {
        let bytes = write(&blocks, order, layout);
        for end in 0..bytes.len() {
            match open(&bytes[..end]) {
                Err(HintsError::Header { .. }) => assert!(end < HEADER_BYTES),
                Err(HintsError::Block { height, offset, fault, .. }) => {
                    assert!(matches!(fault, HintsFault::End { .. }), "{end}: {fault}");
                    assert!(offset as usize <= end && height <= blocks.len() as u32);
                }
                Err(other) => panic!("{end}: {other}"),
                Ok(_) => panic!("{end} bytes were accepted"),
            }
        }
    }
    // The last block's element takes eleven bytes; one is missing.
    let bytes = write(&blocks, Msb, LAYOUTS[0]);
    let cut = open(&bytes[..bytes.len() - 1]).unwrap_err();
    let begin = bytes.len() as u64 - 11;
    assert!(matches!(cut, HintsError::Block { height: 5, offset, .. } if offset == begin), "{cut}");
}

#[test]
fn the_height_must_fit_the_number_of_elements() {
    let good = write(&sample(), Msb, Layout::FromHeightOne);
    for surplus in [&[0u8][..], &[1, 0, 0x80], &[0xff; 20]] {
        let error = open(&[&good, surplus].concat()).unwrap_err();
        let end = good.len() as u64;
        assert!(matches!(error, HintsError::Trailing { height: 5, offset } if offset == end));
    }
    let with_height = |height: u32| {
        let mut bytes = good.clone();
        bytes[5..9].copy_from_slice(&height.to_le_bytes());
        open(&bytes).unwrap_err()
    };
    let low = with_height(4);
    assert!(matches!(low, HintsError::Trailing { height: 4, .. }), "{low}");
    for height in [6, u32::MAX] {
        let error = with_height(height);
        let HintsError::Block { height: 6, offset, fault: HintsFault::End { .. }, .. } = error
        else {
            panic!("{error}");
        };
        assert_eq!(offset, good.len() as u64);
    }
}

#[test]
fn header_faults_name_their_byte() {
    let good = write(&sample(), Msb, Layout::FromHeightOne);
    for (at, value, begin) in [(0, b'u', 0), (3, b'o', 0), (4, 1, 4), (4, 255, 4)] {
        let mut bytes = good.clone();
        bytes[at] = value;
        let error = open(&bytes).err().unwrap();
        assert!(matches!(error, HintsError::Header { offset, .. } if offset == begin), "{error}");
        assert!(error.to_string().contains("BIP-456"));
    }
}

#[test]
fn absurd_counts_and_forms_are_named_with_height_and_byte() {
    let header = [&MAGIC[..], &[VERSION, 2, 0, 0, 0], &[1, 0, 0x80]].concat();
    for (element, name) in [
        (&[0xfe, 0xff, 0xff, 0xff, 0xff, 0][..], "N is 4294967295"),
        (&[1, 0xfe, 0xff, 0xff, 0xff, 0xff], "M is 4294967295"),
        (&[0xff; 18], "N is 18446744073709551615"),
        (&[0xfd, 1, 0, 0, 0x80], "N is a CompactSize in a longer form"),
        (&[1, 0xfd, 0, 0, 0x80], "M is a CompactSize in a longer form"),
        (&[3, 0xc, 0xf0, 0xa6], "a padding bit of H"),
        (&[3, 0xc, 0xf0, 0xe4], "4 bits of H are set where N is 3"),
        (&[3, 0xc, 0xf0, 0xa8], "the last index is 8 where M is 12"),
    ] {
        let error = open(&[&header, element].concat()).unwrap_err();
        assert!(matches!(error, HintsError::Block { height: 2, offset: 12, .. }), "{error}");
        let message = error.to_string();
        assert!(message.contains("height 2 at byte 12") && message.contains(name), "{message}");
    }
}

#[test]
fn the_genesis_block_has_no_hints() {
    let bytes = [&MAGIC[..], &[VERSION, 0, 0, 0, 0], &[1, 0, 0x80]].concat();
    let options = |layout| HintsOptions { layout: Some(layout), ..HintsOptions::default() };
    let genesis = HintsFile::open(bytes.clone(), &options(Layout::FromGenesis));
    assert_eq!(fault(genesis), HintsFault::Genesis);
    assert!(matches!(open(&bytes), Err(HintsError::Trailing { height: 0, offset: 9 })));
    let counted = HintsFile::open(bytes, &options(Layout::CountedFromGenesis));
    assert!(matches!(counted, Err(HintsError::Header { offset: 9, .. })));
    let mut writer = HintsWriter::with(Vec::new(), 1, Msb, Layout::FromGenesis).unwrap();
    assert_eq!(fault(writer.put(&[0])), HintsFault::Genesis);
}

#[test]
fn files_may_stop_at_height_zero() {
    let header = [&MAGIC[..], &[VERSION, 0, 0, 0, 0]].concat();
    for (body, layout) in [(&[][..], LAYOUTS[0]), (&[0], LAYOUTS[1]), (&[1, 0], LAYOUTS[2])] {
        let file = open(&[&header, body].concat()).unwrap();
        assert_eq!(file.info().layout, layout);
        assert_eq!(file.info().bits_per_coin(), None);
        assert_eq!(sets(&file, HeightRange::new(0, 1)).unwrap(), [Vec::<u32>::new()]);
    }
}

/// An empty first element belongs to the genesis block only if there is one element more than the height
/// says; a layout that the user states is enforced.
#[test]
fn an_empty_first_block_is_not_the_genesis_block() {
    let blocks = [vec![], vec![0], vec![]];
    let file = open(&write(&blocks, Lsb, Layout::FromHeightOne)).unwrap();
    assert_eq!(file.info().layout, Layout::FromHeightOne);
    assert_eq!(file.info().order_evidence, OrderEvidence::Settled(2));
    let bytes = write(&blocks, Lsb, Layout::FromGenesis);
    let file = open(&bytes).unwrap();
    assert_eq!(file.info().layout, Layout::FromGenesis);
    assert_eq!(file.info().order_evidence, OrderEvidence::Settled(2));
    let pinned = HintsOptions { layout: Some(Layout::FromHeightOne), order: None };
    let error = HintsFile::open(bytes, &pinned).unwrap_err();
    assert!(matches!(error, HintsError::Trailing { height: 3, .. }));
}

#[test]
fn bit_orders_are_detected_or_requested() {
    let twin = vec![1, 2, 4];
    let bytes = write(&[twin.clone(), vec![], twin.clone()], Msb, Layout::FromHeightOne);
    let error = open(&bytes).unwrap_err();
    assert!(matches!(error, HintsError::AmbiguousBitOrder { height: 1, offset: 9 }), "{error}");
    for (order, set) in [(Msb, twin), (Lsb, vec![1, 3, 4])] {
        let options = HintsOptions { order: Some(order), layout: None };
        let file = HintsFile::open(bytes.clone(), &options).unwrap();
        assert_eq!(file.info().order_evidence, OrderEvidence::Given);
        assert_eq!(all_sets(&file).unwrap(), [set.clone(), vec![], set]);
    }
    let mixed = [&MAGIC[..], &[VERSION, 2, 0, 0, 0], &[1, 0, 0x80, 1, 0, 1]].concat();
    let error = open(&mixed).unwrap_err();
    assert!(matches!(
        error,
        HintsError::MixedBitOrders { first: 1, first_offset: 9, second: 2, second_offset: 12, .. }
    ));
}

/// Ranges may begin and end anywhere, also within parts.
#[test]
fn ranges_of_a_long_file_agree_with_one_another() {
    let blocks: Vec<Vec<u32>> = (0u32..3000)
        .map(|height| (0..height % 7).map(|i| i * (height % 5 + 1)).collect())
        .collect();
    for layout in LAYOUTS {
        let file = open(&write(&blocks, Msb, layout)).unwrap();
        assert_eq!(file.shared.parts.len(), 3000usize.div_ceil(64));
        for (start, end) in [
            (1, 3001),
            (1, 2),
            (63, 66),
            (64, 129),
            (65, 66),
            (66, 100),
            (2049, 3001),
            (3001, 3001),
        ] {
            let got = sets(&file, HeightRange::new(start, end)).unwrap();
            assert_eq!(got, blocks[start as usize - 1..end as usize - 1]);
        }
        let error = file.range(HeightRange::new(3000, 3002)).err().unwrap();
        assert!(matches!(error, HintsError::OutOfRange { stop_height: 3000, .. }));
    }
}

/// Bytes that change under the reader.
struct Shifting(Arc<Mutex<Vec<u8>>>);

impl HintsSource for Shifting {
    fn bytes(&self) -> io::Result<u64> {
        self.0.lock().unwrap().bytes()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.lock().unwrap().read_at(buffer, offset)
    }
}

#[test]
fn a_file_that_changes_is_noticed() {
    let blocks = sample();
    let good = write(&blocks, Msb, Layout::FromHeightOne);
    let bytes = Arc::new(Mutex::new(good.clone()));
    let file = HintsFile::open(Shifting(Arc::clone(&bytes)), &HintsOptions::default()).unwrap();
    assert_eq!(all_sets(&file).unwrap(), blocks);
    let read = |changed: Vec<u8>| {
        *bytes.lock().unwrap() = changed;
        all_sets(&file)
    };
    let with = |at: usize, value: u8| {
        let mut changed = good.clone();
        changed[at] = value;
        changed
    };
    for changed in [
        good[..good.len() - 1].to_vec(),
        [&good[..], &[0]].concat(),
        // Another bit order, another number of elements, an element with another end.
        with(11, 0x01),
        with(9, 0),
        with(good.len() - 11, 0),
    ] {
        let error = read(changed).unwrap_err();
        assert!(matches!(error, HintsError::Changed { .. }), "{error}");
    }
    read(good.clone()).unwrap();
}

/// Changed elements that stay valid and keep their length: every range in their part notices them.
#[test]
fn other_hints_of_the_same_length_are_noticed() {
    for layout in LAYOUTS {
        let with = |element: usize, index: u32| {
            let mut blocks = vec![vec![index - 1]; 200];
            blocks[element] = vec![index];
            write(&blocks, Msb, layout)
        };
        let good = with(130, 3);
        let bytes = Arc::new(Mutex::new(good.clone()));
        let file = HintsFile::open(Shifting(Arc::clone(&bytes)), &HintsOptions::default()).unwrap();
        assert!(file.info().sha256 == apus_hash::sha256(&good));
        for (element, index) in [(129, 3), (130, 4), (131, 3)] {
            let other = with(element, index);
            assert_eq!(other.len(), good.len());
            *bytes.lock().unwrap() = other;
            for (start, end) in [(1, 201), (130, 133), (131, 132), (140, 141), (129, 131)] {
                let error = sets(&file, HeightRange::new(start, end)).unwrap_err();
                assert!(matches!(error, HintsError::Changed { .. }), "{error}");
            }
            *bytes.lock().unwrap() = good.clone();
            assert_eq!(all_sets(&file).unwrap().len(), 200);
        }
        // A range in another part is unchanged.
        *bytes.lock().unwrap() = with(1, 3);
        assert_eq!(sets(&file, HeightRange::new(195, 197)).unwrap(), [[2], [2]]);
    }
}

#[test]
fn the_writer_counts_its_blocks() {
    let mut writer = HintsWriter::new(Vec::new(), 2).unwrap();
    writer.put(&[0]).unwrap();
    assert!(matches!(
        fault(writer.put(&[2, 1])),
        HintsFault::NotAscending { previous: 2, index: 1 }
    ));
    writer.put(&[1, 2]).unwrap();
    let error = writer.put(&[]).unwrap_err();
    assert!(matches!(error, HintsError::BlockCount { height: 3, stop_height: 2, .. }));
    assert_eq!(all_sets(&open(&writer.finish().unwrap()).unwrap()).unwrap(), [vec![0], vec![1, 2]]);
    let mut writer = HintsWriter::new(Vec::new(), 2).unwrap();
    writer.put(&[0]).unwrap();
    let error = writer.finish().unwrap_err();
    assert!(matches!(error, HintsError::BlockCount { height: 2, stop_height: 2, .. }));
}

/// Bytes that cannot be read from some offset on.
struct Broken {
    bytes: Vec<u8>,
    from: usize,
}

impl HintsSource for Broken {
    fn bytes(&self) -> io::Result<u64> {
        self.bytes.bytes()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let end = self.from.min(self.bytes.len());
        match self.bytes.get(offset as usize..end) {
            Some([]) | None if self.from < self.bytes.len() => Err(io::Error::other("broken")),
            rest => rest.unwrap_or_default().read(buffer),
        }
    }
}

/// A disk failure at any offset is reported as such, and not as another encoding of the file.
#[test]
fn a_failing_disk_is_not_blamed_on_the_file() {
    for layout in LAYOUTS {
        // Long enough that no window holds all of it.
        let blocks = vec![(0..30_000).step_by(3).collect::<Vec<u32>>(); 400];
        let bytes = write(&blocks, Msb, layout);
        let last = (bytes.len() - 1) / 400;
        assert!(bytes.len() > 2 * PASS_BYTES && last > 9);
        for from in [0, 9, bytes.len() / 2, bytes.len() - last - 1, bytes.len() - 1] {
            let source = Broken { bytes: bytes.clone(), from };
            let error = HintsFile::open(source, &HintsOptions::default()).unwrap_err();
            assert!(matches!(error, HintsError::Read { .. }), "{layout:?}, {from}: {error}");
        }
        let whole = Broken { bytes: bytes.clone(), from: bytes.len() };
        HintsFile::open(whole, &HintsOptions::default()).unwrap();
    }
}

/// A count before the elements is accepted only if it is right and no element can have these bytes.
#[test]
fn a_count_is_distinguished_from_an_element() {
    let of_height_zero = |body: &[u8]| {
        let bytes = [&MAGIC[..], &[VERSION, 0, 0, 0, 0], body].concat();
        open(&bytes).map(|file| file.info().layout)
    };
    // The file consists of the count and the genesis block's element.
    assert_eq!(of_height_zero(&[1, 0]).unwrap(), Layout::CountedFromGenesis);
    assert!(of_height_zero(&[1, 0, 0]).is_err());
    let counted = write(&[vec![0], vec![3]], Msb, Layout::CountedFromGenesis);
    let layout = |bytes: &[u8]| open(bytes).map(|file| file.info().layout).ok();
    assert_eq!(counted[9], 3);
    assert_eq!(layout(&counted), Some(Layout::CountedFromGenesis));
    for count in [0, 1, 2, 4] {
        let mut other = counted.clone();
        other[9] = count;
        assert_ne!(layout(&other), Some(Layout::CountedFromGenesis), "{count}");
    }
}
