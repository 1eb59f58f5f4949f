// Token shards: the ids of prepared texts in files that training maps into memory (docs/formats/shards.md).
//
//   index.json               what there is, with the digest of every file and of itself
//   train-00000.tokens       ids, little-endian, 2 or 4 bytes each; every shard of a set but the last has the same
//   number train-00000.documents    a record for every document that ends in the shard train-00000.targets      a bit
//   for every token, where some do not count as targets held_out-00000.tokens    the same of the documents held out
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/files.h"
#include "samba/core/mapped_file.h"
#include "samba/core/sha256.h"

namespace samba {

inline constexpr const char* kShardsFormat = "samba.shards.v1";
inline constexpr const char* kShardsIndex = "index.json";
inline constexpr std::size_t kShardSets = 2;
inline constexpr std::array<const char*, kShardSets> kShardSetNames{"train", "held_out"};
enum class ShardSet { train, held_out };

// A record of NAME.documents: 24 bytes.
struct DocumentRecord {
  std::uint64_t end = 0;                  // tokens of the shard up to and with the document's last
  std::array<std::uint8_t, 16> digest{};  // the first bytes of the SHA-256 of its text
};
inline constexpr std::size_t kDocumentRecordBytes = 24;

// "train-00007.tokens"
std::string shard_file_name(ShardSet set, std::size_t number, const char* extension);

// True for a folder that holds an index of shards; it is not looked at any further.
bool is_token_shards(const Path& folder);

struct ShardSetCounts {
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  std::uint64_t bytes = 0;    // of the texts
  std::uint64_t ignored = 0;  // tokens that do not count as targets
};

class TokenShards {
 public:
  // Reads the index, maps the files, verifies every byte. Error(value): no such folder, a preparation that is not
  // finished. Error(corrupt): "index", "size", "digest", "tokens"; the message names file and field.
  explicit TokenShards(Path folder, const std::function<void(std::uint64_t done, std::uint64_t all)>& progress = {});

  const Path& folder() const { return folder_; }
  const std::string& sha256() const { return sha256_; }  // of the index, which has the digests of all files
  Index vocab() const { return vocab_; }
  std::optional<std::int32_t> end_token() const { return end_token_; }
  const nlohmann::ordered_json& tokenizer() const { return tokenizer_; }  // as beside a checkpoint (run_folder.md)
  const ShardSetCounts& counts(ShardSet set) const { return sets_[static_cast<std::size_t>(set)].counts; }

  // Tokens [first, first + ids.size()) of a set.
  void read(ShardSet set, std::uint64_t first, std::span<std::int32_t> ids) const;
  // Whether token `at` counts as a target.
  bool counts_as_target(ShardSet set, std::uint64_t at) const;
  // Lets the mapped pages go: touching them fetches them again.
  void drop_pages() const;

  // The documents of a set with their ends as tokens of the set.
  void for_each_document(ShardSet set, const std::function<void(const DocumentRecord&)>& visit) const;

 private:
  struct Shard {
    std::uint64_t tokens = 0;
    MappedFile ids, documents, targets;  // targets: empty where all count
  };
  struct Set {
    ShardSetCounts counts;
    std::vector<Shard> shards;
  };

  struct File {
    std::string name;
    std::string sha256;
    std::uint64_t bytes = 0;
  };

  nlohmann::ordered_json read_index() const;
  void read_set(ShardSet set, const nlohmann::json& object);
  MappedFile map(const File& file);
  // Digest of a mapped file, its pages given back; `visit` sees every piece.
  void verify(const File& file, const MappedFile& content, const std::function<void(std::uint64_t)>& read,
              const std::function<void(std::span<const std::byte>)>& visit) const;
  [[noreturn]] void refuse(const char* error_class, const std::string& reason) const;

  Path folder_;
  std::string sha256_;
  Index vocab_ = 0;
  std::size_t id_bytes_ = 2;
  std::optional<std::int32_t> end_token_;
  std::uint64_t shard_tokens_ = 0;
  nlohmann::ordered_json tokenizer_;
  std::array<Set, kShardSets> sets_;
  std::vector<File> files_;  // of all shards, in the order of the index
};

// The text of an index: `fields` and the digest of themselves behind them.
std::string sealed_index(nlohmann::ordered_json fields);

}  // namespace samba
