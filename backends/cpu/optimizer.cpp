#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/optimizer.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/optimizer.h"

#include <algorithm>

#include "samba/backends/cpu/vectors-inl.h"
#include "samba/numerics/fold.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

using Tag = hn::ScalableTag<float>;
using Lanes = SimdLanes<Tag>;

void adam_elements(const AdamScalars& s, Index first, Index end, const AdamArrays& a) {
  const Lanes l{};
  const auto sign = l.set(s.maximize ? -0.0F : 0.0F);
  const auto beta1 = l.set(s.beta1), beta2 = l.set(s.beta2), c1 = l.set(s.c1), c2 = l.set(s.c2);
  const auto negative_step = l.set(-s.step), root = l.set(s.root_bias2), eps = l.set(s.eps);
  const auto weight_decay = l.set(s.weight_decay), decay = l.set(s.decay);
  const bool decays = s.weight_decay != 0.0F;
  over_vectors(l.d, first, end, [&](auto io, Index i) HWY_ATTR {
    auto g = l.flush(hn::Xor(io.load(a.gradient + i), sign));
    auto p = l.flush(io.load(a.parameters + i));
    auto m = l.flush(io.load(a.exp_avg + i));
    auto v = l.flush(io.load(a.exp_avg_sq + i));
    if (decays && s.decoupled) p = l.flush(l.mul(decay, p));
    if (decays && !s.decoupled) g = l.flush(l.fma(weight_decay, p, g));
    m = l.flush(l.fma(c1, g, l.flush(l.mul(beta1, m))));
    v = l.flush(l.fma(c2, l.flush(l.mul(g, g)), l.flush(l.mul(beta2, v))));
    const auto deviation = elementary::divide(l, l.flush(elementary::sqrt(l, v)), root);
    const auto quotient = elementary::divide(l, m, l.flush(l.add(deviation, eps)));
    io.store(l.fma(negative_step, quotient, p), a.parameters + i);
    io.store(m, a.exp_avg + i);
    io.store(v, a.exp_avg_sq + i);
  });
}

void sgd_elements(const SgdScalars& s, Index first, Index end, const float* gradient, float* parameters,
                  float* buffer) {
  const Lanes l{};
  const auto sign = l.set(s.maximize ? -0.0F : 0.0F);
  const auto rate = l.set(s.negative_lr), momentum = l.set(s.momentum), dampening = l.set(s.c_dampening);
  const auto weight_decay = l.set(s.weight_decay);
  const bool decays = s.weight_decay != 0.0F, buffered = s.momentum != 0.0F;
  over_vectors(l.d, first, end, [&](auto io, Index i) HWY_ATTR {
    auto g = l.flush(hn::Xor(io.load(gradient + i), sign));
    const auto p = l.flush(io.load(parameters + i));
    if (decays) g = l.flush(l.fma(weight_decay, p, g));
    if (buffered) {
      auto b = g;
      if (!s.first) b = l.flush(l.fma(dampening, g, l.flush(l.mul(momentum, l.flush(io.load(buffer + i))))));
      g = s.nesterov ? l.flush(l.fma(momentum, b, g)) : b;
      io.store(b, buffer + i);
    }
    io.store(l.fma(rate, g, p), parameters + i);
  });
}

void scale_elements(Index first, Index end, float coefficient, float* gradient) {
  const Lanes l{};
  const auto factor = l.set(coefficient);
  over_vectors(l.d, first, end, [&](auto io, Index i) HWY_ATTR {
    io.store(l.mul(factor, l.flush(io.load(gradient + i))), gradient + i);
  });
}

// partials[t] for the leaves [first, end) of dot(x, x), x: [n].
void square_leaves(Index n, Index leaf, const float* x, Index first, Index end, float* partials) {
  const Index whole = std::min(end, n / leaf);
  over_row_groups(first, whole, [&](auto d, Index t, Index leaves) HWY_ATTR {
    const auto zero = hn::Zero(d);
    const auto acc = fold_columns<1>(d, {x + t * leaf}, leaf, leaves, 0, leaf, zero,
                                     [&](auto sum, Index, const auto(&v)[1])
                                         HWY_ATTR { return flush_operand(d, fused(d, v[0], v[0], sum)); });
    HWY_ALIGN float lanes[hn::MaxLanes(d)];
    hn::Store(flush_store(d, acc), d, lanes);
    std::copy_n(lanes, leaves, partials + t);
  });
  if (std::max(first, whole) < end) {  // the short last leaf
    float acc = 0.0F;
    for (Index i = whole * leaf; i < n; ++i) acc = mad(x[i], x[i], acc);
    partials[end - 1] = acc;
  }
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {

HWY_EXPORT(adam_elements);
HWY_EXPORT(sgd_elements);
HWY_EXPORT(scale_elements);
HWY_EXPORT(square_leaves);

constexpr Index kGrain = 8192;   // elements a thread should have to be worth its start
constexpr Index kLeafUnit = 64;  // leaves

// Hyperparameters are used as they are, also subnormal ones (spec 61 section 2 step 5), but DAZ reads those as zeros:
// such a step takes the reference's loop.
bool is_subnormal(float x) { return (to_bits(x) & kExponentMask) == 0 && (to_bits(x) & kMantissaMask) != 0; }

template <class... Scalars>
bool any_subnormal(Scalars... scalars) {
  return (is_subnormal(scalars) || ...);
}

}  // namespace

void OptimizerCpu::adam(const AdamScalars& s, Index n, const float* gradient, float* parameters, float* exp_avg,
                        float* exp_avg_sq) {
  if (any_subnormal(s.beta1, s.beta2, s.c1, s.c2, s.step, s.root_bias2, s.eps, s.weight_decay, s.decay)) {
    reference_.adam(s, n, gradient, parameters, exp_avg, exp_avg_sq);
    return;
  }
  const auto run = SAMBA_CPU_KERNEL(context_, adam_elements);
  context_.parallel(n, kGrain, [&](Index first, Index end, int) {
    run(s, first, end, {gradient, parameters, exp_avg, exp_avg_sq});
  });
}

void OptimizerCpu::sgd(const SgdScalars& s, Index n, const float* gradient, float* parameters, float* buffer) {
  if (any_subnormal(s.negative_lr, s.momentum, s.c_dampening, s.weight_decay)) {
    reference_.sgd(s, n, gradient, parameters, buffer);
    return;
  }
  const auto run = SAMBA_CPU_KERNEL(context_, sgd_elements);
  context_.parallel(n, kGrain, [&](Index first, Index end, int) { run(s, first, end, gradient, parameters, buffer); });
}

// All leaves of all tensors are one list, cut among the threads; the trees are folded afterwards.
void OptimizerCpu::sums_of_squares(Index tensors, const Index* sizes, const float* gradient, float* sums) {
  const auto run = SAMBA_CPU_KERNEL(context_, square_leaves);
  first_leaves_.assign(1, 0);
  tensors_.clear();
  for (Index j = 0; j < tensors; ++j) {
    tensors_.push_back(gradient);
    gradient += sizes[j];
    first_leaves_.push_back(first_leaves_.back() + leaf_count(sizes[j]));
  }
  partials_.resize(static_cast<std::size_t>(first_leaves_.back()));
  context_.parallel(first_leaves_.back(), kLeafUnit, [&](Index first, Index end, int) {
    const auto after = std::upper_bound(first_leaves_.begin(), first_leaves_.end(), first);
    for (auto j = static_cast<std::size_t>(after - first_leaves_.begin()) - 1; first < end; ++j) {
      const Index begin = first_leaves_[j];
      const Index last = std::min(end, first_leaves_[j + 1]);
      run(sizes[j], leaf_length(sizes[j]), tensors_[j], first - begin, last - begin, partials_.data() + begin);
      first = last;
    }
  });
  for (std::size_t j = 0; j < tensors_.size(); ++j) {
    TreeFold tree;
    for (Index t = first_leaves_[j]; t < first_leaves_[j + 1]; ++t) tree.push(partials_[static_cast<std::size_t>(t)]);
    sums[j] = tree.finish();
  }
}

void OptimizerCpu::leaf_sums_of_squares(Index leaf, Index n, const float* gradient, float* sums) {
  const auto run = SAMBA_CPU_KERNEL(context_, square_leaves);
  context_.parallel((n + leaf - 1) / leaf, kLeafUnit,
                    [&](Index first, Index end, int) { run(n, leaf, gradient, first, end, sums); });
}

void OptimizerCpu::scale(Index n, float coefficient, float* gradient) {
  if (is_subnormal(coefficient)) {
    reference_.scale(n, coefficient, gradient);
    return;
  }
  const auto run = SAMBA_CPU_KERNEL(context_, scale_elements);
  context_.parallel(n, kGrain, [&](Index first, Index end, int) { run(first, end, coefficient, gradient); });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
