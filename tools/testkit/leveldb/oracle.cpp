// Reports what LevelDB reads in a folder: Bitcoin Core's copy of LevelDB, with Core's options and assertions.
//
// `scripts/leveldb` builds it. A request is the folder's path on one line, the number of keys on the next, and
// the keys in hex, one a line. The folder is opened and changed, so it must be a copy. The answer is some
// lines, and `end`:
//
//   iterated KEY VALUE    an entry, iterating from the first to the last
//   found KEY VALUE       a look-up of a requested or iterated key
//   absent KEY            a look-up that found nothing
//   sought KEY            seeking to the key found it
//   error WHAT            LevelDB reported an error
//   changed WHAT          the answers changed after the database was written to, compacted and reopened
//   crashed SIGNAL        an assertion failed, or worse, or it took too long
//
// A folder `make PATH` is not a database yet, and the single key is a seed: LevelDB creates it by random writes on
// several levels, with old versions that were kept for readers, and may be killed in the end.
//
// Each request has its own process, so that none can end the others.

#include <leveldb/cache.h>
#include <leveldb/db.h>
#include <leveldb/filter_policy.h>
#include <leveldb/iterator.h>
#include <leveldb/options.h>
#include <leveldb/write_batch.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace {

// A case takes milliseconds.
constexpr unsigned SECONDS_MAX{60};

// Core's options for its block index (Core `dbwrapper.cpp`, `GetOptions`).
constexpr size_t CACHE_BYTES{2 << 20};
constexpr size_t FILE_BYTES_MAX{32 << 20};

// No entry of a case has it.
const std::string NEW_KEY{"\xff new"};

std::string Hex(const leveldb::Slice& bytes)
{
    static const char digits[]{"0123456789abcdef"};
    std::string text;
    for (size_t at{0}; at < bytes.size(); ++at) {
        const auto byte{static_cast<unsigned char>(bytes[at])};
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    // So that a line always has the same number of words.
    return text.empty() ? "-" : text;
}

std::string Unhex(const std::string& text)
{
    std::string bytes;
    for (size_t at{0}; at + 1 < text.size(); at += 2) {
        bytes += static_cast<char>(std::stoi(text.substr(at, 2), nullptr, 16));
    }
    return bytes;
}

leveldb::Options CoreOptions()
{
    leveldb::Options options;
    options.block_cache = leveldb::NewLRUCache(CACHE_BYTES / 2);
    options.write_buffer_size = CACHE_BYTES / 4;
    options.filter_policy = leveldb::NewBloomFilterPolicy(10);
    options.compression = leveldb::kNoCompression;
    options.paranoid_checks = true;
    options.create_if_missing = true;
    options.max_file_size = FILE_BYTES_MAX;
    return options;
}

std::string Error(const leveldb::Status& status) { return "error " + status.ToString() + "\n"; }

// All entries, by iterating and by looking them up.
std::string Read(leveldb::DB& db, const std::vector<std::string>& asked)
{
    leveldb::ReadOptions look_up, over_all;
    look_up.verify_checksums = over_all.verify_checksums = true;
    over_all.fill_cache = false;
    std::string said;
    std::set<std::string> keys(asked.begin(), asked.end());
    std::unique_ptr<leveldb::Iterator> iterator{db.NewIterator(over_all)};
    for (iterator->SeekToFirst(); iterator->Valid(); iterator->Next()) {
        said += "iterated " + Hex(iterator->key()) + " " + Hex(iterator->value()) + "\n";
        keys.insert(iterator->key().ToString());
    }
    if (!iterator->status().ok()) said += Error(iterator->status());
    for (const auto& key : keys) {
        std::string value;
        const auto status{db.Get(look_up, key, &value)};
        if (status.ok()) {
            said += "found " + Hex(key) + " " + Hex(value) + "\n";
        } else if (status.IsNotFound()) {
            said += "absent " + Hex(key) + "\n";
        } else {
            said += Error(status);
        }
        iterator->Seek(key);
        if (iterator->Valid() && iterator->key() == leveldb::Slice(key)) {
            said += "sought " + Hex(key) + "\n";
        }
    }
    if (!iterator->status().ok()) said += Error(iterator->status());
    return said;
}

std::string OpenAndRead(const std::string& folder, const std::vector<std::string>& asked)
{
    const auto options{CoreOptions()};
    leveldb::DB* opened;
    auto status{leveldb::DB::Open(options, folder, &opened)};
    if (!status.ok()) return Error(status);
    std::unique_ptr<leveldb::DB> db{opened};
    std::string said{Read(*db, asked)};
    if (said.find("error ") != std::string::npos) return said;

    const auto now{[&](const char* when) {
        const auto again{Read(*db, asked)};
        if (again != said) said += std::string{"changed "} + when + "\n" + again;
    }};
    // What a node sooner or later does to the database must not change its content.
    leveldb::WriteOptions sync;
    sync.sync = true;
    std::string value;
    status = db->Put(sync, NEW_KEY, "new");
    if (status.ok()) status = db->Get({}, NEW_KEY, &value);
    if (status.ok()) status = db->Delete(sync, NEW_KEY);
    if (!status.ok()) return said + Error(status);
    now("after a write");
    db->CompactRange(nullptr, nullptr);
    now("after a compaction");
    db.reset();
    status = leveldb::DB::Open(options, folder, &opened);
    if (!status.ok()) return said + Error(status);
    db.reset(opened);
    now("after it was reopened");
    db.reset();
    return said;
}

// So small that few writes fill many files.
leveldb::Options SmallOptions()
{
    auto options{CoreOptions()};
    options.write_buffer_size = 64 << 10;
    options.max_file_size = 1 << 20;
    return options;
}

std::string Make(const std::string& folder, const std::string& seed)
{
    std::mt19937_64 random{std::stoull(seed)};
    const auto below{[&](uint64_t bound) { return random() % bound; }};
    const auto keys{20 + below(3000)};
    for (auto left{1 + below(3)}; left > 0; --left) {
        leveldb::DB* opened;
        auto status{leveldb::DB::Open(SmallOptions(), folder, &opened)};
        if (!status.ok()) return Error(status);
        std::unique_ptr<leveldb::DB> db{opened};
        std::vector<const leveldb::Snapshot*> kept;
        for (auto batches{below(60)}; batches > 0; --batches) {
            leveldb::WriteBatch batch;
            for (auto writes{below(80)}; writes > 0; --writes) {
                const auto key{"key " + std::to_string(below(keys))};
                if (below(4) == 0) {
                    batch.Delete(key);
                } else {
                    batch.Put(key, std::string(below(below(8) == 0 ? 3000 : 300), static_cast<char>(random())));
                }
            }
            status = db->Write({}, &batch);
            if (!status.ok()) return Error(status);
            if (below(9) == 0) kept.push_back(db->GetSnapshot());
            if (below(30) == 0) {
                const auto from{"key " + std::to_string(below(10))}, to{"key " + std::to_string(below(10))};
                const leveldb::Slice begin{from}, end{to};
                db->CompactRange(below(2) ? &begin : nullptr, below(2) ? &end : nullptr);
            }
        }
        // The process is killed.
        if (left == 1 && below(2) == 0) {
            (void)db.release();
            break;
        }
        for (const auto* snapshot : kept) db->ReleaseSnapshot(snapshot);
    }
    return "";
}

void Answer(const std::string& folder, const std::vector<std::string>& asked)
{
    std::cout.flush();
    const pid_t child{fork()};
    if (child < 0) {
        std::perror("fork");
        std::exit(1);
    }
    if (child == 0) {
        alarm(SECONDS_MAX);
        // A failing assertion prints a message.
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        const std::string make{"make "};
        std::cout << (folder.rfind(make, 0) == 0 ? Make(folder.substr(make.size()), asked.at(0)) : OpenAndRead(folder, asked));
        std::cout.flush();
        _exit(0);
    }
    int status{0};
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) std::cout << "crashed " << WTERMSIG(status) << "\n";
    std::cout << "end" << std::endl;
}

} // namespace

int main()
{
    std::string folder, count, key;
    while (std::getline(std::cin, folder) && std::getline(std::cin, count)) {
        std::vector<std::string> asked;
        for (int left{std::stoi(count)}; left > 0 && std::getline(std::cin, key); --left) {
            asked.push_back(key == "-" ? "" : Unhex(key));
        }
        Answer(folder, asked);
    }
}
