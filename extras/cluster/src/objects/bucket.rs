//! Opens an S3 bucket, or one of a compatible service, and interprets its errors.
//!
//! Keys, region and endpoint come only from the environment, with the variables of the AWS tools. An address with a
//! secret is refused, and of a server's reply only the error code is shown.

use crate::options::{LinkError, chain};
use apus_jobs::QueueError;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, Error, ObjectStore, RetryConfig};
use std::sync::Arc;
use std::time::Duration;

/// Timeout of a request: enough for 1 GiB over 30 Mbit/s.
const REQUEST_TIMEOUT: &str = "300 seconds";

/// Short retries of a request. The caller retries for longer, and stops on an interrupt.
const TRIES: RetryConfig = RetryConfig {
    backoff: BackoffConfig {
        init_backoff: Duration::from_millis(50),
        max_backoff: Duration::from_secs(1),
        base: 2.0,
    },
    max_retries: 4,
    retry_timeout: Duration::from_secs(10),
};

/// Maximum length of a shown error, in characters.
const SHOWN_MAX: usize = 400;

const KEYS: &str = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";

/// Opens `s3://BUCKET/FOLDER`.
pub(super) fn open(place: &str) -> Result<(Arc<dyn ObjectStore>, Path), LinkError> {
    let usage = |what: &str| LinkError::Usage(format!("--objects: {what}"));
    if place.contains(['@', '?', '#']) {
        // Do not repeat the address, which may contain a secret.
        return Err(usage(&format!(
            "takes only s3://BUCKET/FOLDER, because other users of this machine can see command lines. Set the keys \
             in the environment, as {KEYS}"
        )));
    }
    let url = url::Url::parse(place).map_err(|error| usage(&format!("{place}: {error}")))?;
    if url.scheme() != "s3" {
        return Err(usage(&format!(
            "{place}: unknown scheme {}: give a folder that all machines see, or s3://BUCKET/FOLDER",
            url.scheme()
        )));
    }
    let bucket = url.host_str().filter(|bucket| !bucket.is_empty());
    let bucket = bucket.ok_or_else(|| usage(&format!("{place}: the bucket is missing")))?;
    let root = Path::from_url_path(url.path())
        .map_err(|error| usage(&format!("{place}: the folder: {error}")))?;
    // Install the provider that the rest of the program uses. This fails for any bucket but the first, which does not
    // matter.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(TRIES);
    let is_set = |name: &str| std::env::var_os(name).is_some();
    if !is_set("AWS_TIMEOUT") {
        let timeout = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
        builder = builder.with_config(timeout, REQUEST_TIMEOUT);
    }
    let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    let endpoint = endpoint.iter().find_map(|name| std::env::var(name).ok());
    // An explicit http:// endpoint is the user's consent to a server without TLS.
    if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
        builder = builder.with_allow_http(true);
    }
    let store = builder
        .build()
        .map_err(|error| LinkError::Objects { place: place.to_owned(), what: shown(&error) })?;
    Ok((Arc::new(store), root))
}

/// Interprets an error of a bucket: the object is lost, or the store is unreachable or refuses us.
pub(super) fn failed(error: Error, named: impl Fn(String) -> String) -> QueueError {
    let text = chain(&error);
    let code = code(&text);
    if code.as_deref() == Some("NoSuchBucket") {
        return QueueError::Refused(named(
            "the bucket does not exist. Create it, or correct its name or AWS_ENDPOINT".to_owned(),
        ));
    }
    // Not every request reports a refusal with these errors.
    let refuses = matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. })
        || ["403 Forbidden", "401 Unauthorized"].iter().any(|status| text.contains(status));
    match error {
        // An unknown access key may be reported as "not found" as well.
        Error::NotFound { .. } if code.as_deref().is_none_or(|code| code == "NoSuchKey") => {
            QueueError::Object(named(super::NOT_THERE.to_owned()))
        }
        _ if refuses => {
            let code = code.map_or_else(String::new, |code| format!(" ({code})"));
            QueueError::Refused(named(format!(
                "the store refuses the credentials{code}. Check {KEYS} in the environment"
            )))
        }
        error => QueueError::Away(named(shown(&error))),
    }
}

/// An error for people, without the body of the server's reply.
fn shown(error: &Error) -> String {
    let text = chain(error);
    let short: String = match text.split_once('<') {
        Some((before, body)) => match code(body) {
            Some(code) => format!("{} {code}", before.trim_end_matches([' ', ':'])),
            None => before.trim_end_matches([' ', ':']).to_owned(),
        },
        None => text,
    };
    short.chars().filter(|c| !c.is_control()).take(SHOWN_MAX).collect()
}

/// The error code in a server's reply.
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
    fn secrets_in_addresses_are_refused() {
        for place in ["s3://key:secret@bucket/a", "s3://bucket/a?X-Amz-Signature=secret"] {
            let error = open(place).map(drop).unwrap_err().to_string();
            assert!(
                error.contains("AWS_SECRET_ACCESS_KEY") && !error.contains("secret@"),
                "{error}"
            );
            assert!(!error.contains("=secret"), "{error}");
        }
        for place in ["gopher://a/b", "s3:///a", "s3://"] {
            assert!(open(place).is_err(), "{place}");
        }
    }

    #[test]
    fn only_the_code_of_a_reply_is_shown() {
        let body = "<Error><Code>SlowDown</Code><Message>key AKIA</Message></Error>";
        let reply = |text: &str| Error::Generic { store: "S3", source: text.to_owned().into() };
        let named = |what: String| format!("s3://b: {what}");
        let error = failed(reply(&format!("503: {body}")), named);
        assert!(
            matches!(&error, QueueError::Away(what) if what.contains("503 SlowDown")),
            "{error}"
        );
        assert!(!error.to_string().contains("AKIA"), "{error}");
        let source = format!("403 Forbidden: {body}").into();
        let error = failed(Error::PermissionDenied { path: "a".to_owned(), source }, named);
        assert!(
            matches!(&error, QueueError::Refused(what) if what.contains("(SlowDown)")),
            "{error}"
        );
        assert!(!error.to_string().contains("AKIA"), "{error}");
    }
}
