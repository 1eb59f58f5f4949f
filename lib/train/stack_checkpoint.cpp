#include "samba/train/stack_checkpoint.h"

#include <cstring>
#include <map>

#include "samba/core/error.h"
#include "samba/formats/stack_weight.h"
#include "samba/model/weight_source.h"
#include "samba/train/state_fields.h"

namespace samba {

namespace {

// Tells the bytes of a file read so far; a file is done when its last tensor was.
class ReadProgress {
 public:
  ReadProgress(const StackCheckpointReader& reader, const FileProgress& report)
      : reader_(reader), report_(report), read_(reader.archive().parameters().front().offset) {}
  void add(const StackTensor& tensor) {
    read_ += tensor.stored_bytes;
    if (report_) report_(read_, reader_.archive().file_size());
  }

 private:
  const StackCheckpointReader& reader_;
  const FileProgress& report_;
  std::uint64_t read_;  // bytes of the file
};

void copy_to_device(Memory& memory, float* device, const std::vector<std::byte>& raw) {
  memory.copy_to_device(device, raw.data(), raw.size());
}

}  // namespace

std::vector<MomentSpec> moment_specs(const Registry& registry, OptimizerKind kind) {
  std::vector<MomentSpec> specs;
  for (const std::string& prefix : moment_prefixes(kind)) {
    for (const ParameterTensor& tensor : registry.tensors()) {
      specs.push_back({prefix + tensor.name, DType::float32, tensor.shape});
    }
  }
  specs.push_back({kInitializedName, DType::int32, {static_cast<Index>(registry.tensors().size())}});
  return specs;
}

void StackCheckpointReader::refuse(const char* error_class, const std::string& reason) const {
  state_fields::refuse(path_, error_class, reason);
}

namespace {

Registry registry_of(const ModelState& state, const std::string& source) {
  try {
    return Registry(state.config);
  } catch (const Error& error) {
    state_fields::refuse(source, "config", error.what());
  }
}

}  // namespace

StackCheckpointReader::StackCheckpointReader(const Path& path, bool for_training)
    : path_(path.string()),
      archive_(path),
      state_(parse_stack_state(archive_.state(), path_, for_training)),
      registry_(registry_of(state_, path_)) {
  check_parameters();
  if (state_.training) check_moments();
}

void StackCheckpointReader::check_parameters() const {
  const auto parameters = archive_.parameters();
  const std::vector<ParameterTensor>& expected = registry_.tensors();
  for (std::size_t i = 0; i < std::max(parameters.size(), expected.size()); ++i) {
    if (i >= parameters.size()) refuse("registry", "the parameter " + expected[i].name + " is missing");
    if (i >= expected.size()) refuse("registry", "the parameter " + parameters[i].name + " is none of this model");
    if (parameters[i].name != expected[i].name || parameters[i].shape != expected[i].shape) {
      refuse("registry", "parameter " + std::to_string(i) + " must be " + expected[i].name + " " +
                             shape_text(expected[i].shape) + ", got " + parameters[i].name + " " +
                             shape_text(parameters[i].shape));
    }
    if (parameters[i].dtype != DType::float32 && parameters[i].shape.size() != 2) {
      refuse("registry", "the parameter " + parameters[i].name + " has one dimension and the dtype " +
                             std::string(dtype_name(parameters[i].dtype)) + "; only matrices are packed");
    }
  }
}

void StackCheckpointReader::check_moments() const {
  const auto moments = archive_.moments();
  const std::vector<MomentSpec> expected = moment_specs(registry_, state_.training->optimizer.kind);
  for (std::size_t i = 0; i < std::max(moments.size(), expected.size()); ++i) {
    if (i >= moments.size()) refuse("registry", "the moment " + expected[i].name + " is missing");
    if (i >= expected.size()) refuse("registry", "the moment " + moments[i].name + " is none of this optimizer");
    if (moments[i].name != expected[i].name || moments[i].shape != expected[i].shape ||
        moments[i].dtype != expected[i].dtype) {
      refuse("registry", "moment " + std::to_string(i) + " must be " + expected[i].name + " " +
                             std::string(dtype_name(expected[i].dtype)) + " " + shape_text(expected[i].shape) +
                             ", got " + moments[i].name + " " + std::string(dtype_name(moments[i].dtype)) + " " +
                             shape_text(moments[i].shape));
    }
  }
}

WeightFormat StackCheckpointReader::format() const {
  return parse_weight_format(archive_.state()["weight_format"].get<std::string>());
}

Weight StackCheckpointReader::weight(std::size_t index) {
  const StackTensor& tensor = archive_.parameters()[index];
  if (tensor.dtype == DType::float32) {
    Array values(tensor.dtype, tensor.shape);
    archive_.read(tensor, {static_cast<std::byte*>(values.data()), values.byte_size()});
    return values;
  }
  return weight_of_raw(tensor.dtype, tensor.shape, archive_.read(tensor));
}

WeightMap StackCheckpointReader::weights() {
  WeightMap weights;
  for (std::size_t i = 0; i < registry_.tensors().size(); ++i) weights.emplace(registry_.tensors()[i].name, weight(i));
  return weights;
}

std::unique_ptr<SambaTrainer> load_stack_for_training(Executor& executor, const Path& path,
                                                      const FileProgress& progress, const RankPlace& place) {
  StackCheckpointReader reader(path, true);
  if (!reader.state().training) {
    const std::string format(weight_format_name(reader.format()));
    state_fields::refuse(reader.path(), "inference_only",
                         format == "float32"
                             ? "it holds weights alone, without moments and optimizer; it is for inference only"
                             : "its weights are rounded to " + format +
                                   ", which is for inference only; train the float32 model it was made from");
  }
  const TrainingState& training = *reader.state().training;
  require_trained_mode(reader.state().numeric_mode, executor.numeric_mode(), reader.path());
  ReadProgress report(reader, progress);
  Memory& memory = executor.memory();
  const Registry& registry = reader.registry();
  SambaTrainer::require_memory(executor, reader.state().config, training.optimizer, place);
  auto stack = std::make_unique<SambaStack>(executor, reader.state().config);
  for (std::size_t i = 0; i < registry.tensors().size(); ++i) {
    const StackTensor& tensor = reader.archive().parameters()[i];
    copy_to_device(memory, stack->mutable_device_parameters() + registry.tensors()[i].offset, reader.read(tensor));
    report.add(tensor);
  }
  stack->parameters_changed();
  auto trainer = std::make_unique<SambaTrainer>(std::move(stack), Generator(training.generator), training.optimizer,
                                                training.schedule, place);
  const bool sgd = training.optimizer.kind == OptimizerKind::sgd;
  const std::vector<ParameterRange>& ranges = trainer->optimizer().ranges();
  DeviceArray<float> exp_avg(memory, trainer->optimizer().moment_elements());
  DeviceArray<float> exp_avg_sq(memory, sgd ? 0 : trainer->optimizer().moment_elements());
  std::vector<std::int32_t> initialized(registry.tensors().size());
  std::size_t next = 0;
  for (const StackTensor& tensor : reader.archive().moments()) {
    const std::vector<std::byte> raw = reader.read(tensor);
    if (tensor.dtype == DType::int32) {
      std::memcpy(initialized.data(), raw.data(), raw.size());
    } else {
      float* buffer = next < registry.tensors().size() ? exp_avg.data() : exp_avg_sq.data();
      const std::size_t index = next % registry.tensors().size();
      for (const ParameterRange& range : ranges) {
        if (range.tensor == index) {
          const Index first = range.first - registry.tensors()[index].offset;
          memory.copy_to_device(buffer, raw.data() + first * Index{sizeof(float)},
                                static_cast<std::size_t>(range.count) * sizeof(float));
        }
        buffer += range.count;
      }
    }
    report.add(tensor);
    ++next;
  }
  trainer->optimizer().restore(training.completed_steps, std::move(exp_avg), std::move(exp_avg_sq),
                               std::move(initialized));
  return trainer;
}

namespace {

// One layer after the other from the file, each tensor verified as it is read.
class StackFileWeights final : public WeightSource {
 public:
  StackFileWeights(StackCheckpointReader& reader, const FileProgress& progress)
      : reader_(reader), report_(reader, progress) {}
  WeightFormat format() const override { return reader_.format(); }
  ConstWeight open(std::size_t index) override {
    const Weight& weight = open_.emplace(index, reader_.weight(index)).first->second;
    report_.add(reader_.archive().parameters()[index]);
    return weight;
  }
  void release(std::size_t index) override { open_.erase(index); }

 private:
  StackCheckpointReader& reader_;
  ReadProgress report_;
  std::map<std::size_t, Weight> open_;
};

}  // namespace

std::unique_ptr<SambaStack> load_stack_for_inference(Executor& executor, const Path& path,
                                                     const FileProgress& progress) {
  StackCheckpointReader reader(path, false);
  StackFileWeights weights(reader, progress);
  return std::make_unique<SambaStack>(executor, reader.state().config, weights);
}

}  // namespace samba
