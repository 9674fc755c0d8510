//! A hintsfile: accepted files are written back as the same bytes, and every range equals that part of the
//! file.
//!
//! Input: the values that the user states, a range, then the file.
//!
//! Inputs: at most 8192 bytes.

#![no_main]

use apus_chain::HeightRange;
use apus_fuzz::Input;
use apus_sync::engines::swiftsync::hints::{
    BitOrder, HintsDecoder, HintsFile, HintsOptions, HintsWriter, Layout, OUTPUTS_PER_BLOCK_MAX,
    OrderEvidence,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let stated = input.u8();
    let order = [None, Some(BitOrder::MsbFirst), Some(BitOrder::LsbFirst)][usize::from(stated) % 3];
    let layout = [
        None,
        Some(Layout::FromHeightOne),
        Some(Layout::FromGenesis),
        Some(Layout::CountedFromGenesis),
    ][usize::from(stated / 3) % 4];
    let (start, end) = (u32::from(input.u16()), u32::from(input.u16()));
    let bytes = input.rest();
    let options = HintsOptions { order, layout };
    let Ok(file) = HintsFile::open(bytes.to_vec(), &options) else { return };

    let info = file.info();
    assert!(
        order
            .is_none_or(|order| order == info.order && info.order_evidence == OrderEvidence::Given)
    );
    assert!(layout.is_none_or(|layout| layout == info.layout));
    assert_eq!(info.bytes, bytes.len() as u64);
    let blocks = read(&file, HeightRange::new(0, info.stop_height + 1));
    assert!(blocks[0].is_empty());
    assert_eq!(blocks.iter().map(|block| block.len() as u64).sum::<u64>(), info.coins);

    let mut writer =
        HintsWriter::with(Vec::new(), info.stop_height, info.order, info.layout).expect("memory");
    for block in &blocks[info.layout.start_height() as usize..] {
        writer.put(block).expect("it was read");
    }
    assert!(writer.finish().expect("all blocks were written") == bytes);

    let end = end.min(info.stop_height + 1);
    let range = HeightRange::new(start.min(end), end);
    assert!(read(&file, range) == blocks[range.start as usize..end as usize]);
    let beyond = HeightRange::new(0, info.stop_height.saturating_add(2));
    assert!(file.range(beyond).is_err());
    if (info.order, info.layout) == (BitOrder::LsbFirst, Layout::FromHeightOne) {
        let mut rest = bytes;
        let theirs = hintsfile::Hintsfile::from_reader(&mut rest).expect("it is well-formed");
        for (height, block) in (1..).zip(&blocks[1..]) {
            assert_eq!(theirs.indices_at_height(height).as_ref(), Some(block));
        }
    }
});

fn read(file: &HintsFile, heights: HeightRange) -> Vec<Vec<u32>> {
    let mut range = file.range(heights).expect("it is covered");
    let (mut blocks, mut indices) = (Vec::new(), Vec::new());
    while let Some(element) = range.next_block(&mut indices).expect("the file is as it was") {
        assert_eq!(element.height, heights.start + blocks.len() as u32);
        assert!(indices.is_sorted_by(|a, b| a < b));
        assert!(indices.last().is_none_or(|last| *last < OUTPUTS_PER_BLOCK_MAX));
        blocks.push(indices.clone());
    }
    assert_eq!(blocks.len() as u32, heights.count());
    blocks
}
