use crate::submit::{in_memory, *};
use apus_chain::{Network, Params};
use apus_testkit::chain::{BlockPlan, ChainBuilder};
use bitcoin::Block;
use bitcoin::consensus::encode::serialize_hex;
use serde_json::{Value, json};

/// Returns the answers to the lines.
fn answers(input: &[u8]) -> Vec<Value> {
    let mut output = Vec::new();
    let Ok(manager) = in_memory(Params::of(Network::Regtest), None) else { panic!() };
    assert!(serve(input, &mut output, manager).is_ok());
    let lines = output.split(|&byte| byte == b'\n');
    let mut answers: Vec<&[u8]> = lines.collect();
    assert_eq!(answers.pop(), Some(&b""[..]), "the last line has an end");
    answers.into_iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
}

fn lines(lines: &[String]) -> Vec<Value> {
    answers(lines.join("\n").as_bytes())
}

const GENESIS: &str = "0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206";

fn verdict(block: &Block, result: &str, reason: Option<&str>, tip: &Block) -> Value {
    let (hash, tip) = (block.block_hash().to_string(), tip.block_hash().to_string());
    json!({"hash": hash, "result": result, "reason": reason, "tip": tip})
}

#[test]
fn every_line_gets_an_answer() {
    let mut chain = ChainBuilder::new(1);
    let genesis = chain.blocks()[0].clone();
    let blocks = chain.empty_blocks(3);
    chain.set_tip(blocks[0].block_hash());
    let rival = chain.block_with(Vec::new());
    chain.set_tip(blocks[2].block_hash());
    let rich = ChainBuilder::subsidy(4) + 1;
    let output = chain.output(rich, apus_testkit::chain::ScriptKind::OpTrue);
    let plan = BlockPlan { coinbase_outputs: Some(vec![output]), ..BlockPlan::default() };
    let greedy = chain.add_plan(plan);
    let hex = |block: &Block| serialize_hex(block);
    let command = |name: &str, of: &Block| format!("{{\"{name}\": \"{}\"}}", of.block_hash());
    let tip = |block: &Block| json!({"tip": block.block_hash().to_string()});
    let [one, two, three] = &blocks[..] else { panic!() };
    let given = [
        (hex(two), verdict(two, "orphan", None, &genesis)),
        (hex(one).to_uppercase(), verdict(one, "accepted", None, two)),
        (hex(&rival), verdict(&rival, "inconclusive", None, two)),
        (hex(two), verdict(two, "duplicate", None, two)),
        (hex(three), verdict(three, "accepted", None, three)),
        (hex(&greedy), verdict(&greedy, "rejected", Some("bad-cb-amount"), three)),
        (hex(&greedy), verdict(&greedy, "rejected", Some("duplicate-invalid"), three)),
        (command("invalidateblock", two), tip(&rival)),
        (command("reconsiderblock", two), tip(three)),
        ("{\"setmocktime\": 1}".to_owned(), tip(three)),
    ];
    let (asked, expected): (Vec<String>, Vec<Value>) = given.into_iter().unzip();
    assert_eq!(lines(&asked), expected);
}

#[test]
fn invalid_lines_do_not_end_the_program() {
    let mut chain = ChainBuilder::new(1);
    let block = chain.block_with(Vec::new());
    let asked = [
        String::new(),
        "hello".to_owned(),
        "{\"setmocktime\": -1}".to_owned(),
        format!("{{\"invalidateblock\": \"{}\"}}", "00".repeat(32)),
        "0".repeat(LINE_BYTES_MAX + 1),
        "00".repeat(80),
        "00".repeat(79),
        serialize_hex(&block),
    ];
    let answers = lines(&asked);
    assert_eq!(answers.len(), asked.len());
    let about = ["empty", "not a digit", "0 or more", "there is no block", "longer than"];
    for (number, (answer, about)) in (1..).zip(answers.iter().zip(about)) {
        let error = answer["error"].as_str().unwrap();
        assert!(error.starts_with(&format!("line {number}: ")) && error.contains(about), "{error}");
        assert_eq!(answer["tip"], GENESIS);
    }
    for answer in &answers[5..7] {
        assert_eq!(answer["result"], "rejected");
        assert_eq!(answer["reason"], "DataStream::read(): end of data");
    }
    assert!(answers[5]["hash"].is_string() && answers[6]["hash"].is_null());
    assert_eq!(answers[7], verdict(&block, "accepted", None, &block));
}

#[test]
fn lines_that_are_not_utf8_get_answers() {
    let answers = answers(b"\xff\xfe\n{\"\xff\"}\r\n\0");
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|answer| answer["error"].is_string()), "{answers:?}");
}

/// An output that fails with this error after some bytes.
struct Broken(usize, io::ErrorKind);

impl Write for Broken {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.checked_sub(bytes.len()) {
            Some(left) => {
                self.0 = left;
                Ok(bytes.len())
            }
            None => Err(self.1.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_closed_pipe_is_not_a_failure_but_a_full_disk_is() {
    for (kind, fine) in [(io::ErrorKind::BrokenPipe, true), (io::ErrorKind::StorageFull, false)] {
        for room in [0, 100, 200] {
            let Ok(manager) = in_memory(Params::of(Network::Regtest), None) else { panic!() };
            let input = "{\"setmocktime\": 1}\n".repeat(5);
            let ended = serve(input.as_bytes(), &mut Broken(room, kind), manager);
            assert_eq!(ended.is_ok(), fine);
        }
    }
}
