#include "samba/numerics/generator.h"

#include <cmath>
#include <cstdio>
#include <string>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/numerics/philox.h"

namespace samba {

namespace {

std::string text(double value) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.9g", value);
  return buffer;
}

float rounded(const char* name, double value) {
  const auto result = static_cast<float>(value);
  if (!is_finite(result)) refuse_value(std::string(name) + " must be a finite float32, got " + text(value));
  return result;
}

double fan(const char* name, Index value) {
  if (value < 1) refuse_value(std::string(name) + " must be at least 1, got " + std::to_string(value));
  return static_cast<double>(value);
}

void check_not_empty(std::span<const float> out) {
  if (out.empty()) refuse_value("a draw needs a shape with at least one element");
}

}  // namespace

void Generator::restore(const GeneratorState& state) {
  if (state.counter > kStreams) {
    refuse_value("generator state: counter must be in [0, 4294967296], got " + std::to_string(state.counter));
  }
  state_ = state;
}

std::uint32_t Generator::next_stream() {
  if (state_.counter >= kStreams) refuse_value("the stream counter is exhausted");
  return static_cast<std::uint32_t>(state_.counter++);
}

void Generator::uniform(std::span<float> out, double low, double high) {
  const FloatScope float_scope;
  check_not_empty(out);
  const float from = rounded("low", low), to = rounded("high", high);
  if (high < low) refuse_value("uniform: high " + text(high) + " is below low " + text(low));
  const float span = to - from;
  const std::uint32_t stream = next_stream();
  for (std::size_t i = 0; i < out.size(); i += 4) {
    const PhiloxWords words = philox_block(state_.seed, stream, i / 4);
    for (std::size_t j = i; j < out.size() && j < i + 4; ++j) {
      out[j] = flush(fma(unit(words[j - i]), flush(span), flush(from)));
    }
  }
}

void Generator::normal(std::span<float> out, double mean, double deviation) {
  const FloatScope float_scope;
  check_not_empty(out);
  const float center = rounded("mean", mean), scale = rounded("std", deviation);
  if (deviation < 0.0) refuse_value("normal: std must not be negative, got " + text(deviation));
  const std::uint32_t stream = next_stream();
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = stream_normal(state_.seed, stream, i, center, scale);
}

void Generator::kaiming_uniform(std::span<float> out, Index fan_in) { kaiming_uniform(out, fan_in, std::sqrt(5.0)); }

void Generator::kaiming_uniform(std::span<float> out, Index fan_in, double a) {
  const double bound = static_cast<double>(kaiming_uniform_bound(fan_in, a));
  uniform(out, -bound, bound);
}

void Generator::xavier_uniform(std::span<float> out, Index fan_in, Index fan_out, double gain) {
  const double bound = static_cast<double>(xavier_uniform_bound(fan_in, fan_out, gain));
  uniform(out, -bound, bound);
}

void Generator::kaiming_normal(std::span<float> out, Index fan_in) { kaiming_normal(out, fan_in, std::sqrt(2.0)); }

void Generator::kaiming_normal(std::span<float> out, Index fan_in, double gain) {
  normal(out, 0.0, static_cast<double>(kaiming_normal_deviation(fan_in, gain)));
}

void Generator::xavier_normal(std::span<float> out, Index fan_in, Index fan_out, double gain) {
  normal(out, 0.0, static_cast<double>(xavier_normal_deviation(fan_in, fan_out, gain)));
}

float kaiming_uniform_bound(Index fan_in) { return kaiming_uniform_bound(fan_in, std::sqrt(5.0)); }

float kaiming_uniform_bound(Index fan_in, double a) {
  return rounded("bound", std::sqrt(2.0 / (1.0 + a * a)) * std::sqrt(3.0 / fan("fan_in", fan_in)));
}

float xavier_uniform_bound(Index fan_in, Index fan_out, double gain) {
  return rounded("bound", gain * std::sqrt(6.0 / (fan("fan_in", fan_in) + fan("fan_out", fan_out))));
}

float kaiming_normal_deviation(Index fan_in) { return kaiming_normal_deviation(fan_in, std::sqrt(2.0)); }

float kaiming_normal_deviation(Index fan_in, double gain) {
  return rounded("std", gain / std::sqrt(fan("fan_in", fan_in)));
}

float xavier_normal_deviation(Index fan_in, Index fan_out, double gain) {
  return rounded("std", gain * std::sqrt(2.0 / (fan("fan_in", fan_in) + fan("fan_out", fan_out))));
}

Index draw_size(const Shape& shape) {
  for (const Index dimension : shape) {
    if (dimension < 1) refuse_value("every dimension of a draw must be at least 1, got " + shape_text(shape));
  }
  return element_count(shape);
}

DropoutScale dropout_scale(double p) {
  const auto rounded_p = static_cast<float>(p);
  if (!(p >= 0.0) || !(rounded_p < 1.0F)) refuse_value("dropout: p must be in [0, 1) as float32, got " + text(p));
  return {rounded_p, static_cast<float>(1.0 / (1.0 - static_cast<double>(rounded_p)))};
}

DropoutScale residual_dropout_scale(double p) {
  const float threshold = flush(dropout_scale(p).p);
  return {threshold, div(1.0F, sub(1.0F, threshold))};
}

}  // namespace samba
