#include "samba/train/shard_data.h"

#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/formats/token_shards.h"
#include "samba/model/token_batch.h"

namespace samba {

namespace {

// Mapped pages are given back after so many windows: the system maps up to a large folio around the one that was
// touched.
constexpr std::uint64_t kWindowsBetweenDrops = 64;

class ShardTrainingData final : public TrainingData {
 public:
  ShardTrainingData(const TrainConfig& config, const ModelOpener& opener) {
    const DataConfig& data = config.data;
    if (data.evaluation_bytes > 0) {
      refuse_value(
          "/data/evaluation_bytes: " + std::to_string(data.evaluation_bytes) +
          " is for text, token shards hold out whole documents (samba prepare --held-out P); leave it out or set "
          "it to 0 (--set data.evaluation_bytes=0)");
    }
    for (const std::string& path : data.paths) sources_.push_back(std::make_unique<TokenShards>(path));
    open_tokenizer(data, opener);
    std::uint64_t first[kShardSets] = {};
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      const TokenShards& source = *sources_[i];
      if (source.vocab() > config.model.vocab) {
        refuse_value("/model/vocab: " + std::to_string(config.model.vocab) + " is less than the " +
                     std::to_string(source.vocab()) + " tokens of " + data.paths[i] +
                     vocabulary_hint(config, source.vocab()));
      }
      for (const DataPart part : {DataPart::training, DataPart::held_out}) {
        const auto set = static_cast<std::size_t>(part);
        const std::uint64_t count = source.counts(static_cast<ShardSet>(set)).tokens;
        ranges_[set].push_back({first[set], count});
        first[set] += count;
      }
      if (ranges_[0][i].count <= static_cast<std::uint64_t>(config.batch.length)) {
        refuse_value("/data/paths/" + std::to_string(i) + ": " + data.paths[i] + " has " +
                     std::to_string(ranges_[0][i].count) +
                     " tokens, one sequence needs /batch/length + 1 = " + std::to_string(config.batch.length + 1));
      }
    }
  }

  const std::vector<TokenRange>& ranges(DataPart part) const override {
    return ranges_[static_cast<std::size_t>(part)];
  }

  void window(DataPart part, std::uint64_t start, Index length, std::int32_t* inputs,
              std::int32_t* targets) const override {
    const auto set = static_cast<ShardSet>(part);
    const auto [source, inside] = source_at(part, start);
    source->read(set, inside, {inputs, static_cast<std::size_t>(length)});
    source->read(set, inside + 1, {targets, static_cast<std::size_t>(length)});
    if (source->counts(set).ignored > 0) {
      for (Index i = 0; i < length; ++i) {
        if (!source->counts_as_target(set, inside + 1 + static_cast<std::uint64_t>(i))) targets[i] = kIgnoredTarget;
      }
    }
    if (++windows_read_ % kWindowsBetweenDrops != 0) return;
    for (const auto& shards : sources_) shards->drop_pages();
  }

  std::uint64_t target_bytes(std::uint64_t start, Index length) const override {
    std::vector<std::int32_t> inputs(static_cast<std::size_t>(length)), targets(static_cast<std::size_t>(length));
    window(DataPart::held_out, start, length, inputs.data(), targets.data());
    const std::optional<std::int32_t> end = sources_[0]->end_token();
    DecodeState state{.begun = true, .stripped = 0, .stripping = false};
    std::string bytes;
    std::uint64_t count = 0;
    for (const std::int32_t id : targets) {
      if (id == kIgnoredTarget) continue;
      if (tokenizer_.is_bytes()) {
        ++count;
      } else if (id != end && !tokenizer_.tokenizer().is_special(id)) {
        bytes.clear();
        tokenizer_.tokenizer().decode_step(id, state, bytes);
        count += bytes.size();
      }
    }
    return count;
  }

  const RunTokenizer& tokenizer() const override { return tokenizer_; }

  void describe(nlohmann::ordered_json& data) const override {
    std::string digests;
    std::uint64_t tokens = 0, bytes = 0;
    for (const auto& source : sources_) {
      digests += source->sha256();
      tokens += source->counts(ShardSet::train).tokens;
      bytes += source->counts(ShardSet::train).bytes;
    }
    data["bytes"] = bytes;
    data["sha256"] = sources_.size() == 1 ? digests : sha256_hex(digests);
    data["tokens"] = tokens;
    if (!tokenizer_.is_bytes()) data["tokenizer_sha256"] = tokenizer_.sha256();
  }

  std::string summary() const override {
    std::uint64_t tokens = 0, documents = 0;
    for (const auto& source : sources_) {
      tokens += source->counts(ShardSet::train).tokens;
      documents += source->counts(ShardSet::train).documents;
    }
    return std::to_string(tokens) + " tokens of " + std::to_string(documents) + " document(s) in " +
           std::to_string(sources_.size()) + " folder(s) of shards";
  }

 private:
  struct Place {
    const TokenShards* source;
    std::uint64_t inside;
  };

  Place source_at(DataPart part, std::uint64_t start) const {
    const std::vector<TokenRange>& ranges = ranges_[static_cast<std::size_t>(part)];
    std::size_t i = ranges.size() - 1;
    while (i > 0 && ranges[i].first > start) --i;
    return {sources_[i].get(), start - ranges[i].first};
  }

  // All sources are of one tokenizer, which lies beside the first.
  void open_tokenizer(const DataConfig& data, const ModelOpener& opener) {
    const auto digest = [](const TokenShards& shards) { return shards.tokenizer().value("sha256", std::string()); };
    const std::string wanted = digest(*sources_[0]);
    for (std::size_t i = 1; i < sources_.size(); ++i) {
      if (digest(*sources_[i]) == wanted && sources_[i]->vocab() == sources_[0]->vocab()) continue;
      refuse_value("/data/paths/" + std::to_string(i) + ": " + data.paths[i] +
                   " was prepared with another tokenizer than " + data.paths[0]);
    }
    if (!wanted.empty()) {
      const Path file = sources_[0]->folder() / sources_[0]->tokenizer().value("file", std::string("tokenizer.json"));
      tokenizer_ = RunTokenizer(file.string(), opener);
      if (tokenizer_.sha256() != wanted) {
        refuse_corrupt("digest", file.string() + ": is not the tokenizer that the index names; the file was changed");
      }
    }
    if (data.tokenizer.empty()) return;
    if (RunTokenizer(data.tokenizer, opener).sha256() != wanted) {
      refuse_value("/data/tokenizer: " + data.tokenizer + " is not the tokenizer that " + data.paths[0] +
                   " was prepared with; leave it out");
    }
  }

  std::vector<std::unique_ptr<TokenShards>> sources_;
  RunTokenizer tokenizer_;
  std::vector<TokenRange> ranges_[kShardSets];
  mutable std::uint64_t windows_read_ = 0;
};

}  // namespace

std::unique_ptr<TrainingData> open_shard_data(const TrainConfig& config, const ModelOpener& opener) {
  return std::make_unique<ShardTrainingData>(config, opener);
}

}  // namespace samba
