#include "samba/model/initial_values.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/numerics/elementary.h"

namespace samba {

namespace {

struct Draw {
  enum class Kind { normal, uniform, constant, logarithms } kind = Kind::constant;
  float low = 0.0F;  // of uniform; the value of constant
  float high = 0.0F;
};

Draw uniform(float low, float high) { return {Draw::Kind::uniform, low, high}; }
Draw constant(float value) { return {Draw::Kind::constant, value, value}; }

// layer: null for the tensors outside the layers. offset: the tensor's norm scales by 1 + w.
Draw draw_of(const ParameterTensor& tensor, const LayerConfig* layer, bool offset) {
  const std::string_view name = tensor.name;
  if (name == "embed.weight" || name == "lm_head.weight") return {Draw::Kind::normal};
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

// (rows, states): the core logarithms of 1, 2, .. in every row.
std::vector<float> logarithms(const Shape& shape) {
  std::vector<float> values;
  for (Index row = 0; row < shape[0]; ++row) {
    for (Index i = 1; i <= shape[1]; ++i) values.push_back(elementary::log(static_cast<float>(i)));
  }
  return values;
}

class Initializer {
 public:
  Initializer(Executor& executor, const Registry& registry, Generator& generator, float* parameters)
      : executor_(executor), registry_(registry), generator_(generator), parameters_(parameters) {}

  void fill(std::size_t first, std::size_t end, const LayerConfig* layer, bool offset) {
    for (std::size_t i = first; i < end; ++i) fill(registry_.tensors()[i], layer, offset);
  }

 private:
  void fill(const ParameterTensor& tensor, const LayerConfig* layer, bool offset) {
    float* values = parameters_ + tensor.offset;
    const Draw draw = draw_of(tensor, layer, offset);
    const auto copy = [&](const std::vector<float>& from) {
      executor_.memory().copy_to_device(values, from.data(), from.size() * sizeof(float));
    };
    switch (draw.kind) {
      case Draw::Kind::normal:
        executor_.random().normal(generator_.seed(), generator_.next_stream(), tensor.size, 0.0F, 0.02F, values);
        break;
      case Draw::Kind::uniform:
        executor_.random().uniform(generator_.seed(), generator_.next_stream(), tensor.size, draw.low, draw.high,
                                   values);
        break;
      case Draw::Kind::constant:
        copy(std::vector<float>(static_cast<std::size_t>(tensor.size), draw.low));
        break;
      case Draw::Kind::logarithms:
        copy(logarithms(tensor.shape));
        break;
    }
  }

  Executor& executor_;
  const Registry& registry_;
  Generator& generator_;
  float* parameters_;
};

}  // namespace

void draw_initial_values(Executor& executor, const StackConfig& config, const Registry& registry, Generator& generator,
                         float* parameters) {
  const FloatScope float_scope;
  Generator ahead = generator;
  Initializer initializer(executor, registry, ahead, parameters);
  initializer.fill(0, 1, nullptr, false);
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerConfig& layer = config.layers[i];
    const bool offset =
        layer.kind == BlockKind::transformer && layer.transformer.norm == TransformerNorm::rmsnorm_offset;
    initializer.fill(registry.layer_first(i), registry.layer_first(i + 1), &layer, offset);
  }
  initializer.fill(registry.final_norm(), registry.tensors().size(), nullptr,
                   config.final_norm == TransformerNorm::rmsnorm_offset);
  generator = ahead;
}

}  // namespace samba
