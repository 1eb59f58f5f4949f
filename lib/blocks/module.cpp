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

std::shared_ptr<const BlockRules> make_rules(Executor& executor, const std::string& kind, const nlohmann::json& options,
                                             const ConstArrayMap& weights) {
  MakeRules* const make = find_rules(kind);
  try {
    return make(executor, options, weights);
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

BlockModule::Impl::Impl(Executor& on, std::shared_ptr<const BlockRules> of, Use for_use)
    : executor(on),
      rules(std::move(of)),
      kind(rules->kind()),
      use(for_use),
      weights(std::make_shared<BoundWeights>(executor, *rules)),
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
                         const ConstArrayMap& weights, Use use)
    : impl_(std::make_shared<Impl>(executor, make_rules(executor, kind, options, weights), use)) {
  const std::vector<WeightSpec>& specs = weight_specs();
  for (std::size_t i = 0; i < specs.size(); ++i) impl_->weights->arrays[i].upload(weights.at(specs[i].name).floats());
  impl_->weights->bind();
}

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
std::string BlockModule::weight_format() const { return "float32"; }

Index BlockModule::parameter_count() const {
  Index count = 0;
  for (const WeightSpec& spec : weight_specs()) count += element_count(spec.shape);
  return count;
}

Array BlockModule::weight(const std::string& name) const {
  const std::size_t index = weight_index(weight_specs(), name);
  Array values(DType::float32, weight_specs()[index].shape);
  impl_->weights->arrays[index].download(values.floats().data());
  return values;
}

ArrayMap BlockModule::weights() const {
  ArrayMap all;
  for (const WeightSpec& spec : weight_specs()) all.emplace(spec.name, weight(spec.name));
  return all;
}

const float* BlockModule::device_weight(const std::string& name) const {
  return impl_->weights->arrays[weight_index(weight_specs(), name)].data();
}

void BlockModule::set_weight(const std::string& name, ConstArray value) {
  impl_->named("set_weight", [&] {
    const ModuleGuard guard(*impl_);
    const std::size_t index = weight_index(weight_specs(), name);
    refuse_other_array("weight " + name, value, weight_specs()[index].shape);
    impl_->set_weight(index, value.floats());
  });
}

void BlockModule::Impl::set_weight(std::size_t index, const float* values) {
  const long own = reported == weights ? 2 : 1;
  if (weights.use_count() > own) {
    auto edited = std::make_shared<BoundWeights>(executor, *rules);
    for (std::size_t i = 0; i < edited->arrays.size(); ++i) {
      const DeviceArray<float>& from = weights->arrays[i];
      executor.memory().copy(edited->arrays[i].data(), from.data(), from.byte_size());
    }
    edited->arrays[index].upload(values);
    edited->bind();
    edited->version = ++versions;
    weights = std::move(edited);
    return;
  }
  weights->arrays[index].upload(values);
  weights->known_finite = false;
  weights->version = ++versions;
  weights->block->weights_changed();
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
