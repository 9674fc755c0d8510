//! What a run writes, as the pipeline takes it. Whether it may be written there is asked elsewhere.

use super::Job;
use crate::args::SinkArg;
use apus_datadir::chain_folder;
use apus_storage::DirStorage;
use apus_sync::peers::KeptFolder;
use apus_sync::{FolderKind, FolderOutput, KEPT, Output, OutputKind, draft_of, parent};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) fn output_paths(sinks: &[SinkArg]) -> Vec<(OutputKind, PathBuf)> {
    sinks
        .iter()
        .filter_map(|sink| match sink {
            SinkArg::Snapshot(path) => Some((OutputKind::Snapshot, path.clone())),
            SinkArg::Hints(path) => Some((OutputKind::Hints, path.clone())),
            SinkArg::Utreexo(path) => Some((OutputKind::Utreexo, path.clone())),
            SinkArg::Chainstate(_) | SinkArg::Datadir(_) | SinkArg::Null => None,
        })
        .collect()
}

pub(super) fn folder_outputs(job: &Job<'_>) -> Vec<FolderOutput> {
    let output = |sink: &SinkArg| {
        let (kind, path, replace) = match sink {
            SinkArg::Chainstate(path) => (FolderKind::Chainstate, path, job.replace),
            SinkArg::Datadir(path) if job.keeps_for_datadir() => {
                (FolderKind::KeptDatadir, path, false)
            }
            SinkArg::Datadir(path) => (FolderKind::Datadir(job.kept), path, false),
            SinkArg::Snapshot(_) | SinkArg::Hints(_) | SinkArg::Utreexo(_) | SinkArg::Null => {
                return None;
            }
        };
        Some(FolderOutput { kind, path: path.clone(), replace })
    };
    job.outputs.iter().filter_map(output).collect()
}

/// Where blocks from peers are kept: in the data directory that is made around them, or beside the chainstate, as in a
/// node's folder.
pub(super) fn kept_folder(job: &Job<'_>, work_path: &Path) -> Option<KeptFolder> {
    let log = work_path.join(KEPT);
    let datadir = folder_outputs(job).into_iter().find(|it| it.kind == FolderKind::KeptDatadir);
    if let Some(datadir) = datadir {
        let folder = chain_folder(&draft_of(&datadir.path), job.chain).join("blocks");
        return Some(KeptFolder { folder, log, datadir: Some(datadir) });
    }
    let chainstate = job.outputs.iter().find_map(|sink| match sink {
        SinkArg::Chainstate(path) => Some(path),
        _ => None,
    });
    let beside = |path: &PathBuf| parent(path).join("blocks");
    chainstate.filter(|_| job.keeps_blocks()).map(|path| KeptFolder {
        folder: beside(path),
        log,
        datadir: None,
    })
}

pub(super) fn open_output((kind, path): (OutputKind, PathBuf)) -> Output {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Output { kind, storage: Arc::new(DirStorage::new(parent(&path))), name }
}
