#include "samba/formats/token_shards.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/core/json_limits.h"

namespace samba {

namespace {

static_assert(std::endian::native == std::endian::little, "shards are mapped as they lie");

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::uint64_t kMostIndexBytes = std::uint64_t{256} << 20;
constexpr std::size_t kVerifyPiece = std::size_t{4} << 20;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 50;
constexpr std::int64_t kMostVocab = std::int64_t{1} << 31;

constexpr std::uint64_t mask_bytes(std::uint64_t tokens) { return (tokens + 7) / 8; }

std::uint64_t load_word(const std::byte* from) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, sizeof value);
  return value;
}

DocumentRecord record_at(const std::byte* from) {
  DocumentRecord record;
  record.end = load_word(from);
  std::memcpy(record.digest.data(), from + sizeof record.end, record.digest.size());
  return record;
}

std::uint32_t largest_id(std::span<const std::byte> ids, std::size_t id_bytes) {
  std::uint32_t largest = 0;
  for (std::size_t at = 0; at < ids.size(); at += id_bytes) {
    std::uint32_t id = 0;
    std::memcpy(&id, ids.data() + at, id_bytes);
    largest = std::max(largest, id);
  }
  return largest;
}

}  // namespace

std::string shard_file_name(ShardSet set, std::size_t number, const char* extension) {
  char name[64];
  std::snprintf(name, sizeof name, "%s-%05zu.%s", kShardSetNames[static_cast<std::size_t>(set)], number, extension);
  return name;
}

bool is_token_shards(const Path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / kShardsIndex, ignored);
}

std::string sealed_index(nlohmann::ordered_json fields) {
  fields["sha256"] = sha256_hex(fields.dump());
  return fields.dump(2) + "\n";
}

void TokenShards::refuse(const char* error_class, const std::string& reason) const {
  refuse_corrupt(error_class, (folder_ / kShardsIndex).string() + ": " + reason);
}

TokenShards::TokenShards(Path folder, const std::function<void(std::uint64_t, std::uint64_t)>& progress)
    : folder_(std::move(folder)) {
  if (!fs::is_directory(folder_)) refuse_value("there is no folder of token shards " + folder_.string());
  if (!is_token_shards(folder_)) {
    refuse_value(folder_.string() + (fs::exists(folder_ / "progress.json")
                                         ? " is not prepared to its end; go on with samba prepare --resume"
                                         : " holds no token shards (no index.json); samba prepare makes them"));
  }
  const nlohmann::ordered_json index = read_index();
  try {
    const Json object = index;
    const JsonFields fields(object, "",
                            {"format", "dtype", "vocab", "end_token", "tokenizer", "documents", "held_out",
                             "deduplicated", "duplicates", "shard_tokens", "sets", "sha256"});
    fields.choice("format", "", {kShardsFormat});
    id_bytes_ = fields.choice("dtype", "", {"u16", "u32"}) == "u16" ? 2 : 4;
    vocab_ = fields.integer("vocab", std::nullopt, 1, id_bytes_ == 2 ? 65536 : kMostVocab);
    if (fields.has("end_token")) end_token_ = static_cast<std::int32_t>(fields.integer("end_token", 0, 0, vocab_ - 1));
    shard_tokens_ = static_cast<std::uint64_t>(fields.integer("shard_tokens", std::nullopt, 1, kMostTokens));
    tokenizer_ = index.at("tokenizer");
    if (!tokenizer_.is_object()) fields.refuse("tokenizer", "an object");
    sha256_ = fields.text("sha256", "");
    const JsonFields sets(fields.required("sets"), "/sets", {kShardSetNames[0], kShardSetNames[1]});
    for (std::size_t set = 0; set < kShardSets; ++set) {
      read_set(static_cast<ShardSet>(set), sets.required(kShardSetNames[set]));
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::value) throw;
    refuse("index", error.what());
  }
  std::uint64_t all = 0, done = 0;
  for (const File& file : files_) all += file.bytes;
  std::size_t next = 0;
  const auto read = [&](std::uint64_t bytes) {
    done += bytes;
    if (progress) progress(done, all);
  };
  for (const Set& set : sets_) {
    for (const Shard& shard : set.shards) {
      const File& ids = files_[next++];
      std::uint32_t largest = 0;
      verify(ids, shard.ids, read,
             [&](std::span<const std::byte> piece) { largest = std::max(largest, largest_id(piece, id_bytes_)); });
      if (static_cast<Index>(largest) >= vocab_) {
        refuse_corrupt("tokens", (folder_ / ids.name).string() + ": holds the token " + std::to_string(largest) +
                                     ", outside [0, " + std::to_string(vocab_) + ")");
      }
      std::uint64_t last = 0;
      bool ascending = true;
      const File& documents = files_[next++];
      verify(documents, shard.documents, read, [&](std::span<const std::byte> piece) {
        for (std::size_t at = 0; at < piece.size(); at += kDocumentRecordBytes) {
          const std::uint64_t end = load_word(piece.data() + at);
          ascending = ascending && end >= last && end <= shard.tokens;
          last = end;
        }
      });
      if (!ascending) refuse("documents", documents.name + ": the ends of the documents do not ascend");
      if (!shard.targets.bytes().empty()) verify(files_[next++], shard.targets, read, {});
    }
  }
}

nlohmann::ordered_json TokenShards::read_index() const {
  const std::string text = read_file(folder_ / kShardsIndex, kMostIndexBytes);
  std::string fault = "it is no JSON object";
  if (!parse_bounded(text, fault).is_object()) refuse("index", fault);
  // Once more with its fields in their order, which the digest goes by.
  nlohmann::ordered_json index = nlohmann::ordered_json::parse(text);
  const auto found = index.find("sha256");
  if (found == index.end() || !found->is_string()) refuse("index", "has no field sha256");
  const auto stated = found->get<std::string>();
  nlohmann::ordered_json fields = index;
  fields.erase("sha256");
  if (sealed_index(std::move(fields)) != text) {
    refuse("digest", "its digest is not " + stated + ": the file was changed or is damaged");
  }
  return index;
}

void TokenShards::read_set(ShardSet set, const Json& object) {
  const std::string pointer = std::string("/sets/") + kShardSetNames[static_cast<std::size_t>(set)];
  const JsonFields fields(object, pointer, {"documents", "tokens", "bytes", "ignored", "shards"});
  Set& mine = sets_[static_cast<std::size_t>(set)];
  const auto count = [&](const JsonFields& from, const char* name) {
    return static_cast<std::uint64_t>(from.integer(name, std::nullopt, 0, kMostTokens));
  };
  mine.counts = {count(fields, "documents"), count(fields, "tokens"), count(fields, "bytes"), count(fields, "ignored")};
  const Json& shards = fields.required("shards");
  if (!shards.is_array()) fields.refuse("shards", "a list");
  ShardSetCounts sum;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const JsonFields entry(shards[i], pointer + "/shards/" + std::to_string(i),
                           {"tokens", "documents", "ignored", "sha256"});
    const std::uint64_t tokens = count(entry, "tokens"), documents = count(entry, "documents");
    const std::uint64_t ignored = count(entry, "ignored");
    if (tokens > shard_tokens_ || (i + 1 < shards.size() && tokens != shard_tokens_) || ignored > tokens) {
      entry.refuse("tokens", "those of a full shard, fewer in the last alone, at least the ignored ones");
    }
    sum = {sum.documents + documents, sum.tokens + tokens, mine.counts.bytes, sum.ignored + ignored};
    const JsonFields digests(entry.required("sha256"), entry.pointer() + "/sha256", {"tokens", "documents", "targets"});
    Shard shard;
    shard.tokens = tokens;
    const auto file = [&](const char* extension, std::uint64_t bytes) {
      return map({shard_file_name(set, i, extension), digests.text(extension, ""), bytes});
    };
    shard.ids = file("tokens", tokens * id_bytes_);
    shard.documents = file("documents", documents * kDocumentRecordBytes);
    if (ignored > 0) shard.targets = file("targets", mask_bytes(tokens));
    mine.shards.push_back(std::move(shard));
  }
  if (sum.documents != mine.counts.documents || sum.tokens != mine.counts.tokens ||
      sum.ignored != mine.counts.ignored) {
    fields.refuse("shards", "shards whose sums are the counts of the set");
  }
}

MappedFile TokenShards::map(const File& file) {
  const Path path = folder_ / file.name;
  if (!fs::is_regular_file(path)) refuse("size", "the file " + file.name + " is missing");
  MappedFile mapped(path);
  if (mapped.bytes().size() != file.bytes) {
    refuse("size", file.name + " must have " + std::to_string(file.bytes) + " bytes, got " +
                       std::to_string(mapped.bytes().size()));
  }
  files_.push_back(file);
  return mapped;
}

void TokenShards::verify(const File& file, const MappedFile& content, const std::function<void(std::uint64_t)>& read,
                         const std::function<void(std::span<const std::byte>)>& visit) const {
  // Whole ids and whole records: 3 * 2^22 bytes.
  constexpr std::size_t kPiece = 3 * kVerifyPiece;
  Sha256 hash;
  const std::span<const std::byte> bytes = content.bytes();
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const std::span<const std::byte> piece = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
    hash.update(piece.data(), piece.size());
    if (visit) visit(piece);
    content.drop(piece);
    read(piece.size());
  }
  const std::string digest = hash.finish_hex();
  if (digest != file.sha256) {
    refuse_corrupt("digest", (folder_ / file.name).string() + ": the SHA-256 is " + digest + ", the index has " +
                                 file.sha256 + ": the file is damaged");
  }
}

void TokenShards::read(ShardSet set, std::uint64_t first, std::span<std::int32_t> ids) const {
  const std::vector<Shard>& shards = sets_[static_cast<std::size_t>(set)].shards;
  for (std::size_t done = 0; done < ids.size();) {
    const std::uint64_t at = first + done;
    const Shard& shard = shards.at(at / shard_tokens_);
    const std::uint64_t inside = at % shard_tokens_;
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(ids.size() - done, shard.tokens - inside));
    if (count == 0) throw Error(ErrorKind::internal, "token shards: read behind the end");
    const std::byte* from = shard.ids.bytes().data() + inside * id_bytes_;
    for (std::size_t i = 0; i < count; ++i, from += id_bytes_) {
      std::uint32_t id = 0;
      std::memcpy(&id, from, id_bytes_);
      ids[done + i] = static_cast<std::int32_t>(id);
    }
    done += count;
  }
}

bool TokenShards::counts_as_target(ShardSet set, std::uint64_t at) const {
  const Shard& shard = sets_[static_cast<std::size_t>(set)].shards.at(at / shard_tokens_);
  const std::uint64_t inside = at % shard_tokens_;
  if (shard.targets.bytes().empty()) return true;
  return (std::to_integer<unsigned>(shard.targets.bytes()[inside / 8]) >> (inside % 8) & 1U) != 0;
}

void TokenShards::drop_pages() const {
  for (const Set& set : sets_) {
    for (const Shard& shard : set.shards) {
      for (const MappedFile* file : {&shard.ids, &shard.targets}) file->drop(file->bytes());
    }
  }
}

void TokenShards::for_each_document(ShardSet set, const std::function<void(const DocumentRecord&)>& visit) const {
  std::uint64_t before = 0;
  for (const Shard& shard : sets_[static_cast<std::size_t>(set)].shards) {
    const std::span<const std::byte> records = shard.documents.bytes();
    for (std::size_t at = 0; at < records.size(); at += kDocumentRecordBytes) {
      DocumentRecord record = record_at(records.data() + at);
      record.end += before;
      visit(record);
    }
    before += shard.tokens;
  }
}

}  // namespace samba
