//! The five chains' parameters, from Core's `kernel/chainparams.cpp`; the BIP-30 parameters are from
//! `validation.cpp`.
//!
//! Hashes are in display order and parsed at compile time: a bad digit does not compile.

use super::{AssumeUtxo, KnownBlock, Network, Params, SignetMagic};
use crate::hashes::{BlockHash, MerkleRoot};
use crate::header::{Header, Height};
use crate::read::write_compact_size;
use crate::script::{VERIFY_P2SH, VERIFY_WITNESS};
use crate::work::U256;
use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::OnceLock;

/// Parses hexadecimal digits, skipping whitespace.
const fn hex<const N: usize>(text: &str) -> [u8; N] {
    let digits = text.as_bytes();
    let mut out = [0u8; N];
    let mut count = 0;
    let mut i = 0;
    while i < digits.len() {
        let nibble = match digits[i] {
            c @ b'0'..=b'9' => c - b'0',
            c @ b'a'..=b'f' => c - b'a' + 10,
            b' ' => {
                i += 1;
                continue;
            }
            _ => panic!("not a hexadecimal digit"),
        };
        out[count / 2] = out[count / 2] << 4 | nibble;
        count += 1;
        i += 1;
    }
    assert!(count == 2 * N, "a wrong number of hexadecimal digits");
    out
}

/// Parses 32 bytes in display order (last byte first).
const fn bytes(text: &str) -> [u8; 32] {
    let shown = hex::<32>(text);
    let mut out = [0; 32];
    let mut i = 0;
    while i < 32 {
        out[i] = shown[31 - i];
        i += 1;
    }
    out
}

const fn block(text: &str) -> BlockHash {
    BlockHash(bytes(text))
}

const fn number(text: &str) -> U256 {
    U256::from_le_bytes(&bytes(text))
}

const fn known(height: Height, hash: &str) -> KnownBlock {
    KnownBlock { height, hash: block(hash) }
}

const fn snapshot(height: Height, hash: &str, serialized: &str, chain_tx_count: u64) -> AssumeUtxo {
    let (block_hash, hash_serialized) = (block(hash), bytes(serialized));
    AssumeUtxo { height, block_hash, hash_serialized, chain_tx_count }
}

const fn at_least_one(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).expect("no chain has a zero here")
}

/// All genesis blocks have version 1 and no previous block.
const fn genesis(merkle_root: &str, time: u32, nonce: u32, bits: u32) -> Header {
    let merkle_root = MerkleRoot(bytes(merkle_root));
    Header { version: 1, prev: BlockHash::ZERO, merkle_root, time, bits, nonce }
}

/// "The Times 03/Jan/2009 Chancellor on brink of second bailout for banks".
static GENESIS_COINBASE: [u8; 204] =
    hex("01000000010000000000000000000000000000000000000000000000000000000000000000ffffffff4d \
     04ffff001d0104455468652054696d65732030332f4a616e2f32303039204368616e63656c6c6f72206f \
     6e206272696e6b206f66207365636f6e64206261696c6f757420666f722062616e6b73ffffffff0100f2 \
     052a01000000434104678afdb0fe5548271967f1a67130b7105cd6a828e03909a67962e0ea1f61deb649 \
     f6bc3f4cef38c4f35504e51ec112de5c384df7ba0b8d578a4c702b6bf11d5fac00000000");

/// "03/May/2024" and the hash of a main-chain block of that day; paid to no key.
static GENESIS_COINBASE_TESTNET4: [u8; 180] =
    hex("01000000010000000000000000000000000000000000000000000000000000000000000000ffffffff55 \
     04ffff001d01044c4c30332f4d61792f3230323420303030303030303030303030303030303030303031 \
     656264353863323434393730623361613964373833626230303130313166626538656138653938653030 \
     65ffffffff0100f2052a0100000023210000000000000000000000000000000000000000000000000000 \
     00000000000000ac00000000");

/// A multisig script of one of two keys.
static SIGNET_CHALLENGE: [u8; 71] =
    hex("512103ad5e0edad18cb1f0fc0d28a3d4f1f3e445640337489abb10404f2d1e086be430\
     210359ef5021964fe22d6f8e05b2463c9540ce96883fe3b278760f048f5189f2e6c452ae");

pub(super) static MAIN: Params = Params {
    network: Network::Main,
    genesis_header: genesis(
        "4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b",
        1_231_006_505,
        2_083_236_893,
        0x1d00_ffff,
    ),
    genesis_hash: block("000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f"),
    genesis_coinbase: Cow::Borrowed(&GENESIS_COINBASE),
    pow_limit: number("00000000ffffffffffffffffffffffffffffffffffffffffffffffffffffffff"),
    pow_allow_min_difficulty_blocks: false,
    enforce_bip94: false,
    pow_no_retargeting: false,
    pow_target_timespan_seconds: at_least_one(14 * 24 * 60 * 60),
    pow_target_spacing_seconds: at_least_one(10 * 60),
    subsidy_halving_interval: at_least_one(210_000),
    bip34_height: 227_931,
    bip34_hash: Some(block("000000000000024b89b42a942fe0d9fea3bb44ab7bd1b19115dd6a759c0808b8")),
    bip65_height: 388_381,
    bip66_height: 363_725,
    csv_height: 419_328,
    segwit_height: 481_824,
    minimum_chain_work: 0x1_1287_50f8_2f4c_3661_53a3_a030,
    default_assume_valid: Some(block(
        "00000000000000000000ccebd6d74d9194d8dcdc1d177c478e094bfad51ba5ac",
    )),
    default_assume_valid_time: 1_772_055_173,
    signet_challenge: None,
    bip30_repeats: Cow::Borrowed(&[
        known(91_842, "00000000000a4d0a398161ffc163c503763b1f4360639393e0e4c8e300e0caec"),
        known(91_880, "00000000000743f190a18c5577a3c2d2a1f610ae9601ac046a38084ccb7cd721"),
    ]),
    bip30_unspendable: Cow::Borrowed(&[
        known(91_722, "00000000000271a2dc26e7667f8419f2e15416dc6955e5a6c6cdf3f2574dd08e"),
        known(91_812, "00000000000af0aed4792b1acee3d966af36cf5def14935db8de83d6f9306f2f"),
    ]),
    script_flag_exceptions: Cow::Borrowed(&[
        (block("00000000000002dc756eebf4f49723ed8d30cc28a5f108eb94b1ba88ac4f9c22"), 0),
        (
            block("0000000000000000000f14c35b2d841e986ab5441de8c585d5ffe55ea1e395ad"),
            VERIFY_P2SH | VERIFY_WITNESS,
        ),
    ]),
    assumeutxo: Cow::Borrowed(&[
        snapshot(
            840_000,
            "0000000000000000000320283a032748cef8227873ff4872689bf23f1cda83a5",
            "a2a5521b1b5ab65f67818e5e8eccabb7171a517f9e2382208f77687310768f96",
            991_032_194,
        ),
        snapshot(
            880_000,
            "000000000000000000010b17283c3c400507969a9c2afd1dcf2082ec5cca2880",
            "dbd190983eaf433ef7c15f78a278ae42c00ef52e0fd2a54953782175fbadcea9",
            1_145_604_538,
        ),
        snapshot(
            910_000,
            "0000000000000000000108970acb9522ffd516eae17acddcb1bd16469194a821",
            "4daf8a17b4902498c5787966a2b51c613acdab5df5db73f196fa59a4da2f1568",
            1_226_586_151,
        ),
        snapshot(
            935_000,
            "0000000000000000000147034958af1652b2b91bba607beacc5e72a56f0fb5ee",
            "e4b90ef9eae834f56c4b64d2d50143cee10ad87994c614d7d04125e2a6025050",
            1_305_397_408,
        ),
    ]),
};

pub(super) static TESTNET3: Params = Params {
    network: Network::Testnet3,
    genesis_header: genesis(
        "4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b",
        1_296_688_602,
        414_098_458,
        0x1d00_ffff,
    ),
    genesis_hash: block("000000000933ea01ad0ee984209779baaec3ced90fa3f408719526f8d77f4943"),
    genesis_coinbase: Cow::Borrowed(&GENESIS_COINBASE),
    pow_limit: number("00000000ffffffffffffffffffffffffffffffffffffffffffffffffffffffff"),
    pow_allow_min_difficulty_blocks: true,
    enforce_bip94: false,
    pow_no_retargeting: false,
    pow_target_timespan_seconds: at_least_one(14 * 24 * 60 * 60),
    pow_target_spacing_seconds: at_least_one(10 * 60),
    subsidy_halving_interval: at_least_one(210_000),
    bip34_height: 21_111,
    bip34_hash: Some(block("0000000023b3a96d3484e5abb3755c413e7d41500f8e2a5c3f0dd01299cd8ef8")),
    bip65_height: 581_885,
    bip66_height: 330_776,
    csv_height: 770_112,
    segwit_height: 834_624,
    minimum_chain_work: 0x17dd_e1c6_49f3_708d_14b6,
    default_assume_valid: Some(block(
        "000000007a61e4230b28ac5cb6b5e5a0130de37ac1faf2f8987d2fa6505b67f4",
    )),
    default_assume_valid_time: 1_772_051_651,
    signet_challenge: None,
    bip30_repeats: Cow::Borrowed(&[]),
    bip30_unspendable: Cow::Borrowed(&[]),
    script_flag_exceptions: Cow::Borrowed(&[(
        block("00000000dd30457c001f4095d208cc1296b0eed002427aa599874af7a432b105"),
        0,
    )]),
    assumeutxo: Cow::Borrowed(&[
        snapshot(
            2_500_000,
            "0000000000000093bcb68c03a9a168ae252572d348a2eaeba2cdf9231d73206f",
            "f841584909f68e47897952345234e37fcd9128cd818f41ee6c3ca68db8071be7",
            66_484_552,
        ),
        snapshot(
            4_840_000,
            "00000000000000f4971a7fb37fbdff89315b69a2e1920c467654a382f0d64786",
            "ce6bb677bb2ee9789c4a1c9d73e6683c53fc20e8fdbedbdaaf468982a0c8db2a",
            536_078_574,
        ),
    ]),
};

pub(super) static TESTNET4: Params = Params {
    network: Network::Testnet4,
    genesis_header: genesis(
        "7aa0a7ae1e223414cb807e40cd57e667b718e42aaf9306db9102fe28912b7b4e",
        1_714_777_860,
        393_743_547,
        0x1d00_ffff,
    ),
    genesis_hash: block("00000000da84f2bafbbc53dee25a72ae507ff4914b867c565be350b0da8bf043"),
    genesis_coinbase: Cow::Borrowed(&GENESIS_COINBASE_TESTNET4),
    pow_limit: number("00000000ffffffffffffffffffffffffffffffffffffffffffffffffffffffff"),
    pow_allow_min_difficulty_blocks: true,
    enforce_bip94: true,
    pow_no_retargeting: false,
    pow_target_timespan_seconds: at_least_one(14 * 24 * 60 * 60),
    pow_target_spacing_seconds: at_least_one(10 * 60),
    subsidy_halving_interval: at_least_one(210_000),
    bip34_height: 1,
    bip34_hash: None,
    bip65_height: 1,
    bip66_height: 1,
    csv_height: 1,
    segwit_height: 1,
    minimum_chain_work: 0x9a0_fe15_d017_7d08_6304,
    default_assume_valid: Some(block(
        "0000000002368b1e4ee27e2e85676ae6f9f9e69579b29093e9a82c170bf7cf8a",
    )),
    default_assume_valid_time: 1_772_013_387,
    signet_challenge: None,
    bip30_repeats: Cow::Borrowed(&[]),
    bip30_unspendable: Cow::Borrowed(&[]),
    script_flag_exceptions: Cow::Borrowed(&[]),
    assumeutxo: Cow::Borrowed(&[
        snapshot(
            90_000,
            "0000000002ebe8bcda020e0dd6ccfbdfac531d2f6a81457191b99fc2df2dbe3b",
            "784fb5e98241de66fdd429f4392155c9e7db5c017148e66e8fdbc95746f8b9b5",
            11_347_043,
        ),
        snapshot(
            120_000,
            "000000000bd2317e51b3c5794981c35ba894ce27d3e772d5c39ecd9cbce01dc8",
            "10b05d05ad468d0971162e1b222a4aa66caca89da2bb2a93f8f37fb29c4794b0",
            14_141_057,
        ),
    ]),
};

pub(super) static SIGNET: Params = Params {
    network: Network::Signet,
    genesis_header: genesis(
        "4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b",
        1_598_918_400,
        52_613_770,
        0x1e03_77ae,
    ),
    genesis_hash: block("00000008819873e925422c1ff0f99f7cc9bbb232af63a077a480a3633bee1ef6"),
    genesis_coinbase: Cow::Borrowed(&GENESIS_COINBASE),
    pow_limit: number("00000377ae000000000000000000000000000000000000000000000000000000"),
    pow_allow_min_difficulty_blocks: false,
    enforce_bip94: false,
    pow_no_retargeting: false,
    pow_target_timespan_seconds: at_least_one(14 * 24 * 60 * 60),
    pow_target_spacing_seconds: at_least_one(10 * 60),
    subsidy_halving_interval: at_least_one(210_000),
    bip34_height: 1,
    bip34_hash: None,
    bip65_height: 1,
    bip66_height: 1,
    csv_height: 1,
    segwit_height: 1,
    minimum_chain_work: 0xb46_3ea0_a4b8,
    default_assume_valid: Some(block(
        "00000008414aab61092ef93f1aacc54cf9e9f16af29ddad493b908a01ff5c329",
    )),
    default_assume_valid_time: 1_772_055_248,
    signet_challenge: Some(Cow::Borrowed(&SIGNET_CHALLENGE)),
    bip30_repeats: Cow::Borrowed(&[]),
    bip30_unspendable: Cow::Borrowed(&[]),
    script_flag_exceptions: Cow::Borrowed(&[]),
    assumeutxo: Cow::Borrowed(&[
        snapshot(
            160_000,
            "0000003ca3c99aff040f2563c2ad8f8ec88bd0fd6b8f0895cfaf1ef90353a62c",
            "fe0a44309b74d6b5883d246cb419c6221bcccf0b308c9b59b7d70783dbdf928a",
            2_289_496,
        ),
        snapshot(
            290_000,
            "0000000577f2741bb30cd9d39d6d71b023afbeb9764f6260786a97969d5c9ac0",
            "97267e000b4b876800167e71b9123f1529d13b14308abec2888bbd2160d14545",
            28_547_497,
        ),
    ]),
};

pub(super) static REGTEST: Params = Params {
    network: Network::Regtest,
    genesis_header: genesis(
        "4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b",
        1_296_688_602,
        2,
        0x207f_ffff,
    ),
    genesis_hash: block("0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206"),
    genesis_coinbase: Cow::Borrowed(&GENESIS_COINBASE),
    pow_limit: number("7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"),
    pow_allow_min_difficulty_blocks: true,
    enforce_bip94: false,
    pow_no_retargeting: true,
    pow_target_timespan_seconds: at_least_one(24 * 60 * 60),
    pow_target_spacing_seconds: at_least_one(10 * 60),
    subsidy_halving_interval: at_least_one(150),
    bip34_height: 1,
    bip34_hash: None,
    bip65_height: 1,
    bip66_height: 1,
    csv_height: 1,
    segwit_height: 0,
    minimum_chain_work: 0,
    default_assume_valid: None,
    default_assume_valid_time: 0,
    signet_challenge: None,
    bip30_repeats: Cow::Borrowed(&[]),
    bip30_unspendable: Cow::Borrowed(&[]),
    script_flag_exceptions: Cow::Borrowed(&[]),
    assumeutxo: Cow::Borrowed(&[
        snapshot(
            110,
            "135eec25a6fb277884e5824e7aa7d052c4868161c99a5122170b5266f86c273d",
            "86e9a1205b418b16dde3a18a78c730e30137e28466bda5dbf6b33ab8fc05447c",
            111,
        ),
        snapshot(
            200,
            "385901ccbd69dff6bbd00065d01fb8a9e464dede7cfe0372443884f9b1dcf6b9",
            "17dcc016d188d16068907cdeb38b75691a118d43053b8cd6a25969419381d13a",
            201,
        ),
        snapshot(
            299,
            "0c552ced4721c249a389eb9b08cb8da261cd46f0e7b5f9d064d48f3113406853",
            "106b2c56233e378a824cf0d5ff2be42ed32c72f1605c9be288d00942908a40ac",
            334,
        ),
    ]),
};

/// The registered custom signet.
static REGISTERED: OnceLock<Params> = OnceLock::new();

/// A different custom signet is already registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a process can use only one custom signet, and a different challenge was given before")]
pub struct OtherSignet;

impl Params {
    /// Registers the custom signet with this challenge (Core `kernel/chainparams.cpp`,
    /// `SigNetParams`).
    ///
    /// # Errors
    ///
    /// Fails if a different one is registered.
    pub fn know_signet(challenge: &[u8]) -> Result<Network, OtherSignet> {
        let known = REGISTERED.get_or_init(|| of_challenge(challenge));
        match known.signet_challenge.as_deref() == Some(challenge) {
            true => Ok(known.network.make_known()),
            false => Err(OtherSignet),
        }
    }

    /// Returns the registered custom signet, if there is one.
    pub fn known_signet() -> Option<&'static Self> {
        REGISTERED.get()
    }
}

fn of_challenge(challenge: &[u8]) -> Params {
    let mut pushed = Vec::with_capacity(challenge.len() + 9);
    write_compact_size(&mut pushed, challenge.len() as u64);
    pushed.extend_from_slice(challenge);
    let [m0, m1, m2, m3, ..] = apus_hash::sha256d(&pushed);
    Params {
        network: Network::OwnSignet(SignetMagic::new([m0, m1, m2, m3])),
        signet_challenge: Some(Cow::Owned(challenge.to_vec())),
        minimum_chain_work: 0,
        default_assume_valid: None,
        assumeutxo: Cow::Borrowed(&[]),
        ..SIGNET.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_magic_follows_from_the_challenge() {
        let public = Params::of(Network::Signet);
        let own = of_challenge(public.signet_challenge.as_deref().unwrap());
        assert_eq!(own.network.magic(), Network::Signet.magic());
        assert_eq!((own.genesis_hash, own.pow_limit), (public.genesis_hash, public.pow_limit));
        assert_eq!((own.minimum_chain_work, own.default_assume_valid), (0, None));
        // OP_TRUE; the magic is the first bytes of `sha256d 0151`.
        assert_eq!(of_challenge(&[0x51]).network.magic(), [0x54, 0xd2, 0x6f, 0xbd]);
        let long = of_challenge(&[0x51; 300]).network.magic();
        assert_eq!(long, apus_hash::sha256d(&[&[0xfd, 44, 1][..], &[0x51; 300]].concat())[..4]);
    }

    #[test]
    fn known_signets_are_ordinary_networks() {
        let challenge = [0x51, 0x51];
        let magic = of_challenge(&challenge).network.magic();
        assert_eq!(Network::from_magic(magic), None);
        let own = Params::know_signet(&challenge).unwrap();
        assert_eq!((own.magic(), Network::from_magic(magic)), (magic, Some(own)));
        assert_eq!((own.name(), "signet".parse()), ("signet", Ok(own)));
        assert_eq!((own.data_folder(), Params::of(own).network), (Some("signet"), own));
        assert_eq!(Params::know_signet(&challenge), Ok(own));
        assert_eq!(Params::know_signet(&[0x51]), Err(OtherSignet));
        assert_eq!(Network::from_magic(Network::Signet.magic()), Some(Network::Signet));
    }
}
