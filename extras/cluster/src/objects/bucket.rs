//! A bucket of S3, or of what speaks like it: how it is opened, and what its answers mean.
//!
//! Keys, region and endpoint stand in the environment, as the tools of its maker have it, and nowhere else: no address
//! with a secret in it is taken, and of what a server says only its code is told.

use crate::options::{LinkError, chain};
use apus_jobs::QueueError;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, Error, ObjectStore, RetryConfig};
use std::sync::Arc;
use std::time::Duration;

/// A request that takes longer is given up: a gibibyte over a line of 30 Mbit/s takes no longer.
const REQUEST_TIMEOUT: &str = "300 seconds";

/// How long a request is tried again here. Its caller is more patient, and sees an interrupt.
const TRIES: RetryConfig = RetryConfig {
    backoff: BackoffConfig {
        init_backoff: Duration::from_millis(50),
        max_backoff: Duration::from_secs(1),
        base: 2.0,
    },
    max_retries: 4,
    retry_timeout: Duration::from_secs(10),
};

/// Of what is told of an error, no more characters than these.
const TOLD_MAX: usize = 400;

const KEYS: &str = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";

/// Opens `s3://BUCKET/FOLDER`.
pub(super) fn open(place: &str) -> Result<(Arc<dyn ObjectStore>, Path), LinkError> {
    let usage = |what: &str| LinkError::Usage(format!("--objects: {what}"));
    if place.contains(['@', '?', '#']) {
        // It may have a secret in it, and is not repeated.
        return Err(usage(&format!(
            "takes s3://BUCKET/FOLDER and nothing else: others on this machine see command lines. Give the keys in \
             the environment, as {KEYS}"
        )));
    }
    let url = url::Url::parse(place).map_err(|error| usage(&format!("{place}: {error}")))?;
    if url.scheme() != "s3" {
        return Err(usage(&format!(
            "{place}: {}: is not known; name a folder that all machines see, or s3://BUCKET/FOLDER",
            url.scheme()
        )));
    }
    let bucket = url.host_str().filter(|bucket| !bucket.is_empty());
    let bucket = bucket.ok_or_else(|| usage(&format!("{place}: there is no bucket in it")))?;
    let root = Path::from_url_path(url.path())
        .map_err(|error| usage(&format!("{place}: the folder: {error}")))?;
    // The cryptography that the rest of the program has. It is chosen already where this is not the first bucket.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(TRIES);
    let is_set = |name: &str| std::env::var_os(name).is_some();
    if !is_set("AWS_TIMEOUT") {
        let timeout = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
        builder = builder.with_config(timeout, REQUEST_TIMEOUT);
    }
    let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    let endpoint = endpoint.iter().find_map(|name| std::env::var(name).ok());
    // A server without TLS has to be asked for by name, and that is it.
    if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
        builder = builder.with_allow_http(true);
    }
    let store = builder
        .build()
        .map_err(|error| LinkError::Objects { place: place.to_owned(), what: told(&error) })?;
    Ok((Arc::new(store), root))
}

/// What an error of a bucket means: whether the object is lost, the store is away, or refuses us.
pub(super) fn failed(error: Error, named: impl Fn(String) -> String) -> QueueError {
    let text = chain(&error);
    let code = code(&text);
    if code.as_deref() == Some("NoSuchBucket") {
        return QueueError::Refused(named(
            "there is no such bucket: make it, or correct its name or AWS_ENDPOINT".to_owned(),
        ));
    }
    // Not every request has an error of its own for them.
    let refuses = matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. })
        || ["403 Forbidden", "401 Unauthorized"].iter().any(|status| text.contains(status));
    match error {
        // A key that is not known may be said to be "not found" as well.
        Error::NotFound { .. } if code.as_deref().is_none_or(|code| code == "NoSuchKey") => {
            QueueError::Object(named(super::NOT_THERE.to_owned()))
        }
        _ if refuses => {
            let code = code.map_or_else(String::new, |code| format!(" ({code})"));
            QueueError::Refused(named(format!(
                "the store refuses the credentials{code}: see to {KEYS} in the environment"
            )))
        }
        error => QueueError::Away(named(told(&error))),
    }
}

/// An error for people, without what a server says at length.
fn told(error: &Error) -> String {
    let text = chain(error);
    let short: String = match text.split_once('<') {
        Some((before, body)) => match code(body) {
            Some(code) => format!("{} {code}", before.trim_end_matches([' ', ':'])),
            None => before.trim_end_matches([' ', ':']).to_owned(),
        },
        None => text,
    };
    short.chars().filter(|c| !c.is_control()).take(TOLD_MAX).collect()
}

/// The code in what a server says.
fn code(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_code = !code.is_empty() && code.chars().all(|c| c.is_ascii_alphanumeric());
    is_code.then(|| code.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_stands_in_an_address() {
        for place in ["s3://key:secret@bucket/a", "s3://bucket/a?X-Amz-Signature=secret"] {
            let told = open(place).map(drop).unwrap_err().to_string();
            assert!(told.contains("AWS_SECRET_ACCESS_KEY") && !told.contains("secret@"), "{told}");
            assert!(!told.contains("=secret"), "{told}");
        }
        for place in ["gopher://a/b", "s3:///a", "s3://"] {
            assert!(open(place).is_err(), "{place}");
        }
    }

    #[test]
    fn of_what_a_server_says_its_code_is_told() {
        let body = "<Error><Code>SlowDown</Code><Message>key AKIA</Message></Error>";
        let said = |text: &str| Error::Generic { store: "S3", source: text.to_owned().into() };
        let named = |what: String| format!("s3://b: {what}");
        let told = failed(said(&format!("503: {body}")), named);
        assert!(matches!(&told, QueueError::Away(what) if what.contains("503 SlowDown")), "{told}");
        assert!(!told.to_string().contains("AKIA"), "{told}");
        let source = format!("403 Forbidden: {body}").into();
        let told = failed(Error::PermissionDenied { path: "a".to_owned(), source }, named);
        assert!(
            matches!(&told, QueueError::Refused(what) if what.contains("(SlowDown)")),
            "{told}"
        );
        assert!(!told.to_string().contains("AKIA"), "{told}");
    }
}
