//! Who may look: [`Token`], and which names a server on a loopback address goes by.
//!
//! Without a token a server is for browsers of this machine alone. A page from elsewhere could have its own name
//! resolve to 127.0.0.1 and read what is there as its own, so the name that the browser used has to be one of this
//! machine's. With a token the name does not matter: the page from elsewhere lacks the token.

use std::net::IpAddr;

/// Fewer characters could be guessed.
const LENGTH_MIN: usize = 16;

/// More are of no use.
const LENGTH_MAX: usize = 128;

/// The cookie in which a browser keeps the token.
const COOKIE: &str = "apus_token";

/// A secret that a browser, or Prometheus, has to show.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// What is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is too short or too long.
    #[error("a token has {LENGTH_MIN} to {LENGTH_MAX} characters, and this one {0}")]
    Length(usize),
    /// It would have to be written otherwise in an address.
    #[error("a token has letters, digits, - and _ alone")]
    Character,
}

impl Token {
    /// A token that the user chose.
    ///
    /// # Errors
    /// When it could be guessed, or not be part of an address.
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

    /// As people have to give it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Takes as long for a wrong one whose beginning is right as for any other of that length.
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

/// What a request shows of itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestClaims<'a> {
    /// The name and port that it was sent to.
    pub(crate) host: Option<&'a str>,
    pub(crate) path: &'a str,
    pub(crate) query: Option<&'a str>,
    pub(crate) cookie: Option<&'a str>,
    pub(crate) authorization: Option<&'a str>,
}

/// Whether it may see what it asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Welcome,
    /// The address had the token in it: the browser is to keep it in a cookie, and forget the address.
    Keep(String),
    /// It has no token, or a wrong one.
    NoToken,
    /// It was sent to a name that is not this machine's.
    OtherName,
}

pub(crate) fn judge(token: Option<&Token>, shown: RequestClaims<'_>) -> Admission {
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

/// Whether a name, with a port or without, can be no other machine's.
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
        judge(
            None,
            RequestClaims { host: Some(host), path: "/state.json", ..RequestClaims::default() },
        )
    }

    #[test]
    fn without_a_token_only_names_of_this_machine_are_heard() {
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
            judge(None, RequestClaims { path: "/", ..RequestClaims::default() }),
            Admission::OtherName
        );
    }

    #[test]
    fn a_token_is_taken_from_address_cookie_and_header() {
        let token = token();
        let bare = RequestClaims { path: "/", host: Some("localhost"), ..RequestClaims::default() };
        let judge = |shown| judge(Some(&token), shown);
        assert_eq!(judge(bare), Admission::NoToken);
        let kept = judge(RequestClaims { query: Some("a=b&token=0123456789abcdef"), ..bare });
        let Admission::Keep(cookie) = kept else { panic!("{kept:?}") };
        let pair = cookie.split(';').next().unwrap();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        let with = format!("other=1; {pair}");
        assert_eq!(judge(RequestClaims { cookie: Some(&with), ..bare }), Admission::Welcome);
        for header in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef"] {
            assert_eq!(
                judge(RequestClaims { authorization: Some(header), ..bare }),
                Admission::Welcome
            );
        }
        // Elsewhere than at the page an address is no place for it.
        let metrics =
            RequestClaims { path: "/metrics", query: Some("token=0123456789abcdef"), ..bare };
        assert_eq!(judge(metrics), Admission::NoToken);
    }

    #[test]
    fn what_is_too_short_or_strange_is_no_token() {
        assert_eq!(Token::new("short"), Err(TokenError::Length(5)));
        assert_eq!(Token::new("0123456789abcde;"), Err(TokenError::Character));
        assert_eq!(Token::of_random([0xab; 16]).as_str(), "ab".repeat(16));
        assert!(!format!("{:?}", token()).contains("0123"));
    }

    proptest! {
        #[test]
        fn nothing_but_the_token_is_the_token(other in "[0-9a-f]{0,20}") {
            let token = token();
            let shown = |query| RequestClaims { path: "/", query: Some(query), ..RequestClaims::default() };
            let query = format!("token={other}");
            let welcome = judge(Some(&token), shown(&query)) != Admission::NoToken;
            prop_assert_eq!(welcome, other == token.as_str());
        }

        #[test]
        fn no_header_is_a_panic(host in ".*", cookie in ".*", auth in ".*", query in ".*") {
            let shown = RequestClaims {
                host: Some(&host),
                path: "/",
                query: Some(&query),
                cookie: Some(&cookie),
                authorization: Some(&auth),
            };
            judge(None, shown);
            prop_assert_eq!(judge(Some(&token()), shown), Admission::NoToken);
        }
    }
}
