//! What each path answers, and the headers that all answers have.

use crate::Board;
use crate::access::{Admission, RequestClaims, Token, judge};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};

const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
/// The version is that of Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The path of the state, by whose requests an open page is known.
pub(crate) const STATE: &str = "/state.json";

/// The page's parts.
const PARTS: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page/page.js")),
    ("/charts.js", "text/javascript; charset=utf-8", include_str!("page/charts.js")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// Nothing but this server is asked for anything, nothing is stored, and no other page may frame this one.
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

const NO_TOKEN: &str = "This page needs the token that the run was started with: open the address that the run \
                        wrote, which ends in /?token=..., or send the header 'Authorization: Bearer TOKEN'.\n";

const OTHER_NAME: &str = "This page is for browsers on the machine that it runs on: ask for it at 127.0.0.1 or \
                          localhost.\n";

/// An answer.
pub(crate) type Answer = Response<Full<Bytes>>;

/// The answer to a request, whose body is of no interest.
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
    match judge(token, shown) {
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
        let mut answer = with(StatusCode::METHOD_NOT_ALLOWED, TEXT, "This page is to look at.\n");
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    match path {
        STATE => with(StatusCode::OK, "application/json", board.state()),
        "/metrics" => with(StatusCode::OK, METRICS, board.metrics()),
        _ => match PARTS.iter().find(|(name, ..)| *name == path) {
            Some((_, kind, part)) => with(StatusCode::OK, kind, *part),
            None => with(StatusCode::NOT_FOUND, TEXT, "There is no such page here.\n"),
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

/// Sends the browser on to the page without the token in its address.
fn kept(cookie: &str) -> Answer {
    let mut answer = with(StatusCode::SEE_OTHER, TEXT, "");
    let headers = answer.headers_mut();
    headers.insert(header::LOCATION, HeaderValue::from_static("/"));
    // A token is made of characters that every header may have.
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        headers.insert(header::SET_COOKIE, cookie);
    }
    answer
}
