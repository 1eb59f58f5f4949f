// The generator object (spec 10 section 9.3): a seed and the id of the next stream. Each draw takes exactly one stream
// id, whatever the number of elements; element i of a draw is a function of (seed, stream, i) alone, row-major over the
// shape. Refusals are Error(value) and come before the counter moves.
//
// Draws here run on the host. To draw on an executor take next_stream() and call its RandomKernels with the bounds
// below.
#pragma once

#include <cstdint>
#include <span>

#include "samba/core/array.h"

namespace samba {

struct GeneratorState {
  std::uint64_t seed = 0;
  std::uint64_t counter = 0;  // 0 to 2^32; 2^32 is the exhausted generator
};

class Generator {
 public:
  static constexpr std::uint64_t kStreams = std::uint64_t{1} << 32;

  explicit Generator(std::uint64_t seed) : state_{seed, 0} {}
  explicit Generator(const GeneratorState& state) { restore(state); }

  const GeneratorState& state() const { return state_; }
  void restore(const GeneratorState& state);  // refuses a counter above 2^32
  std::uint64_t seed() const { return state_.seed; }
  std::uint64_t counter() const { return state_.counter; }

  // Takes the next stream id; refused when the counter is exhausted.
  std::uint32_t next_stream();

  // Fill `out`, which may not be empty. Bounds and deviations are rounded to float32 first.
  void uniform(std::span<float> out, double low = 0.0, double high = 1.0);
  void normal(std::span<float> out, double mean = 0.0, double deviation = 1.0);
  void kaiming_uniform(std::span<float> out, Index fan_in);  // a = sqrt(5)
  void kaiming_uniform(std::span<float> out, Index fan_in, double a);
  void xavier_uniform(std::span<float> out, Index fan_in, Index fan_out, double gain = 1.0);
  void kaiming_normal(std::span<float> out, Index fan_in);  // gain = sqrt(2)
  void kaiming_normal(std::span<float> out, Index fan_in, double gain);
  void xavier_normal(std::span<float> out, Index fan_in, Index fan_out, double gain = 1.0);

 private:
  GeneratorState state_;
};

// Bounds and deviations of the initialisers, rounded once from binary64.
float kaiming_uniform_bound(Index fan_in);
float kaiming_uniform_bound(Index fan_in, double a);
float xavier_uniform_bound(Index fan_in, Index fan_out, double gain = 1.0);
float kaiming_normal_deviation(Index fan_in);
float kaiming_normal_deviation(Index fan_in, double gain);
float xavier_normal_deviation(Index fan_in, Index fan_out, double gain = 1.0);

// The elements of a shape that is drawn; refuses a dimension below 1.
Index draw_size(const Shape& shape);

// The threshold and the scale of dropout with probability p in [0, 1); p that rounds to 1 is refused. The two kinds
// round differently (spec 10 section 9.4).
struct DropoutScale {
  float p = 0.0F;
  float scale = 1.0F;
};
DropoutScale dropout_scale(double p);
DropoutScale residual_dropout_scale(double p);

}  // namespace samba
