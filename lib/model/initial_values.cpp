#include "samba/model/initial_values.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/numerics/elementary.h"

namespace samba {

namespace {

// (rows, states): the core logarithms of 1, 2, .. in every row.
std::vector<float> logarithms(const Shape& shape) {
  std::vector<float> values;
  for (Index row = 0; row < shape[0]; ++row) {
    for (Index i = 1; i <= shape[1]; ++i) values.push_back(elementary::log(static_cast<float>(i)));
  }
  return values;
}

}  // namespace

// layer: null for the tensors outside the layers. offset: the tensor's norm scales by 1 + w.
InitialValues::Draw InitialValues::draw_of(const ParameterTensor& tensor, const LayerConfig* layer, bool offset) {
  const std::string_view name = tensor.name;
  if (name == "embed.weight" || name == "lm_head.weight") return {Draw::Kind::normal, 0.0F, 0.02F};
  if (name.ends_with(".conv1d.weight") || name.ends_with(".conv1d.bias")) return uniform(-0.5F, 0.5F);
  if (name.ends_with(".dt_bias") || name.ends_with(".dt_proj.bias")) return uniform(-4.0F, -2.0F);
  if (name.ends_with(".A_log")) {
    if (layer->kind == BlockKind::mamba1) return {Draw::Kind::logarithms};
    return uniform(0.0F, 2.7725887F);
  }
  if (name.ends_with(".bias")) return constant(0.0F);
  if (name.ends_with(".weight") && tensor.shape.size() == 2) {
    const float bound = kaiming_uniform_bound(tensor.shape[1]);
    return uniform(-bound, bound);
  }
  return constant(offset ? 0.0F : 1.0F);
}

InitialValues::InitialValues(const StackConfig& config, const Registry& registry, Generator& generator)
    : seed_(generator.seed()) {
  const FloatScope float_scope;
  Generator ahead = generator;
  const auto add = [&](std::size_t first, std::size_t end, const LayerConfig* layer, bool offset) {
    for (std::size_t i = first; i < end; ++i) {
      const ParameterTensor& tensor = registry.tensors()[i];
      Draw draw = draw_of(tensor, layer, offset);
      if (draw.kind == Draw::Kind::normal || draw.kind == Draw::Kind::uniform) draw.stream = ahead.next_stream();
      draws_.push_back(draw);
      shapes_.push_back(tensor.shape);
    }
  };
  add(0, 1, nullptr, false);
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerConfig& layer = config.layers[i];
    const bool offset =
        layer.kind == BlockKind::transformer && layer.transformer.norm == TransformerNorm::rmsnorm_offset;
    add(registry.layer_first(i), registry.layer_first(i + 1), &layer, offset);
  }
  add(registry.final_norm(), registry.tensors().size(), nullptr, config.final_norm == TransformerNorm::rmsnorm_offset);
  generator = ahead;
}

void InitialValues::draw(Executor& executor, std::size_t index, float* values) const {
  const FloatScope float_scope;
  const Draw& draw = draws_[index];
  const Index size = element_count(shapes_[index]);
  const auto copy = [&](const std::vector<float>& from) {
    executor.memory().copy_to_device(values, from.data(), from.size() * sizeof(float));
  };
  switch (draw.kind) {
    case Draw::Kind::normal:
      return executor.random().normal(seed_, draw.stream, size, draw.low, draw.high, values);
    case Draw::Kind::uniform:
      return executor.random().uniform(seed_, draw.stream, size, draw.low, draw.high, values);
    case Draw::Kind::constant:
      return copy(std::vector<float>(static_cast<std::size_t>(size), draw.low));
    case Draw::Kind::logarithms:
      return copy(logarithms(shapes_[index]));
  }
}

void draw_initial_values(Executor& executor, const StackConfig& config, const Registry& registry, Generator& generator,
                         float* parameters) {
  const InitialValues values(config, registry, generator);
  for (std::size_t i = 0; i < registry.tensors().size(); ++i) {
    values.draw(executor, i, parameters + registry.tensors()[i].offset);
  }
}

}  // namespace samba
