// The selective state space layer of Mamba (Gu and Dao 2023): for each channel a diagonal linear system of 16 states,
//   h' = exp(delta A) h + delta B u,   out = C h + D u,   with delta, B, C from the input, gated by SiLU(z).
#pragma once

#include "double_twins/twin.h"

namespace samba::twin {

class Mamba1Twin final : public Twin {
 public:
  explicit Mamba1Twin(Index d_model) : d_model_(d_model) {}

  using Twin::forward;

  // past: short_convolution's; h (batch, channels, 16)
  Tensors empty_state(Index batch) const override {
    return {{"past", Doubles(at(batch * channels() * 3))}, {"h", Doubles(at(batch * channels() * kStates))}};
  }

  Tensors state_of(const Tensors&, const Tensors& pieces, const Counters&, Index) const override {
    return {{"past", past_of_window(pieces.at("conv_window"))}, {"h", pieces.at("h")}};
  }

  Doubles forward(const Tensors& weights, const Doubles& x, Index batch, Index length, Tensors& state) const override {
    const Index rank = (d_model_ + 15) / 16, width = rank + 2 * kStates;
    const Doubles projected =
        linear(rms_norm(x, weights.at("norm.weight"), kEps), d_model_, weights.at("in_proj.weight"));
    const Doubles z = columns(projected, 2 * channels(), channels(), channels());
    const Doubles u = short_convolution(columns(projected, 2 * channels(), 0, channels()), weights.at("conv1d.weight"),
                                        weights.at("conv1d.bias"), batch, length, state.at("past"));
    const Doubles selected = linear(u, channels(), weights.at("x_proj.weight"));
    const Doubles delta =
        linear(columns(selected, width, 0, rank), rank, weights.at("dt_proj.weight"), &weights.at("dt_proj.bias"));
    Doubles gated(u.size());
    for (Index b = 0; b < batch; ++b) {
      for (Index t = 0; t < length; ++t) {
        const Index row = b * length + t;
        for (Index c = 0; c < channels(); ++c) {
          const std::size_t place = at(row * channels() + c);
          const double step = softplus(delta[place]);
          double out = weights.at("D")[at(c)] * u[place];
          for (Index n = 0; n < kStates; ++n) {
            double& h = state.at("h")[at((b * channels() + c) * kStates + n)];
            const double rate = -std::exp(weights.at("A_log")[at(c * kStates + n)]);
            h = std::exp(step * rate) * h + step * selected[at(row * width + rank + n)] * u[place];
            out += selected[at(row * width + rank + kStates + n)] * h;
          }
          gated[place] = out * silu(z[place]);
        }
      }
    }
    Doubles y = linear(gated, channels(), weights.at("out_proj.weight"));
    add_to(y, x);
    return y;
  }

 private:
  static constexpr Index kStates = 16;
  static constexpr double kEps = 1e-5;
  Index channels() const { return 2 * d_model_; }

  Index d_model_;
};

}  // namespace samba::twin
