// A Mamba-3 block on each executor, for the tests of its laws.
#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "bits.h"
#include "samba/backends/registry.h"
#include "samba/blocks/mamba3/mamba3_block.h"
#include "samba/numerics/philox.h"

namespace samba::mamba3_blocks {

inline constexpr Index kModel = 32;
using Floats = std::vector<float>;

inline Floats draw(std::uint32_t stream, Index count, float mean, float deviation) {
  Floats values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = stream_normal(31, stream, i, mean, deviation);
  return values;
}

struct Device {
  std::string name;
  ExecutorOptions options;
};

inline std::vector<Device> devices() {
  std::vector<Device> all = {{"reference", {}}};
  for (const std::string& set : instruction_sets()) all.push_back({"cpu", {.threads = 2, .instruction_set = set}});
  return all;
}

// A block with drawn weights of the sizes that training gives them.
struct Fixture {
  explicit Fixture(const Device& device = {"reference", {}})
      : executor(make_executor(device.name, device.options)), block(*executor, kModel), workspace(executor->memory()) {
    std::vector<WeightView> pointers;
    for (const WeightSpec& spec : block.weight_specs()) {
      const bool matrix = spec.name == "in_proj.weight" || spec.name == "out_proj.weight";
      const float mean = matrix ? 0.0F : (spec.name == "dt_bias" ? -1.0F : 1.0F);
      const auto stream = static_cast<std::uint32_t>(weights.size());
      weights.push_back(draw(stream, element_count(spec.shape), mean, matrix ? 0.3F : 0.2F));
      pointers.push_back(weights.back().data());
    }
    block.bind_weights(pointers);
  }

  std::unique_ptr<Mamba3State> state(Index batch) {
    return std::unique_ptr<Mamba3State>(static_cast<Mamba3State*>(block.allocate_state(batch, 0).release()));
  }

  Floats forward(Index batch, Index length, const Floats& x, BlockState* carried) {
    Floats y(x.size());
    block.forward(batch, length, x.data(), y.data(), carried, workspace, nullptr);
    return y;
  }

  std::unique_ptr<Executor> executor;
  Mamba3Block block;
  Workspace workspace;
  std::vector<Floats> weights;
};

// Rows first .. end - 1 of x (batch, length, width).
inline Floats tokens(const Floats& x, Index batch, Index first, Index end) {
  const auto row = static_cast<Index>(x.size()) / batch;
  Floats part;
  for (Index b = 0; b < batch; ++b) {
    part.insert(part.end(), x.begin() + b * row + first * kModel, x.begin() + b * row + end * kModel);
  }
  return part;
}

inline Floats piece(const Mamba3State& state, const std::string& name) {
  const ArrayMap pieces = state.pieces();
  const auto values = pieces.at(name).floats();
  return {values.begin(), values.end()};
}

inline void check_same_states(const Mamba3State& got, const Mamba3State& want) {
  CHECK(got.counters() == want.counters());
  const ArrayMap expected = want.pieces();
  for (const auto& [name, array] : got.pieces()) {
    INFO(name);
    CHECK(bits_equal(array.floats(), expected.at(name).floats()));
  }
}

}  // namespace samba::mamba3_blocks
