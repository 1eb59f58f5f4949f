// The layer of Mamba-2 (Dao and Gu 2024) as its recurrence, one token at a time: for each head of 64 channels
//   h' = exp(dt A) h + dt x B^T,   out = h C + D x,   then a norm of out * SiLU(z).
#pragma once

#include <algorithm>

#include "double_twins/twin.h"

namespace samba::twin {

class Mamba2Twin final : public Twin {
 public:
  Mamba2Twin(Index d_model, double dt_low, double dt_high) : d_model_(d_model), dt_low_(dt_low), dt_high_(dt_high) {}

  using Twin::forward;

  // past: short_convolution's; h (batch, heads, 64, 128) after the last token
  Tensors empty_state(Index batch) const override {
    return {{"past", Doubles(at(batch * conv_channels() * 3))}, {"h", Doubles(at(batch * heads() * kHead * kStates))}};
  }

  // The pieces hold the state before the open chunk and that chunk's rows, which are walked here.
  Tensors state_of(const Tensors& weights, const Tensors& pieces, const Counters& counters,
                   Index batch) const override {
    constexpr Index kChunk = 256;
    Tensors state = {{"past", past_of_window(pieces.at("conv_window"))}, {"h", pieces.at("h")}};
    for (Index b = 0; b < batch; ++b) {
      for (Index row = 0; row < counters.at("buffered_tokens"); ++row) {
        const double* xbc = pieces.at("buffer_xbc").data() + (b * kChunk + row) * conv_channels();
        for (Index head = 0; head < heads(); ++head) {
          const double raw = pieces.at("buffer_dtraw")[at((b * kChunk + row) * heads() + head)];
          advance(state.at("h").data() + (b * heads() + head) * kHead * kStates, weights, head, raw, xbc);
        }
      }
    }
    return state;
  }

  Doubles forward(const Tensors& weights, const Doubles& x, Index batch, Index length, Tensors& state) const override {
    const Index width = 2 * channels() + 2 * kStates + heads();
    const Doubles projected =
        linear(rms_norm(x, weights.at("block_norm.weight"), kEps), d_model_, weights.at("in_proj.weight"));
    const Doubles z = columns(projected, width, 0, channels());
    const Doubles raw = columns(projected, width, channels() + conv_channels(), heads());
    const Doubles xbc =
        short_convolution(columns(projected, width, channels(), conv_channels()), weights.at("conv1d.weight"),
                          weights.at("conv1d.bias"), batch, length, state.at("past"));
    Doubles gated(z.size());
    for (Index row = 0; row < batch * length; ++row) {
      const double* inputs = xbc.data() + row * conv_channels();
      const double* c = inputs + channels() + kStates;
      for (Index head = 0; head < heads(); ++head) {
        double* h = state.at("h").data() + (row / length * heads() + head) * kHead * kStates;
        advance(h, weights, head, raw[at(row * heads() + head)], inputs);
        for (Index p = 0; p < kHead; ++p) {
          double out = weights.at("D")[at(head)] * inputs[head * kHead + p];
          for (Index n = 0; n < kStates; ++n) out += h[p * kStates + n] * c[n];
          const std::size_t place = at(row * channels() + head * kHead + p);
          gated[place] = out * silu(z[place]);
        }
      }
    }
    Doubles y = linear(rms_norm(gated, weights.at("norm.weight"), kEps), channels(), weights.at("out_proj.weight"));
    add_to(y, x);
    return y;
  }

 private:
  static constexpr Index kHead = 64, kStates = 128;
  static constexpr double kEps = 1e-5;
  Index channels() const { return 2 * d_model_; }
  Index conv_channels() const { return channels() + 2 * kStates; }
  Index heads() const { return channels() / kHead; }

  // One token of one head. h (64, 128); xbc: x (channels) | B (128) | C (128) of that token.
  void advance(double* h, const Tensors& weights, Index head, double raw_dt, const double* xbc) const {
    const double dt = std::clamp(softplus(raw_dt + weights.at("dt_bias")[at(head)]), dt_low_, dt_high_);
    const double decay = std::exp(-dt * std::exp(weights.at("A_log")[at(head)]));
    const double* b = xbc + channels();
    for (Index p = 0; p < kHead; ++p) {
      const double scaled = dt * xbc[head * kHead + p];
      for (Index n = 0; n < kStates; ++n) h[p * kStates + n] = decay * h[p * kStates + n] + scaled * b[n];
    }
  }

  Index d_model_;
  double dt_low_, dt_high_;
};

}  // namespace samba::twin
