#include "samba/formats/token_shard_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/core/system_calls.h"

namespace samba {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPending = std::size_t{1} << 20;
constexpr std::int64_t kMost = std::int64_t{1} << 50;

}  // namespace

// ---- GrowingFile ----

GrowingFile::~GrowingFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void GrowingFile::open(const Path& path, std::uint64_t keep) {
  path_ = path;
  descriptor_ = open_again(path, O_RDWR | O_CREAT, 0644);
  if (descriptor_ < 0) throw_file_error("open", path, errno);
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) throw_file_error("look at", path, errno);
  if (static_cast<std::uint64_t>(status.st_size) < keep) {
    refuse_corrupt("progress", path.string() + ": must have at least " + std::to_string(keep) + " bytes, got " +
                                   std::to_string(status.st_size));
  }
  if (again([&] { return ::ftruncate(descriptor_, static_cast<off_t>(keep)); }) != 0)
    throw_file_error("cut", path, errno);
  hash_ = Sha256();
  size_ = 0;
  pending_.resize(kPending);
  while (size_ < keep) {
    const ssize_t got = ::read(descriptor_, pending_.data(), std::min<std::uint64_t>(kPending, keep - size_));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw_file_error("read", path, got == 0 ? EIO : errno);
    hash_.update(pending_.data(), static_cast<std::size_t>(got));
    size_ += static_cast<std::uint64_t>(got);
  }
  pending_.clear();
}

void GrowingFile::append(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  pending_.insert(pending_.end(), from, from + bytes);
  size_ += bytes;
  if (pending_.size() >= kPending) flush();
}

void GrowingFile::flush() {
  const auto* bytes = reinterpret_cast<const char*>(pending_.data());
  if (const int error = write_all(descriptor_, bytes, pending_.size()); error != 0) {
    throw_file_error("write", path_, error);
  }
  hash_.update(pending_.data(), pending_.size());
  pending_.clear();
}

void GrowingFile::sync() {
  flush();
  if (again([&] { return ::fsync(descriptor_); }) != 0) throw_file_error("make durable", path_, errno);
}

std::string GrowingFile::finish(const Path& name) {
  sync();
  if (close_once(std::exchange(descriptor_, -1)) != 0) throw_file_error("close", path_, errno);
  if (again([&] { return ::rename(path_.c_str(), name.c_str()); }) != 0) throw_file_error("name", name, errno);
  sync_folder(name.parent_path());
  return hash_.finish_hex();
}

// ---- TokenShardWriter ----

TokenShardWriter::TokenShardWriter(Path folder, ShardSet set, std::size_t id_bytes, std::uint64_t shard_tokens)
    : folder_(std::move(folder)), set_(set), id_bytes_(id_bytes), shard_tokens_(shard_tokens) {
  if (shard_tokens % 8 != 0 || shard_tokens == 0) {
    throw Error(ErrorKind::internal, "the tokens of a shard must be a multiple of 8");
  }
}

Path TokenShardWriter::whole(const char* extension) const {
  return folder_ / shard_file_name(set_, closed_.size(), extension);
}

Path TokenShardWriter::part(const char* extension) const {
  Path path = whole(extension);
  path += ".part";
  return path;
}

void TokenShardWriter::open_shard(std::uint64_t tokens, std::uint64_t documents) {
  tokens_ = tokens;
  ended_ = documents;
  ids_.open(part("tokens"), tokens * id_bytes_);
  documents_.open(part("documents"), documents * kDocumentRecordBytes);
}

void TokenShardWriter::add(std::span<const std::int32_t> ids, bool count_as_targets) {
  while (!ids.empty()) {
    if (!ids_.is_open()) open_shard(0, 0);
    const std::size_t count = std::min<std::uint64_t>(ids.size(), shard_tokens_ - tokens_);
    for (const std::int32_t id : ids.first(count)) {
      const auto word = static_cast<std::uint32_t>(id);
      ids_.append(&word, id_bytes_);
    }
    mask_.resize((tokens_ + count + 7) / 8);
    for (std::uint64_t at = tokens_; count_as_targets && at < tokens_ + count; ++at) {
      mask_[at / 8] = static_cast<std::uint8_t>(mask_[at / 8] | 1U << (at % 8));
    }
    tokens_ += count;
    counts_.tokens += count;
    if (!count_as_targets) {
      ignored_ += count;
      counts_.ignored += count;
    }
    ids = ids.subspan(count);
    if (tokens_ == shard_tokens_ && !ids.empty()) close_shard();
  }
}

void TokenShardWriter::end_document(std::span<const std::uint8_t> digest, std::uint64_t bytes) {
  if (!ids_.is_open()) open_shard(0, 0);
  std::byte record[kDocumentRecordBytes] = {};
  std::memcpy(record, &tokens_, sizeof tokens_);
  std::memcpy(record + sizeof tokens_, digest.data(), kDocumentRecordBytes - sizeof tokens_);
  documents_.append(record, sizeof record);
  ++ended_;
  ++counts_.documents;
  counts_.bytes += bytes;
}

void TokenShardWriter::close_shard() {
  nlohmann::ordered_json entry = {{"tokens", tokens_}, {"documents", ended_}, {"ignored", ignored_}};
  // The digests before the names are built from the number of closed shards.
  entry["sha256"]["tokens"] = ids_.finish(whole("tokens"));
  entry["sha256"]["documents"] = documents_.finish(whole("documents"));
  entry["sha256"]["targets"] = nullptr;
  if (ignored_ > 0) {
    const std::string_view mask(reinterpret_cast<const char*>(mask_.data()), mask_.size());
    write_file_atomically(whole("targets"), mask);
    entry["sha256"]["targets"] = sha256_hex(mask);
  }
  just_closed_.push_back(part("targets"));
  closed_.push_back(std::move(entry));
  mask_.clear();
  tokens_ = ended_ = ignored_ = 0;
}

nlohmann::ordered_json TokenShardWriter::state() {
  // The state before this one is on the disk by now; the one before that needs its parts no more.
  for (const Path& old : std::exchange(old_parts_, std::exchange(just_closed_, {}))) fs::remove(old);
  if (ids_.is_open()) {
    ids_.sync();
    documents_.sync();
    if (ignored_ > 0) {
      write_file_atomically(part("targets"), {reinterpret_cast<const char*>(mask_.data()), mask_.size()});
    }
  }
  return {{"counts", {counts_.documents, counts_.tokens, counts_.bytes, counts_.ignored}},
          {"closed", closed_},
          {"open", {tokens_, ended_, ignored_}}};
}

void TokenShardWriter::restore(const nlohmann::json& state, const std::function<void(const DocumentRecord&)>& seen) {
  const JsonFields fields(state, "", {"counts", "closed", "open"});
  const auto numbers = [&](const char* name, std::size_t count) {
    const nlohmann::json& list = fields.required(name);
    const auto number = [](const nlohmann::json& n) { return n.is_number_unsigned() && n <= kMost; };
    if (!list.is_array() || list.size() != count || !std::all_of(list.begin(), list.end(), number)) {
      fields.refuse(name, "a list of " + std::to_string(count) + " counts");
    }
    return list.get<std::vector<std::uint64_t>>();
  };
  const std::vector<std::uint64_t> counts = numbers("counts", 4), open = numbers("open", 3);
  counts_ = {counts[0], counts[1], counts[2], counts[3]};
  const nlohmann::json& closed = fields.required("closed");
  if (!closed.is_array()) fields.refuse("closed", "a list");
  closed_ = nlohmann::ordered_json::array();
  for (const nlohmann::json& given : closed) {  // its fields in the order of the index
    auto entry = nlohmann::ordered_json::object();
    for (const char* name : {"tokens", "documents", "ignored"}) entry[name] = given.at(name);
    for (const char* name : {"tokens", "documents", "targets"}) entry["sha256"][name] = given.at("sha256").at(name);
    closed_.push_back(std::move(entry));
  }
  // What was finished behind the state is taken up again as a part, or goes away.
  for (const char* extension : {"tokens", "documents"}) {
    if (fs::exists(whole(extension))) fs::rename(whole(extension), part(extension));
  }
  fs::remove(whole("targets"));
  for (std::size_t number = 0; number < closed_.size(); ++number) {
    fs::remove(folder_ / (shard_file_name(set_, number, "targets") + ".part"));
  }
  for (std::size_t number = closed_.size() + 1;; ++number) {
    bool found = false;
    for (const char* extension : {"tokens", "documents", "targets"}) {
      const Path path = folder_ / shard_file_name(set_, number, extension);
      found = fs::remove(path) || found;
      found = fs::remove(path.string() + ".part") || found;
    }
    if (!found) break;
  }
  ignored_ = open[2];
  open_shard(open[0], open[1]);
  mask_.assign((tokens_ + 7) / 8, 0);
  if (ignored_ > 0) {
    const std::string mask = read_file(part("targets"));
    if (mask.size() < mask_.size()) refuse_corrupt("progress", part("targets").string() + ": is too short");
    std::memcpy(mask_.data(), mask.data(), mask_.size());
  } else {
    std::fill(mask_.begin(), mask_.end(), std::uint8_t{0xFF});
  }
  if (tokens_ % 8 != 0 && !mask_.empty()) {
    mask_.back() = static_cast<std::uint8_t>(mask_.back() & ((1U << (tokens_ % 8)) - 1));
  }
  for (std::size_t number = 0; number <= closed_.size() && seen; ++number) {
    Path path = folder_ / shard_file_name(set_, number, "documents");
    if (number == closed_.size()) path += ".part";
    const std::string records = read_file(path);
    for (std::size_t at = 0; at + kDocumentRecordBytes <= records.size(); at += kDocumentRecordBytes) {
      DocumentRecord record;
      std::memcpy(&record.end, records.data() + at, sizeof record.end);
      std::memcpy(record.digest.data(), records.data() + at + sizeof record.end, record.digest.size());
      seen(record);
    }
  }
}

nlohmann::ordered_json TokenShardWriter::finish() {
  if (ids_.is_open()) {
    if (tokens_ > 0 || ended_ > 0) {
      close_shard();
    } else {
      fs::remove(part("tokens"));
      fs::remove(part("documents"));
    }
  }
  for (const auto* parts : {&old_parts_, &just_closed_}) {
    for (const Path& old : *parts) fs::remove(old);
  }
  return {{"documents", counts_.documents},
          {"tokens", counts_.tokens},
          {"bytes", counts_.bytes},
          {"ignored", counts_.ignored},
          {"shards", closed_}};
}

}  // namespace samba
