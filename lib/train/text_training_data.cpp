#include "samba/train/text_training_data.h"

#include <algorithm>

#include "samba/core/error.h"
#include "samba/train/data.h"
#include "samba/train/encoded_text.h"

namespace samba {

namespace {

class TextTrainingData final : public TrainingData {
 public:
  TextTrainingData(const TrainConfig& config, const ModelOpener& opener)
      : text_(config.data.paths), tokenizer_(config.data.tokenizer, opener) {
    const auto held_out = static_cast<std::uint64_t>(config.data.evaluation_bytes);
    training_bytes_ = text_.size() > held_out ? text_.size() - held_out : 0;
    if (tokenizer_.vocabulary_size() > config.model.vocab && !tokenizer_.is_bytes()) {
      refuse_value("/model/vocab: " + std::to_string(config.model.vocab) + " is less than the " +
                   std::to_string(tokenizer_.vocabulary_size()) + " tokens of " + tokenizer_.path() +
                   vocabulary_hint(config, tokenizer_.vocabulary_size()));
    }
    if (!tokenizer_.is_bytes()) {
      training_bytes_ = character_border(text_, training_bytes_);
      encoded_ = std::make_unique<EncodedText>(text_, training_bytes_, tokenizer_.text(), config.model.vocab);
    }
    const std::uint64_t training = encoded_ ? encoded_->training_tokens() : training_bytes_;
    const std::uint64_t all = encoded_ ? encoded_->size() : text_.size();
    training_ = {{0, training}};
    held_out_ = {{0, all - training}};
    check_lengths(config);
    sha256_ = text_.checked_sha256(training_bytes_, encoded_ ? kByteVocabulary : config.model.vocab);
  }

  const std::vector<TokenRange>& ranges(DataPart part) const override {
    return part == DataPart::training ? training_ : held_out_;
  }

  void window(DataPart part, std::uint64_t start, Index length, std::int32_t* inputs,
              std::int32_t* targets) const override {
    if (part == DataPart::held_out) start += training_[0].count;
    if (encoded_) {
      const std::int32_t* from = encoded_->tokens().data() + start;
      std::copy_n(from, length, inputs);
      std::copy_n(from + 1, length, targets);
      return;
    }
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(length) + 1);
    text_.copy(start, bytes);
    std::copy(bytes.begin(), bytes.end() - 1, inputs);
    std::copy(bytes.begin() + 1, bytes.end(), targets);
  }

  std::uint64_t target_bytes(std::uint64_t start, Index length) const override {
    if (!encoded_) return static_cast<std::uint64_t>(length);
    const std::uint64_t first = training_[0].count + start + 1;
    return encoded_->bytes_of(first, first + static_cast<std::uint64_t>(length));
  }

  const RunTokenizer& tokenizer() const override { return tokenizer_; }

  void describe(nlohmann::ordered_json& data) const override {
    data["bytes"] = training_bytes_;
    data["sha256"] = sha256_;
    if (!encoded_) return;
    data["tokens"] = encoded_->training_tokens();
    data["tokenizer_sha256"] = tokenizer_.sha256();
  }

  std::string summary() const override {
    return std::to_string(training_bytes_) + " bytes" +
           (encoded_ ? " (" + std::to_string(encoded_->training_tokens()) + " tokens)" : std::string()) + " of " +
           std::to_string(text_.files()) + " file(s)";
  }

 private:
  void check_lengths(const TrainConfig& config) const {
    const auto length = static_cast<std::uint64_t>(config.batch.length);
    const std::string unit = encoded_ ? " tokens" : " bytes";
    const std::string needed = ", one sequence needs /batch/length + 1 = " + std::to_string(config.batch.length + 1);
    const Index held_back = config.data.evaluation_bytes;
    if (training_[0].count < length + 1) {
      refuse_value("/data: the training text has " + std::to_string(training_[0].count) + unit +
                   (held_back > 0 ? " without the " + std::to_string(held_back) + " held back" : std::string()) +
                   needed);
    }
    if (encoded_ && held_back > 0 && held_out_[0].count < length + 1) {
      refuse_value("/data/evaluation_bytes: the " + std::to_string(held_back) + " bytes held back are " +
                   std::to_string(held_out_[0].count) + " tokens" + needed);
    }
  }

  TextData text_;
  RunTokenizer tokenizer_;
  std::uint64_t training_bytes_ = 0;
  std::unique_ptr<EncodedText> encoded_;  // null: tokens are bytes
  std::vector<TokenRange> training_, held_out_;
  std::string sha256_;
};

}  // namespace

std::unique_ptr<TrainingData> open_text_data(const TrainConfig& config, const ModelOpener& opener) {
  return std::make_unique<TextTrainingData>(config, opener);
}

}  // namespace samba
