#include "samba/blocks/module.h"

#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "samba/blocks/block_options.h"
#include "samba/blocks/module_core.h"
#include "samba/blocks/refusals.h"
#include "samba/core/error.h"

namespace samba {

namespace {

using MakeRules = std::shared_ptr<const BlockRules>(Executor&, const nlohmann::json&, const ConstArrayMap&);

MakeRules* find_rules(const std::string& kind) {
  if (kind == "transformer") return make_transformer_rules;
  if (kind == "mamba1") return make_mamba1_rules;
  if (kind == "mamba2") return make_mamba2_rules;
  if (kind == "mamba3") return make_mamba3_rules;
  block_options(kind);  // refuses it
  throw Error(ErrorKind::internal, "a kind of block without rules: " + kind);
}

// What the rules of a kind look at: names, dtypes and shapes. A packed weight counts as the float32 array it stands
// for.
ConstArrayMap outlines(const ConstWeightMap& weights) {
  ConstArrayMap arrays;
  for (const auto& [name, weight] : weights) {
    arrays.emplace(name, weight.is_packed() ? ConstArray{DType::float32, weight.shape(), nullptr} : weight.array());
  }
  return arrays;
}

std::shared_ptr<const BlockRules> make_rules(Executor& executor, const std::string& kind, const nlohmann::json& options,
                                             const ConstWeightMap& weights) {
  MakeRules* const make = find_rules(kind);
  try {
    samba::weight_format(weights);  // refuses a mixture
    return make(executor, options, outlines(weights));
  } catch (const Error& error) {
    throw Error(error.kind(), error.error_class(), class_prefix(kind) + "Block: " + error.what());
  }
}

std::size_t weight_index(const std::vector<WeightSpec>& specs, const std::string& name) {
  std::string known;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == name) return i;
    known += (known.empty() ? "" : ", ") + specs[i].name;
  }
  refuse_value("the block has no weight '" + name + "'; it has " + known);
}

}  // namespace

std::string class_prefix(std::string_view kind) {
  std::string prefix(kind);
  if (!prefix.empty()) prefix[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(prefix[0])));
  return prefix;
}

BlockModule::Impl::Impl(Executor& on, std::shared_ptr<const BlockRules> of, const ConstWeightMap& values, Use for_use)
    : executor(on),
      rules(std::move(of)),
      kind(rules->kind()),
      use(for_use),
      weights(std::make_shared<BoundWeights>(executor, *rules, values)),
      workspace(executor.memory()) {
  weights->version = ++versions;
}

std::string BlockModule::Impl::class_name() const {
  return class_prefix(kind) + (use == Use::inference ? "BlockInference" : "Block");
}

void BlockModule::Impl::refuse_if_inference() const {
  if (use == Use::inference) refuse_unsupported("inference is forward only");
}

BlockModule::BlockModule(Executor& executor, const std::string& kind, const nlohmann::json& options,
                         const ConstWeightMap& weights, Use use)
    : impl_(std::make_shared<Impl>(executor, make_rules(executor, kind, options, weights), weights, use)) {}

BlockModule::~BlockModule() = default;
BlockModule::BlockModule(BlockModule&&) noexcept = default;

const std::string& BlockModule::kind() const { return impl_->kind; }
BlockModule::Use BlockModule::use() const { return impl_->use; }
std::string BlockModule::class_name() const { return impl_->class_name(); }
std::string_view BlockModule::profile() const { return block_profile(kind()); }
nlohmann::json BlockModule::options() const {
  nlohmann::json all = impl_->rules->options();
  all["numeric_mode"] = "identical";
  return all;
}
Index BlockModule::d_model() const { return impl_->d_model(); }
const std::vector<WeightSpec>& BlockModule::weight_specs() const { return impl_->weights->block->weight_specs(); }
std::string BlockModule::weight_format() const { return std::string(weight_format_name(impl_->weights->format())); }

Index BlockModule::parameter_count() const {
  Index count = 0;
  for (const WeightSpec& spec : weight_specs()) count += element_count(spec.shape);
  return count;
}

Array BlockModule::weight(const std::string& name) const {
  return expand(impl_->weights->arrays[weight_index(weight_specs(), name)].download());
}

ArrayMap BlockModule::weights() const {
  ArrayMap all;
  for (const WeightSpec& spec : weight_specs()) all.emplace(spec.name, weight(spec.name));
  return all;
}

WeightMap BlockModule::stored_weights() const {
  WeightMap all;
  for (std::size_t i = 0; i < weight_specs().size(); ++i) {
    all.emplace(weight_specs()[i].name, impl_->weights->arrays[i].download());
  }
  return all;
}

const float* BlockModule::device_weight(const std::string& name) const {
  const DeviceWeight& weight = impl_->weights->arrays[weight_index(weight_specs(), name)];
  if (!weight.view().is_packed()) return weight.view().values();
  refuse_value("weight " + name + " is stored as " + std::string(weight_format_name(weight.format())) +
               " and has no float32 values in the executor's memory; weight() gives an expanded copy");
}

void BlockModule::set_weight(const std::string& name, const ConstWeight& value) {
  impl_->named("set_weight", [&] {
    const ModuleGuard guard(*impl_);
    const std::size_t index = weight_index(weight_specs(), name);
    const ConstArrayMap outline = outlines({{name, value}});
    refuse_other_array("weight " + name, outline.at(name), weight_specs()[index].shape);
    impl_->set_weight(index, value);
  });
}

void BlockModule::Impl::set_weight(std::size_t index, const ConstWeight& value) {
  if (value.is_packed()) {
    for (std::size_t i = 0; i < weights->arrays.size(); ++i) {
      const WeightFormat format = weights->arrays[i].format();
      if (i == index || format == WeightFormat::float32 || format == value.format()) continue;
      refuse_value("weights mix formats: the block holds " + std::string(weight_format_name(format)) + ", given " +
                   std::string(weight_format_name(value.format())));
    }
  }
  const long own = reported == weights ? 2 : 1;
  const bool shared = weights.use_count() > own;
  const bool same_form = !value.is_packed() && weights->arrays[index].format() == WeightFormat::float32;
  if (!shared && same_form) {
    DeviceWeight& weight = weights->arrays[index];
    executor.memory().copy_to_device(weight.values(), value.array().data, weight.byte_size());
    weights->known_finite = false;
    weights->version = ++versions;
    weights->block->weights_changed();
    return;
  }
  auto edited = std::make_shared<BoundWeights>(executor, *rules, *weights);
  edited->arrays[index] = DeviceWeight(executor.memory(), value);
  edited->bind();
  edited->version = ++versions;
  weights = std::move(edited);
}

std::unique_ptr<ModuleState> BlockModule::allocate_state(Index batch_size, Index max_tokens) {
  auto state = std::make_shared<ModuleState::Impl>();
  state->device =
      impl_->named("allocate_state", [&] { return impl_->weights->block->allocate_state(batch_size, max_tokens); });
  state->rules = impl_->rules;
  state->executor = &impl_->executor;
  state->batch_size = batch_size;
  state->max_tokens = max_tokens;
  return std::make_unique<ModuleState>(std::move(state));
}

Array BlockModule::forward(ConstArray x) { return impl_->call("forward", x, nullptr, std::nullopt, false); }

Array BlockModule::forward(ConstArray x, ModuleState& state) {
  return impl_->call("forward", x, state.impl_.get(), std::nullopt, false);
}

Array BlockModule::forward(ConstArray x, std::span<const Index> lengths) {
  return impl_->call("forward", x, nullptr, lengths, false);
}

void BlockModule::forward(ConstArray x, ModuleState& state, std::span<const Index> lengths) {
  impl_->call("forward", x, state.impl_.get(), lengths, false);
  throw Error(ErrorKind::internal, "lengths with a state were not refused");
}

Array BlockModule::step(ConstArray x, ModuleState& state) {
  return impl_->call("step", x, state.impl_.get(), std::nullopt, true);
}

void BlockModule::step(ConstArray x) {
  impl_->call("step", x, nullptr, std::nullopt, true);
  throw Error(ErrorKind::internal, "a step without a state was not refused");
}

ArrayMap BlockModule::reports() const {
  if (impl_->reported == nullptr) return {};
  return impl_->rules->reports(*impl_->reported->block);
}

void BlockModule::set_reports(bool wanted) { impl_->reports_wanted = wanted; }

void BlockModule::set_stage_recorder(StageRecorder* recorder) { impl_->stages = recorder; }

}  // namespace samba
