//! Benchmarks from outside: a real node on a generated chain, and programs that disagree.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use apus_bench::BenchError;
use apus_bench::maker::{self, MakeOptions};
use apus_bench::manifest::ChainManifest;
use apus_bench::run::matrix::{Grid, ScriptValidation, Subject, ThreadCount, subjects};
use apus_bench::run::node::BenchNodeFolder;
use apus_bench::run::{BenchChain, BenchRecord, PageCache, SessionPlan, session};
use apus_chain::Network;
use apus_sync::ErrorKind;
use apus_testkit::bitcoind;
use apus_testkit::blkfile::read_chain;
use bitcoin::constants::genesis_block;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;
use tempfile::TempDir;

static NEVER: AtomicBool = AtomicBool::new(false);

/// A small chain whose scripts no node would accept.
fn unsigned_chain() -> (TempDir, BenchChain) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("unsigned");
    let options = MakeOptions { signed: false, block_weight: 100_000, ..MakeOptions::new(3, 5) };
    maker::make(&path, &options, &NEVER, &mut |_| {}).unwrap();
    let chain = BenchChain::in_folder(&path).unwrap();
    (folder, chain)
}

fn manifest(chain: &BenchChain) -> &ChainManifest {
    chain.manifest.as_ref().unwrap()
}

/// All files of a chain, with their content and modification time.
fn state(chain: &BenchChain) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let files = fs::read_dir(&chain.blocksdir).unwrap().map(|entry| entry.unwrap().path());
    files
        .chain([chain.hints.clone()])
        .map(|path| {
            let modified = fs::metadata(&path).unwrap().modified().unwrap();
            (path.clone(), (fs::read(path).unwrap(), modified))
        })
        .collect()
}

#[test]
fn a_node_skips_scripts_and_has_the_set_of_the_manifest() {
    let (_folder, chain) = unsigned_chain();
    let scratch = tempfile::tempdir().unwrap();
    let before = state(&chain);
    let program = bitcoind::find();
    let node = BenchNodeFolder::prepare(&program, &chain, scratch.path(), &NEVER).unwrap();
    assert!(node.version.contains("version"), "{}", node.version);

    // Reaching the tip proves that it ran no script: these are invalid.
    let timed = node.run(ScriptValidation::Assumevalid, 8, &NEVER).unwrap();
    let ChainManifest { height, assumevalid_height, assumevalid_hash, .. } = manifest(&chain);
    assert_eq!(timed.log.expect(*height, assumevalid_hash, *assumevalid_height), Ok(()));
    assert!(timed.usage.wall_seconds > timed.log.connect_seconds().unwrap());
    let set = node.set(&NEVER).unwrap();
    let ChainManifest { tip_hash, coins, total_amount_sat, .. } = manifest(&chain);
    assert_eq!((set.stop_height, &set.stop_hash), (*height, tip_hash));
    assert_eq!((set.coins, set.total_amount_sat), (*coins, *total_amount_sat));
    assert_eq!(state(&chain), before, "the chain's own files");

    // If the node runs scripts, it does not reach the tip.
    let error = node.run(ScriptValidation::Full, 8, &NEVER).unwrap_err();
    assert!(error.kind() == ErrorKind::Wrong, "{error}");
    assert!(error.to_string().contains("connected blocks up to height"), "{error}");

    // A ready folder is reused; a foreign folder in its place is not touched.
    let path = fs::read_dir(scratch.path()).unwrap().next().unwrap().unwrap().path();
    let index = |path: &Path| fs::metadata(path.join("prepared.json")).unwrap().modified().unwrap();
    let made = index(&path);
    BenchNodeFolder::prepare(&program, &chain, scratch.path(), &NEVER).unwrap();
    assert_eq!(index(&path), made);
    fs::remove_file(path.join("README")).unwrap();
    fs::remove_file(path.join("prepared.json")).unwrap();
    let error = BenchNodeFolder::prepare(&program, &chain, scratch.path(), &NEVER).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
}

/// The build of `scripts/core` has an option for that, and its help lists it; an unmodified node would not
/// start with it.
#[test]
fn a_node_with_the_option_gets_the_first_block() {
    let (folder, chain) = unsigned_chain();
    let looks_up = |help: &str| {
        let program = folder.path().join("bitcoind");
        fs::write(&program, format!("#!/bin/sh\necho 'version 1'\necho '  {help}'\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let node = BenchNodeFolder::of_its_own(&program, &chain, folder.path()).unwrap();
        let bip34 = |arguments: Vec<String>| -> Vec<String> {
            arguments.into_iter().filter(|it| it.contains("bip34")).collect()
        };
        let found = bip34(node.arguments(ScriptValidation::Assumevalid, 450));
        assert_eq!(bip34(node.download_arguments(&[], false, 450)), found);
        (node.looks_up_bip30(), found)
    };
    assert_eq!(looks_up("-testactivationheight=name@height."), (true, Vec::new()));
    let genesis = genesis_block(bitcoin::Network::Regtest).block_hash();
    let blocks = read_chain(&chain.blocksdir, Network::Regtest.magic(), genesis);
    let option = format!("-testbip34hash={}", blocks[1].block_hash());
    assert_eq!(looks_up("-testbip34hash=<hash>"), (false, vec![option]));
}

#[test]
fn a_node_that_runs_scripts_or_ends_at_another_block_does_not_count() {
    let (_folder, chain) = unsigned_chain();
    let prepare = |change: &dyn Fn(&mut ChainManifest)| {
        let scratch = tempfile::tempdir().unwrap();
        let mut chain = chain.clone();
        change(chain.manifest.as_mut().unwrap());
        BenchNodeFolder::prepare(&bitcoind::find(), &chain, scratch.path(), &NEVER).unwrap_err()
    };
    // A block outside the chain, so that scripts are run and found invalid.
    let error = prepare(&|it| it.assumevalid_hash = it.assumevalid_hash.replace('0', "1"));
    assert!(error.kind() == ErrorKind::Wrong, "{error}");
    assert!(error.to_string().contains("connected blocks up to height"), "{error}");
    let error = prepare(&|it| it.height += 1);
    assert!(error.kind() == ErrorKind::Wrong, "{error}");
    // Two weeks of blocks are not more than two weeks.
    let error = prepare(&|it| it.assumevalid_height = it.height - 2_016);
    assert!(error.to_string().contains("only 2016 blocks follow"), "{error}");
    let without = BenchChain { manifest: None, ..chain.clone() };
    let scratch = tempfile::tempdir().unwrap();
    let error =
        BenchNodeFolder::prepare(&bitcoind::find(), &without, scratch.path(), &NEVER).unwrap_err();
    assert!(error.to_string().contains("without manifest.json"), "{error}");
    let error = BenchNodeFolder::prepare(Path::new("/bin/false"), &chain, scratch.path(), &NEVER);
    assert!(error.unwrap_err().to_string().contains("is it a bitcoind?"));
}

/// A program that writes a report from a file, with the kind of proof as one of the hashes. It creates any
/// snapshot that the command line asks for, and requires the snapshot that its hints are in.
fn program(folder: &Path, report: &str) -> PathBuf {
    let (program, template) = (folder.join("apus"), folder.join("template"));
    fs::write(&template, report).unwrap();
    let script = format!(
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do\n case $1 in --report) report=$2;; --aggregate) \
         kind=$2;; --out) case $2 in snapshot:*) touch \"${{2#*:}}\";; esac;; --hints) case $2 in snapshot:*) [ -f \
         \"${{2#*:}}\" ] || exit 3;; esac;; esac\n shift\ndone\nplace=${{report%/*}}\nplace=${{place##*/side-}}\nsed \
         \"s/KIND/$kind/g; s/PLACE/${{place##*/}}/g\" '{}' >\"$report\"\n",
        template.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

fn report(chain: &BenchChain, hash: &str) -> String {
    let manifest = manifest(chain);
    serde_json::json!({
        "version": 1, "engine": "swiftsync", "validation": "assumevalid", "aggregate": "KIND",
        "script_blocks": 0, "stop_height": manifest.height,
        "stop_hash": manifest.tip_hash, "coins": manifest.coins,
        "total_amount_sat": manifest.total_amount_sat, "muhash": hash, "hash_serialized_3": "ab",
        "transactions": manifest.transactions, "inputs": manifest.inputs, "outputs": manifest.outputs,
        "bytes": manifest.bytes, "cpu_seconds": 0.0, "rss_peak_bytes": 1000,
        "phases": [{"phase": "blocks", "wall_seconds": 0.5}]
    })
    .to_string()
}

/// Two rounds of two kinds of proof, on one chain, with one thread.
fn bench(
    chain: &BenchChain,
    report: &str,
    lines: &mut Vec<String>,
) -> Result<BenchRecord, BenchError> {
    bench_on(chain, report, &[1], lines)
}

/// The same with these numbers of threads.
fn bench_on(
    chain: &BenchChain,
    report: &str,
    par: &[usize],
    lines: &mut Vec<String>,
) -> Result<BenchRecord, BenchError> {
    bench_grids(chain, report, &[grid_of("swiftsync", &["sha256", "muhash"], par)], lines)
}

fn grid_of(engine: &str, aggregates: &[&str], par: &[usize]) -> Grid {
    Grid {
        engine: engine.to_owned(),
        validations: vec![ScriptValidation::Assumevalid],
        aggregates: aggregates.iter().map(|kind| (*kind).to_owned()).collect(),
        par: par.iter().map(|threads| ThreadCount::Count(*threads)).collect(),
        dbcache_mib: vec![450],
        outputs: vec!["null".to_owned()],
    }
}

fn bench_grids(
    chain: &BenchChain,
    report: &str,
    grids: &[Grid],
    lines: &mut Vec<String>,
) -> Result<BenchRecord, BenchError> {
    let scratch = tempfile::tempdir().unwrap();
    let program = program(scratch.path(), report);
    let subjects = subjects(grids, 2);
    let kinds = subjects.len();
    let plan = SessionPlan {
        profile: "quick",
        timed: true,
        program: &program,
        version: "0",
        commit: Some("0123456789ab"),
        features: vec!["bench"],
        command: Vec::new(),
        chains: vec![chain.clone()],
        subjects,
        no_interpreter: None,
        bitcoind: None,
        rounds: 2,
        page_cache: PageCache::Warm,
        floor: None,
        scratch: scratch.path(),
        now: 0,
    };
    let mut log = |line: String| lines.push(line);
    let (record, papers) = session(&plan, &NEVER, &mut log)?;
    assert_eq!(papers.len(), kinds);
    assert!(papers.keys().all(|name| name.ends_with(".report.json")), "{papers:?}");
    Ok(record)
}

#[test]
fn all_kinds_take_turns_and_a_record_names_no_place() {
    let (_folder, chain) = unsigned_chain();
    let mut lines = Vec::new();
    let record = bench(&chain, &report(&chain, "same"), &mut lines).unwrap();
    let kinds: Vec<bool> = lines.iter().map(|line| line.contains("muhash")).collect();
    assert_eq!(kinds, [false, true, true, false], "{lines:?}");
    let measured = &record.chains[0].measured;
    assert_eq!(measured.len(), 2);
    let rounds: Vec<u32> = measured[0].runs.iter().map(|run| run.round).collect();
    assert_eq!(rounds, [1, 2]);
    assert!(measured[0].arguments.contains(&"CHAIN/blocks".to_owned()));
    assert!(
        matches!(&measured[1].subject, Subject::Apus { aggregate: Some(kind), .. } if kind == "muhash")
    );
    let text = serde_json::to_string(&record).unwrap();
    assert!(!text.contains(chain.folder.to_str().unwrap()), "{text}");
    assert!(!text.contains(std::env::temp_dir().to_str().unwrap()), "{text}");
}

/// An untimed run makes the snapshot once; the record reports the cost of hints from it.
#[test]
fn a_snapshot_is_made_before_runs_that_take_hints_from_it() {
    let (_folder, chain) = unsigned_chain();
    let grids = ["swiftsync", "snapshot-hints"].map(|engine| grid_of(engine, &["sha256"], &[1, 2]));
    let mut lines = Vec::new();
    let record = bench_grids(&chain, &report(&chain, "same"), &grids, &mut lines).unwrap();
    assert_eq!(lines.iter().filter(|line| line.contains("making a snapshot")).count(), 1);
    let chain = &record.chains[0];
    let costs: Vec<String> = chain.outputs.iter().map(|it| it.subject.to_string()).collect();
    let of = |par| format!("apus snapshot-hints assumevalid sha256 par={par} dbcache=450");
    assert_eq!(costs, [of(1), of(2)]);
    assert!(chain.measured[2].arguments.iter().any(|it| it.starts_with("snapshot:")));
}

/// Two threads are compared with two concurrent runs of one thread, each with its own processor and folder.
#[test]
fn threads_are_compared_with_runs_side_by_side() {
    let (_folder, chain) = unsigned_chain();
    let (report, mut lines) = (report(&chain, "same"), Vec::new());
    let side_by_side = |record: BenchRecord| {
        let scaling = record.chains.into_iter().flat_map(|chain| chain.scaling);
        scaling.map(|it| it.side_by_side.is_some_and(|times| times > 0.0)).collect::<Vec<_>>()
    };
    let record = bench_on(&chain, &report, &[1, 2], &mut lines).unwrap();
    let runs = record.chains[0].measured.iter().flat_map(|it| &it.runs);
    assert_eq!(runs.filter(|run| run.side_by_side_seconds.is_some()).count(), 4, "two kinds twice");
    assert_eq!(side_by_side(record), [true, true]);
    // Without a single-threaded run there is nothing to compare with.
    let record = bench_on(&chain, &report, &[2], &mut lines).unwrap();
    assert!(side_by_side(record).is_empty());

    // The result of each concurrent run is compared, too.
    let other = report.replace("\"same\"", "\"PLACE\"");
    let error = bench_on(&chain, &other, &[1, 2], &mut lines).unwrap_err();
    assert!(error.to_string().contains("side by side"), "{error}");
}

#[test]
fn results_that_differ_end_a_benchmark_and_name_the_run() {
    let (_folder, chain) = unsigned_chain();
    let error = bench(&chain, &report(&chain, "KIND"), &mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Wrong);
    let message = error.to_string();
    for words in ["sha256 par=1", "muhash par=1", "round 1", "muhash sha256 and muhash"] {
        assert!(message.contains(words), "{words} is not in {message}");
    }
    let wrong = report(&chain, "same").replace("\"inputs\":", "\"inputs\":1");
    let error = bench(&chain, &wrong, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("the chain's manifest disagree: inputs"), "{error}");
    // The same set from different work is not comparable either.
    let other = report(&chain, "same").replace("\"script_blocks\":0", "\"script_blocks\":7");
    let error = bench(&chain, &other, &mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Wrong);
    assert!(error.to_string().contains("script_blocks 7, not 0"), "{error}");
}

/// A program that makes proofs, and reports the contents of a file about blocks that it validates by them. It
/// logs each call.
fn proof_program(folder: &Path, report: &str) -> PathBuf {
    let (program, template) = (folder.join("apus"), folder.join("template"));
    fs::write(&template, report).unwrap();
    let script = format!(
        "#!/bin/sh\necho \"$*\" >>'{calls}'\nengine=utreexo\n[ $1 = utreexo ] && engine=mergesync\n\
         while [ $# -gt 0 ]; do\n case $1 in --report) report=$2;; --out) out=$2;; --proofs) [ -f $2/made ] || \
         exit 3;; esac\n shift\ndone\n[ $engine = mergesync ] && mkdir \"$out\" && touch \"$out/made\"\n\
         sed \"s/ENGINE/$engine/\" '{template}' >\"$report\"\n",
        calls = folder.join("calls").display(),
        template = template.display(),
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// Proofs are made once for the runs that use them, and again by each run of the proving subject.
#[test]
fn proofs_are_made_before_a_run_that_uses_them() {
    let (_folder, chain) = unsigned_chain();
    let manifest = manifest(&chain);
    let mut report: serde_json::Value = serde_json::from_str(&report(&chain, "x")).unwrap();
    report["engine"] = "ENGINE".into();
    report["aggregate"] = serde_json::Value::Null;
    report["script_blocks"] = (manifest.height - manifest.assumevalid_height).into();
    report["utreexo"] = serde_json::json!({"leaves": 7, "roots": ["ab", "cd", "ef"]});
    for hash in ["muhash", "hash_serialized_3"] {
        report[hash] = serde_json::Value::Null;
    }
    let scratch = tempfile::tempdir().unwrap();
    let grid = |engine: &str, output: &str| Grid {
        engine: engine.to_owned(),
        validations: vec![ScriptValidation::Assumevalid],
        aggregates: Vec::new(),
        par: vec![ThreadCount::Count(1), ThreadCount::Count(2)],
        dbcache_mib: vec![450],
        outputs: vec![output.to_owned()],
    };
    let grids = [grid("utreexo", "null"), grid("prove", "proofs")];
    let program = proof_program(scratch.path(), &report.to_string());
    let plan = SessionPlan {
        profile: "utreexo",
        timed: true,
        program: &program,
        version: "0",
        commit: Some("0123456789ab"),
        features: vec!["bench"],
        command: Vec::new(),
        chains: vec![chain.clone()],
        subjects: subjects(&grids, 2),
        no_interpreter: None,
        bitcoind: None,
        rounds: 2,
        page_cache: PageCache::Warm,
        floor: None,
        scratch: &scratch.path().join("s"),
        now: 0,
    };
    let (record, _) = session(&plan, &NEVER, &mut |_| ()).unwrap();
    let calls = fs::read_to_string(scratch.path().join("calls")).unwrap();
    let proves: Vec<bool> = calls.lines().map(|call| call.starts_with("utreexo prove")).collect();
    // With one thread, with two, and two side by side; then the same backwards.
    let expected = [vec![true], vec![false; 4], vec![true; 4], vec![true; 4], vec![false; 4]];
    assert_eq!(proves, expected.concat());
    let chain = &record.chains[0];
    assert_eq!(chain.set.muhash, None);
    assert_eq!(chain.set.utreexo.as_ref().unwrap().leaves, 7);
    let scaled: Vec<String> = chain.scaling.iter().map(|it| it.subject.to_string()).collect();
    assert_eq!(
        scaled,
        [
            "apus utreexo assumevalid par=2 dbcache=450",
            "apus prove assumevalid par=2 dbcache=450 proofs"
        ]
    );
}
