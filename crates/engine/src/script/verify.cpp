// Bitcoin Core's script interpreter, for whole transactions: the functions that `verify.rs` calls.
//
// Compiled against Core's own headers (`build.rs`), so that incompatible changes in Core cause compile errors. No
// exception leaves a function: each becomes a result. No state carries over from one input to the next.

#include <consensus/amount.h>
#include <crypto/sha256.h>
#include <primitives/transaction.h>
#include <script/interpreter.h>
#include <script/script.h>
#include <script/script_error.h>
#include <serialize.h>
#include <streams.h>

#include <cstddef>
#include <cstdint>
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

// Runs the scripts of one input. Returns the number of Core's `ScriptError`, 0 if they allow the spend, or -1 if they
// could not be run.
extern "C" int apus_tx_verify(const ApusTx* tx, size_t input, const ApusSpent* spent, uint32_t flags) noexcept
{
    if (input >= tx->tx.vin.size()) return -1;
    try {
        const CTxIn& in = tx->tx.vin[input];
        const CScript script = script_of(spent->script, spent->length);
        // A signature over missing data is invalid, not a reason to abort the process.
        const Checker checker{&tx->tx, static_cast<unsigned int>(input), spent->amount, tx->data, MissingDataBehavior::FAIL};
        ScriptError error = SCRIPT_ERR_UNKNOWN_ERROR;
        const auto rules = script_verify_flags::from_int(flags);
        if (VerifyScript(in.scriptSig, script, &in.scriptWitness, rules, checker, &error)) return SCRIPT_ERR_OK;
        // A failure without a reason is still a failure.
        return error == SCRIPT_ERR_OK ? SCRIPT_ERR_UNKNOWN_ERROR : error;
    } catch (...) {
        return -1;
    }
}

extern "C" void apus_tx_free(ApusTx* tx) noexcept { delete tx; }
