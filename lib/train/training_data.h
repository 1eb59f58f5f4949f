// What a run learns from: tokens to train on, tokens held out, windows of both.
//
// Positions: the tokens of all sources lie end to end, those to train on and those held out each for themselves; no
// window crosses from one source into the next. Kinds: text as bytes, text under a tokenizer (encoded when it is
// opened), token shards (samba prepare).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "samba/core/array.h"
#include "samba/train/run_tokenizer.h"
#include "samba/train/train_config.h"

namespace samba {

// The tokens of one source.
struct TokenRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

enum class DataPart { training, held_out };

class TrainingData {
 public:
  virtual ~TrainingData() = default;

  virtual const std::vector<TokenRange>& ranges(DataPart part) const = 0;
  // The `length` tokens from `start` on, and as targets the ones that follow each of them; a target that does not count
  // is kIgnoredTarget.
  virtual void window(DataPart part, std::uint64_t start, Index length, std::int32_t* inputs,
                      std::int32_t* targets) const = 0;
  // The bytes of text that the counting targets of a held-out window stand for; an end token stands for none.
  virtual std::uint64_t target_bytes(std::uint64_t start, Index length) const = 0;

  virtual const RunTokenizer& tokenizer() const = 0;
  // What is computed of the data, for config.json: digests, sizes.
  virtual void describe(nlohmann::ordered_json& data) const = 0;
  virtual std::string summary() const = 0;  // "233237 bytes of 14 file(s)"
};

// Opens the data of a configuration and checks them against it. Error(value): no text, shorter than one sequence, a
// token outside the vocabulary; Error(corrupt): damaged shards.
std::unique_ptr<TrainingData> open_training_data(const TrainConfig& config, const ModelOpener& opener);

// True when the paths of a configuration are folders of token shards. Error(value) when only some are.
bool reads_token_shards(const DataConfig& data);

// What helps a model whose vocabulary is smaller than that of the data: the end of a refusal.
std::string vocabulary_hint(const TrainConfig& config, Index tokens);

// (rows, length) inputs and targets of windows.
struct WindowBatch {
  Array inputs;
  Array targets;
};
WindowBatch make_batch(const TrainingData& data, DataPart part, std::span<const std::uint64_t> starts, Index length);

// The windows of consecutive tokens that fit in a part, range by range.
std::uint64_t window_count(const TrainingData& data, DataPart part, Index length);
std::uint64_t window_start(const TrainingData& data, DataPart part, Index length, std::uint64_t number);

}  // namespace samba
