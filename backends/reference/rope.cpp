#include "samba/backends/reference/rope.h"

#include "samba/numerics/float32.h"

namespace samba::reference {

namespace {

// out[j] = in[j] cos[i] + r sin[i], i = j mod half, r the partner in the other half with the sign of `turn`: two
// products and one add, never fused (spec 20 section 2; its backward turns the other way).
enum class Turn { forward, backward };

void rotate_head(const RopeShape& shape, Turn turn, const float* in, const float* cosines, const float* sines,
                 float* out) {
  const Index half = shape.rotary_dim / 2;
  for (Index i = 0; i < half; ++i) {
    const float low = flush(in[i]);
    const float high = flush(in[i + half]);
    const float low_partner = turn == Turn::forward ? -high : high;
    const float high_partner = turn == Turn::forward ? low : -low;
    out[i] = add(mul(low, cosines[i]), mul(low_partner, sines[i]));
    out[i + half] = add(mul(high, cosines[i]), mul(high_partner, sines[i]));
  }
  for (Index j = shape.rotary_dim; j < shape.head_dim; ++j) out[j] = flush(in[j]);
}

void rotate_all(const RopeShape& shape, Turn turn, const float* in, const float* cosines, const float* sines,
                float* out) {
  const Index half = shape.rotary_dim / 2;
  for (Index row = 0; row < shape.batch * shape.length; ++row) {
    const Index table = (shape.first_position + row % shape.length) * half;
    for (Index h = 0; h < shape.n_heads; ++h) {
      const Index at = (row * shape.n_heads + h) * shape.head_dim;
      rotate_head(shape, turn, in + at, cosines + table, sines + table, out + at);
    }
  }
}

}  // namespace

void RopeReference::rotate(const RopeShape& shape, const float* x, const float* cosines, const float* sines,
                           float* out) {
  rotate_all(shape, Turn::forward, x, cosines, sines, out);
}

void RopeReference::rotate_backward(const RopeShape& shape, const float* d_out, const float* cosines,
                                    const float* sines, float* dx) {
  rotate_all(shape, Turn::backward, d_out, cosines, sines, dx);
}

}  // namespace samba::reference
