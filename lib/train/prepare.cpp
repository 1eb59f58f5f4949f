#include "samba/train/prepare.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <unordered_set>

#include "samba/core/error.h"
#include "samba/core/folder_lock.h"
#include "samba/core/json_fields.h"
#include "samba/core/numbers.h"
#include "samba/formats/token_shard_writer.h"
#include "samba/train/encode_line.h"
#include "samba/train/run_tokenizer.h"

namespace samba {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kProgressFile = "progress.json";
constexpr const char* kProgressFormat = "samba.shards.progress.v1";
constexpr std::int32_t kNewline = 10;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The first bytes of a digest, by which duplicates are told and documents held out.
struct ShortDigest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  bool operator==(const ShortDigest&) const = default;
};
struct ShortDigestHash {
  std::size_t operator()(const ShortDigest& digest) const { return static_cast<std::size_t>(digest.high ^ digest.low); }
};

std::uint64_t big_endian(const std::uint8_t* bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | bytes[i];
  return value;
}

template <std::size_t N>
ShortDigest short_digest(const std::array<std::uint8_t, N>& digest) {
  return {big_endian(digest.data()), big_endian(digest.data() + 8)};
}

const char* unit_name(DocumentUnit unit) {
  return unit == DocumentUnit::file ? "file" : unit == DocumentUnit::line ? "line" : "paragraph";
}

std::optional<std::int32_t> end_token_of(const RunTokenizer& tokenizer, const std::string& given) {
  if (given.empty()) {
    if (tokenizer.is_bytes()) return kNewline;
    if (tokenizer.text().eos) return tokenizer.text().eos;
    refuse_value("--end-token: the tokenizer names no token that ends a text; give its id or piece, or \"none\"");
  }
  if (given == "none") return std::nullopt;
  std::int32_t id = 0;
  const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), id);
  const bool number = error == std::errc{} && end == given.data() + given.size();
  if (number && id >= 0 && id < tokenizer.vocabulary_size()) return id;
  if (const auto found = tokenizer.tokenizer().id_of(given); !number && found) return *found;
  refuse_value("--end-token: must be a token of the tokenizer, an id in [0, " +
               std::to_string(tokenizer.vocabulary_size()) + "), or none, got \"" + given + "\"");
}

// What a preparation leaves that was killed while it put a file in its place.
bool is_leftover(const std::string& name) {
  const std::size_t end = name.find(".tmp-");
  const auto begins = [&](const char* with) { return name.starts_with(with); };
  return end != std::string::npos && (begins("train-") || begins("held_out-") || begins("tokenizer") ||
                                      begins(kProgressFile) || begins(kShardsIndex));
}

void remove_leftovers(const Path& folder) {
  std::vector<Path> old;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (is_leftover(entry.path().filename().string())) old.push_back(entry.path());
  }
  for (const Path& path : old) fs::remove(path);
}

class Preparation {
 public:
  Preparation(const PrepareOptions& options, const ModelOpener& opener, const PrepareHooks& hooks)
      : options_(options),
        hooks_(hooks),
        files_(document_files(options.paths)),
        tokenizer_(options.tokenizer, opener),
        end_token_(end_token_of(tokenizer_, options.end_token)),
        id_bytes_(tokenizer_.vocabulary_size() <= 65536 ? 2 : 4) {
    if (!(options.held_out >= 0.0 && options.held_out < 1.0)) {
      refuse_value("--held-out: must be a number in [0, 1), got " + number_text(options.held_out));
    }
    if (options.shard_tokens < 8 || options.shard_tokens % 8 != 0) {
      refuse_value("--shard-tokens: must be a multiple of 8, got " + std::to_string(options.shard_tokens));
    }
    held_out_below_ = static_cast<std::uint64_t>(options.held_out * 0x1p64);
    for (const Path& file : files_) bytes_in_all_ += fs::file_size(file);
  }

  PrepareReport take() {
    const auto start = Clock::now();
    std::error_code error;
    const bool made = fs::create_directories(options_.out, error);
    if (error) throw_file_error("create the folder", options_.out, error.value());
    const FolderLock lock(options_.out);
    if (options_.resume && is_token_shards(options_.out) && fs::remove(options_.out / kProgressFile)) {
      return report_of_finished();  // it died behind its last write
    }
    check_folder(made);
    remove_leftovers(options_.out);
    for (std::size_t set = 0; set < kShardSets; ++set) {
      writers_[set] = std::make_unique<TokenShardWriter>(options_.out, static_cast<ShardSet>(set), id_bytes_,
                                                         options_.shard_tokens);
    }
    if (options_.resume) {
      restore();
    } else {
      record_state();
    }
    PrepareReport report;
    report.files = files_.size();
    report.interrupted = !write_all();
    report.duplicates = duplicates_;
    if (report.interrupted) {
      record_state();
    } else {
      report.sha256 = finish();
    }
    report.train = writers_[0]->counts();
    report.held_out = writers_[1]->counts();
    report.seconds = seconds_since(start);
    return report;
  }

 private:
  // What the bytes of the shards follow from.
  nlohmann::ordered_json settings() const {
    nlohmann::ordered_json files = nlohmann::ordered_json::array();
    for (const Path& file : files_) files.push_back({file.string(), fs::file_size(file)});
    const DocumentOptions& documents = options_.documents;
    return {{"files", std::move(files)},
            {"tokenizer_sha256", tokenizer_.sha256()},
            {"end_token", end_token_ ? nlohmann::json(*end_token_) : nlohmann::json()},
            {"documents", unit_name(documents.unit)},
            {"fields", {documents.text_field, documents.prompt_field, documents.completion_field}},
            {"held_out", options_.held_out},
            {"deduplicated", options_.deduplicate},
            {"shard_tokens", options_.shard_tokens}};
  }

  // Is the folder empty, may what is in it go?
  void check_folder(bool made) const {
    const Path& out = options_.out;
    const bool finished = is_token_shards(out), begun = fs::exists(out / kProgressFile);
    if (options_.resume) {
      if (begun && !finished) return;
      refuse_value("--resume: " + out.string() +
                   (finished ? " is prepared to its end" : " holds no preparation that was begun"));
    }
    if (made) return;
    if (!finished && !begun) {
      for (const auto& entry : fs::directory_iterator(out)) {
        const std::string name = entry.path().filename().string();
        if (name == ".lock" || is_leftover(name)) continue;
        refuse_value("--out " + out.string() + ": the folder holds something else (" + name +
                     "); give a new or an empty one");
      }
      return;
    }
    if (!options_.force) {
      refuse_value("--out " + out.string() +
                   (finished ? " already holds token shards; --force replaces them"
                             : " holds an unfinished preparation; go on with --resume, or "
                               "begin anew with --force"));
    }
    // Without its index it is no folder of shards any more, whatever happens to the rest.
    fs::remove(out / kShardsIndex);
    fs::remove(out / kProgressFile);
    std::vector<Path> old;
    for (const auto& entry : fs::directory_iterator(out)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("train-") || name.starts_with("held_out-")) old.push_back(entry.path());
    }
    for (const Path& path : old) fs::remove(path);
  }

  PrepareReport report_of_finished() const {
    const TokenShards shards(options_.out);
    PrepareReport report;
    report.files = files_.size();
    report.train = shards.counts(ShardSet::train);
    report.held_out = shards.counts(ShardSet::held_out);
    report.sha256 = shards.sha256();
    return report;
  }

  void restore() {
    const Path path = options_.out / kProgressFile;
    const nlohmann::json state = parse_json(read_file(path), path.string());
    try {
      const JsonFields fields(state, "", {"format", "settings", "file", "unit", "duplicates", "train", "held_out"});
      fields.choice("format", "", {kProgressFormat});
      const nlohmann::json& theirs = fields.required("settings");
      const nlohmann::json mine = settings();
      for (const auto& [name, value] : mine.items()) {
        if (theirs.contains(name) && theirs.at(name) == value) continue;
        throw Error(ErrorKind::unsupported, "--resume: " + name + " is " + shown(value) +
                                                ", the preparation was begun with " +
                                                shown(theirs.value(name, nlohmann::json())));
      }
      place_.file = static_cast<std::uint64_t>(fields.integer("file", std::nullopt, 0));
      place_.unit = static_cast<std::uint64_t>(fields.integer("unit", std::nullopt, 0));
      duplicates_ = static_cast<std::uint64_t>(fields.integer("duplicates", std::nullopt, 0));
      for (std::size_t set = 0; set < kShardSets; ++set) {
        writers_[set]->restore(fields.required(kShardSetNames[set]), [this](const DocumentRecord& record) {
          if (options_.deduplicate) seen_.insert(short_digest(record.digest));
        });
      }
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::unsupported) refuse_value(error.what());
      if (error.kind() == ErrorKind::value) refuse_corrupt("progress", path.string() + ": " + error.what());
      throw;
    } catch (const nlohmann::json::exception& error) {
      refuse_corrupt("progress", path.string() + ": " + error.what());
    }
  }

  void record_state() {
    nlohmann::ordered_json state = {{"format", kProgressFormat}, {"settings", settings()}};
    state["file"] = place_.file;
    state["unit"] = place_.unit;
    state["duplicates"] = duplicates_;
    for (std::size_t set = 0; set < kShardSets; ++set) state[kShardSetNames[set]] = writers_[set]->state();
    write_file_atomically(options_.out / kProgressFile, state.dump() + "\n");
    recorded_ = Clock::now();
  }

  // False when it was interrupted.
  bool write_all() {
    std::uint64_t dropped = duplicates_;  // by the reader, ahead of the writer
    DocumentReader reader(files_, options_.documents, place_, [&](const Sha256Digest& digest) {
      if (!options_.deduplicate || seen_.insert(short_digest(digest)).second) return true;
      ++dropped;
      return false;
    });
    EncodeLine line(tokenizer_.tokenizer(), options_.threads, [&]() -> std::optional<EncodeBatch> {
      EncodeBatch batch;
      while (batch.text_bytes < kBatchBytes) {
        std::optional<DocumentPiece> piece = reader.next();
        if (!piece) break;
        batch.text_bytes += piece->text.size();
        batch.pieces.push_back(std::move(*piece));
        batch.dropped = dropped;  // those behind it are met again when a preparation goes on from here
      }
      if (batch.pieces.empty()) return std::nullopt;
      batch.bytes_read = reader.bytes_read();
      return batch;
    });
    while (std::optional<EncodeBatch> batch = line.next()) {
      write_batch(*batch);
      duplicates_ = batch->dropped;
      const std::optional<DocumentPlace>& behind = batch->pieces.back().behind;
      if (behind) place_ = *behind;
      if (hooks_.on_progress) {
        hooks_.on_progress({batch->bytes_read, bytes_in_all_,
                            writers_[0]->counts().documents + writers_[1]->counts().documents,
                            writers_[0]->counts().tokens + writers_[1]->counts().tokens});
      }
      if (!behind) continue;  // inside of a document
      if (hooks_.interrupted && hooks_.interrupted()) return false;
      if (Clock::now() - recorded_ >= options_.between_states) record_state();
    }
    duplicates_ = dropped;
    return true;
  }

  void write_batch(const EncodeBatch& batch) {
    std::size_t first = 0;
    for (std::size_t i = 0; i < batch.pieces.size(); ++i) {
      const DocumentPiece& piece = batch.pieces[i];
      const bool held_out = big_endian(piece.digest.data()) < held_out_below_;
      TokenShardWriter& writer = *writers_[held_out ? 1 : 0];
      writer.add(std::span(batch.ids).subspan(first, batch.ends[i] - first), piece.counts);
      first = batch.ends[i];
      if (!piece.last) continue;
      if (end_token_) writer.add({&*end_token_, 1}, true);
      writer.end_document(piece.digest, piece.bytes);
    }
  }

  std::string finish() {
    if (writers_[0]->counts().tokens == 0) {
      refuse_value("the files hold no document to train on: " + std::to_string(files_.size()) + " file(s), " +
                   std::to_string(writers_[1]->counts().documents) + " document(s) held out");
    }
    auto index = nlohmann::ordered_json::object();
    index["format"] = kShardsFormat;
    index["dtype"] = id_bytes_ == 2 ? "u16" : "u32";
    index["vocab"] = tokenizer_.vocabulary_size();
    index["end_token"] = end_token_ ? nlohmann::json(*end_token_) : nlohmann::json();
    index["tokenizer"] = tokenizer_.keep(options_.out);
    index["documents"] = unit_name(options_.documents.unit);
    index["held_out"] = options_.held_out;
    index["deduplicated"] = options_.deduplicate;
    index["duplicates"] = duplicates_;
    index["shard_tokens"] = options_.shard_tokens;
    for (std::size_t set = 0; set < kShardSets; ++set) index["sets"][kShardSetNames[set]] = writers_[set]->finish();
    const std::string text = sealed_index(std::move(index));
    write_file_atomically(options_.out / kShardsIndex, text);
    fs::remove(options_.out / kProgressFile);
    return nlohmann::json::parse(text)["sha256"];
  }

  const PrepareOptions& options_;
  const PrepareHooks& hooks_;
  std::vector<Path> files_;
  RunTokenizer tokenizer_;
  std::optional<std::int32_t> end_token_;
  std::size_t id_bytes_;
  std::uint64_t held_out_below_ = 0;
  std::uint64_t bytes_in_all_ = 0;
  std::array<std::unique_ptr<TokenShardWriter>, kShardSets> writers_;
  std::unordered_set<ShortDigest, ShortDigestHash> seen_;
  DocumentPlace place_;
  std::uint64_t duplicates_ = 0;
  Clock::time_point recorded_ = Clock::now();
};

nlohmann::ordered_json counts_json(const ShardSetCounts& counts) {
  return {{"documents", counts.documents},
          {"tokens", counts.tokens},
          {"bytes", counts.bytes},
          {"ignored_targets", counts.ignored}};
}

}  // namespace

PrepareReport prepare(const PrepareOptions& options, const ModelOpener& opener, const PrepareHooks& hooks) {
  return Preparation(options, opener, hooks).take();
}

nlohmann::ordered_json to_json(const PrepareReport& report) {
  const double bytes = static_cast<double>(report.train.bytes + report.held_out.bytes);
  const double tokens = static_cast<double>(report.train.tokens + report.held_out.tokens);
  return {{"finished", !report.interrupted},
          {"files", report.files},
          {"train", counts_json(report.train)},
          {"held_out", counts_json(report.held_out)},
          {"duplicates", report.duplicates},
          {"bytes_per_token", tokens > 0.0 ? bytes / tokens : 0.0},
          {"seconds", report.seconds},
          {"sha256", report.interrupted ? nlohmann::json() : nlohmann::json(report.sha256)}};
}

}  // namespace samba
