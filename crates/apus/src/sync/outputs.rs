//! What a run writes, as the pipeline takes it. Whether it may be written there is asked elsewhere.

use super::Job;
use crate::args::SinkArg;
use apus_storage::DirStorage;
use apus_sync::{FolderKind, FolderOutput, Output, OutputKind, parent};
use std::path::PathBuf;
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
            SinkArg::Datadir(path) => (FolderKind::Datadir(job.kept), path, false),
            SinkArg::Snapshot(_) | SinkArg::Hints(_) | SinkArg::Utreexo(_) | SinkArg::Null => {
                return None;
            }
        };
        Some(FolderOutput { kind, path: path.clone(), replace })
    };
    job.outputs.iter().filter_map(output).collect()
}

pub(super) fn open_output((kind, path): (OutputKind, PathBuf)) -> Output {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Output { kind, storage: Arc::new(DirStorage::new(parent(&path))), name }
}
