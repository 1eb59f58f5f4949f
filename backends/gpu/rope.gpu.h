// Rotary position embedding, one element each: out[j] = in[j] cos[i] + r sin[i], i = j mod half, r the partner in the
// other half with the sign of the turn: two products and one add, never fused.
#pragma once

#include "samba/backends/gpu/families.h"

namespace samba::SAMBA_GPU {

namespace {

struct Rotate {
  RopeShape shape;
  bool backward;
  const float *in, *cosines, *sines;
  float* out;
  SAMBA_DEVICE void operator()(Index index) const {
    const Index j = index % shape.head_dim;
    if (j >= shape.rotary_dim) {
      out[index] = flush(in[index]);
      return;
    }
    const Index half = shape.rotary_dim / 2;
    const Index i = j % half;
    const Index row = index / (shape.n_heads * shape.head_dim);
    const Index table = (shape.first_position + row % shape.length) * half + i;
    const bool low = j < half;
    const float partner = flush(in[low ? index + half : index - half]);
    const float turned = low != backward ? -partner : partner;
    out[index] = add(mul(in[index], cosines[table]), mul(turned, sines[table]));
  }
};

class RopeGpu final : public RopeKernels {
 public:
  explicit RopeGpu(Context& context) : context_(context) {}

  void rotate(const RopeShape& shape, const float* x, const float* cosines, const float* sines, float* out) override {
    for_each(context_, size(shape), Rotate{shape, false, x, cosines, sines, out});
  }
  void rotate_backward(const RopeShape& shape, const float* d_out, const float* cosines, const float* sines,
                       float* dx) override {
    for_each(context_, size(shape), Rotate{shape, true, d_out, cosines, sines, dx});
  }

 private:
  static Index size(const RopeShape& shape) { return shape.batch * shape.length * shape.n_heads * shape.head_dim; }
  Context& context_;
};

}  // namespace

std::unique_ptr<RopeKernels> make_rope(Context& context) { return std::make_unique<RopeGpu>(context); }

}  // namespace samba::SAMBA_GPU
