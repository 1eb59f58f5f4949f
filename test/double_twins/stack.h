// A language model in double precision: embedding, layers, final norm, output head, mean cross-entropy.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "double_twins/mamba1.h"
#include "double_twins/mamba2.h"
#include "double_twins/mamba3.h"
#include "double_twins/transformer.h"
#include "samba/model/stack_config.h"

namespace samba::twin {

inline std::unique_ptr<Twin> make_twin(const LayerConfig& layer, Index d_model) {
  switch (layer.kind) {
    case BlockKind::transformer:
      return std::make_unique<TransformerTwin>(layer.transformer);
    case BlockKind::mamba1:
      return std::make_unique<Mamba1Twin>(d_model);
    case BlockKind::mamba2:
      return std::make_unique<Mamba2Twin>(d_model, layer.mamba2.dt_low, layer.mamba2.dt_high);
    default:
      return std::make_unique<Mamba3Twin>(d_model);
  }
}

class StackTwin {
 public:
  explicit StackTwin(const StackConfig& config) : config_(config) {
    for (const LayerConfig& layer : config.layers) layers_.push_back(make_twin(layer, config.d_model));
  }

  // Logits (batch, length, vocab).
  Doubles forward(const Tensors& weights, const std::vector<std::int32_t>& ids, Index batch) const {
    const Index length = static_cast<Index>(ids.size()) / batch;
    const Doubles& table = weights.at("embed.weight");
    Doubles x;
    for (const std::int32_t id : ids) {
      for (Index d = 0; d < config_.d_model; ++d) {
        x.push_back(table[at(id * config_.d_model + d)] * config_.embedding_scale.value_or(1.0F));
      }
    }
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      x = layers_[layer]->forward(weights_of(weights, layer), x, batch, length);
    }
    Doubles logits =
        linear(final_norm(x, weights), config_.d_model, config_.tie_embeddings ? table : weights.at("lm_head.weight"));
    if (config_.logits_softcap) {
      const double cap = *config_.logits_softcap;
      for (double& logit : logits) logit = cap * std::tanh(logit / cap);
    }
    return logits;
  }

  double loss(const Tensors& weights, const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& targets,
              Index batch) const {
    return mean_cross_entropy(forward(weights, ids, batch), targets);
  }

 private:
  static Tensors weights_of(const Tensors& weights, std::size_t layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    Tensors own;
    for (auto found = weights.lower_bound(prefix); found != weights.end() && found->first.starts_with(prefix);
         ++found) {
      own.emplace(found->first.substr(prefix.size()), found->second);
    }
    return own;
  }

  Doubles final_norm(const Doubles& x, const Tensors& weights) const {
    const Doubles& weight = weights.at("norm_f.weight");
    if (config_.final_norm == TransformerNorm::layernorm) {
      return layer_norm(x, weight, optional(weights, "norm_f.bias"), config_.norm_eps);
    }
    return rms_norm(x, weight, config_.norm_eps, config_.final_norm == TransformerNorm::rmsnorm_offset ? 1.0 : 0.0);
  }

  StackConfig config_;
  std::vector<std::unique_ptr<Twin>> layers_;
};

}  // namespace samba::twin
