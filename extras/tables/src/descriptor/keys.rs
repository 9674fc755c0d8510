//! Descriptors with keys: derived by the crate `miniscript`, or here if it lacks them.

use super::{KeyRange, Known, QueryError, hex, infer};
use crate::AddressKinds;
use crate::find::WantedScript;
use apus_chain::Network;
use apus_chain::keys_of_multisig;
use miniscript::bitcoin::bip32::{ChildNumber, DerivationPath};
use miniscript::bitcoin::hashes::{Hash, hash160, sha256};
use miniscript::bitcoin::secp256k1::{All, Secp256k1};
use miniscript::bitcoin::{NetworkKind, PublicKey, ScriptBuf};
use miniscript::descriptor::{
    DefiniteDescriptorKey, DescriptorPublicKey, ShInner, SinglePub, SinglePubKey,
};
use miniscript::{Descriptor, ForEachKey, TranslateErr, Translator};
use std::convert::Infallible;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The limit of keys in `multi()` that is not inside `sh()` or `wsh()` (Core `script/descriptor.cpp`, `ParseScript`).
const BARE_KEYS_MAX: usize = 3;

/// The scripts of `combo()` of a compressed key.
const COMBO_SCRIPTS: u64 = 4;

/// Returns the scripts of a descriptor without checksum.
pub(super) fn scripts(
    body: &str,
    network: Network,
    range: KeyRange,
    limit: usize,
    interrupt: &AtomicBool,
) -> Result<Vec<WantedScript>, QueryError> {
    let forms = forms(body)?;
    forms.iter().try_for_each(|form| form.expect_network(network))?;
    // An index takes much longer to derive than to count.
    let count: u64 = forms.iter().map(|form| form.scripts_in(range)).sum();
    if count > limit as u64 {
        return Err(QueryError::TooMany { count });
    }
    let deriver = Deriver { curve: Secp256k1::new(), kinds: AddressKinds::of(network) };
    let mut found = Vec::new();
    for form in forms {
        for index in form.indices(range) {
            if interrupt.load(Ordering::Relaxed) {
                return Err(QueryError::Interrupted);
            }
            deriver.derive(&form, index, &mut found)?;
        }
    }
    Ok(found)
}

/// A descriptor of a single path.
enum Form {
    Whole(Descriptor<DescriptorPublicKey>),
    /// `multi()` or `sortedmulti()` alone: the script behind `sh()` of it.
    Bare(Descriptor<DescriptorPublicKey>),
    /// The four scripts of one key, or two of an uncompressed key.
    Combo(DescriptorPublicKey),
    /// Taproot with this output key.
    RawTaproot(DescriptorPublicKey),
}

fn invalid(error: impl std::fmt::Display) -> QueryError {
    QueryError::Descriptor(error.to_string())
}

/// Parses a descriptor; one with `<0;1>` in its paths is several.
fn forms(body: &str) -> Result<Vec<Form>, QueryError> {
    let (name, argument) = body.split_once('(').unwrap_or_default();
    let argument = argument
        .strip_suffix(')')
        .ok_or_else(|| invalid("the descriptor lacks its last bracket"))?;
    let keys = || -> Result<_, QueryError> {
        Ok(DescriptorPublicKey::from_str(argument).map_err(invalid)?.into_single_keys())
    };
    let single = || match DescriptorPublicKey::from_str(argument) {
        Ok(DescriptorPublicKey::Single(single)) => Some(single.key),
        _ => None,
    };
    let whole = |text: &str| -> Result<_, QueryError> {
        let parsed = Descriptor::<DescriptorPublicKey>::from_str(text).map_err(invalid)?;
        parsed.into_single_descriptors().map_err(invalid)
    };
    Ok(match name {
        "combo" if matches!(single(), Some(SinglePubKey::XOnly(_))) => {
            return Err(invalid("combo() needs a whole key, not only its x: see tr() and rawtr()"));
        }
        "combo" => keys()?.into_iter().map(Form::Combo).collect(),
        "rawtr" if matches!(single(), Some(SinglePubKey::FullKey(key)) if !key.compressed) => {
            return Err(invalid("rawtr() takes no uncompressed key"));
        }
        "rawtr" => keys()?.into_iter().map(Form::RawTaproot).collect(),
        "multi" | "sortedmulti" => {
            let parsed = whole(&format!("sh({body})"))?;
            if parsed.iter().any(|it| it.iter_pk().count() > BARE_KEYS_MAX) {
                let what = "multi() alone has at most 3 keys: put it into sh() or wsh()";
                return Err(invalid(what));
            }
            parsed.into_iter().map(Form::Bare).collect()
        }
        _ => whole(body)?.into_iter().map(Form::Whole).collect(),
    })
}

impl Form {
    fn has_wildcard(&self) -> bool {
        match self {
            Self::Whole(it) | Self::Bare(it) => it.has_wildcard(),
            Self::Combo(key) | Self::RawTaproot(key) => key.has_wildcard(),
        }
    }

    /// Returns the indices to derive.
    fn indices(&self, range: KeyRange) -> RangeInclusive<u32> {
        range.first..=if self.has_wildcard() { range.last } else { range.first }
    }

    /// Returns how many scripts it has, at most.
    fn scripts_in(&self, range: KeyRange) -> u64 {
        let of_one = if matches!(self, Self::Combo(_)) { COMBO_SCRIPTS } else { 1 };
        self.indices(range).count() as u64 * of_one
    }

    /// Fails if an extended key belongs to another chain.
    fn expect_network(&self, network: Network) -> Result<(), QueryError> {
        let kind = if network == Network::Main { NetworkKind::Main } else { NetworkKind::Test };
        let fits = |key: &DescriptorPublicKey| key.xkey_network().is_none_or(|found| found == kind);
        let fits = match self {
            Self::Whole(it) | Self::Bare(it) => it.for_each_key(fits),
            Self::Combo(key) | Self::RawTaproot(key) => fits(key),
        };
        let (main, test) =
            ("the extended keys of main begin with xpub", "those of other chains with tpub");
        fits.then_some(()).ok_or_else(|| {
            invalid(format!("a key is of another chain than {network}: {main}, {test}"))
        })
    }
}

struct Deriver {
    curve: Secp256k1<All>,
    kinds: AddressKinds,
}

impl Deriver {
    /// Adds the scripts at an index.
    fn derive(
        &self,
        form: &Form,
        index: u32,
        found: &mut Vec<WantedScript>,
    ) -> Result<(), QueryError> {
        let mut known = Known::default();
        let scripts = match form {
            Form::Whole(it) => {
                let definite = it.at_derivation_index(index).map_err(invalid)?;
                vec![self.whole(&definite, &mut known)?]
            }
            Form::Bare(it) => {
                let definite = it.at_derivation_index(index).map_err(invalid)?;
                self.know_keys(&definite, &mut known);
                vec![self.inner(&definite)?]
            }
            Form::Combo(key) => {
                let key = key.clone().at_derivation_index(index).map_err(invalid)?;
                let public = self.know_key(&key, &mut known);
                combo(&public, &mut known)
            }
            Form::RawTaproot(key) => {
                let key = key.clone().at_derivation_index(index).map_err(invalid)?;
                let (x, _) = key.derive_public_key(&self.curve).inner.x_only_public_key();
                let text = format!("rawtr({})", self.x_only_text(&key));
                known.taproot.insert(x.serialize().to_vec(), text);
                vec![ScriptBuf::from_bytes([&[0x51, 32], &x.serialize()[..]].concat())]
            }
        };
        found.extend(scripts.into_iter().map(|script| {
            let script = script.into_bytes();
            let descriptor = super::with_checksum(&infer(&script, self.kinds, &known));
            WantedScript { script, descriptor }
        }));
        Ok(())
    }

    /// Returns the script of a descriptor, and notes the keys and scripts behind its hashes.
    fn whole(
        &self,
        definite: &Descriptor<DefiniteDescriptorKey>,
        known: &mut Known,
    ) -> Result<ScriptBuf, QueryError> {
        self.know_keys(definite, known);
        let script = match is_sorted(definite) {
            true => self.inner(definite)?.to_p2sh(),
            false => definite.derived_descriptor(&self.curve).script_pubkey(),
        };
        let is_x_only = matches!(definite, Descriptor::Tr(_));
        let text = definite.translate_pk(&mut KeyTexts { deriver: self, is_x_only });
        let text = format!("{:#}", text.map_err(untranslated)?);
        match definite {
            Descriptor::Tr(_) => drop(known.taproot.insert(script.as_bytes()[2..].to_vec(), text)),
            Descriptor::Sh(_) | Descriptor::Wsh(_) => {
                let inner = self.inner(definite)?;
                let program =
                    [&[0, 32], &sha256::Hash::hash(inner.as_bytes()).to_byte_array()[..]].concat();
                know_script(inner.as_bytes(), known);
                know_script(&program, known);
                known.otherwise = Some(text);
            }
            _ => known.otherwise = Some(text),
        }
        Ok(script)
    }

    /// Returns the script behind a hash.
    fn inner(&self, definite: &Descriptor<DefiniteDescriptorKey>) -> Result<ScriptBuf, QueryError> {
        let script = definite.derived_descriptor(&self.curve).explicit_script().map_err(invalid)?;
        Ok(if is_sorted(definite) { sorted(&script).unwrap_or(script) } else { script })
    }

    fn know_keys(&self, definite: &Descriptor<DefiniteDescriptorKey>, known: &mut Known) {
        for key in definite.iter_pk() {
            let public = self.know_key(&key, known);
            if public.compressed {
                // The script behind sh(wpkh(KEY)).
                let hash = hash160::Hash::hash(&public.to_bytes()).to_byte_array();
                know_script(&[&[0, 20], &hash[..]].concat(), known);
            }
        }
    }

    fn know_key(&self, key: &DefiniteDescriptorKey, known: &mut Known) -> PublicKey {
        let public = key.derive_public_key(&self.curve);
        let (bytes, text) = (public.to_bytes(), self.text(key, &public.to_bytes()));
        known.key_hashes.insert(hash160::Hash::hash(&bytes).to_byte_array().to_vec(), text.clone());
        known.keys.insert(bytes, text);
        public
    }

    /// Returns the text of a key with its origin: `[fingerprint/path]key`. A key without one is its own origin.
    fn text(&self, key: &DefiniteDescriptorKey, shown: &[u8]) -> String {
        let (fingerprint, path) = match key.as_descriptor_public_key() {
            // Core takes the fingerprint of the key with an even y.
            DescriptorPublicKey::Single(SinglePub {
                origin: None,
                key: SinglePubKey::XOnly(x),
            }) => {
                let even = [&[2], &x.serialize()[..]].concat();
                let [a, b, c, d, ..] = hash160::Hash::hash(&even).to_byte_array();
                (hex(&[a, b, c, d]), DerivationPath::default())
            }
            public => {
                let path = public.full_derivation_path().unwrap_or_default();
                (hex(public.master_fingerprint().as_bytes()), path)
            }
        };
        let steps: String = path.into_iter().map(step).collect();
        format!("[{fingerprint}{steps}]{}", hex(shown))
    }

    fn x_only_text(&self, key: &DefiniteDescriptorKey) -> String {
        let (x, _) = key.derive_public_key(&self.curve).inner.x_only_public_key();
        self.text(key, &x.serialize())
    }
}

/// Whether this is `sh(sortedmulti())`.
fn is_sorted(definite: &Descriptor<DefiniteDescriptorKey>) -> bool {
    matches!(definite, Descriptor::Sh(it) if matches!(it.as_inner(), ShInner::SortedMulti(_)))
}

/// Sorts the keys of a multisignature script as the script has them (Core `script/descriptor.cpp`,
/// `MultisigDescriptor`). The crate sorts uncompressed keys by their compressed form, which is another order.
fn sorted(script: &ScriptBuf) -> Option<ScriptBuf> {
    let script = script.as_bytes();
    let (_, mut keys) = keys_of_multisig(script)?;
    // Both numbers are one byte: 520 bytes have no room for more than 15 keys.
    let (number, rest) = script.split_first()?;
    let length: usize = keys.iter().map(|key| 1 + key.len()).sum();
    let end = rest.get(length..)?;
    keys.sort_unstable();
    let mut out = vec![*number];
    for key in keys {
        out.push(key.len() as u8);
        out.extend_from_slice(key);
    }
    out.extend_from_slice(end);
    Some(ScriptBuf::from_bytes(out))
}

fn know_script(script: &[u8], known: &mut Known) {
    let hashes = [
        hash160::Hash::hash(script).to_byte_array().to_vec(),
        sha256::Hash::hash(script).to_byte_array().to_vec(),
    ];
    hashes.into_iter().for_each(|hash| drop(known.scripts.insert(hash, script.to_vec())));
}

fn step(number: &ChildNumber) -> String {
    match number {
        ChildNumber::Normal { index } => format!("/{index}"),
        ChildNumber::Hardened { index } => format!("/{index}h"),
    }
}

/// Returns the scripts of `combo()`.
fn combo(public: &PublicKey, known: &mut Known) -> Vec<ScriptBuf> {
    let mut scripts =
        vec![ScriptBuf::new_p2pk(public), ScriptBuf::new_p2pkh(&public.pubkey_hash())];
    if let Ok(hash) = public.wpubkey_hash() {
        let program = ScriptBuf::new_p2wpkh(&hash);
        know_script(program.as_bytes(), known);
        scripts.extend([program.clone(), ScriptBuf::new_p2sh(&program.script_hash())]);
    }
    scripts
}

/// Writes keys as texts.
struct KeyTexts<'a> {
    deriver: &'a Deriver,
    is_x_only: bool,
}

impl Translator<DefiniteDescriptorKey> for KeyTexts<'_> {
    type TargetPk = String;
    type Error = Infallible;

    fn pk(&mut self, key: &DefiniteDescriptorKey) -> Result<String, Infallible> {
        Ok(match self.is_x_only {
            true => self.deriver.x_only_text(key),
            false => self.deriver.text(key, &key.derive_public_key(&self.deriver.curve).to_bytes()),
        })
    }

    fn sha256(&mut self, hash: &sha256::Hash) -> Result<String, Infallible> {
        Ok(hash.to_string())
    }

    fn hash256(&mut self, hash: &miniscript::hash256::Hash) -> Result<String, Infallible> {
        Ok(hash.to_string())
    }

    fn ripemd160(
        &mut self,
        hash: &miniscript::bitcoin::hashes::ripemd160::Hash,
    ) -> Result<String, Infallible> {
        Ok(hash.to_string())
    }

    fn hash160(&mut self, hash: &hash160::Hash) -> Result<String, Infallible> {
        Ok(hash.to_string())
    }
}

fn untranslated(error: TranslateErr<Infallible>) -> QueryError {
    invalid(error.into_outer_err())
}
