#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/loss.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/loss.h"

#include <algorithm>
#include <vector>

#include "samba/backends/cpu/vectors-inl.h"
#include "samba/numerics/fold.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

using Tag = hn::ScalableTag<float>;
using Lanes = SimdLanes<Tag>;

// The largest value of a row, -0 below +0; NaN when any value is.
HWY_INLINE float row_maximum(Index n, const float* x) {
  const Lanes l{};
  auto largest = order_key(l, l.as_int(l.set(-kInfinity)));
  auto not_numbers = l.set(0.0F);
  over_vectors(l.d, 0, n, [&](auto io, Index i) HWY_ATTR {
    const auto v = io.keep(io.load(x + i), l.set(-kInfinity));
    largest = hn::Max(largest, order_key(l, l.as_int(flush_store(l.d, v))));
    not_numbers = l.select(l.nan(v), l.set(1.0F), not_numbers);
  });
  if (!hn::AllTrue(l.d, l.eq(not_numbers, l.set(0.0F)))) return kQuietNan;
  return hn::GetLane(l.as_float(order_key(l, hn::MaxOfLanes(l.di, largest))));
}

// shift = F(F(x) - maximum), exponentials = F(exp(shift)); shift may be null.
HWY_INLINE void exponentiate(Index n, const float* x, float maximum, float* shift, float* exponentials) {
  const Lanes l{};
  const auto m = l.set(maximum);
  over_vectors(l.d, 0, n, [&](auto io, Index i) HWY_ATTR {
    const auto s = l.flush(l.sub(l.flush(io.load(x + i)), m));
    if (shift != nullptr) io.store(s, shift + i);
    io.store(elementary::exp(l, s), exponentials + i);
  });
}

// Sums over the classes with the fold of the matrix product, one row a lane: value(column, row lanes) is added.
template <class D, class Value>
HWY_INLINE hn::Vec<D> fold_classes(D d, const float* matrix, Index classes, Index rows, Value&& value) {
  hn::Vec<D> waiting[kMaxTreeDepth + 1];
  const Index leaf = leaf_length(classes);
  Index depth = 0, pushed = 0;
  for (Index first = 0; first < classes; first += leaf) {
    waiting[depth++] = fold_columns<1>(d, {matrix}, classes, rows, first, std::min(classes, first + leaf), hn::Zero(d),
                                       [&](auto acc, Index, const auto(&v)[1])
                                           HWY_ATTR { return flush_operand(d, hn::Add(acc, value(v[0]))); });
    for (Index rest = ++pushed; (rest & 1) == 0; rest >>= 1, --depth) {
      waiting[depth - 2] = flush_operand(d, hn::Add(waiting[depth - 2], waiting[depth - 1]));
    }
  }
  for (; depth > 1; --depth) {
    waiting[depth - 2] = flush_operand(d, hn::Add(waiting[depth - 2], waiting[depth - 1]));
  }
  return waiting[0];
}

HWY_INLINE void gradient_row(const CrossEntropyRows& c, Index row, float denominator, const float* exponentials) {
  const Lanes l{};
  float* dx = c.d_logits + row * c.shape.classes;
  const std::int32_t target = c.targets[row];
  if (target == c.shape.ignore_index) {
    std::fill(dx, dx + c.shape.classes, 0.0F);
    return;
  }
  const auto den = l.set(denominator), divisor = l.set(c.divisor), other = l.set(c.other);
  const float at_target = samba::div(samba::sub(samba::div(exponentials[target], denominator), c.at_target), c.divisor);
  over_vectors(l.d, 0, c.shape.classes, [&](auto io, Index v) HWY_ATTR {
    const auto weight = elementary::divide(l, io.load(exponentials + v), den);
    io.store(elementary::divide(l, l.flush(l.sub(weight, other)), divisor), dx + v);
  });
  dx[target] = at_target;
}

// The loss of each row of a group. All arrays hold one value a row in the lanes of d.
template <class D>
HWY_INLINE hn::Vec<D> group_loss(D d, const CrossEntropyRows& c, const float* logits, Index rows, const float* maxima,
                                 hn::Vec<D> target_shift, hn::Vec<D> log_denominator) {
  const SimdLanes<D> l{};
  const auto nll = l.neg(l.flush(l.sub(target_shift, log_denominator)));
  if (!c.smoothed) return nll;
  const auto maximum = hn::Load(d, maxima);
  const auto sum = fold_classes(d, logits, c.shape.classes, rows, [&](auto x) HWY_ATTR {
    return l.flush(l.sub(l.flush(l.sub(x, maximum)), log_denominator));
  });
  const auto smooth = l.neg(elementary::divide(l, sum, l.set(static_cast<float>(c.shape.classes))));
  const auto weighted = l.flush(l.mul(l.flush(l.set(c.smoothing)), smooth));
  return l.add(l.flush(l.mul(l.set(c.one_minus), nll)), weighted);
}

// Rows [first, end). scratch: lanes * classes floats.
void cross_entropy_rows(const CrossEntropyRows& c, Index first, Index end, float* scratch) {
  const Index classes = c.shape.classes;
  over_row_groups(first, end, [&](auto d, Index row, Index rows) HWY_ATTR {
    using D = decltype(d);
    const SimdLanes<D> l{};
    HWY_ALIGN float maxima[hn::MaxLanes(D())] = {}, shifts[hn::MaxLanes(D())] = {};
    HWY_ALIGN float denominators[hn::MaxLanes(D())], logs[hn::MaxLanes(D())], losses[hn::MaxLanes(D())];
    const float* logits = c.logits + row * classes;
    float* exponentials = c.stages.exponentials != nullptr ? c.stages.exponentials + row * classes : scratch;
    for (Index r = 0; r < rows; ++r) {
      const float* x = logits + r * classes;
      maxima[r] = row_maximum(classes, x);
      float* shift = c.stages.shift != nullptr ? c.stages.shift + (row + r) * classes : nullptr;
      exponentiate(classes, x, maxima[r], shift, exponentials + r * classes);
      const std::int32_t target = c.targets[row + r];
      shifts[r] = target == c.shape.ignore_index ? 0.0F : samba::sub(x[target], maxima[r]);
    }
    const auto denominator = fold_classes(d, exponentials, classes, rows, [&](auto e) HWY_ATTR { return e; });
    const auto log_denominator = l.flush(elementary::log(l, l.flush(denominator)));
    hn::Store(flush_store(d, denominator), d, denominators);
    hn::Store(flush_store(d, log_denominator), d, logs);
    const auto loss = group_loss(d, c, logits, rows, maxima, hn::Load(d, shifts), log_denominator);
    hn::Store(flush_store(d, loss), d, losses);
    for (Index r = 0; r < rows; ++r) {
      c.row_loss[row + r] = c.targets[row + r] == c.shape.ignore_index ? 0.0F : losses[r];
      if (c.d_logits != nullptr) gradient_row(c, row + r, denominators[r], exponentials + r * classes);
    }
    if (c.stages.max != nullptr) std::copy_n(maxima, rows, c.stages.max + row);
    if (c.stages.denominator != nullptr) std::copy_n(denominators, rows, c.stages.denominator + row);
    if (c.stages.log_denominator != nullptr) std::copy_n(logs, rows, c.stages.log_denominator + row);
  });
}

// Rows [first, end) of c; four rows by one vector of columns run side by side.
void serial_product_rows(const SerialProduct& g, Index first, Index end) {
  const Lanes l{};
  constexpr Index kRows = 4;
  for (Index i = first; i < end; i += kRows) {
    const Index rows = std::min(kRows, end - i);
    const float* a[kRows];
    for (Index r = 0; r < kRows; ++r) a[r] = g.a + (i + std::min(r, rows - 1)) * g.a_row;
    over_vectors(l.d, 0, g.n, [&](auto io, Index j) HWY_ATTR {
      Lanes::F acc[kRows] = {l.set(0.0F), l.set(0.0F), l.set(0.0F), l.set(0.0F)};
      for (Index p = 0; p < g.terms; ++p) {
        const auto b = l.flush(io.load(g.b + p * g.n + j));
        for (Index r = 0; r < kRows; ++r) {
          acc[r] = l.flush(l.fma(l.flush(l.set(a[r][p * g.a_term])), b, acc[r]));
        }
      }
      for (Index r = 0; r < rows; ++r) io.store(acc[r], g.c + (i + r) * g.n + j);
    });
  }
}

void chunked_rows(const ChunkedRows& c, Index first, Index end) {
  const Lanes l{};
  const float count = static_cast<float>(c.rows);
  for (Index row = first; row < end; ++row) {
    float* x = c.logits + row * c.classes;
    const std::int32_t target = c.targets[row];
    const float maximum = row_maximum(c.classes, x);
    const float target_shift = samba::sub(x[target], maximum);
    exponentiate(c.classes, x, maximum, nullptr, x);
    float denominator = 0.0F;
    for (Index v = 0; v < c.classes; ++v) denominator = samba::add(denominator, x[v]);
    const hn::CappedTag<float, 1> single;
    const SimdLanes<decltype(single)> one{};
    const float log_denominator = hn::GetLane(elementary::log(one, hn::Set(single, denominator)));
    c.row_loss[row] = from_bits(to_bits(samba::sub(target_shift, log_denominator)) ^ kSignBit);
    const float at_target = samba::div(samba::sub(samba::div(x[target], denominator), 1.0F), count);
    const auto den = l.set(denominator), rows = l.set(count);
    over_vectors(l.d, 0, c.classes, [&](auto io, Index v) HWY_ATTR {
      const auto weight = elementary::divide(l, io.load(x + v), den);
      io.store(elementary::divide(l, l.flush(l.sub(weight, l.set(0.0F))), rows), x + v);
    });
    x[target] = at_target;
  }
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {

HWY_EXPORT(cross_entropy_rows);
HWY_EXPORT(serial_product_rows);
HWY_EXPORT(chunked_rows);

constexpr Index kGrain = 4096;   // logits a thread should have to be worth its start
constexpr Index kRowUnit = 16;   // rows that fill the lanes of every target
constexpr Index kRowLeaf = 256;  // rows of a leaf of the chunked head's mean (spec 61 section 6)

Index row_grain(Index classes) { return std::max(kRowUnit, kGrain / classes / kRowUnit * kRowUnit); }

}  // namespace

void LossCpu::cross_entropy(const CrossEntropyShape& shape, const float* logits, const std::int32_t* targets,
                            float divisor, float* row_loss, float* d_logits, const CrossEntropyStages& stages) {
  const auto run = SAMBA_CPU_KERNEL(context_, cross_entropy_rows);
  const float eps = shape.label_smoothing;
  const float other = div(eps, static_cast<float>(shape.classes));
  const float one_minus = sub(1.0F, eps);
  const CrossEntropyCall call{shape, logits, targets, divisor, row_loss, d_logits, stages};
  const CrossEntropyRows rows{call, eps != 0.0F, one_minus, flush(eps), add(one_minus, other), other};
  context_.parallel(shape.rows, row_grain(shape.classes), [&](Index first, Index end, int thread) {
    run(rows, first, end, context_.scratch(thread, kRowUnit * shape.classes));
  });
}

void LossCpu::multiply(Index rows, const SerialProduct& product) {
  const auto run = SAMBA_CPU_KERNEL(context_, serial_product_rows);
  context_.parallel(rows, 4, [&](Index first, Index end, int) { run(product, first, end); });
}

float LossCpu::chunked_lm_head_loss(Index rows, Index width, Index classes, const float* hidden, const float* weight,
                                    const std::int32_t* targets, float* d_hidden, float* d_weight) {
  std::vector<float> columns(static_cast<std::size_t>(width * classes));  // weight, transposed
  for (Index v = 0; v < classes; ++v) {
    for (Index j = 0; j < width; ++j) columns[static_cast<std::size_t>(j * classes + v)] = weight[v * width + j];
  }
  std::vector<float> logits(static_cast<std::size_t>(rows * classes));
  std::vector<float> row_loss(static_cast<std::size_t>(rows));
  multiply(rows, {classes, width, hidden, width, 1, columns.data(), logits.data()});
  const auto run = SAMBA_CPU_KERNEL(context_, chunked_rows);
  context_.parallel(rows, 4, [&](Index first, Index end, int) {
    run({rows, classes, targets, logits.data(), row_loss.data()}, first, end);
  });
  if (d_hidden != nullptr) multiply(rows, {width, classes, logits.data(), classes, 1, weight, d_hidden});
  if (d_weight != nullptr) multiply(classes, {width, rows, logits.data(), 1, classes, hidden, d_weight});

  TreeFold tree;
  for (Index first = 0; first < rows; first += kRowLeaf) {
    float acc = 0.0F;
    for (Index i = first; i < std::min(rows, first + kRowLeaf); ++i) {
      acc = add(acc, row_loss[static_cast<std::size_t>(i)]);
    }
    tree.push(acc);
  }
  return div(tree.finish(), static_cast<float>(rows));
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
