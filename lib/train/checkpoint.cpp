#include "samba/train/checkpoint.h"

#include <array>
#include <cstring>
#include <vector>

#include "samba/core/error.h"
#include "samba/formats/legacy_checkpoint.h"
#include "samba/numerics/float32.h"
#include "samba/train/state_dictionary.h"

namespace samba {

namespace {

using Counts = std::array<Index, kArchiveArrays>;

Counts counts_of(const Registry& registry) {
  const Index total = registry.total();
  return {total, total, total, static_cast<Index>(registry.tensors().size())};
}

// A file of either format up to the point where its arrays are read; `load` then builds the result.
class CheckpointSource {
 public:
  CheckpointSource(const Path& path, bool for_training) : path_(path.string()), for_training_(for_training) {
    if (is_samba_archive(path)) {
      archive_.emplace(path);
    } else {
      legacy_.emplace(path);
    }
    config_ = parse_state_config(state(), path_);
    registry_.emplace(parse_state_registry(state(), config_, path_));
    if (archive_ || for_training_) check_state_metadata(state(), path_);
  }

  bool legacy() const { return legacy_.has_value(); }
  std::uint64_t file_size() const { return archive_ ? archive_->file_size() : legacy_->file_size(); }
  const std::string& path() const { return path_; }
  const nlohmann::json& state() const { return archive_ ? archive_->state() : legacy_->state(); }
  const SambaConfig& config() const { return config_; }
  const Registry& registry() const { return *registry_; }

  // Everything that can be checked before memory for the arrays is taken.
  void check_arrays() {
    if (archive_) archive_->check_arrays(counts_of(*registry_));
  }
  // Delivers the arrays, all verified when this returns.
  void read_arrays(const std::array<PieceWriter, kArchiveArrays>& destinations, const FileProgress& progress) {
    if (archive_) {
      archive_->read_arrays(destinations, progress);
      return;
    }
    const auto arrays = legacy_->take_arrays(counts_of(*registry_));
    for (std::size_t array = 0; array < kArchiveArrays; ++array) {
      if (destinations[array]) destinations[array](0, arrays[array].data(), arrays[array].size());
    }
    if (progress) progress(file_size(), file_size());
  }

 private:
  std::string path_;
  bool for_training_;
  std::optional<SambaArchiveReader> archive_;
  std::optional<LegacyCheckpoint> legacy_;
  SambaConfig config_;
  std::optional<Registry> registry_;
};

PieceWriter to_device(Memory& memory, float* device) {
  return [&memory, device](std::uint64_t first, const void* from, std::size_t bytes) {
    memory.copy_to_device(reinterpret_cast<char*>(device) + first, from, bytes);
  };
}

PieceReader from_device(Memory& memory, const float* device) {
  return [&memory, device](std::uint64_t first, void* to, std::size_t bytes) {
    memory.copy_to_host(to, reinterpret_cast<const char*>(device) + first, bytes);
  };
}

// Remembers the first non-finite parameter that passes by. Pieces are whole elements.
class FiniteWatch {
 public:
  void look(std::uint64_t first, const void* from, std::size_t bytes) {
    for (std::size_t at = 0; at < bytes && found_ < 0; at += sizeof(float)) {
      float value = 0.0F;
      std::memcpy(&value, static_cast<const char*>(from) + at, sizeof value);
      if (!is_finite(value)) found_ = static_cast<Index>((first + at) / sizeof(float));
    }
  }
  void refuse_if_found(const CheckpointSource& source) const {
    if (found_ < 0) return;
    refuse_corrupt("weights_finite", source.path() + " cannot be loaded (weights_finite): the parameter " +
                                         source.registry().element_name(found_) + " at flat index " +
                                         std::to_string(found_) + " is not finite");
  }

 private:
  Index found_ = -1;
};

PieceWriter watched(FiniteWatch& watch, PieceWriter next) {
  return [&watch, next = std::move(next)](std::uint64_t first, const void* from, std::size_t bytes) {
    watch.look(first, from, bytes);
    if (next) next(first, from, bytes);
  };
}

}  // namespace

std::string save_checkpoint(const SambaTrainer& trainer, const Path& path, const FileProgress& progress) {
  Memory& memory = trainer.stack().executor().memory();
  const Optimizer& optimizer = trainer.optimizer();
  const std::vector<std::int32_t>& initialized = optimizer.buffer_initialized();
  const PieceReader from_flags = [&](std::uint64_t first, void* to, std::size_t bytes) {
    std::memcpy(to, reinterpret_cast<const char*>(initialized.data()) + first, bytes);
  };
  return write_samba_archive(
      path, state_dictionary(trainer), counts_of(trainer.stack().registry()),
      {from_device(memory, trainer.stack().device_parameters()), from_device(memory, optimizer.exp_avg()),
       from_device(memory, optimizer.exp_avg_sq()), from_flags},
      progress);
}

std::unique_ptr<SambaTrainer> load_for_training(Executor& executor, const Path& path, const FileProgress& progress) {
  CheckpointSource source(path, true);
  source.check_arrays();
  Memory& memory = executor.memory();
  const Index total = source.registry().total();
  auto stack = std::make_unique<SambaStack>(executor, source.config());
  DeviceArray<float> exp_avg(memory, total);
  DeviceArray<float> exp_avg_sq(memory, total);
  std::vector<std::int32_t> initialized(source.registry().tensors().size());
  FiniteWatch watch;
  source.read_arrays({watched(watch, to_device(memory, stack->mutable_device_parameters())),
                      to_device(memory, exp_avg.data()), to_device(memory, exp_avg_sq.data()),
                      [&](std::uint64_t first, const void* from, std::size_t bytes) {
                        std::memcpy(reinterpret_cast<char*>(initialized.data()) + first, from, bytes);
                      }},
                     progress);
  const TrainingState state = parse_training_state(source.state(), source.path());
  watch.refuse_if_found(source);

  stack->parameters_changed();
  auto trainer =
      std::make_unique<SambaTrainer>(std::move(stack), Generator(state.generator), state.optimizer, state.schedule);
  trainer->optimizer().restore(state.completed_steps, std::move(exp_avg), std::move(exp_avg_sq),
                               std::move(initialized));
  return trainer;
}

std::unique_ptr<SambaStack> load_for_inference(Executor& executor, const Path& path, const FileProgress& progress) {
  CheckpointSource source(path, false);
  source.check_arrays();
  auto stack = std::make_unique<SambaStack>(executor, source.config(), SambaStack::Use::inference);
  FiniteWatch watch;
  source.read_arrays({watched(watch, to_device(executor.memory(), stack->mutable_device_parameters())), {}, {}, {}},
                     progress);
  watch.refuse_if_found(source);
  stack->parameters_changed();
  return stack;
}

CheckpointSummary inspect_checkpoint(const Path& path, bool verify_arrays, const FileProgress& progress) {
  CheckpointSource source(path, false);
  source.check_arrays();
  if (verify_arrays || source.legacy()) {
    FiniteWatch watch;
    source.read_arrays({watched(watch, {}), {}, {}, {}}, progress);
    watch.refuse_if_found(source);
  }
  return {source.legacy(), source.file_size(), source.config(), source.state()};
}

}  // namespace samba
