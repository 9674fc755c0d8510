//! Access control: [`Token`], and the host names that a server on a loopback address accepts.
//!
//! Without a token, a server is only for browsers on this machine. A foreign page could let its own host name resolve
//! to 127.0.0.1 and read the answers as its own (DNS rebinding), so the browser must use a host name of this machine.
//! With a token the host name does not matter: a foreign page does not have the token.

use std::net::IpAddr;

/// Minimum length of a token: a shorter one could be guessed.
const LENGTH_MIN: usize = 16;

/// Maximum length of a token: a longer one is not safer.
const LENGTH_MAX: usize = 128;

/// The cookie in which a browser keeps the token.
const COOKIE: &str = "apus_token";

/// A secret that a browser or Prometheus must present.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// An invalid token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token is too short or too long.
    #[error("a token has {LENGTH_MIN} to {LENGTH_MAX} characters, this one has {0}")]
    Length(usize),
    /// The token has a character that needs escaping in an address.
    #[error("a token may only contain letters, digits, - and _")]
    Character,
}

impl Token {
    /// Checks a token chosen by the user.
    ///
    /// # Errors
    /// If it could be guessed, or cannot be part of an address.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let length = text.chars().count();
        if !(LENGTH_MIN..=LENGTH_MAX).contains(&length) {
            return Err(TokenError::Length(length));
        }
        match text.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
            true => Ok(Self(text.to_owned())),
            false => Err(TokenError::Character),
        }
    }

    /// A token of 128 random bits.
    pub fn of_random(bytes: [u8; 16]) -> Self {
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The token as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares tokens in constant time for a given length.
    fn is(&self, shown: &str) -> bool {
        let pairs = self.0.bytes().zip(shown.bytes());
        self.0.len() == shown.len() && pairs.fold(0, |all, (a, b)| all | (a ^ b)) == 0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The parts of a request that determine access.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestClaims<'a> {
    /// The host name and port that the request was sent to.
    pub(crate) host: Option<&'a str>,
    pub(crate) path: &'a str,
    pub(crate) query: Option<&'a str>,
    pub(crate) cookie: Option<&'a str>,
    pub(crate) authorization: Option<&'a str>,
}

/// Whether a request is admitted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Welcome,
    /// The address contained the token: the browser must store it in a cookie, with this header, and reload without it.
    Keep(String),
    /// The token is missing or wrong.
    NoToken,
    /// The host name is not one of this machine's.
    OtherName,
}

pub(crate) fn admit(token: Option<&Token>, shown: RequestClaims<'_>) -> Admission {
    let Some(token) = token else {
        return match shown.host.is_some_and(is_of_this_machine) {
            true => Admission::Welcome,
            false => Admission::OtherName,
        };
    };
    let pairs = shown.query.into_iter().flat_map(|query| query.split('&'));
    let in_query = pairs.filter_map(|pair| pair.strip_prefix("token=")).any(|it| token.is(it));
    if in_query && shown.path == "/" {
        let cookie = format!("{COOKIE}={}; HttpOnly; SameSite=Strict; Path=/", token.0);
        return Admission::Keep(cookie);
    }
    let cookies = shown.cookie.into_iter().flat_map(|all| all.split(';'));
    let cookies = cookies.filter_map(|one| one.trim().split_once('='));
    let in_cookie = cookies.filter(|(name, _)| *name == COOKIE).any(|(_, it)| token.is(it));
    let bearer = shown.authorization.and_then(|it| it.split_once(' '));
    let in_header =
        bearer.is_some_and(|(kind, it)| kind.eq_ignore_ascii_case("bearer") && token.is(it.trim()));
    if in_cookie || in_header { Admission::Welcome } else { Admission::NoToken }
}

/// Whether a host name, with or without a port, always means this machine.
fn is_of_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, port)) if port.is_empty() || port.starts_with(':') => name,
            _ => return false,
        },
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token() -> Token {
        Token::new("0123456789abcdef").unwrap()
    }

    fn to(host: &str) -> Admission {
        admit(
            None,
            RequestClaims { host: Some(host), path: "/state.json", ..RequestClaims::default() },
        )
    }

    #[test]
    fn without_a_token_only_names_of_this_machine_are_admitted() {
        for host in ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "127.9.9.9", "[::1]:80", "[::1]"]
        {
            assert_eq!(to(host), Admission::Welcome, "{host}");
        }
        for host in
            ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]", "[::1]x", "", "[::1"]
        {
            assert_eq!(to(host), Admission::OtherName, "{host}");
        }
        assert_eq!(
            admit(None, RequestClaims { path: "/", ..RequestClaims::default() }),
            Admission::OtherName
        );
    }

    #[test]
    fn a_token_is_taken_from_address_cookie_and_header() {
        let token = token();
        let bare = RequestClaims { path: "/", host: Some("localhost"), ..RequestClaims::default() };
        let admit = |shown| admit(Some(&token), shown);
        assert_eq!(admit(bare), Admission::NoToken);
        let kept = admit(RequestClaims { query: Some("a=b&token=0123456789abcdef"), ..bare });
        let Admission::Keep(cookie) = kept else { panic!("{kept:?}") };
        let pair = cookie.split(';').next().unwrap();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        let with = format!("other=1; {pair}");
        assert_eq!(admit(RequestClaims { cookie: Some(&with), ..bare }), Admission::Welcome);
        for header in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef"] {
            assert_eq!(
                admit(RequestClaims { authorization: Some(header), ..bare }),
                Admission::Welcome
            );
        }
        // Only the page accepts the token in its address.
        let metrics =
            RequestClaims { path: "/metrics", query: Some("token=0123456789abcdef"), ..bare };
        assert_eq!(admit(metrics), Admission::NoToken);
    }

    #[test]
    fn short_and_odd_tokens_are_refused() {
        assert_eq!(Token::new("short"), Err(TokenError::Length(5)));
        assert_eq!(Token::new("0123456789abcde;"), Err(TokenError::Character));
        assert_eq!(Token::of_random([0xab; 16]).as_str(), "ab".repeat(16));
        assert!(!format!("{:?}", token()).contains("0123"));
    }

    proptest! {
        #[test]
        fn only_the_token_is_admitted(other in "[0-9a-f]{0,20}") {
            let token = token();
            let shown = |query| RequestClaims { path: "/", query: Some(query), ..RequestClaims::default() };
            let query = format!("token={other}");
            let welcome = admit(Some(&token), shown(&query)) != Admission::NoToken;
            prop_assert_eq!(welcome, other == token.as_str());
        }

        #[test]
        fn no_header_causes_a_panic(host in ".*", cookie in ".*", auth in ".*", query in ".*") {
            let shown = RequestClaims {
                host: Some(&host),
                path: "/",
                query: Some(&query),
                cookie: Some(&cookie),
                authorization: Some(&auth),
            };
            admit(None, shown);
            prop_assert_eq!(admit(Some(&token()), shown), Admission::NoToken);
        }
    }
}
