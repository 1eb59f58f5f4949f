// The decoder layer of Llama and its relatives: y = r + mlp(norm(r)), r = x + attention(norm(x)).
#pragma once

#include <numbers>

#include "double_twins/twin.h"
#include "samba/blocks/transformer/transformer_options.h"

namespace samba::twin {

class TransformerTwin final : public Twin {
 public:
  explicit TransformerTwin(const TransformerOptions& options) : o_(options) {}

  using Twin::forward;

  // keys, values: (positions held, batch, n_kv_heads * head_dim), keys rotated; tokens: how many came so far.
  Tensors empty_state(Index) const override { return {{"keys", {}}, {"values", {}}, {"tokens", {0.0}}}; }

  Tensors state_of(const Tensors&, const Tensors& pieces, const Counters& counters, Index batch) const override {
    const Index tokens = counters.at("cached_tokens");
    const Index held = o_.window == 0 ? tokens : std::min(tokens, o_.window);
    const Index slots = o_.window == 0 ? tokens : o_.window;
    Tensors state = {{"keys", {}}, {"values", {}}, {"tokens", {static_cast<double>(tokens)}}};
    for (Index position = tokens - held; position < tokens; ++position) {
      for (Index head = 0; head < batch * o_.n_kv_heads; ++head) {
        for (Index d = 0; d < o_.head_dim; ++d) {
          const std::size_t place = at((head * slots + position % std::max<Index>(slots, 1)) * o_.head_dim + d);
          state["keys"].push_back(pieces.at("k_cache")[place]);
          state["values"].push_back(pieces.at("v_cache")[place]);
        }
      }
    }
    return state;
  }

  Doubles forward(const Tensors& weights, const Doubles& x, Index batch, Index length, Tensors& state) const override {
    const Doubles normed = norm(x, weights, "input_layernorm");
    Doubles queries = project(normed, o_.d_model, weights, "q_proj");
    Doubles keys = project(normed, o_.d_model, weights, "k_proj");
    const Doubles values = project(normed, o_.d_model, weights, "v_proj");
    if (o_.qk_norm) {
      queries = rms_norm(queries, weights.at("q_norm.weight"), o_.norm_eps, norm_offset());
      keys = rms_norm(keys, weights.at("k_norm.weight"), o_.norm_eps, norm_offset());
    }
    const auto first = static_cast<Index>(state.at("tokens")[0]);
    rotate(queries, o_.n_heads, length, first);
    rotate(keys, o_.n_kv_heads, length, first);
    append(state.at("keys"), keys, batch, length);
    append(state.at("values"), values, batch, length);
    const Doubles context = attend(queries, state, batch, length, first);
    state.at("tokens")[0] += static_cast<double>(length);
    forget(state, batch);

    Doubles residual = x;
    add_to(residual, project(context, o_.query_width(), weights, "o_proj"));
    Doubles y = residual;
    add_to(y, mlp(norm(residual, weights, "post_attention_layernorm"), weights));
    return y;
  }

 private:
  double norm_offset() const { return o_.norm == TransformerNorm::rmsnorm_offset ? 1.0 : 0.0; }

  static Doubles project(const Doubles& x, Index inputs, const Tensors& weights, const std::string& name) {
    return linear(x, inputs, weights.at(name + ".weight"), optional(weights, name + ".bias"));
  }

  Doubles norm(const Doubles& x, const Tensors& weights, const std::string& name) const {
    const Doubles& weight = weights.at(name + ".weight");
    if (o_.norm != TransformerNorm::layernorm) return rms_norm(x, weight, o_.norm_eps, norm_offset());
    return layer_norm(x, weight, optional(weights, name + ".bias"), o_.norm_eps);
  }

  // Radians a position turns pair i (Llama 3's scaling stretches long waves by `factor`, keeps short ones and blends
  // between: Dubey et al. 2024; linear scaling: Chen et al. 2023).
  double frequency(Index i) const {
    const double theta = o_.rope_theta;
    const double plain = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(o_.rotary_dim()));
    const RopeScaling& scaling = o_.rope_scaling;
    const double factor = scaling.factor;
    if (scaling.kind == RopeScaling::Kind::none) return plain;
    if (scaling.kind == RopeScaling::Kind::linear) return plain / factor;
    const double turns =
        static_cast<double>(scaling.original_max_position_embeddings) * plain / (2.0 * std::numbers::pi);
    const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
    if (turns < low) return plain / factor;
    if (turns > high) return plain;
    const double smooth = (turns - low) / (high - low);
    return (1.0 - smooth) * plain / factor + smooth * plain;
  }

  void rotate(Doubles& heads, Index n_heads, Index length, Index first) const {
    const Index half = o_.rotary_dim() / 2;
    for (std::size_t start = 0, vector = 0; start < heads.size(); start += at(o_.head_dim), ++vector) {
      const Index position = first + static_cast<Index>(vector) / n_heads % length;
      for (Index i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * frequency(i);
        double& a = heads[start + at(i)];
        double& b = heads[start + at(i + half)];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = turned;
      }
    }
  }

  // rows (batch, length, key_width) behind cache (positions, batch, key_width)
  void append(Doubles& cache, const Doubles& rows, Index batch, Index length) const {
    const Index width = o_.key_width();
    for (Index t = 0; t < length; ++t) {
      for (Index b = 0; b < batch; ++b) {
        const auto row = rows.begin() + (b * length + t) * width;
        cache.insert(cache.end(), row, row + width);
      }
    }
  }

  void forget(Tensors& state, Index batch) const {
    if (o_.window == 0) return;
    for (const char* name : {"keys", "values"}) {
      Doubles& cache = state.at(name);
      const std::size_t most = at(o_.window * batch * o_.key_width());
      if (cache.size() > most) cache.erase(cache.begin(), cache.end() - static_cast<std::ptrdiff_t>(most));
    }
  }

  Doubles attend(const Doubles& queries, const Tensors& state, Index batch, Index length, Index first) const {
    const Doubles& keys = state.at("keys");
    const Doubles& values = state.at("values");
    const Index held = static_cast<Index>(keys.size()) / (batch * o_.key_width());
    const Index oldest = first + length - held;  // the position of the first key held
    Doubles context(queries.size(), 0.0);
    for (Index b = 0; b < batch; ++b) {
      for (Index t = 0; t < length; ++t) {
        for (Index head = 0; head < o_.n_heads; ++head) {
          const Index query = ((b * length + t) * o_.n_heads + head) * o_.head_dim;
          const Index position = first + t;
          const Index from = o_.window == 0 ? 0 : std::max<Index>(0, position - o_.window + 1);
          const Index kv_head = head * o_.n_kv_heads / o_.n_heads;
          const auto key_at = [&](Index p) {
            return ((p - oldest) * batch + b) * o_.key_width() + kv_head * o_.head_dim;
          };
          Doubles probabilities;
          double total = 0.0;
          for (Index p = from; p <= position; ++p) {
            double score = 0.0;
            for (Index d = 0; d < o_.head_dim; ++d) score += queries[at(query + d)] * keys[at(key_at(p) + d)];
            score /= std::sqrt(static_cast<double>(o_.head_dim));
            if (o_.attn_softcap) {
              const double cap = *o_.attn_softcap;
              score = cap * std::tanh(score / cap);
            }
            probabilities.push_back(std::exp(score));
            total += probabilities.back();
          }
          for (Index p = from; p <= position; ++p) {
            for (Index d = 0; d < o_.head_dim; ++d) {
              context[at(query + d)] += probabilities[at(p - from)] / total * values[at(key_at(p) + d)];
            }
          }
        }
      }
    }
    return context;
  }

  double activation(double x) const {
    switch (o_.mlp) {
      case TransformerMlp::swiglu:
        return silu(x);
      case TransformerMlp::geglu:
      case TransformerMlp::gelu:
        return 0.5 * x * (1.0 + std::erf(x / std::numbers::sqrt2));
      default:
        return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    }
  }

  Doubles mlp(const Doubles& x, const Tensors& weights) const {
    Doubles inner = project(x, o_.d_model, weights, o_.gated() ? "gate_proj" : "up_proj");
    for (double& value : inner) value = activation(value);
    if (o_.gated()) {
      const Doubles up = project(x, o_.d_model, weights, "up_proj");
      for (std::size_t i = 0; i < inner.size(); ++i) inner[i] *= up[i];
    }
    return project(inner, o_.intermediate, weights, "down_proj");
  }

  TransformerOptions o_;
};

}  // namespace samba::twin
