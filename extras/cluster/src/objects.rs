//! [`Objects`]: bytes by their digest, in a folder or a bucket.
//!
//! An object is written whole or not at all, and again where it is there: what was there may be damaged. What is read
//! is held against its name before it is handed on. The objects of a run lie together, and go together. A bucket that
//! does not answer is away, like a queue. In a folder an object is lost where it is not there or has other bytes; any other
//! error is of this machine, whose mount may be broken, and other machines may see the object.

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

/// So many parts of objects are on their way at a time.
const AT_ONCE: usize = 16;

/// The place of objects that are not wanted.
const NOWHERE: &str = "nowhere";

const NOT_THERE: &str = "it is not there";

const TOO_SHORT: &str = "it is too short";

/// So many threads read parts of files at a time.
const READERS: usize = 4;

/// For so much of a part memory is taken before it is read.
const PART_BYTES_FIRST: u64 = 1 << 20;

/// So often it is tried to read from a folder, with so long between two tries.
const READS: u32 = 5;
const BETWEEN_READS: Duration = Duration::from_millis(300);

/// So often it is tried to remove a folder into which machines still put objects, with so long between two tries.
const REMOVALS: u32 = 10;
const BETWEEN_REMOVALS: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Clone)]
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    root: Path,
    place: String,
    /// The folder, where it is one.
    local: Option<PathBuf>,
}

impl Objects {
    /// No object is wanted.
    pub(crate) fn none() -> Self {
        Self {
            store: Arc::new(InMemory::new()),
            root: Path::default(),
            place: NOWHERE.to_owned(),
            local: None,
        }
    }

    /// Opens a store: a folder, which is made where it is not there, or a URL.
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

    /// A bucket. What it is opened with stands in the environment, as the tools of its maker have it.
    #[cfg(feature = "aws")]
    fn remote(place: &str, _: &str) -> Result<Self, LinkError> {
        let (store, root) = bucket::open(place)?;
        Ok(Self { store, root, place: place.to_owned(), local: None })
    }

    #[cfg(not(feature = "aws"))]
    fn remote(_: &str, scheme: &str) -> Result<Self, LinkError> {
        Err(LinkError::Usage(format!(
            "--objects: this build has no {scheme}: objects, which are in the feature s3. The Debian package and the \
             container have it, and so has what `cargo install --locked --path crates/apus --features extras` \
             builds; a folder that all machines see needs none of them"
        )))
    }

    /// Sees that a bucket is there and takes the credentials, before any work is done for it.
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

    /// What became of something that was asked of the store.
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

    /// Writes an object of this name.
    pub(crate) async fn put(
        &self,
        run: &RunId,
        of: &ObjectRef,
        bytes: Bytes,
    ) -> Result<(), QueueError> {
        let put = self.store.put(&self.path(run, of), PutPayload::from_bytes(bytes)).await;
        put.map(drop).map_err(|error| self.failed(None, error))
    }

    /// Reads an object.
    pub(crate) async fn get(&self, run: &RunId, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        let got = some_times(async || self.get_once(run, of).await.map_err(|error| (0, error)));
        got.await.map_err(|(_, error)| error)
    }

    async fn get_once(&self, run: &RunId, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        let path = self.path(run, of);
        let named =
            |what: String| QueueError::Object(format!("object {path} of {}: {what}", self.place));
        let got = self.store.get(&path).await.map_err(|error| self.failed(Some(&path), error))?;
        if got.meta.size != of.bytes {
            return Err(named(format!("it has {} bytes and not {}", got.meta.size, of.bytes)));
        }
        let bytes = got.bytes().await.map_err(|error| self.failed(Some(&path), error))?;
        match of.is_of(&bytes) {
            true => Ok(bytes.into()),
            false => Err(named("its bytes are others than they were, by their digest".to_owned())),
        }
    }

    /// Reads some bytes of each of these objects, some of them at a time. Which one failed comes with an error.
    pub(crate) async fn parts(
        &self,
        run: &RunId,
        parts: &[ObjectPart],
    ) -> Result<Vec<Vec<u8>>, (usize, QueueError)> {
        if let Some(local) = &self.local {
            return some_times(async || self.local_parts(local, run, parts).await).await;
        }
        let one = |(at, part): (usize, ObjectPart)| async move {
            self.part(run, &part).await.map_err(|error| (at, error))
        };
        let all = futures_util::stream::iter(parts.iter().copied().enumerate().map(one));
        all.buffered(AT_ONCE).try_collect().await
    }

    /// The same of a folder: some threads, each of which opens a file once for parts that follow one another.
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
        // Machines that were killed leave beginnings of objects, which are not listed.
        if let Some(local) = &self.local {
            let folder = local.join(run.name());
            let place = folder.display().to_string();
            // The system takes a while for many gigabytes.
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

/// Removes a folder. A machine that has not heard yet that the run is over may put an object while it is emptied, and is
/// then waited for.
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

/// What is not there is removed.
fn gone(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Reads again where this machine could not: a network file system refuses for a moment what was written anew just then
/// (ESTALE).
async fn some_times<T>(
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

/// Why a part of a file cannot be had.
enum PartError {
    /// The object is lost, in this way.
    Lost(&'static str),
    /// This machine cannot read it.
    Here(String),
}

/// Reads parts of files. Which one failed comes with the reason.
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

/// Reads a part of a file, or what there is of it. The file may be the one that is open.
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
    // How long it is to be was said by another machine.
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
    fn an_object_is_what_its_name_says() {
        let desk = tempfile::tempdir().unwrap();
        let folder = desk.path().join("objects");
        let objects = Objects::open(folder.to_str().unwrap()).unwrap();
        let (run, other) = (RunId([1; 32]), RunId([2; 32]));
        wait(async {
            let of = put(&objects, &run, b"some bytes").await;
            assert_eq!(objects.get(&run, &of).await.unwrap(), b"some bytes");
            let told = objects.get(&other, &of).await.unwrap_err().to_string();
            assert!(told.contains("it is not there"), "{told}");
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
            let told = objects.get(&run, &of).await.unwrap_err().to_string();
            assert!(told.contains("others than they were"), "{told}");
            std::fs::write(&path, b"some").unwrap();
            let told = objects.get(&run, &of).await.unwrap_err().to_string();
            assert!(told.contains("it has 4 bytes and not 10"), "{told}");
            // What is damaged is mended by writing it again.
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

    /// What a machine cannot read for another reason than that it is not there is no lost object.
    #[test]
    fn a_broken_folder_is_no_lost_object() {
        let desk = tempfile::tempdir().unwrap();
        let folder = desk.path().to_owned();
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
            // What is no folder has no files: neither is there nor is it missing.
            std::fs::write(&good, "").unwrap();
            let broken = objects.get(&run, &of).await.unwrap_err();
            assert!(matches!(broken, QueueError::Store(_)), "{broken:?}");
            let (_, broken) = objects.parts(&run, &parts).await.unwrap_err();
            assert!(matches!(broken, QueueError::Store(_)), "{broken:?}");
            let (read, mended) = tokio::join!(objects.get(&run, &of), async {
                tokio::time::sleep(BETWEEN_READS / 2).await;
                std::fs::remove_file(&good).and_then(|()| std::fs::rename(&aside, &good))
            });
            mended.unwrap();
            assert_eq!(read.unwrap(), b"some bytes");
        });
    }

    #[test]
    fn a_folder_into_which_machines_still_put_objects_is_removed_a_little_later() {
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
    fn a_store_that_is_not_known_is_named() {
        let told = Objects::open("gopher://a/b").map(|_| ()).unwrap_err().to_string();
        assert!(told.contains("gopher"), "{told}");
    }
}
