//! The answer of each path, and the headers of all answers.

use crate::Board;
use crate::access::{Admission, RequestClaims, Token, admit};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};

const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
/// The content type of the metrics, with the version of Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The path of the state. Its requests show that a page is open.
pub(crate) const STATE: &str = "/state.json";

/// The files of the page: path, type and contents.
const PARTS: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page/page.js")),
    ("/charts.js", "text/javascript; charset=utf-8", include_str!("page/charts.js")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// Headers of all answers: the page may load from this server only, nothing is cached, and no other page may frame it.
const ALWAYS: &[(HeaderName, &str)] = &[
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::CACHE_CONTROL, "no-store"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
];

const NO_TOKEN: &str = "This page needs a token. Open the address that apus printed when it started, which ends in \
    /?token=..., or send the header 'Authorization: Bearer TOKEN'.\n";

const OTHER_NAME: &str = "This page is only for browsers on the machine it runs on. Open it at 127.0.0.1 or \
                          localhost.\n";

/// An answer.
pub(crate) type Answer = Response<Full<Bytes>>;

/// Answers a request; ignores its body.
pub(crate) fn answer<B>(token: Option<&Token>, board: &dyn Board, request: &Request<B>) -> Answer {
    let text = |name: HeaderName| text(request.headers(), name);
    let path = request.uri().path();
    let shown = RequestClaims {
        host: text(header::HOST),
        path,
        query: request.uri().query(),
        cookie: text(header::COOKIE),
        authorization: text(header::AUTHORIZATION),
    };
    match admit(token, shown) {
        Admission::Welcome => {}
        Admission::OtherName => return with(StatusCode::MISDIRECTED_REQUEST, TEXT, OTHER_NAME),
        Admission::NoToken => {
            let mut answer = with(StatusCode::UNAUTHORIZED, TEXT, NO_TOKEN);
            let how = HeaderValue::from_static("Bearer");
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, how);
            return answer;
        }
        Admission::Keep(cookie) => return kept(&cookie),
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut answer = with(StatusCode::METHOD_NOT_ALLOWED, TEXT, "This page is read-only.\n");
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    match path {
        STATE => with(StatusCode::OK, "application/json", board.state()),
        "/metrics" => with(StatusCode::OK, METRICS, board.metrics()),
        _ => match PARTS.iter().find(|(name, ..)| *name == path) {
            Some((_, kind, part)) => with(StatusCode::OK, kind, *part),
            None => with(StatusCode::NOT_FOUND, TEXT, "Page not found.\n"),
        },
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn with(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in ALWAYS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// Redirects the browser to the page, without the token in its address.
fn kept(cookie: &str) -> Answer {
    let mut answer = with(StatusCode::SEE_OTHER, TEXT, "");
    let headers = answer.headers_mut();
    headers.insert(header::LOCATION, HeaderValue::from_static("/"));
    // Always true: the characters of a token are valid in a header.
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        headers.insert(header::SET_COOKIE, cookie);
    }
    answer
}
