#include "samba/train/checkpoint_image.h"

#include <array>
#include <cstring>

#include "samba/core/error.h"
#include "samba/formats/samba_archive.h"
#include "samba/formats/stack_archive.h"
#include "samba/kernels/pinned_memory.h"
#include "samba/train/checkpoint_source.h"
#include "samba/train/model_state.h"
#include "samba/train/stack_checkpoint.h"

namespace samba {

namespace {

// Host memory for a copy of device memory, pinned where the device offers it.
class HostCopy {
 public:
  HostCopy(Memory& memory, std::size_t bytes)
      : pinned_(dynamic_cast<PinnedMemory*>(&memory)),
        data_(pinned_ != nullptr ? pinned_->allocate_pinned(bytes) : ::operator new(bytes)) {}
  HostCopy(HostCopy&& other) noexcept : pinned_(other.pinned_), data_(std::exchange(other.data_, nullptr)) {}
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;
  HostCopy& operator=(HostCopy&&) = delete;
  ~HostCopy() {
    if (data_ == nullptr) return;
    if (pinned_ != nullptr) {
      pinned_->release_pinned(data_);
    } else {
      ::operator delete(data_);
    }
  }
  float* floats() { return static_cast<float*>(data_); }

 private:
  PinnedMemory* pinned_;
  void* data_;
};

}  // namespace

struct CheckpointImage::State {
  ModelState model;
  std::optional<Registry> registry;
  OptimizerKind kind = OptimizerKind::adamw;
  std::vector<std::int32_t> initialized;
  std::vector<HostCopy> copies;
  std::array<const float*, 3> buffers{};  // parameters and moments, in host memory; sgd has one moment

  std::string write_samba(const Path& path, const FileProgress& progress) const;
  std::string write_stack(const Path& path, const FileProgress& progress) const;
};

CheckpointImage::CheckpointImage() : state_(std::make_unique<State>()) {}
CheckpointImage::~CheckpointImage() = default;

void CheckpointImage::take(const SambaTrainer& trainer) {
  Memory& memory = trainer.stack().executor().memory();
  const Optimizer& optimizer = trainer.optimizer();
  State& s = *state_;
  s.model = model_state(trainer);
  s.registry.emplace(trainer.stack().registry());
  s.kind = optimizer.settings().kind;
  s.initialized = optimizer.buffer_initialized();
  s.buffers = {trainer.stack().device_parameters(), optimizer.exp_avg(), optimizer.exp_avg_sq()};
  if (memory.is_host()) return;
  const std::size_t bytes = static_cast<std::size_t>(s.registry->total()) * sizeof(float);
  for (std::size_t i = 0; i < s.buffers.size() && s.buffers[i] != nullptr; ++i) {
    if (i == s.copies.size()) s.copies.emplace_back(memory, bytes);
    memory.copy_to_host(s.copies[i].floats(), s.buffers[i], bytes);
    s.buffers[i] = s.copies[i].floats();
  }
}

std::string CheckpointImage::write(const Path& path, const FileProgress& progress) const {
  return fits_samba_archive(state_->model) ? state_->write_samba(path, progress) : state_->write_stack(path, progress);
}

std::string CheckpointImage::State::write_samba(const Path& path, const FileProgress& progress) const {
  const auto from = [](const void* values) {
    return [values](std::uint64_t first, void* to, std::size_t bytes) {
      std::memcpy(to, static_cast<const char*>(values) + first, bytes);
    };
  };
  return write_samba_archive(path, samba_state_json(model), archive_counts(*registry),
                             {from(buffers[0]), from(buffers[1]), from(buffers[2]), from(initialized.data())},
                             progress);
}

std::string CheckpointImage::State::write_stack(const Path& path, const FileProgress& progress) const {
  const auto source = [](const std::string& name, DType dtype, const Shape& shape, const void* values) {
    return StackTensorSource{name, dtype, shape,
                             [values](std::span<std::byte> raw) { std::memcpy(raw.data(), values, raw.size()); }};
  };
  std::vector<StackTensorSource> parameters, moments;
  for (const ParameterTensor& tensor : registry->tensors()) {
    parameters.push_back(source(tensor.name, DType::float32, tensor.shape, buffers[0] + tensor.offset));
  }
  for (const std::string& prefix : moment_prefixes(kind)) {
    const float* buffer = prefix == "exp_avg." ? buffers[1] : buffers[2];
    for (const ParameterTensor& tensor : registry->tensors()) {
      moments.push_back(source(prefix + tensor.name, DType::float32, tensor.shape, buffer + tensor.offset));
    }
  }
  moments.push_back(
      source(kInitializedName, DType::int32, {static_cast<Index>(initialized.size())}, initialized.data()));
  return write_stack_archive(path, stack_state_json(model, WeightFormat::float32), parameters, moments,
                             TensorCodec::none, progress);
}

}  // namespace samba
