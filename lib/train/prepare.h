// samba prepare: texts to token shards.
//
// One thread reads documents, several encode them, one writes: what is written depends on the order of the documents
// alone, so the bytes are the same for any number of threads, and for a preparation that was stopped and went on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "samba/core/files.h"
#include "samba/formats/token_shards.h"
#include "samba/train/documents.h"
#include "samba/train/initial_model.h"

namespace samba {

struct PrepareOptions {
  std::vector<std::string> paths;
  Path out;
  std::string tokenizer;  // empty: bytes
  DocumentOptions documents;
  double held_out = 0.0;     // part of the documents, by their digest
  bool deduplicate = false;  // a document that came before is dropped
  std::string end_token;     // its id, its piece or "none"; empty: the tokenizer's own, 10 of bytes
  std::uint64_t shard_tokens = std::uint64_t{1} << 26;
  int threads = 1;                                 // that encode
  bool resume = false;                             // goes on with an unfinished preparation
  bool force = false;                              // removes the shards that are there
  std::chrono::milliseconds between_states{3000};  // how much work a preparation loses that is killed
};

struct PrepareProgress {
  std::uint64_t bytes_read = 0;  // of bytes_in_all, of the files as they lie
  std::uint64_t bytes_in_all = 0;
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
};

struct PrepareHooks {
  std::function<void(const PrepareProgress&)> on_progress;
  std::function<bool()> interrupted;  // asked often; then the state is recorded and prepare() returns
};

struct PrepareReport {
  bool interrupted = false;
  std::uint64_t files = 0;
  std::uint64_t duplicates = 0;  // documents dropped
  ShardSetCounts train, held_out;
  std::string sha256;  // of the index
  double seconds = 0.0;
};

// Error(value): no text, a line that is no document, a tokenizer without an end token, a folder that holds something
// else, a resumed preparation with other options (the message names the first that differs).
PrepareReport prepare(const PrepareOptions& options, const ModelOpener& opener, const PrepareHooks& hooks = {});

nlohmann::ordered_json to_json(const PrepareReport& report);

}  // namespace samba
