#include "samba/train/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "samba/core/error.h"
#include "samba/model/weight_source.h"
#include "samba/train/checkpoint_image.h"
#include "samba/train/checkpoint_source.h"
#include "samba/train/model_folder.h"
#include "samba/train/ranked_checkpoint.h"
#include "samba/train/stack_checkpoint.h"
#include "samba/train/state_dictionary.h"
#include "samba/train/stored_model.h"

namespace samba {

namespace {

PieceWriter to_device(Memory& memory, float* device) {
  return [&memory, device](std::uint64_t first, const void* from, std::size_t bytes) {
    memory.copy_to_device(reinterpret_cast<char*>(device) + first, from, bytes);
  };
}

// The parameters of a checkpoint, tensor by tensor. What is not finite is told when the whole file was verified.
class SourceWeights final : public WeightSource {
 public:
  explicit SourceWeights(CheckpointSource& source) : source_(source) {}
  WeightFormat format() const override { return WeightFormat::float32; }
  bool is_stream() const override { return true; }
  ConstWeight open(std::size_t index) override {
    const ParameterTensor& tensor = source_.registry().tensors()[index];
    Array& array = open_.emplace(index, Array(DType::float32, tensor.shape)).first->second;
    source_.read_parameters(array.floats());
    watch_.look(static_cast<std::uint64_t>(tensor.offset), array.floats());
    return array;
  }
  void release(std::size_t index) override { open_.erase(index); }
  const FiniteWatch& watch() const { return watch_; }

 private:
  CheckpointSource& source_;
  FiniteWatch watch_;
  std::map<std::size_t, Array> open_;
};

// The writer of moments: elements that none of the ranges holds are left out.
PieceWriter to_moments(Memory& memory, float* moments, const std::vector<ParameterRange>& ranges) {
  return [&memory, moments, &ranges](std::uint64_t first, const void* from, std::size_t bytes) {
    const std::uint64_t end = first + bytes;
    std::uint64_t moment = 0;
    for (const ParameterRange& range : ranges) {
      const std::uint64_t begin_byte = static_cast<std::uint64_t>(range.first) * sizeof(float);
      const std::uint64_t range_bytes = static_cast<std::uint64_t>(range.count) * sizeof(float);
      const std::uint64_t begin = std::max(first, begin_byte), stop = std::min(end, begin_byte + range_bytes);
      if (begin < stop) {
        memory.copy_to_device(reinterpret_cast<char*>(moments) + moment + (begin - begin_byte),
                              static_cast<const char*>(from) + (begin - first), stop - begin);
      }
      moment += range_bytes;
    }
  };
}

}  // namespace

std::string save_checkpoint(const SambaTrainer& trainer, const Path& path, const FileProgress& progress) {
  if (trainer.ranks() != nullptr) return save_ranked_checkpoint(trainer, path);
  CheckpointImage image;
  image.take(trainer);
  return image.write(path, progress);
}

std::unique_ptr<SambaTrainer> load_for_training(Executor& executor, const Path& path, const FileProgress& progress,
                                                const RankPlace& place) {
  if (is_stack_archive(path)) return load_stack_for_training(executor, path, progress, place);
  CheckpointSource source(path, true);
  require_trained_mode(std::string(numeric_mode_name(NumericMode::identical)), executor.numeric_mode(), source.path());
  Memory& memory = executor.memory();
  auto stack = std::make_unique<SambaStack>(executor, source.config());
  const std::vector<ParameterRange> ranges = moment_ranges(source.registry(), place);
  const Index moments = element_count(ranges);
  DeviceArray<float> exp_avg(memory, moments);
  DeviceArray<float> exp_avg_sq(memory, moments);
  std::vector<std::int32_t> initialized(source.registry().tensors().size());
  FiniteWatch watch;
  source.read_arrays({watch.watched(to_device(memory, stack->mutable_device_parameters())),
                      to_moments(memory, exp_avg.data(), ranges), to_moments(memory, exp_avg_sq.data(), ranges),
                      [&](std::uint64_t first, const void* from, std::size_t bytes) {
                        std::memcpy(reinterpret_cast<char*>(initialized.data()) + first, from, bytes);
                      }},
                     progress);
  const TrainingState state = parse_training_state(source.state(), source.path());
  watch.refuse_if_found(source);

  stack->parameters_changed();
  auto trainer = std::make_unique<SambaTrainer>(std::move(stack), Generator(state.generator), state.optimizer,
                                                state.schedule, place);
  trainer->optimizer().restore(state.completed_steps, std::move(exp_avg), std::move(exp_avg_sq),
                               std::move(initialized));
  return trainer;
}

std::unique_ptr<SambaStack> load_for_inference(Executor& executor, const Path& path, const FileProgress& progress) {
  if (is_model_folder(path)) return load_folder_for_inference(executor, path);
  if (is_stack_archive(path)) return load_stack_for_inference(executor, path, progress);
  CheckpointSource source(path, false);
  SourceWeights weights(source);
  auto stack = std::make_unique<SambaStack>(executor, source.config(), weights);
  source.finish(progress);
  weights.watch().refuse_if_found(source);
  return stack;
}

CheckpointSummary inspect_checkpoint(const Path& path, bool verify_arrays, const FileProgress& progress) {
  if (is_model_folder(path)) {
    const StoredModel model = read_model(path, Reading::inference);
    return {false, model.file_bytes, model.state.config, stack_state_json(model.state, model.format())};
  }
  if (is_stack_archive(path)) {
    StackCheckpointReader reader(path, false);
    const StackArchiveReader& archive = reader.archive();
    for (const auto tensors : {archive.parameters(), archive.moments()}) {
      for (std::size_t i = 0; verify_arrays && i < tensors.size(); ++i) {
        reader.read(tensors[i]);
        if (progress) progress(tensors[i].offset + tensors[i].stored_bytes, archive.file_size());
      }
    }
    return {false, archive.file_size(), reader.state().config, archive.state()};
  }
  CheckpointSource source(path, false);
  if (verify_arrays || source.legacy()) {
    FiniteWatch watch;
    source.read_arrays({watch.watched({}), {}, {}, {}}, progress);
    watch.refuse_if_found(source);
  }
  return {source.legacy(), source.file_size(), source.config(), source.state()};
}

}  // namespace samba
