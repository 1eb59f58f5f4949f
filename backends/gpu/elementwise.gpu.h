// Elementwise kernels: one function of the element's index each.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/backends/gpu/swiglu.gpu.h"
#include "samba/kernels/extended_gradients.h"

namespace samba::elementary {
#include "samba/numerics/gelu_slopes-inl.h"
}  // namespace samba::elementary

namespace samba::SAMBA_GPU {

namespace {

template <UnaryFunction kFunction>
SAMBA_DEVICE float unary_value(float x) {
  switch (kFunction) {
    case UnaryFunction::exp:
      return elementary::exp(x);
    case UnaryFunction::log:
      return elementary::log(x);
    case UnaryFunction::log1p:
      return elementary::log1p(x);
    case UnaryFunction::sqrt:
      return elementary::sqrt(x);
    case UnaryFunction::rsqrt:
      return elementary::rsqrt(x);
    case UnaryFunction::sigmoid:
      return elementary::sigmoid(x);
    case UnaryFunction::silu:
      return elementary::silu(x);
    case UnaryFunction::softplus:
      return elementary::softplus(x);
    case UnaryFunction::sin:
      return elementary::sin(x);
    case UnaryFunction::cos:
      return elementary::cos(x);
    case UnaryFunction::tanh:
      return elementary::tanh(x);
    case UnaryFunction::erf:
      return elementary::erf(x);
    case UnaryFunction::gelu:
      return elementary::gelu(x);
    case UnaryFunction::gelu_tanh:
      return elementary::gelu_tanh(x);
  }
  return 0.0F;
}

template <UnaryFunction kFunction>
struct Unary {
  const float* x;
  float* out;
  SAMBA_DEVICE void operator()(Index i) const { out[i] = unary_value<kFunction>(x[i]); }
};

// Of gelu and gelu_tanh.
template <UnaryFunction kFunction>
struct UnaryBackward {
  const float *x, *dy;
  float* dx;
  SAMBA_DEVICE void operator()(Index i) const {
    const elementary::ScalarLanes lanes;
    const float slope = kFunction == UnaryFunction::gelu ? elementary::gelu_slope(lanes, x[i])
                                                         : elementary::gelu_tanh_slope(lanes, x[i]);
    dx[i] = mul(dy[i], slope);
  }
};

template <BinaryFunction kFunction>
struct Binary {
  const float *a, *b;
  float* out;
  SAMBA_DEVICE void operator()(Index i) const {
    const float x = a[i], y = b[i];
    switch (kFunction) {
      case BinaryFunction::add:
        out[i] = samba::add(x, y);
        break;
      case BinaryFunction::mul:
        out[i] = samba::mul(x, y);
        break;
      case BinaryFunction::div:
        out[i] = samba::div(x, y);
        break;
      case BinaryFunction::max:
        out[i] = samba::max(x, y);
        break;
      case BinaryFunction::pow:
        out[i] = elementary::pow(x, y);
        break;
    }
  }
};

struct Clamp {
  const float* x;
  float low, high;
  float* out;
  SAMBA_DEVICE void operator()(Index i) const { out[i] = samba::clamp(x[i], low, high); }
};

struct Scale {
  const float* x;
  float factor;
  float* out;
  SAMBA_DEVICE void operator()(Index i) const { out[i] = samba::mul(x[i], factor); }
};

struct Flush {
  const float* x;
  float* out;
  SAMBA_DEVICE void operator()(Index i) const { out[i] = samba::flush(x[i]); }
};

struct Relu {
  const float* x;
  float* out;
  SAMBA_DEVICE void operator()(Index i) const { out[i] = samba::flush(x[i]) > 0.0F ? x[i] : 0.0F; }
};

struct ReluBackward {
  const float *act, *dy;
  float* dx;
  SAMBA_DEVICE void operator()(Index i) const { dx[i] = samba::flush(act[i]) > 0.0F ? samba::flush(dy[i]) : 0.0F; }
};

struct Softcap {
  const float* x;
  float cap;
  float *squashed, *out;
  SAMBA_DEVICE void operator()(Index i) const {
    const float flushed = samba::flush(cap);
    const float t = samba::flush(elementary::tanh(div(x[i], flushed)));
    if (squashed != nullptr) squashed[i] = t;
    out[i] = mul(t, flushed);
  }
};

struct SoftcapBackward {
  const float *squashed, *dy;
  float* dx;
  SAMBA_DEVICE void operator()(Index i) const { dx[i] = mul(dy[i], sub(1.0F, mul(squashed[i], squashed[i]))); }
};

struct Swiglu {
  const float *gate, *up;
  float *act, *gated;
  SAMBA_DEVICE void operator()(Index i) const { swiglu(gate[i], up[i], act[i], gated[i]); }
};

struct SwigluBackward {
  const float *gate, *up, *act, *d_gated;
  float *d_act, *d_up, *d_gate;
  SAMBA_DEVICE void operator()(Index i) const {
    const float g = samba::flush(gate[i]);
    const float d_a = mul(d_gated[i], up[i]);
    const float d_u = mul(d_gated[i], act[i]);
    const float s = samba::flush(elementary::sigmoid(g));
    const float slope = mul(s, samba::add(1.0F, mul(g, sub(1.0F, s))));
    d_act[i] = d_a;
    d_up[i] = d_u;
    d_gate[i] = mul(d_a, slope);
  }
};

struct ZeroPadding {
  Index length, width;
  const std::int32_t* lengths;
  float* x;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index row = i / width;
    if (row % length >= lengths[row / length]) x[i] = 0.0F;
  }
};

struct CopyColumns {
  Index width;
  const float* from;
  Index from_stride;
  float* to;
  Index to_stride;
  SAMBA_DEVICE void operator()(Index i) const {
    to[i / width * to_stride + i % width] = from[i / width * from_stride + i % width];
  }
};

struct StartSearch {
  std::uint64_t* first;
  SAMBA_DEVICE void operator()(Index) const { *first = ~std::uint64_t{0}; }
};

struct FirstNonFinite {
  const float* x;
  std::uint64_t* first;
  SAMBA_DEVICE void operator()(Index i) const {
    if (!is_finite(x[i])) atomic_min(first, static_cast<std::uint64_t>(i));
  }
};

class ElementwiseGpu final : public ElementwiseKernels, public ActivationGradients {
 public:
  explicit ElementwiseGpu(Context& context) : context_(context) {}

  void unary(UnaryFunction function, Index n, const float* x, float* out) override {
    unary_from<UnaryFunction::exp>(function, n, x, out);
  }

  void binary(BinaryFunction function, Index n, const float* a, const float* b, float* out) override {
    switch (function) {
      case BinaryFunction::add:
        return for_each(context_, n, Binary<BinaryFunction::add>{a, b, out});
      case BinaryFunction::mul:
        return for_each(context_, n, Binary<BinaryFunction::mul>{a, b, out});
      case BinaryFunction::div:
        return for_each(context_, n, Binary<BinaryFunction::div>{a, b, out});
      case BinaryFunction::max:
        return for_each(context_, n, Binary<BinaryFunction::max>{a, b, out});
      case BinaryFunction::pow:
        return for_each(context_, n, Binary<BinaryFunction::pow>{a, b, out});
    }
  }

  void clamp(Index n, const float* x, float low, float high, float* out) override {
    for_each(context_, n, Clamp{x, low, high, out});
  }
  void add(Index n, const float* a, const float* b, float* out) override { binary(BinaryFunction::add, n, a, b, out); }
  void scale(Index n, float factor, const float* x, float* out) override {
    for_each(context_, n, Scale{x, factor, out});
  }
  void flush(Index n, const float* x, float* out) override { for_each(context_, n, Flush{x, out}); }
  void relu_forward(Index n, const float* x, float* out) override { for_each(context_, n, Relu{x, out}); }
  void relu_backward(Index n, const float* act, const float* dy, float* dx) override {
    for_each(context_, n, ReluBackward{act, dy, dx});
  }
  void softcap_forward(Index n, float cap, const float* x, float* squashed, float* out) override {
    for_each(context_, n, Softcap{x, cap, squashed, out});
  }
  void softcap_backward(Index n, const float* squashed, const float* dy, float* dx) override {
    for_each(context_, n, SoftcapBackward{squashed, dy, dx});
  }
  void swiglu_forward(Index n, const float* gate, const float* up, float* act, float* gated) override {
    for_each(context_, n, Swiglu{gate, up, act, gated});
  }
  void swiglu_backward(Index n, const float* gate, const float* up, const float* act, const float* d_gated,
                       float* d_act, float* d_up, float* d_gate) override {
    for_each(context_, n, SwigluBackward{gate, up, act, d_gated, d_act, d_up, d_gate});
  }
  void unary_backward(UnaryFunction function, Index n, const float* x, const float* dy, float* dx) override {
    if (function == UnaryFunction::gelu) {
      return for_each(context_, n, UnaryBackward<UnaryFunction::gelu>{x, dy, dx});
    }
    for_each(context_, n, UnaryBackward<UnaryFunction::gelu_tanh>{x, dy, dx});
  }
  void zero_padding(Index batch, Index length, Index width, const std::int32_t* lengths, float* x) override {
    for_each(context_, batch * length * width, ZeroPadding{length, width, lengths, x});
  }
  void copy_columns(Index rows, Index width, const float* from, Index from_stride, float* to,
                    Index to_stride) override {
    for_each(context_, rows * width, CopyColumns{width, from, from_stride, to, to_stride});
  }

  Index first_non_finite(Index n, const float* x) override {
    std::int64_t found = 0;
    launch_search(context_, n, x, first_.data());
    context_.memory().copy_to_host(&found, first_.data(), sizeof found);
    return found;
  }

 private:
  template <UnaryFunction kFunction>
  void unary_from(UnaryFunction function, Index n, const float* x, float* out) {
    if (function == kFunction) return for_each(context_, n, Unary<kFunction>{x, out});
    if constexpr (kFunction != UnaryFunction::gelu_tanh) {
      unary_from<static_cast<UnaryFunction>(static_cast<int>(kFunction) + 1)>(function, n, x, out);
    }
  }

  Context& context_;
  DeviceArray<std::int64_t> first_{context_.memory(), 1};
};

}  // namespace

// The smallest index, unsigned: all ones, which is -1, when there is none.
void launch_search(Context& context, Index n, const float* x, std::int64_t* first) {
  auto* const smallest = reinterpret_cast<std::uint64_t*>(first);
  for_each(context, 1, StartSearch{smallest});
  for_each(context, n, FirstNonFinite{x, smallest});
}

std::unique_ptr<ElementwiseKernels> make_elementwise(Context& context) {
  return std::make_unique<ElementwiseGpu>(context);
}

}  // namespace samba::SAMBA_GPU
