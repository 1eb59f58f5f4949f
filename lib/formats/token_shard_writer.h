// Writes one set of token shards (token_shards.h) so that a run that dies at any moment can go on from the last state
// it recorded, with the bytes of one that did not.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "samba/core/files.h"
#include "samba/core/sha256.h"
#include "samba/formats/token_shards.h"

namespace samba {

// A file that grows at its end.
class GrowingFile {
 public:
  GrowingFile() = default;
  ~GrowingFile();
  GrowingFile(const GrowingFile&) = delete;
  GrowingFile& operator=(const GrowingFile&) = delete;

  // Opens `path`, cut to `keep` bytes (an error when it is shorter), whose digest is taken up.
  void open(const Path& path, std::uint64_t keep);
  void append(const void* data, std::size_t bytes);
  void sync();                           // everything so far is durable
  std::string finish(const Path& name);  // closes it, gives it its name; returns the SHA-256
  bool is_open() const { return descriptor_ >= 0; }
  std::uint64_t size() const { return size_; }

 private:
  void flush();

  Path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  Sha256 hash_;
  std::vector<std::byte> pending_;
};

class TokenShardWriter {
 public:
  // `shard_tokens` is a multiple of 8.
  TokenShardWriter(Path folder, ShardSet set, std::size_t id_bytes, std::uint64_t shard_tokens);

  // Tokens of the document in hand.
  void add(std::span<const std::int32_t> ids, bool count_as_targets);
  void end_document(std::span<const std::uint8_t> digest, std::uint64_t bytes);

  const ShardSetCounts& counts() const { return counts_; }

  // Makes everything durable; what restore() needs to go on from here.
  nlohmann::ordered_json state();
  // Goes on from a state: later files and what was written behind it go away. `seen` is called with every document.
  // Error(corrupt) for files that do not have what the state says.
  void restore(const nlohmann::json& state, const std::function<void(const DocumentRecord&)>& seen);
  // Closes the last shard; the entry of the index.
  nlohmann::ordered_json finish();

 private:
  Path part(const char* extension) const;
  Path whole(const char* extension) const;
  void open_shard(std::uint64_t tokens, std::uint64_t documents);
  void close_shard();

  Path folder_;
  ShardSet set_;
  std::size_t id_bytes_;
  std::uint64_t shard_tokens_;
  ShardSetCounts counts_;
  nlohmann::ordered_json closed_ = nlohmann::ordered_json::array();  // entries of the index
  GrowingFile ids_;
  GrowingFile documents_;
  std::vector<std::uint8_t> mask_;  // of the open shard, whole bytes
  std::uint64_t tokens_ = 0;        // of the open shard
  std::uint64_t ended_ = 0;         // documents of it
  std::uint64_t ignored_ = 0;
  // Parts of the masks of closed shards that an earlier state may still need: closed since the last state, before it.
  std::vector<Path> just_closed_, old_parts_;
};

}  // namespace samba
