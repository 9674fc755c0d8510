//! Tests parsing of URLs and handling of passwords.

mod any {
    use crate::url::*;

    #[test]
    fn the_scheme_determines_the_kind_of_store() {
        let redis: StoreUrl = "redis://a:1/x".parse().unwrap();
        assert!(matches!(&redis, StoreUrl::Cluster(place) if place.name == "x"));
        let postgres: StoreUrl = "postgres://me@a/coins".parse().unwrap();
        assert!(matches!(&postgres, StoreUrl::Postgres(place) if place.database == "coins"));
        assert_eq!(redis.to_string(), "redis://a:1/x");
        assert_eq!(postgres.to_string(), "postgres://me@a:5432/coins/apus");
        assert_eq!("http://a".parse::<StoreUrl>(), Err(StoreUrlError::Scheme));
    }

    #[test]
    fn a_password_is_never_displayed() {
        assert!(!format!("{:?}", Password::new("secret")).contains("secret"));
    }

    #[test]
    fn a_password_goes_to_no_other_machine_without_tls() {
        let password = Password::new("secret");
        let may_have = |place: &str, password: &Password| {
            place.parse::<StoreUrl>().unwrap().may_have(password).map_err(|error| error.to_string())
        };
        for place in [
            "redis://127.0.0.1:1,localhost:2,[::1]:3/x",
            "rediss://192.0.2.1,far.example/x",
            "postgres://me@127.0.0.2/db",
            "postgres://me@far.example/db?sslmode=verify-full",
        ] {
            assert_eq!(may_have(place, &password), Ok(()), "{place}");
        }
        for place in [
            "redis://192.0.2.1/x",
            "redis://127.0.0.1,192.0.2.1/x",
            "redis://localhost.example/x",
            "postgres://me@192.0.2.1/db",
            "postgres://me@[2001:db8::1]/db?sslmode=disable",
        ] {
            let message = may_have(place, &password).unwrap_err();
            for word in ["rediss://", "sslmode=verify-full", "--coins-private-line"] {
                assert!(message.contains(word), "{place}: {message}");
            }
            assert!(!message.contains("secret"));
            assert_eq!(may_have(place, &password.clone().on_a_private_line()), Ok(()), "{place}");
        }
    }

    #[test]
    fn no_error_repeats_a_possible_password() {
        for text in [
            "secret",
            "redis:secret@a",
            "redis://a,secret!:1/x",
            "redis://me:secret/x",
            "redis://me:1:secret/x",
            "redis://a/x?pwd=secret",
            "redis://a?secret",
            "redis://a/x/secret",
            "redis://a/x#secret",
            "rediss://[secret",
            "postgres:secret@a",
            "postgres://secret!@a",
            "postgres://me;secret@a/db",
            "postgres://me:secret/db",
            "postgres://a,secret/db",
            "postgres://a/secret!",
            "postgres://a/db/x/secret",
            "postgres://a/db?pwd=secret",
            "postgres://a/db?sslmode=verify-full&pass=secret",
        ] {
            let error = text.parse::<StoreUrl>().expect_err(text);
            let message = format!("{error} {error:?}");
            assert!(!message.contains("secret"), "{text}: {message}");
        }
    }
}

mod cluster {
    use crate::url::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<ClusterUrl, StoreUrlError> {
        text.parse()
    }

    #[test]
    fn servers_and_names_are_parsed() {
        let place = |tls, nodes: &[(&str, u16)], name: &str| ClusterUrl {
            tls,
            user: None,
            nodes: nodes.iter().map(|(host, port)| ((*host).to_owned(), *port)).collect(),
            name: name.to_owned(),
        };
        let cases = [
            ("redis://a:7000", place(false, &[("a", 7000)], "apus")),
            ("redis://a:7000/", place(false, &[("a", 7000)], "apus")),
            ("rediss://a,b.c:1/main_2", place(true, &[("a", 6379), ("b.c", 1)], "main_2")),
            ("redis://[::1]:7,[fe80::1]/x", place(false, &[("::1", 7), ("fe80::1", 6379)], "x")),
            (
                "redis://me@a/x",
                ClusterUrl { user: Some("me".to_owned()), ..place(false, &[("a", 6379)], "x") },
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text).unwrap(), expected, "{text}");
            assert_eq!(read(&expected.to_string()).unwrap(), expected);
        }
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        for text in ["redis://:secret@a:1", "redis://u:secret@a", "redis://a?password=secret"] {
            let error = read(text).unwrap_err();
            assert_eq!(error, StoreUrlError::Password);
            assert!(!error.to_string().contains("secret"));
            assert!(error.to_string().contains("APUS_COINS_PASSWORD"));
        }
    }

    #[test]
    fn the_error_names_the_invalid_part() {
        for (text, error) in [
            ("redis://a:1,b,c d,e/x", StoreUrlError::Node(3)),
            ("redis://a/x?pwd=secret", StoreUrlError::Setting),
            ("redis://a/x.y", StoreUrlError::Name),
        ] {
            assert_eq!(read(text), Err(error));
        }
        assert!(StoreUrlError::Node(3).to_string().starts_with("server 3 "));
    }

    #[test]
    fn other_texts_are_not_urls() {
        let cases = [
            "",
            "a:1",
            "http://a",
            "redis://",
            "redis://a:",
            "redis://a:0",
            "redis://a:65536",
            "redis://a,,b",
            "redis://[::1",
            "redis://[::1]7",
            "redis://a b",
            "redis://::1",
            "redis://a/b c",
            "redis://a/b/c",
            "redis://a/name-that-is-longer-than-a-name-can-be",
        ];
        for text in cases {
            let error = read(text).unwrap_err();
            assert_ne!(error, StoreUrlError::Password, "{text}");
        }
    }

    proptest! {
        #[test]
        fn urls_round_trip(text in "rediss?://[a-z0-9.:,/@\\[\\]-]{0,40}") {
            if let Ok(place) = read(&text) {
                prop_assert_eq!(read(&place.to_string()), Ok(place));
            }
        }
    }
}

mod postgres {
    use crate::url::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<PostgresUrl, StoreUrlError> {
        text.parse()
    }

    #[test]
    fn servers_databases_and_names_are_parsed() {
        let place = |user: &str, host: &str, port, database: &str, name: &str, tls| PostgresUrl {
            tls,
            host: host.to_owned(),
            port,
            user: user.to_owned(),
            database: database.to_owned(),
            name: name.to_owned(),
        };
        let cases = [
            ("postgres://a", place("apus", "a", 5432, "apus", "apus", false)),
            ("postgresql://me@a:1/", place("me", "a", 1, "apus", "apus", false)),
            ("postgres://me@a/db?sslmode=disable", place("me", "a", 5432, "db", "apus", false)),
            ("postgres://me@/db/x?host=/run/pg", place("me", "/run/pg", 5432, "db", "x", false)),
            ("postgres://me@:7/db?host=/run", place("me", "/run", 7, "db", "apus", false)),
            (
                "postgres://[::1]:7/db/x?sslmode=verify-full",
                place("apus", "::1", 7, "db", "x", true),
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text).unwrap(), expected, "{text}");
            assert_eq!(read(&expected.to_string()).unwrap(), expected);
        }
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        for text in [
            "postgres://u:secret@a/db",
            "postgres://u:sec/ret@a/db",
            "postgres://u:se@cret@a/db",
            "postgres://a/db?password=secret",
            "postgres://a/db?sslmode=disable&password=secret",
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error, StoreUrlError::Password, "{text}");
            assert!(error.to_string().contains("APUS_COINS_PASSWORD"));
        }
    }

    #[test]
    fn the_error_names_the_invalid_part() {
        for (text, error) in [
            ("postgres://u@a,b/db", StoreUrlError::Host),
            ("postgres://u;v@a/db", StoreUrlError::User),
            ("postgres://u@a/d.b/x", StoreUrlError::Database),
            ("postgres://u@a/db/x.y", StoreUrlError::Name),
            ("postgres://u@a/db/x?pwd=secret", StoreUrlError::Setting),
        ] {
            assert_eq!(read(text), Err(error));
        }
    }

    #[test]
    fn other_texts_are_not_urls() {
        for text in [
            "postgres://",
            "postgres:a",
            "postgres://@a",
            "postgres://u@",
            "postgres://u@a:0/db",
            "postgres://u@a,b/db",
            "postgres://u@a/d b",
            "postgres://u@a/db/x/y",
            "postgres://u@a/db/\"; DROP SCHEMA public",
            "postgres://u@a/db?sslmode=require",
            "postgres://u@a/db?host=/run",
            "postgres://u@/db?host=run",
            "postgres://u@/db?host=/run;x",
            "postgres://u@:0/db?host=/run",
            "postgres://u@a/db?sslmode=verify-full&x=1",
        ] {
            let error = read(text).unwrap_err();
            assert_ne!(error, StoreUrlError::Password, "{text}");
        }
    }

    proptest! {
        #[test]
        fn urls_round_trip(text in "postgres://[a-z0-9.:,/@?=\\[\\]-]{0,40}") {
            if let Ok(place) = read(&text) {
                prop_assert_eq!(read(&place.to_string()), Ok(place));
            }
        }
    }
}
