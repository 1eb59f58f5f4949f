// The layer of Mamba-3 (one input, one output) as its recurrence, one token at a time: the trapezoidal rule with weight
// sigma on the new end of each interval, and keys and queries turned by angles that add up along the sequence:
//   h' = exp(A dt) (h + (1 - sigma) dt v_before k_before^T) + sigma dt v k^T,   out = h q + D v,   gated by SiLU(z).
#pragma once

#include <algorithm>
#include <numbers>

#include "double_twins/twin.h"

namespace samba::twin {

class Mamba3Twin final : public Twin {
 public:
  explicit Mamba3Twin(Index d_model) : d_model_(d_model) {}

  using Twin::forward;

  // cos, sin (batch, heads, 32): the rotation reached. h (batch, heads, 64, 128) after the last token, whose k and v
  // (batch, heads, 128), (batch, heads, 64) still wait for the interval that begins with them.
  Tensors empty_state(Index batch) const override {
    return {{"cos", Doubles(at(batch * heads() * kAngles), 1.0)},
            {"sin", Doubles(at(batch * heads() * kAngles))},
            {"h", Doubles(at(batch * heads() * kHead * kStates))},
            {"k", Doubles(at(batch * heads() * kStates))},
            {"v", Doubles(at(batch * heads() * kHead))}};
  }

  // The pieces hold either input states, or the state before the open chunk and that chunk's rows, walked here.
  Tensors state_of(const Tensors&, const Tensors& pieces, const Counters& counters, Index batch) const override {
    constexpr Index kChunk = 64;
    Tensors state = empty_state(batch);
    for (std::size_t i = 0; i < state.at("cos").size(); ++i) {
      state.at("cos")[i] = std::cos(pieces.at("theta")[i]);
      state.at("sin")[i] = std::sin(pieces.at("theta")[i]);
    }
    state.at("h") = pieces.at("h");
    if (counters.at("pending") != 0) {
      state.at("k") = pieces.at("pending_k");
      state.at("v") = pieces.at("pending_v");
    }
    for (Index b = 0; b < batch; ++b) {
      for (Index row = 0; row < counters.at("buffered_tokens"); ++row) {
        for (Index head = 0; head < heads(); ++head) {
          const Index place = (b * kChunk + row) * heads() + head;
          const double dt = pieces.at("buffer_dt")[at(place)];
          const Scalars scalars = {dt, pieces.at("buffer_sig")[at(place)], pieces.at("buffer_adt")[at(place)]};
          advance(state, b * heads() + head, scalars, pieces.at("buffer_krot").data() + place * kStates,
                  pieces.at("buffer_v").data() + place * kHead);
        }
      }
    }
    return state;
  }

  Doubles forward(const Tensors& weights, const Doubles& x, Index batch, Index length, Tensors& state) const override {
    const Index width = 2 * channels() + 2 * kStates + 3 * heads() + kAngles;
    const Doubles projected =
        linear(rms_norm(x, weights.at("block_norm.weight"), kEps), d_model_, weights.at("in_proj.weight"));
    const Doubles keys =
        rms_norm(columns(projected, width, 2 * channels(), kStates), weights.at("B_norm.weight"), kEps);
    const Doubles queries =
        rms_norm(columns(projected, width, 2 * channels() + kStates, kStates), weights.at("C_norm.weight"), kEps);
    Doubles gated(at(batch * length * channels()));
    for (Index row = 0; row < batch * length; ++row) {
      const double* z = projected.data() + row * width;
      const double* v = z + channels();
      const double* raw = z + 2 * channels() + 2 * kStates;  // dt, A, trapezoid of every head, then the angles
      for (Index head = 0; head < heads(); ++head) {
        const double dt = softplus(raw[head] + weights.at("dt_bias")[at(head)]);
        const Scalars scalars = {dt, sigmoid(raw[2 * heads() + head]), decay_rate(raw[heads() + head]) * dt};
        const Index lane = row / length * heads() + head;
        turn(state, lane, raw + 3 * heads(), dt);
        const Doubles k = rotated(keys.data() + row * kStates, weights.at("B_bias"), head, state, lane);
        const Doubles q = rotated(queries.data() + row * kStates, weights.at("C_bias"), head, state, lane);
        advance(state, lane, scalars, k.data(), v + head * kHead);
        for (Index p = 0; p < kHead; ++p) {
          double out = weights.at("D")[at(head)] * v[head * kHead + p];
          for (Index n = 0; n < kStates; ++n) out += state.at("h")[at((lane * kHead + p) * kStates + n)] * q[at(n)];
          gated[at(row * channels() + head * kHead + p)] = out * silu(z[head * kHead + p]);
        }
      }
    }
    Doubles y = linear(gated, channels(), weights.at("out_proj.weight"));
    add_to(y, x);
    return y;
  }

 private:
  static constexpr Index kHead = 64, kStates = 128, kAngles = 32;
  static constexpr double kEps = 1e-5;
  Index channels() const { return 2 * d_model_; }
  Index heads() const { return channels() / kHead; }

  struct Scalars {
    double dt, sigma, log_decay;
  };

  // A < 0 of a head: -(1 + a) for a >= 0 and -1 / (1 - a) below, at most -1e-4.
  static double decay_rate(double a) { return -std::max(a >= 0.0 ? 1.0 + a : 1.0 / (1.0 - a), 1e-4); }

  static void turn(Tensors& state, Index lane, const double* angles, double dt) {
    for (Index r = 0; r < kAngles; ++r) {
      const double angle = std::numbers::pi * std::tanh(angles[r]) * dt;
      double& c = state.at("cos")[at(lane * kAngles + r)];
      double& s = state.at("sin")[at(lane * kAngles + r)];
      const double turned = c * std::cos(angle) - s * std::sin(angle);
      s = s * std::cos(angle) + c * std::sin(angle);
      c = turned;
    }
  }

  // The first 32 pairs of neighbours of (row + bias of the head), turned.
  static Doubles rotated(const double* row, const Doubles& bias, Index head, const Tensors& state, Index lane) {
    Doubles result(at(kStates));
    for (Index n = 0; n < kStates; ++n) result[at(n)] = row[n] + bias[at(head * kStates + n)];
    for (Index r = 0; r < kAngles; ++r) {
      const double c = state.at("cos")[at(lane * kAngles + r)], s = state.at("sin")[at(lane * kAngles + r)];
      double& even = result[at(2 * r)];
      double& odd = result[at(2 * r + 1)];
      const double turned = even * c - odd * s;
      odd = even * s + odd * c;
      even = turned;
    }
    return result;
  }

  static void advance(Tensors& state, Index lane, const Scalars& scalars, const double* k, const double* v) {
    double* h = state.at("h").data() + lane * kHead * kStates;
    double* k_before = state.at("k").data() + lane * kStates;
    double* v_before = state.at("v").data() + lane * kHead;
    const double decay = std::exp(scalars.log_decay);
    const double old_end = (1.0 - scalars.sigma) * scalars.dt, new_end = scalars.sigma * scalars.dt;
    for (Index p = 0; p < kHead; ++p) {
      for (Index n = 0; n < kStates; ++n) {
        double& cell = h[p * kStates + n];
        cell = decay * (cell + old_end * v_before[p] * k_before[n]) + new_end * v[p] * k[n];
      }
    }
    std::copy_n(k, kStates, k_before);
    std::copy_n(v, kHead, v_before);
  }

  Index d_model_;
};

}  // namespace samba::twin
