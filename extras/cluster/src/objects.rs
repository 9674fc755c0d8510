//! [`Objects`]: the object store, in a folder or a bucket. An object's name is its digest.
//!
//! An object is written atomically, even over an existing one, which may be damaged. Its digest is verified after
//! reading. The objects of a run share a folder and are removed together. A bucket that does not answer counts as
//! unreachable, like a queue. In a folder, an object is lost if it is missing or has other bytes; any other error
//! concerns this machine, whose mount may be broken, while other machines may still see the object.

#[cfg(feature = "aws")]
mod bucket;

use crate::options::LinkError;
use apus_jobs::{ObjectPart, ObjectRef, QueueError, RunId};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutPayload};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of parallel reads of parts.
const AT_ONCE: usize = 16;

/// The place of a store that is not used.
const NOWHERE: &str = "nowhere";

const NOT_THERE: &str = "not found";

const TOO_SHORT: &str = "too short";

/// Maximum number of threads that read parts of files.
const READERS: usize = 4;

/// Maximum buffer allocated for a part before it is read, in bytes.
const PART_BYTES_FIRST: u64 = 1 << 20;

/// Number of attempts to read from a folder, and the time between two.
const READS: u32 = 5;
const BETWEEN_READS: Duration = Duration::from_millis(300);

/// Number of attempts to remove a folder while machines still write to it, and the time between two.
const REMOVALS: u32 = 10;
const BETWEEN_REMOVALS: Duration = Duration::from_millis(200);

/// An object store.
#[derive(Clone)]
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    root: Path,
    place: String,
    /// The folder, unless the store is a bucket.
    local: Option<PathBuf>,
}

impl Objects {
    /// A store that is not used.
    pub(crate) fn none() -> Self {
        Self {
            store: Arc::new(InMemory::new()),
            root: Path::default(),
            place: NOWHERE.to_owned(),
            local: None,
        }
    }

    /// Opens a store: a folder, created if missing, or a URL.
    pub(crate) fn open(place: &str) -> Result<Self, LinkError> {
        let failed = |what: String| LinkError::Objects { place: place.to_owned(), what };
        let folder = match place.split_once("://") {
            None => place,
            Some(("file", folder)) => folder,
            Some((scheme, _)) => return Self::remote(place, scheme),
        };
        std::fs::create_dir_all(folder).map_err(|error| failed(error.to_string()))?;
        let store = LocalFileSystem::new_with_prefix(folder);
        let store = store.map_err(|error| failed(error.to_string()))?.with_automatic_cleanup(true);
        let (place, local) = (place.to_owned(), Some(PathBuf::from(folder)));
        Ok(Self { store: Arc::new(store), root: Path::default(), place, local })
    }

    /// Opens a bucket. Its keys and settings come from the environment, with the variables of the AWS tools.
    #[cfg(feature = "aws")]
    fn remote(place: &str, _: &str) -> Result<Self, LinkError> {
        let (store, root) = bucket::open(place)?;
        Ok(Self { store, root, place: place.to_owned(), local: None })
    }

    #[cfg(not(feature = "aws"))]
    fn remote(_: &str, scheme: &str) -> Result<Self, LinkError> {
        Err(LinkError::Usage(format!(
            "--objects: this build does not support {scheme}:// (feature s3). Choose one: use the Debian package \
             or the container, build with `cargo install --locked --path crates/apus --features extras`, or give a \
             folder that all machines see"
        )))
    }

    /// Checks that a bucket exists and accepts the credentials, before any work starts.
    pub(crate) async fn try_out(&self) -> Result<(), LinkError> {
        if self.local.is_some() || self.place == NOWHERE {
            return Ok(());
        }
        match self.store.list(Some(&self.root)).try_next().await {
            Ok(_) => Ok(()),
            Err(error) => {
                let what = match self.failed(None, error) {
                    QueueError::Away(what)
                    | QueueError::Object(what)
                    | QueueError::Store(what)
                    | QueueError::Refused(what) => what,
                };
                let what =
                    what.strip_prefix(&format!("{}: ", self.place)).unwrap_or(&what).to_owned();
                Err(LinkError::Objects { place: self.place.clone(), what })
            }
        }
    }

    /// Converts an error of the store.
    fn failed(&self, object: Option<&Path>, error: Error) -> QueueError {
        let place = &self.place;
        let named = |what: String| match object {
            Some(path) => format!("object {path} of {place}: {what}"),
            None => format!("{place}: {what}"),
        };
        #[cfg(feature = "aws")]
        if self.local.is_none() {
            return bucket::failed(error, named);
        }
        match error {
            Error::NotFound { .. } => QueueError::Object(named(NOT_THERE.to_owned())),
            error => QueueError::Store(named(error.to_string())),
        }
    }

    fn folder(&self, run: &RunId) -> Path {
        self.root.clone().join(run.name())
    }

    fn path(&self, run: &RunId, of: &ObjectRef) -> Path {
        self.folder(run).join(of.name())
    }

    /// Writes an object under this name.
    pub(crate) async fn put(
        &self,
        run: &RunId,
        of: &ObjectRef,
        bytes: Bytes,
    ) -> Result<(), QueueError> {
        let put = self.store.put(&self.path(run, of), PutPayload::from_bytes(bytes)).await;
        put.map(drop).map_err(|error| self.failed(None, error))
    }

    /// Reads an object and verifies its digest.
    pub(crate) async fn get(&self, run: &RunId, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        let got = retried(async || self.get_once(run, of).await.map_err(|error| (0, error)));
        got.await.map_err(|(_, error)| error)
    }

    async fn get_once(&self, run: &RunId, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        let path = self.path(run, of);
        let named =
            |what: String| QueueError::Object(format!("object {path} of {}: {what}", self.place));
        let got = self.store.get(&path).await.map_err(|error| self.failed(Some(&path), error))?;
        if got.meta.size != of.bytes {
            return Err(named(format!(
                "the object has {} bytes instead of {}",
                got.meta.size, of.bytes
            )));
        }
        let bytes = got.bytes().await.map_err(|error| self.failed(Some(&path), error))?;
        match of.is_of(&bytes) {
            true => Ok(bytes.into()),
            false => Err(named("its bytes have changed: the digest does not match".to_owned())),
        }
    }

    /// Reads some bytes of each of these objects, several in parallel. An error carries the index of the failed part.
    pub(crate) async fn parts(
        &self,
        run: &RunId,
        parts: &[ObjectPart],
    ) -> Result<Vec<Vec<u8>>, (usize, QueueError)> {
        if let Some(local) = &self.local {
            return retried(async || self.local_parts(local, run, parts).await).await;
        }
        let one = |(at, part): (usize, ObjectPart)| async move {
            self.part(run, &part).await.map_err(|error| (at, error))
        };
        let all = futures_util::stream::iter(parts.iter().copied().enumerate().map(one));
        all.buffered(AT_ONCE).try_collect().await
    }

    /// Reads parts from a folder, with several threads. Each opens a file once for consecutive parts of it.
    async fn local_parts(
        &self,
        local: &std::path::Path,
        run: &RunId,
        parts: &[ObjectPart],
    ) -> Result<Vec<Vec<u8>>, (usize, QueueError)> {
        let each = parts.len().div_ceil(READERS).max(1);
        let reading = parts.chunks(each).map(|some| {
            let some: Vec<(PathBuf, ObjectPart)> = some
                .iter()
                .map(|part| (local.join(self.path(run, &part.object).as_ref()), *part))
                .collect();
            tokio::task::spawn_blocking(move || read_parts(&some))
        });
        let reading: Vec<_> = reading.collect();
        let mut all = Vec::with_capacity(parts.len());
        for (number, read) in reading.into_iter().enumerate() {
            let failed = |(at, error): (usize, PartError)| {
                let at = number * each + at;
                let path =
                    parts.get(at).map(|part| self.path(run, &part.object)).unwrap_or_default();
                let named = |what: &str| format!("object {path} of {}: {what}", self.place);
                let error = match error {
                    PartError::Lost(what) => QueueError::Object(named(what)),
                    PartError::Here(what) => QueueError::Store(named(&what)),
                };
                (at, error)
            };
            let here = |error: tokio::task::JoinError| (0, PartError::Here(error.to_string()));
            let read = read.await.unwrap_or_else(|error| Err(here(error)));
            all.extend(read.map_err(failed)?);
        }
        Ok(all)
    }

    async fn part(&self, run: &RunId, part: &ObjectPart) -> Result<Vec<u8>, QueueError> {
        if part.bytes == 0 {
            return Ok(Vec::new());
        }
        let path = self.path(run, &part.object);
        let named =
            |what: String| QueueError::Object(format!("object {path} of {}: {what}", self.place));
        let range = part.offset..part.offset.saturating_add(part.bytes);
        match self.store.get_range(&path, range).await {
            Err(error) => Err(self.failed(Some(&path), error)),
            Ok(bytes) if bytes.len() as u64 != part.bytes => Err(named(TOO_SHORT.to_owned())),
            Ok(bytes) => Ok(bytes.into()),
        }
    }

    /// Removes an object.
    pub(crate) async fn remove(&self, run: &RunId, of: &ObjectRef) -> Result<(), QueueError> {
        match self.store.delete(&self.path(run, of)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(None, error)),
        }
    }

    /// Removes all objects of a run.
    pub(crate) async fn remove_all(&self, run: &RunId) -> Result<(), QueueError> {
        // Remove the folder, because killed machines leave partial files, which the store does not list.
        if let Some(local) = &self.local {
            let folder = local.join(run.name());
            let place = folder.display().to_string();
            // Use a blocking thread: removing many GB takes a while.
            let removed = tokio::task::spawn_blocking(move || {
                until_empty(|| std::fs::remove_dir_all(&folder))
            });
            let removed = removed.await.unwrap_or_else(|error| Err(error.into()));
            return removed.map_err(|error| QueueError::Refused(format!("{place}: {error}")));
        }
        let folder = self.folder(run);
        let found = self.store.list(Some(&folder)).map_ok(|object| object.location).boxed();
        let removed = self.store.delete_stream(found).try_for_each(|_| async { Ok(()) }).await;
        match removed {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(None, error)),
        }
    }
}

/// Removes a folder. Retries if a machine that does not know yet that the run has ended writes an object during the
/// removal.
fn until_empty(mut remove: impl FnMut() -> std::io::Result<()>) -> std::io::Result<()> {
    for _ in 1..REMOVALS {
        match remove() {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                std::thread::sleep(BETWEEN_REMOVALS);
            }
            other => return gone(other),
        }
    }
    gone(remove())
}

/// Treats "not found" as removed.
fn gone(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Retries a read that failed on this machine: a network file system may refuse a file for a moment after it was
/// rewritten (ESTALE).
async fn retried<T>(
    mut read: impl AsyncFnMut() -> Result<T, (usize, QueueError)>,
) -> Result<T, (usize, QueueError)> {
    for _ in 1..READS {
        match read().await {
            Err((_, QueueError::Store(_))) => tokio::time::sleep(BETWEEN_READS).await,
            other => return other,
        }
    }
    read().await
}

/// Failure to read a part of a file.
enum PartError {
    /// The object is missing or damaged.
    Lost(&'static str),
    /// This machine cannot read it.
    Here(String),
}

/// Reads parts of files. An error carries the index of the failed part.
fn read_parts(parts: &[(PathBuf, ObjectPart)]) -> Result<Vec<Vec<u8>>, (usize, PartError)> {
    let mut open = None;
    let one = |(at, (path, part)): (usize, &(PathBuf, ObjectPart))| match read_part(
        &mut open, path, part,
    ) {
        Ok(bytes) if bytes.len() as u64 != part.bytes => Err((at, PartError::Lost(TOO_SHORT))),
        Err(error) if error.kind() == ErrorKind::NotFound => Err((at, PartError::Lost(NOT_THERE))),
        other => other.map_err(|error| (at, PartError::Here(error.to_string()))),
    };
    parts.iter().enumerate().map(one).collect()
}

/// Reads a part of a file, or less if the file ends early. Reuses the open file if it is the same.
fn read_part(
    open: &mut Option<(PathBuf, File)>,
    path: &PathBuf,
    part: &ObjectPart,
) -> std::io::Result<Vec<u8>> {
    if part.bytes == 0 {
        return Ok(Vec::new());
    }
    if open.as_ref().is_none_or(|(of, _)| of != path) {
        *open = Some((path.clone(), File::open(path)?));
    }
    let (_, file) = open.as_mut().expect("it was opened");
    file.seek(SeekFrom::Start(part.offset))?;
    // Another machine claims this length, so allocate only up to the limit.
    let mut bytes = Vec::with_capacity(part.bytes.min(PART_BYTES_FIRST) as usize);
    file.take(part.bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build()
            .unwrap()
            .block_on(future)
    }

    async fn put(objects: &Objects, run: &RunId, bytes: &[u8]) -> ObjectRef {
        let of = ObjectRef::of(bytes);
        objects.put(run, &of, Bytes::copy_from_slice(bytes)).await.unwrap();
        of
    }

    #[test]
    fn an_object_matches_its_name() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("objects");
        let objects = Objects::open(folder.to_str().unwrap()).unwrap();
        let (run, other) = (RunId([1; 32]), RunId([2; 32]));
        wait(async {
            let of = put(&objects, &run, b"some bytes").await;
            assert_eq!(objects.get(&run, &of).await.unwrap(), b"some bytes");
            let error = objects.get(&other, &of).await.unwrap_err().to_string();
            assert!(error.contains("not found"), "{error}");
            let part = |offset, bytes| ObjectPart { object: of, offset, bytes };
            let parts = [part(5, 5), part(0, 0), part(0, 4)];
            let got = objects.parts(&run, &parts).await.unwrap();
            assert_eq!(got, [&b"bytes"[..], b"", b"some"]);
            for beyond in [part(6, 5), part(10, 1), part(u64::MAX, 9)] {
                let (at, _) = objects.parts(&run, &[part(0, 1), beyond]).await.unwrap_err();
                assert_eq!(at, 1);
            }
            let path = folder.join(objects.path(&run, &of).as_ref());
            std::fs::write(&path, b"some bites").unwrap();
            let error = objects.get(&run, &of).await.unwrap_err().to_string();
            assert!(error.contains("its bytes have changed"), "{error}");
            std::fs::write(&path, b"some").unwrap();
            let error = objects.get(&run, &of).await.unwrap_err().to_string();
            assert!(error.contains("the object has 4 bytes instead of 10"), "{error}");
            // Writing a damaged object again repairs it.
            put(&objects, &run, b"some bytes").await;
            assert_eq!(objects.get(&run, &of).await.unwrap(), b"some bytes");
            objects.remove(&run, &of).await.unwrap();
            assert!(objects.get(&run, &of).await.is_err());
            objects.remove(&run, &of).await.unwrap();
            put(&objects, &run, b"more").await;
            put(&objects, &other, b"others").await;
            std::fs::write(folder.join(run.name()).join("begun#1"), b"half").unwrap();
            objects.remove_all(&run).await.unwrap();
            assert!(!folder.join(run.name()).exists());
            assert!(objects.get(&run, &ObjectRef::of(b"more")).await.is_err());
            assert!(objects.get(&other, &ObjectRef::of(b"others")).await.is_ok());
            objects.remove_all(&run).await.unwrap();
        });
    }

    /// An object that a machine cannot read for a reason other than "not found" is not lost.
    #[test]
    fn a_broken_folder_is_not_a_lost_object() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().to_owned();
        let objects = Objects::open(folder.to_str().unwrap()).unwrap();
        let run = RunId([1; 32]);
        wait(async {
            let of = put(&objects, &run, b"some bytes").await;
            let parts = [ObjectPart { object: of, offset: 0, bytes: 4 }];
            let (good, aside) = (folder.join(run.name()), folder.join("aside"));
            std::fs::rename(&good, &aside).unwrap();
            let lost = objects.get(&run, &of).await.unwrap_err();
            assert!(matches!(lost, QueueError::Object(_)), "{lost:?}");
            let (_, lost) = objects.parts(&run, &parts).await.unwrap_err();
            assert!(matches!(lost, QueueError::Object(_)), "{lost:?}");
            // A file in place of the folder: the objects are neither there nor known to be missing.
            std::fs::write(&good, "").unwrap();
            let broken = objects.get(&run, &of).await.unwrap_err();
            assert!(matches!(broken, QueueError::Store(_)), "{broken:?}");
            let (_, broken) = objects.parts(&run, &parts).await.unwrap_err();
            assert!(matches!(broken, QueueError::Store(_)), "{broken:?}");
            let (read, repaired) = tokio::join!(objects.get(&run, &of), async {
                tokio::time::sleep(BETWEEN_READS / 2).await;
                std::fs::remove_file(&good).and_then(|()| std::fs::rename(&aside, &good))
            });
            repaired.unwrap();
            assert_eq!(read.unwrap(), b"some bytes");
        });
    }

    #[test]
    fn a_folder_that_machines_still_write_to_is_removed_later() {
        let (full, gone) = (ErrorKind::DirectoryNotEmpty, ErrorKind::NotFound);
        let removed = |errors: Vec<ErrorKind>| {
            let (mut errors, mut tries) = (errors.into_iter(), 0);
            let removed = until_empty(|| {
                tries += 1;
                errors.next().map_or(Ok(()), |kind| Err(kind.into()))
            });
            (removed.map_err(|error| error.kind()), tries)
        };
        assert_eq!(removed(vec![]), (Ok(()), 1));
        assert_eq!(removed(vec![full, full]), (Ok(()), 3));
        assert_eq!(removed(vec![full, gone]), (Ok(()), 2));
        assert_eq!(removed(vec![full; 99]), (Err(full), REMOVALS));
        assert_eq!(removed(vec![ErrorKind::NotADirectory]), (Err(ErrorKind::NotADirectory), 1));
    }

    #[test]
    fn an_unknown_store_is_named() {
        let error = Objects::open("gopher://a/b").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("gopher"), "{error}");
    }
}
