#include "samba/bench/cost.h"

#include <algorithm>

#include "samba/model/registry.h"

namespace samba::bench {

namespace {

constexpr double kFloat = sizeof(float);
constexpr Index kMamba1States = 16, kMamba23States = 128;

// Elements of the state h of a layer of one row; 0 for attention.
double state_elements(const StackConfig& config, const LayerConfig& layer) {
  const auto inner = static_cast<double>(2 * config.d_model);
  switch (layer.kind) {
    case BlockKind::mamba1:
      return inner * kMamba1States;
    case BlockKind::mamba2:
    case BlockKind::mamba3:
      return inner * kMamba23States;
    case BlockKind::transformer:
      break;
  }
  return 0.0;
}

struct Weights {
  double matrices = 0.0, all = 0.0;  // elements
};

Weights layer_weights(const StackConfig& config, const LayerConfig& layer) {
  Weights weights;
  for (const WeightSpec& spec : layer_weight_specs(config, layer)) {
    const auto size = static_cast<double>(element_count(spec.shape));
    weights.all += size;
    if (spec.shape.size() == 2 && spec.name.ends_with("proj.weight")) weights.matrices += size;
  }
  return weights;
}

}  // namespace

Cost operator+(Cost a, Cost b) {
  return {a.flops + b.flops, a.bytes + b.bytes, std::max(a.working_set, b.working_set)};
}
Cost operator*(Cost a, double factor) { return {a.flops * factor, a.bytes * factor, a.working_set}; }

namespace {

bool in_cache(const Cost& cost, const MachineLimits& limits) {
  return cost.working_set > 0.0 && cost.working_set <= limits.cached_bytes;
}

double seconds_of_bytes(const Cost& cost, const MachineLimits& limits) {
  return cost.bytes / (in_cache(cost, limits) ? limits.read_bytes_cached : limits.best_read_bytes());
}

}  // namespace

double least_seconds(const Cost& cost, const MachineLimits& limits) {
  return std::max(cost.flops / limits.flops, seconds_of_bytes(cost, limits));
}

const char* limiting(const Cost& cost, const MachineLimits& limits) {
  if (cost.flops / limits.flops >= seconds_of_bytes(cost, limits)) return "FMA peak";
  return in_cache(cost, limits) ? "cache bandwidth" : "read bandwidth";
}

Cost gemm_cost(Index m, Index n, Index k) {
  const auto rows = static_cast<double>(m), columns = static_cast<double>(n), depth = static_cast<double>(k);
  return {2.0 * rows * columns * depth, kFloat * (rows * depth + columns * depth + rows * columns), 0.0};
}

Cost layer_cost(const StackConfig& config, const LayerConfig& layer, Index position, Index length) {
  const Weights weights = layer_weights(config, layer);
  const auto tokens = static_cast<double>(length);
  Cost cost{2.0 * weights.matrices * tokens, kFloat * weights.all, 0.0};
  const double state = state_elements(config, layer);
  cost.flops += 6.0 * state * tokens;
  cost.bytes += 2.0 * kFloat * state;  // read and written
  if (layer.kind == BlockKind::transformer) {
    const TransformerOptions& options = layer.transformer;
    double pairs = 0.0;
    for (Index t = position; t < position + length; ++t) {
      pairs += static_cast<double>(options.window > 0 ? std::min(options.window, t + 1) : t + 1);
    }
    const Index held = options.window > 0 ? std::min(options.window, position) : position;
    cost.flops += 4.0 * static_cast<double>(options.query_width()) * pairs;
    cost.bytes += 2.0 * kFloat * static_cast<double>(options.key_width() * held);
  }
  return cost;
}

namespace {

Cost layers_cost(const StackConfig& config, Index position, Index length) {
  Cost cost;
  for (const LayerConfig& layer : config.layers) cost = cost + layer_cost(config, layer, position, length);
  return cost;
}

double head_elements(const StackConfig& config) {
  return static_cast<double>(config.vocab) * static_cast<double>(config.d_model);
}

}  // namespace

Cost prefill_cost(const StackConfig& config, Index length) {
  const double head = head_elements(config);
  Cost cost = layers_cost(config, 0, length) + Cost{2.0 * head, kFloat * head, 0.0};
  cost.working_set = cost.bytes;
  return cost;
}

Cost decode_cost(const StackConfig& config, Index position) {
  const double head = head_elements(config);
  Cost cost = layers_cost(config, position, 1) + Cost{2.0 * head, kFloat * head, 0.0};
  cost.working_set = cost.bytes;
  return cost;
}

Cost training_cost(const StackConfig& config, Index rows, Index length) {
  const double head = head_elements(config), batch = static_cast<double>(rows);
  const auto parameters = static_cast<double>(Registry(config).total());
  Cost cost = layers_cost(config, 0, length) * batch;
  cost.flops = 3.0 * (cost.flops + 2.0 * head * batch * static_cast<double>(length));
  cost.bytes = kFloat * parameters * 9.0;  // weights three times, the gradient twice, both moments read and written
  return cost;
}

}  // namespace samba::bench
