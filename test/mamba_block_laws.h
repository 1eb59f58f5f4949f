// Laws that the Mamba-1 and the Mamba-2 block share (specs 30 and 31, spec 32 section 1), checked
// on given modules.
#pragma once

#include <string>
#include <vector>

#include "block_fixture.h"
#include "count_allocations.h"
#include "samba/blocks/module.h"

namespace samba {

// x, dy (B, L, d_model): each row alone has the output and the input gradient that it has in the batch.
inline void check_rows_alone(BlockModule& module, const Array& x, const Array& dy) {
  const Array y = module.forward(x);
  const NamedGradients gradients = module.backward(x, dy);
  for (Index row = 0; row < x.shape()[0]; ++row) {
    INFO("row " << row);
    CHECK(bits_equal(module.forward(batch_row(x, row)).floats(), batch_row(y, row).floats()));
    const NamedGradients alone = module.backward(batch_row(x, row), batch_row(dy, row));
    CHECK(bits_equal(alone.arrays.at("x").floats(), batch_row(gradients.arrays.at("x"), row).floats()));
  }
}

// x (2, L, d_model): of a ragged batch whose first row ends at `length`, each row is that row alone, and zeros stand
// behind it; the padding, here with a NaN, is not looked at.
inline void check_ragged_batch(BlockModule& module, Array x, Index length) {
  const Index rows = x.shape()[1], width = x.shape()[2];
  x.floats()[static_cast<std::size_t>(length * width)] = kQuietNan;
  const std::vector<Index> lengths = {length, rows};
  const Array y = module.forward(x, lengths);
  const Array first = batch_row(y, 0);
  CHECK(
      bits_equal(positions(first, 0, length).floats(), module.forward(positions(batch_row(x, 0), 0, length)).floats()));
  CHECK(bits_equal(positions(first, length, rows).floats(),
                   std::vector<float>(static_cast<std::size_t>((rows - length) * width), 0.0F)));
  CHECK(bits_equal(batch_row(y, 1).floats(), module.forward(batch_row(x, 1)).floats()));
}

// A step and a backward of x (B, L, d_model), seen before, take no memory on any instruction set.
template <class Block>
void check_repeated_passes_allocate_nothing(const Array& x) {
  const Index batch = x.shape()[0], length = x.shape()[1];
  for (const std::string& set : instruction_sets()) {
    INFO(set);
    const auto executor = make_executor("cpu", {.threads = 1, .instruction_set = set});
    Block block(*executor, x.shape()[2]);
    Workspace workspace(executor->memory());
    const ArrayMap weights = drawn_weights(block.weight_specs());
    ArrayMap gradients = weights;
    std::vector<WeightView> values;
    std::vector<float*> outputs;
    for (const WeightSpec& spec : block.weight_specs()) {
      values.push_back(weights.at(spec.name).floats().data());
      outputs.push_back(gradients.at(spec.name).floats().data());
    }
    block.bind_weights(values);
    Array y = x, dx = x;
    const auto state = block.allocate_state(batch, 0);
    const auto pass = [&] {
      block.weights_changed();
      block.forward(batch, 1, x.floats().data(), y.floats().data(), state.get(), workspace, nullptr);
      block.backward(batch, length, x.floats().data(), x.floats().data(), dx.floats().data(), outputs, workspace,
                     nullptr);
    };
    pass();
    pass();
    const std::size_t before = allocations;
    pass();
    const std::size_t made = allocations - before;
    CHECK(made == 0);
  }
}

}  // namespace samba
