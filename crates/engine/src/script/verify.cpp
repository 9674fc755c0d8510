// Bitcoin Core's script interpreter, for whole transactions: the functions that `verify.rs` calls.
//
// Compiled against Core's own headers (`build.rs`), so that incompatible changes in Core cause compile errors. No
// exception leaves a function: each becomes a result. No state carries over from one input to the next.

#include <consensus/amount.h>
#include <crypto/sha256.h>
#include <primitives/transaction.h>
#include <pubkey.h>
#include <script/interpreter.h>
#include <script/script.h>
#include <script/script_error.h>
#include <serialize.h>
#include <streams.h>
#include <uint256.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

// The Rust side relies on these numbers: of each rule (`apus_chain`) and of each error (`interpreter.rs`).
constexpr uint64_t flag(script_verify_flags flag) { return flag.as_int(); }
static_assert(flag(SCRIPT_VERIFY_P2SH) == 1 << 0);
static_assert(flag(SCRIPT_VERIFY_DERSIG) == 1 << 2);
static_assert(flag(SCRIPT_VERIFY_NULLDUMMY) == 1 << 4);
static_assert(flag(SCRIPT_VERIFY_CHECKLOCKTIMEVERIFY) == 1 << 9);
static_assert(flag(SCRIPT_VERIFY_CHECKSEQUENCEVERIFY) == 1 << 10);
static_assert(flag(SCRIPT_VERIFY_WITNESS) == 1 << 11);
static_assert(flag(SCRIPT_VERIFY_TAPROOT) == 1 << 17);
static_assert(SCRIPT_ERR_OK == 0 && SCRIPT_ERR_ERROR_COUNT == 55);

using Checker = GenericTransactionSignatureChecker<CMutableTransaction>;
static_assert(std::is_same_v<CAmount, int64_t>);

// Selects the fastest SHA-256 for this processor. Without it Core's hashes are correct but slow.
void choose_sha256()
{
    static const bool chosen = (SHA256AutoDetect(), true);
    (void)chosen;
}

CScript script_of(const unsigned char* bytes, size_t length)
{
    return length == 0 ? CScript{} : CScript{bytes, bytes + length};
}

} // namespace

// A spent output, in Rust's layout.
struct ApusSpent {
    const unsigned char* script;
    size_t length;
    int64_t amount;
};

// A signature check that a script requested, in Rust's layout. Only bytes, and unused ones are 0: equal checks have
// equal bytes, except for the hint.
struct ApusCheck {
    uint8_t kind;  // `ECDSA` or `SCHNORR`
    uint8_t place; // `SINGLE`, `MULTISIG` or `OTHER`
    uint8_t key_length;
    uint8_t signature_length;
    unsigned char key[CPubKey::SIZE];
    unsigned char hash[uint256::size()];
    unsigned char signature[CPubKey::SIGNATURE_SIZE];
    uint8_t hint; // Rust's
};
static_assert(sizeof(ApusCheck) == 4 + 65 + 32 + 72 + 1 && std::is_trivial_v<ApusCheck>);

// Known checks, and room for new ones, in Rust's layout.
struct ApusChecks {
    const ApusCheck* proven;
    size_t proven_count;
    const ApusCheck* unproven;
    size_t unproven_count;
    ApusCheck* room;
    size_t room_count;
    size_t used;
    bool records_ecdsa; // otherwise libsecp256k1 answers these at once
    // Returns whether hints say that CHECKMULTISIG passes over a key.
    bool (*passes_over)(void* hints, const ApusCheck* check);
    void* hints;
};

// A transaction, and the data that its inputs share. It has no ids, because nothing here needs them.
struct ApusTx {
    CMutableTransaction tx;
    PrecomputedTransactionData data;

    explicit ApusTx(SpanReader& reader) : tx{deserialize, TX_WITH_WITNESS, reader} {}
};

// Reads a transaction; returns null if the bytes are not exactly one transaction.
extern "C" ApusTx* apus_tx_read(const unsigned char* raw, size_t length) noexcept
{
    try {
        choose_sha256();
        SpanReader reader{std::span{raw, length}};
        auto read = std::make_unique<ApusTx>(reader);
        return reader.empty() ? read.release() : nullptr;
    } catch (...) {
        return nullptr;
    }
}

extern "C" size_t apus_tx_inputs(const ApusTx* tx) noexcept { return tx->tx.vin.size(); }

// Computes the data that the inputs share, once: with all spent outputs, or with none if no signature covers them.
extern "C" bool apus_tx_share(ApusTx* tx, const ApusSpent* spent, size_t count) noexcept
{
    if (count != 0 && count != tx->tx.vin.size()) return false;
    try {
        std::vector<CTxOut> outputs;
        outputs.reserve(count);
        for (const ApusSpent& output : std::span{spent, count}) {
            outputs.emplace_back(output.amount, script_of(output.script, output.length));
        }
        PrecomputedTransactionData data;
        data.Init(tx->tx, std::move(outputs));
        tx->data = std::move(data);
        return true;
    } catch (...) {
        return false;
    }
}

namespace {

constexpr uint8_t ECDSA = 0;
constexpr uint8_t SCHNORR = 1;

// The script that requests a check, if it is the only one of the input that requests any.
constexpr uint8_t OTHER = 0;
// `<key> CHECKSIG` or `DUP HASH160 <hash> EQUALVERIFY CHECKSIG`: it passes only if the check is valid.
constexpr uint8_t SINGLE = 1;
// `m <key>... n CHECKMULTISIG`, and nothing else: no code separator, no other opcode, no push after it.
constexpr uint8_t MULTISIG = 2;

bool is_key(const std::vector<unsigned char>& push)
{
    return push.size() == CPubKey::COMPRESSED_SIZE || push.size() == CPubKey::SIZE;
}

// Returns whether a script is `m <key>... n CHECKMULTISIG`.
bool is_multisig(const CScript& script)
{
    const auto number = [](opcodetype opcode) { return opcode >= OP_1 && opcode <= OP_16 ? CScript::DecodeOP_N(opcode) : 0; };
    opcodetype opcode;
    std::vector<unsigned char> push;
    auto at = script.begin();
    if (script.empty() || script.back() != OP_CHECKMULTISIG || !script.GetOp(at, opcode) || number(opcode) == 0) return false;
    int keys = 0;
    while (keys <= 16 && script.GetOp(at, opcode, push) && is_key(push)) ++keys;
    return keys > 0 && number(opcode) == keys && script.end() - at == 1;
}

// Returns whether a script is `<key> CHECKSIG` or `DUP HASH160 <hash> EQUALVERIFY CHECKSIG`.
bool is_single(const CScript& script)
{
    const size_t size = script.size();
    if (size < 25 || script.back() != OP_CHECKSIG) return false;
    if (size == 25) return script[0] == OP_DUP && script[1] == OP_HASH160 && script[2] == 20 && script[23] == OP_EQUALVERIFY;
    return (size == CPubKey::COMPRESSED_SIZE + 2 || size == CPubKey::SIZE + 2) && script[0] == size - 2;
}

// Returns the size of the script that checks signatures before SegWit, the scriptPubKey or the redeem script, if the
// scriptSig checks none. Otherwise returns 0.
size_t base_script_size(const CScript& script_sig, const CScript& script, uint32_t flags)
{
    if (!script_sig.IsPushOnly()) return 0;
    if (!(flags & flag(SCRIPT_VERIFY_P2SH)) || !script.IsPayToScriptHash()) return script.size();
    opcodetype opcode;
    std::vector<unsigned char> push;
    for (auto at = script_sig.begin(); at < script_sig.end() && script_sig.GetOp(at, opcode, push);) {}
    return push.size();
}

// Rules that depend on the pairs that CHECKMULTISIG tries. Blocks have none of them.
constexpr uint64_t RULES_OF_PAIRS = flag(SCRIPT_VERIFY_STRICTENC) | flag(SCRIPT_VERIFY_LOW_S) | flag(SCRIPT_VERIFY_NULLFAIL) | flag(SCRIPT_VERIFY_WITNESS_PUBKEYTYPE);

// Answers yes to a signature check if it is proven valid, or if it is new and there is room to record it: then it must
// be proven later. Answers no to a check of `MULTISIG` that could not be proven or that hints pass over. libsecp256k1
// answers all other checks.
//
// That no may be wrong, but no input passes because of it: the input's only script with checks ends with CHECKMULTISIG,
// whose result is the script's. It says yes if there is a valid key for each signature, in order, and looks for them
// greedily, which finds them if they exist. So a wrong no can only make the script fail, and a failure with such answers
// is not a verdict. A run that passes has visited each signature, like Core's, so the rule for encodings has the same
// result.
class RecordingChecker final : public Checker
{
    ApusChecks& m_checks;
    const size_t m_base_size;
    const size_t m_witness_size;
    const bool m_has_rules_of_pairs;
    mutable uint8_t m_place{OTHER};

    // `script` is the running script from its last code separator on, without the signatures in it: all of it if it has
    // the same size.
    uint8_t place_of(const CScript& script, SigVersion version) const
    {
        const bool is_segwit = version == SigVersion::WITNESS_V0;
        const bool is_whole = script.size() == (is_segwit ? m_witness_size : m_base_size);
        // The script of a key hash in SegWit does not come from the input.
        if (is_single(script) && (is_whole || is_segwit)) return SINGLE;
        return is_whole && !m_has_rules_of_pairs && is_multisig(script) ? MULTISIG : OTHER;
    }

    template <typename Real>
    bool answer(uint8_t kind, std::span<const unsigned char> key, const uint256& hash, std::span<const unsigned char> signature, Real real) const
    {
        ApusCheck check{};
        if (key.size() > sizeof check.key || signature.size() > sizeof check.signature) return real();
        check.kind = kind;
        check.place = kind == ECDSA ? m_place : OTHER;
        check.key_length = static_cast<uint8_t>(key.size());
        check.signature_length = static_cast<uint8_t>(signature.size());
        std::copy(key.begin(), key.end(), check.key);
        std::copy(hash.begin(), hash.end(), check.hash);
        std::copy(signature.begin(), signature.end(), check.signature);
        const auto is_in = [&](std::span<const ApusCheck> known) {
            return std::ranges::any_of(known, [&](const ApusCheck& other) { return std::memcmp(&check, &other, offsetof(ApusCheck, hint)) == 0; });
        };
        if (is_in({m_checks.proven, m_checks.proven_count})) return true;
        if (is_in({m_checks.unproven, m_checks.unproven_count})) return check.place == MULTISIG ? false : real();
        if (m_checks.used >= m_checks.room_count || (kind == ECDSA && !m_checks.records_ecdsa)) return real();
        if (check.place == MULTISIG && m_checks.passes_over(m_checks.hints, &check)) return false;
        m_checks.room[m_checks.used++] = check;
        return true;
    }

    bool CheckECDSASignature(const std::vector<unsigned char>& signature, const std::vector<unsigned char>& key, const CScript& script, SigVersion version) const override
    {
        m_place = place_of(script, version);
        return Checker::CheckECDSASignature(signature, key, script, version);
    }

    bool VerifyECDSASignature(const std::vector<unsigned char>& signature, const CPubKey& key, const uint256& hash) const override
    {
        const auto real = [&] { return Checker::VerifyECDSASignature(signature, key, hash); };
        return answer(ECDSA, {key.data(), key.size()}, hash, signature, real);
    }

    bool VerifySchnorrSignature(std::span<const unsigned char> signature, const XOnlyPubKey& key, const uint256& hash) const override
    {
        const auto real = [&] { return Checker::VerifySchnorrSignature(signature, key, hash); };
        return answer(SCHNORR, {key.data(), key.size()}, hash, signature, real);
    }

public:
    RecordingChecker(ApusChecks& checks, const ApusTx& tx, size_t input, const CScript& script, int64_t amount, uint32_t flags)
        : Checker{&tx.tx, static_cast<unsigned int>(input), amount, tx.data, MissingDataBehavior::FAIL},
          m_checks{checks},
          m_base_size{base_script_size(tx.tx.vin[input].scriptSig, script, flags)},
          m_witness_size{tx.tx.vin[input].scriptWitness.IsNull() ? 0 : tx.tx.vin[input].scriptWitness.stack.back().size()},
          m_has_rules_of_pairs{(flags & RULES_OF_PAIRS) != 0} {}
};

// Runs the scripts of one input with a checker.
template <typename MakeChecker>
int run(const ApusTx& tx, size_t input, const ApusSpent& spent, uint32_t flags, MakeChecker make_checker) noexcept
{
    if (input >= tx.tx.vin.size()) return -1;
    try {
        const CTxIn& in = tx.tx.vin[input];
        const CScript script = script_of(spent.script, spent.length);
        const auto checker = make_checker(script);
        ScriptError error = SCRIPT_ERR_UNKNOWN_ERROR;
        const auto rules = script_verify_flags::from_int(flags);
        if (VerifyScript(in.scriptSig, script, &in.scriptWitness, rules, checker, &error)) return SCRIPT_ERR_OK;
        // A failure without a reason is still a failure.
        return error == SCRIPT_ERR_OK ? SCRIPT_ERR_UNKNOWN_ERROR : error;
    } catch (...) {
        return -1;
    }
}

} // namespace

// Runs the scripts of one input. Returns the number of Core's `ScriptError`, 0 if they allow the spend, or -1 if they
// could not be run.
extern "C" int apus_tx_verify(const ApusTx* tx, size_t input, const ApusSpent* spent, uint32_t flags) noexcept
{
    return run(*tx, input, *spent, flags, [&](const CScript&) {
        // A signature over missing data is invalid, not a reason to abort the process.
        return Checker{&tx->tx, static_cast<unsigned int>(input), spent->amount, tx->data, MissingDataBehavior::FAIL};
    });
}

// Like `apus_tx_verify`, with a `RecordingChecker`. 0 is the verdict only if the recorded checks are all valid; another
// result says nothing if checks were recorded, or unproven ones are known.
extern "C" int apus_tx_verify_deferred(const ApusTx* tx, size_t input, const ApusSpent* spent, uint32_t flags, ApusChecks* checks) noexcept
{
    return run(*tx, input, *spent, flags, [&](const CScript& script) { return RecordingChecker{*checks, *tx, input, script, spent->amount, flags}; });
}

extern "C" void apus_tx_free(ApusTx* tx) noexcept { delete tx; }
