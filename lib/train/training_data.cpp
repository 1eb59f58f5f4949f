#include "samba/train/training_data.h"

#include <algorithm>
#include <numeric>

#include "samba/core/error.h"
#include "samba/formats/token_shards.h"
#include "samba/train/shard_data.h"
#include "samba/train/text_training_data.h"

namespace samba {

bool reads_token_shards(const DataConfig& data) {
  const auto shards = static_cast<std::size_t>(std::count_if(
      data.paths.begin(), data.paths.end(), [](const std::string& path) { return is_token_shards(path); }));
  if (shards == 0 || shards == data.paths.size()) return shards > 0;
  for (std::size_t i = 0; i < data.paths.size(); ++i) {
    if (is_token_shards(data.paths[i])) continue;
    refuse_value("/data/paths/" + std::to_string(i) + ": " + data.paths[i] +
                 " holds no token shards, another path does; give shards alone, or text alone");
  }
  return true;
}

std::unique_ptr<TrainingData> open_training_data(const TrainConfig& config, const ModelOpener& opener) {
  if (reads_token_shards(config.data)) return open_shard_data(config, opener);
  return open_text_data(config, opener);
}

std::string vocabulary_hint(const TrainConfig& config, Index tokens) {
  return config.train.init_from.empty() ? "; --set model.vocab=" + std::to_string(tokens) + " takes them"
                                        : "; the model that /train/init_from names keeps its vocabulary";
}

WindowBatch make_batch(const TrainingData& data, DataPart part, std::span<const std::uint64_t> starts, Index length) {
  const auto rows = static_cast<Index>(starts.size());
  WindowBatch batch{Array(DType::int32, {rows, length}), Array(DType::int32, {rows, length})};
  std::int32_t* inputs = batch.inputs.values<std::int32_t>().data();
  std::int32_t* targets = batch.targets.values<std::int32_t>().data();
  for (const std::uint64_t start : starts) {
    data.window(part, start, length, inputs, targets);
    inputs += length;
    targets += length;
  }
  return batch;
}

namespace {

std::uint64_t windows_of(const TokenRange& range, Index length) {
  return range.count == 0 ? 0 : (range.count - 1) / static_cast<std::uint64_t>(length);
}

}  // namespace

std::uint64_t window_count(const TrainingData& data, DataPart part, Index length) {
  const std::vector<TokenRange>& ranges = data.ranges(part);
  return std::accumulate(ranges.begin(), ranges.end(), std::uint64_t{0},
                         [&](std::uint64_t sum, const TokenRange& range) { return sum + windows_of(range, length); });
}

std::uint64_t window_start(const TrainingData& data, DataPart part, Index length, std::uint64_t number) {
  for (const TokenRange& range : data.ranges(part)) {
    const std::uint64_t windows = windows_of(range, length);
    if (number < windows) return range.first + number * static_cast<std::uint64_t>(length);
    number -= windows;
  }
  throw Error(ErrorKind::internal, "a window behind the last one");
}

}  // namespace samba
