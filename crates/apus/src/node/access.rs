//! [`reach`]: what a path leads to, and where it leads nowhere, whether that is so because nothing is there,
//! because a link dangles, or because this user may not look.

use crate::failure::Failure;
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What a path leads to; none where there is nothing.
///
/// # Errors
/// Where that cannot be known, or a link on the way leads to nothing.
pub(crate) fn reach(path: &Path) -> Result<Option<Metadata>, Failure> {
    let error = match fs::metadata(path) {
        Ok(found) => return Ok(Some(found)),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::NotFound => match path.ancestors().find_map(dangling) {
            Some(failure) => Err(failure),
            None => Ok(None),
        },
        // A file stands where a folder would have to be.
        ErrorKind::NotADirectory => Ok(None),
        ErrorKind::PermissionDenied => {
            let closed =
                path.ancestors().skip(1).find_map(|folder| Some((folder, folder.metadata().ok()?)));
            Err(match closed {
                Some((folder, found)) => Failure::io(
                    folder,
                    format!(
                        "it belongs to user {uid}, and this user may not look into it for {}: run this as the \
                         user that the node runs as (sudo -u '#{uid}'), or let this one in (chmod)",
                        path.display(),
                        uid = found.uid()
                    ),
                ),
                None => Failure::opening(path, &error),
            })
        }
        _ => Err(Failure::io(path, error)),
    }
}

/// Says of a link that leads to nothing where it leads.
fn dangling(path: &Path) -> Option<Failure> {
    let target = fs::read_link(path).ok()?;
    let is_gone = fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    is_gone.then(|| {
        let what = format!(
            "this is a link to {}, which is not there: mount the disk that it is on, or restore it",
            target.display()
        );
        Failure::io(path, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_that_dangles_is_told_from_nothing() {
        let desk = tempfile::tempdir().unwrap();
        let path = |name: &str| desk.path().join(name);
        assert!(reach(&path("nothing/at/all")).unwrap().is_none());
        fs::write(path("file"), "").unwrap();
        assert!(reach(&path("file")).unwrap().is_some());
        assert!(reach(&path("file/within")).unwrap().is_none());
        symlink("/not/there", path("link")).unwrap();
        for name in ["link", "link/blocks", "link/blocks/index"] {
            let said = reach(&path(name)).unwrap_err();
            assert_eq!(said.code, crate::failure::IO);
            assert!(
                said.message.contains("link: this is a link to /not/there"),
                "{}",
                said.message
            );
        }
    }
}
