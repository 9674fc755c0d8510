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
// equal bytes.
struct ApusCheck {
    uint8_t kind; // `ECDSA` or `SCHNORR`
    uint8_t key_length;
    uint8_t signature_length;
    unsigned char key[CPubKey::SIZE];
    unsigned char hash[uint256::size()];
    unsigned char signature[CPubKey::SIGNATURE_SIZE];
};
static_assert(sizeof(ApusCheck) == 3 + 65 + 32 + 72 && std::is_trivial_v<ApusCheck>);

// Known checks, and room for new ones, in Rust's layout.
struct ApusChecks {
    const ApusCheck* proven;
    size_t proven_count;
    const ApusCheck* unproven;
    size_t unproven_count;
    ApusCheck* room;
    size_t room_count;
    size_t used;
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

// Answers yes to a signature check if it is proven valid, or if it is new and there is room to record it: then it must
// be proven later. libsecp256k1 answers all other checks.
class RecordingChecker final : public Checker
{
    ApusChecks& m_checks;

    template <typename Real>
    bool answer(uint8_t kind, std::span<const unsigned char> key, const uint256& hash, std::span<const unsigned char> signature, Real real) const
    {
        ApusCheck check{};
        if (key.size() > sizeof check.key || signature.size() > sizeof check.signature) return real();
        check.kind = kind;
        check.key_length = static_cast<uint8_t>(key.size());
        check.signature_length = static_cast<uint8_t>(signature.size());
        std::copy(key.begin(), key.end(), check.key);
        std::copy(hash.begin(), hash.end(), check.hash);
        std::copy(signature.begin(), signature.end(), check.signature);
        const auto is_in = [&](std::span<const ApusCheck> known) {
            return std::ranges::any_of(known, [&](const ApusCheck& other) { return std::memcmp(&check, &other, sizeof check) == 0; });
        };
        if (is_in({m_checks.proven, m_checks.proven_count})) return true;
        if (m_checks.used >= m_checks.room_count || is_in({m_checks.unproven, m_checks.unproven_count})) return real();
        m_checks.room[m_checks.used++] = check;
        return true;
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
    RecordingChecker(ApusChecks& checks, const ApusTx& tx, size_t input, int64_t amount)
        : Checker{&tx.tx, static_cast<unsigned int>(input), amount, tx.data, MissingDataBehavior::FAIL}, m_checks{checks} {}
};

// Runs the scripts of one input with a checker.
template <typename MakeChecker>
int run(const ApusTx& tx, size_t input, const ApusSpent& spent, uint32_t flags, MakeChecker make_checker) noexcept
{
    if (input >= tx.tx.vin.size()) return -1;
    try {
        const CTxIn& in = tx.tx.vin[input];
        const CScript script = script_of(spent.script, spent.length);
        const auto checker = make_checker();
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
    return run(*tx, input, *spent, flags, [&] {
        // A signature over missing data is invalid, not a reason to abort the process.
        return Checker{&tx->tx, static_cast<unsigned int>(input), spent->amount, tx->data, MissingDataBehavior::FAIL};
    });
}

// Like `apus_tx_verify`, with a `RecordingChecker`. 0 is the verdict only if the recorded checks are all valid; another
// result says nothing if checks were recorded.
extern "C" int apus_tx_verify_deferred(const ApusTx* tx, size_t input, const ApusSpent* spent, uint32_t flags, ApusChecks* checks) noexcept
{
    return run(*tx, input, *spent, flags, [&] { return RecordingChecker{*checks, *tx, input, spent->amount}; });
}

extern "C" void apus_tx_free(ApusTx* tx) noexcept { delete tx; }
