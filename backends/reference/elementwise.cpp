#include "samba/backends/reference/elementwise.h"

#include <algorithm>

#include "samba/backends/reference/clones.h"
#include "samba/numerics/elementary.h"

namespace samba::elementary {
#include "samba/numerics/gelu_slopes-inl.h"
}  // namespace samba::elementary

namespace samba::reference {

namespace {

template <class Function>
inline void map(Index n, const float* x, float* out, Function&& function) {
  for (Index i = 0; i < n; ++i) out[i] = function(x[i]);
}

template <class Function>
inline void map(Index n, const float* a, const float* b, float* out, Function&& function) {
  for (Index i = 0; i < n; ++i) out[i] = function(a[i], b[i]);
}

SAMBA_FMA_CLONES void map_unary(UnaryFunction function, Index n, const float* x, float* out) {
  switch (function) {
    case UnaryFunction::exp:
      return map(n, x, out, [](float v) { return elementary::exp(v); });
    case UnaryFunction::log:
      return map(n, x, out, [](float v) { return elementary::log(v); });
    case UnaryFunction::log1p:
      return map(n, x, out, [](float v) { return elementary::log1p(v); });
    case UnaryFunction::sqrt:
      return map(n, x, out, [](float v) { return elementary::sqrt(v); });
    case UnaryFunction::rsqrt:
      return map(n, x, out, [](float v) { return elementary::rsqrt(v); });
    case UnaryFunction::sigmoid:
      return map(n, x, out, [](float v) { return elementary::sigmoid(v); });
    case UnaryFunction::silu:
      return map(n, x, out, [](float v) { return elementary::silu(v); });
    case UnaryFunction::softplus:
      return map(n, x, out, [](float v) { return elementary::softplus(v); });
    case UnaryFunction::sin:
      return map(n, x, out, [](float v) { return elementary::sin(v); });
    case UnaryFunction::cos:
      return map(n, x, out, [](float v) { return elementary::cos(v); });
    case UnaryFunction::tanh:
      return map(n, x, out, [](float v) { return elementary::tanh(v); });
    case UnaryFunction::erf:
      return map(n, x, out, [](float v) { return elementary::erf(v); });
    case UnaryFunction::gelu:
      return map(n, x, out, [](float v) { return elementary::gelu(v); });
    case UnaryFunction::gelu_tanh:
      return map(n, x, out, [](float v) { return elementary::gelu_tanh(v); });
  }
}

SAMBA_FMA_CLONES void map_binary(BinaryFunction function, Index n, const float* a, const float* b, float* out) {
  switch (function) {
    case BinaryFunction::add:
      return map(n, a, b, out, [](float x, float y) { return samba::add(x, y); });
    case BinaryFunction::mul:
      return map(n, a, b, out, [](float x, float y) { return samba::mul(x, y); });
    case BinaryFunction::div:
      return map(n, a, b, out, [](float x, float y) { return samba::div(x, y); });
    case BinaryFunction::max:
      return map(n, a, b, out, [](float x, float y) { return samba::max(x, y); });
    case BinaryFunction::pow:
      return map(n, a, b, out, [](float x, float y) { return elementary::pow(x, y); });
  }
}

SAMBA_FMA_CLONES void map_softcap(Index n, float softcap, const float* x, float* squashed, float* out) {
  const float cap = flush(softcap);
  for (Index i = 0; i < n; ++i) {
    const float t = flush(elementary::tanh(div(x[i], cap)));
    if (squashed != nullptr) squashed[i] = t;
    out[i] = mul(t, cap);
  }
}

SAMBA_FMA_CLONES void map_swiglu(Index n, const float* gate, const float* up, float* act, float* gated) {
  for (Index i = 0; i < n; ++i) {
    const float a = flush(elementary::silu(flush(gate[i])));
    gated[i] = mul(a, up[i]);
    act[i] = a;
  }
}

SAMBA_FMA_CLONES void map_unary_backward(UnaryFunction function, Index n, const float* x, const float* dy, float* dx) {
  if (function == UnaryFunction::gelu) {
    return map(n, x, dy, dx,
               [](float v, float d) { return mul(d, elementary::gelu_slope(elementary::ScalarLanes{}, v)); });
  }
  map(n, x, dy, dx, [](float v, float d) { return mul(d, elementary::gelu_tanh_slope(elementary::ScalarLanes{}, v)); });
}

struct SwigluGradient {
  const float *gate, *up, *act, *d_gated;
  float *d_act, *d_up, *d_gate;
};

SAMBA_FMA_CLONES void map_swiglu_backward(Index n, const SwigluGradient& g) {
  for (Index i = 0; i < n; ++i) {
    const float gate = flush(g.gate[i]);
    const float d_act = mul(g.d_gated[i], g.up[i]);
    const float d_up = mul(g.d_gated[i], g.act[i]);
    const float s = flush(elementary::sigmoid(gate));
    const float slope = mul(s, add(1.0F, mul(gate, sub(1.0F, s))));
    g.d_act[i] = d_act;
    g.d_up[i] = d_up;
    g.d_gate[i] = mul(d_act, slope);
  }
}

}  // namespace

void ElementwiseReference::unary(UnaryFunction function, Index n, const float* x, float* out) {
  map_unary(function, n, x, out);
}

void ElementwiseReference::binary(BinaryFunction function, Index n, const float* a, const float* b, float* out) {
  map_binary(function, n, a, b, out);
}

void ElementwiseReference::clamp(Index n, const float* x, float low, float high, float* out) {
  map(n, x, out, [=](float v) { return samba::clamp(v, low, high); });
}

void ElementwiseReference::add(Index n, const float* a, const float* b, float* out) {
  map(n, a, b, out, [](float x, float y) { return samba::add(x, y); });
}

void ElementwiseReference::scale(Index n, float factor, const float* x, float* out) {
  map(n, x, out, [=](float v) { return samba::mul(v, factor); });
}

void ElementwiseReference::softcap_forward(Index n, float cap, const float* x, float* squashed, float* out) {
  map_softcap(n, cap, x, squashed, out);
}

void ElementwiseReference::softcap_backward(Index n, const float* squashed, const float* dy, float* dx) {
  map(n, squashed, dy, dx, [](float t, float d) { return mul(d, sub(1.0F, mul(t, t))); });
}

void ElementwiseReference::flush(Index n, const float* x, float* out) {
  map(n, x, out, [](float v) { return samba::flush(v); });
}

void ElementwiseReference::relu_forward(Index n, const float* x, float* out) {
  map(n, x, out, [](float v) { return samba::flush(v) > 0.0F ? v : 0.0F; });
}

void ElementwiseReference::relu_backward(Index n, const float* act, const float* dy, float* dx) {
  map(n, act, dy, dx, [](float a, float d) { return samba::flush(a) > 0.0F ? samba::flush(d) : 0.0F; });
}

void ElementwiseReference::swiglu_forward(Index n, const float* gate, const float* up, float* act, float* gated) {
  map_swiglu(n, gate, up, act, gated);
}

void ElementwiseReference::swiglu_backward(Index n, const float* gate, const float* up, const float* act,
                                           const float* d_gated, float* d_act, float* d_up, float* d_gate) {
  map_swiglu_backward(n, {gate, up, act, d_gated, d_act, d_up, d_gate});
}

void ElementwiseReference::unary_backward(UnaryFunction function, Index n, const float* x, const float* dy, float* dx) {
  map_unary_backward(function, n, x, dy, dx);
}

void ElementwiseReference::zero_padding(Index batch, Index length, Index width, const std::int32_t* lengths, float* x) {
  for (Index b = 0; b < batch; ++b) {
    for (Index i = lengths[b] * width; i < length * width; ++i) x[b * length * width + i] = 0.0F;
  }
}

void ElementwiseReference::copy_columns(Index rows, Index width, const float* from, Index from_stride, float* to,
                                        Index to_stride) {
  for (Index row = 0; row < rows; ++row) std::copy_n(from + row * from_stride, width, to + row * to_stride);
}

Index ElementwiseReference::first_non_finite(Index n, const float* x) {
  for (Index i = 0; i < n; ++i) {
    if (!is_finite(x[i])) return i;
  }
  return -1;
}

}  // namespace samba::reference
