// Initial values of a stack: one stream id a drawn tensor, in registry order. Those of a SambaStack are in spec 60
// section 3; a general stack adds
//   biases                                            0
//   weights of an offset norm (rmsnorm_offset)        0
//   conv1d.weight, conv1d.bias                        uniform(-1/2, 1/2)
//   A_log of mamba1                                   log(1) .. log(16) in every row, no draw
//   A_log of mamba2                                   uniform(0, 2.7725887)
//   dt_proj.bias of mamba1, dt_bias                   uniform(-4, -2)
#pragma once

#include <vector>

#include "samba/kernels/executor.h"
#include "samba/model/registry.h"
#include "samba/numerics/generator.h"

namespace samba {

// The draws of a stack's tensors, one by one.
class InitialValues {
 public:
  // Takes the stream ids of all drawn tensors; when the generator's do not suffice the call is refused (Error(value))
  // and the generator stays.
  InitialValues(const StackConfig& config, const Registry& registry, Generator& generator);

  // values (device): those of the tensor of this index.
  void draw(Executor& executor, std::size_t index, float* values) const;

 private:
  struct Draw {
    enum class Kind { normal, uniform, constant, logarithms } kind = Kind::constant;
    float low = 0.0F;  // of uniform; the value of constant
    float high = 0.0F;
    std::uint32_t stream = 0;
  };
  static Draw uniform(float low, float high) { return {Draw::Kind::uniform, low, high}; }
  static Draw constant(float value) { return {Draw::Kind::constant, value, value}; }
  static Draw draw_of(const ParameterTensor& tensor, const LayerConfig* layer, bool offset);

  std::uint64_t seed_;
  std::vector<Draw> draws_;
  std::vector<Shape> shapes_;
};

// All of them: parameters (device) are registry.total() floats.
void draw_initial_values(Executor& executor, const StackConfig& config, const Registry& registry, Generator& generator,
                         float* parameters);

}  // namespace samba
