// Cross-entropy, one block a row: the maximum, the sum of exponentials (leaves of 128 and the tree), the row's loss and
// its gradient; the exponentials are computed again where they are used. And the chunked head.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/kernels/cross_entropy_call.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kLossThreads = 256;

SAMBA_DEVICE float negate(float x) { return from_bits(to_bits(x) ^ kSignBit); }

// The fold of the matrix product over term(0) .. term(n - 1), a leaf a thread; returned to thread 0. The caller's next
// barrier stands before the partials are used again.
template <class Term>
SAMBA_DEVICE float block_sum(Index n, float* partials, Term&& term) {
  const Index leaf = leaf_length(n), leaves = leaf_count(n);
  for (Index t = thread_index(); t < leaves; t += block_threads()) {
    const Index end = (t + 1) * leaf < n ? (t + 1) * leaf : n;
    float acc = 0.0F;
    for (Index i = t * leaf; i < end; ++i) acc = add(acc, term(i));
    partials[t] = acc;
  }
  barrier();
  float sum = 0.0F;
  if (thread_index() == 0) {
    TreeFold tree;
    for (Index t = 0; t < leaves; ++t) tree.push(partials[t]);
    sum = tree.finish();
  }
  return sum;
}

// The loss of a row from its sums, in thread 0.
SAMBA_DEVICE float row_loss(const CrossEntropyShape& shape, float target_shift, float log_denominator,
                            float log_probabilities) {
  const float loss = negate(sub(target_shift, log_denominator));
  if (shape.label_smoothing == 0.0F) return loss;
  const float smooth = negate(div(log_probabilities, static_cast<float>(shape.classes)));
  return add(mul(sub(1.0F, shape.label_smoothing), loss), mul(shape.label_smoothing, smooth));
}

SAMBA_KERNEL(kLossThreads)
cross_entropy_row(CrossEntropyCall g) {
  SAMBA_SHARED(float, maxima, kLossThreads);
  SAMBA_SHARED(float, partials, kMaxLeaves);
  SAMBA_SHARED(float, sums, 2);  // the denominator and its logarithm
  const Index row = block_x(), classes = g.shape.classes;
  const float* x = g.logits + row * classes;
  const std::int32_t target = g.targets[row];
  const bool ignored = target == g.shape.ignore_index;
  const auto thread = static_cast<int>(thread_index());

  float maximum = -kInfinity;
  for (Index v = thread; v < classes; v += block_threads()) maximum = samba::max(maximum, x[v]);
  maxima[thread] = maximum;
  barrier();
  for (int half = kLossThreads / 2; half >= 1; half /= 2) {
    if (thread < half) maxima[thread] = samba::max(maxima[thread], maxima[thread + half]);
    barrier();
  }
  maximum = maxima[0];
  const auto shift = [&](Index v) { return sub(x[v], maximum); };
  const auto exponential = [&](Index v) { return flush(elementary::exp(shift(v))); };

  const float denominator = block_sum(classes, partials, exponential);
  if (thread == 0) {
    sums[0] = denominator;
    sums[1] = flush(elementary::log(denominator));
  }
  barrier();
  const float log_denominator = sums[1];
  float log_probabilities = 0.0F;
  if (!ignored && g.shape.label_smoothing != 0.0F) {
    log_probabilities = block_sum(classes, partials, [&](Index v) { return sub(shift(v), log_denominator); });
  }
  if (thread == 0) {
    g.row_loss[row] = ignored ? 0.0F : row_loss(g.shape, shift(target), log_denominator, log_probabilities);
    if (g.stages.max != nullptr) g.stages.max[row] = maximum;
    if (g.stages.denominator != nullptr) g.stages.denominator[row] = denominator;
    if (g.stages.log_denominator != nullptr) g.stages.log_denominator[row] = log_denominator;
  }
  barrier();  // the target's logit is read: d_logits may be logits
  const float other = div(g.shape.label_smoothing, static_cast<float>(classes));
  const float at_target = add(sub(1.0F, g.shape.label_smoothing), other);
  for (Index v = thread; v < classes; v += block_threads()) {
    const float shifted = shift(v);
    const float e = flush(elementary::exp(shifted));
    if (g.stages.shift != nullptr) g.stages.shift[row * classes + v] = shifted;
    if (g.stages.exponentials != nullptr) g.stages.exponentials[row * classes + v] = e;
    if (g.d_logits == nullptr) continue;
    const float weight = div(e, sums[0]);
    g.d_logits[row * classes + v] = ignored ? 0.0F : div(sub(weight, v == target ? at_target : other), g.divisor);
  }
}

// c[i, j] = one serial chain over p of a(i, p) * b(p, j).
struct SerialProduct {
  Index n, terms;
  const float* a;
  Index a_row, a_term;  // floats from a(i, p) to a(i + 1, p) and to a(i, p + 1)
  const float* b;
  Index b_term, b_column;
  float* c;
  SAMBA_DEVICE void operator()(Index index) const {
    const Index i = index / n, j = index % n;
    float acc = 0.0F;
    for (Index p = 0; p < terms; ++p) acc = mad(a[i * a_row + p * a_term], b[p * b_term + j * b_column], acc);
    c[index] = acc;
  }
};

// One row of the chunked head: logits become the gradient, all sums serial (spec 61 section 6).
struct ChunkedRow {
  Index rows, classes;
  const std::int32_t* targets;
  float *logits, *row_loss;
  SAMBA_DEVICE void operator()(Index i) const {
    float* row = logits + i * classes;
    const std::int32_t target = targets[i];
    float maximum = -kInfinity;
    for (Index v = 0; v < classes; ++v) maximum = samba::max(maximum, row[v]);
    const float target_shift = sub(row[target], maximum);
    float sum = 0.0F;
    for (Index v = 0; v < classes; ++v) {
      row[v] = flush(elementary::exp(sub(row[v], maximum)));
      sum = add(sum, row[v]);
    }
    row_loss[i] = negate(sub(target_shift, flush(elementary::log(sum))));
    for (Index v = 0; v < classes; ++v) {
      row[v] = div(sub(div(row[v], sum), v == target ? 1.0F : 0.0F), static_cast<float>(rows));
    }
  }
};

// The mean of the row losses: leaves of 256 rows, tree.
struct ChunkedMean {
  Index rows;
  const float* row_loss;
  float* mean;
  SAMBA_DEVICE void operator()(Index) const {
    constexpr Index kRowLeaf = 256;
    TreeFold tree;
    for (Index first = 0; first < rows; first += kRowLeaf) {
      const Index end = first + kRowLeaf < rows ? first + kRowLeaf : rows;
      float acc = 0.0F;
      for (Index i = first; i < end; ++i) acc = add(acc, row_loss[i]);
      tree.push(acc);
    }
    *mean = div(tree.finish(), static_cast<float>(rows));
  }
};

class LossGpu final : public LossKernels {
 public:
  explicit LossGpu(Context& context) : context_(context) {}

  void cross_entropy(const CrossEntropyShape& shape, const float* logits, const std::int32_t* targets, float divisor,
                     float* row_loss, float* d_logits, const CrossEntropyStages& stages) override {
    launch(context_, Grid{static_cast<unsigned>(shape.rows)}, kLossThreads, cross_entropy_row,
           CrossEntropyCall{shape, logits, targets, divisor, row_loss, d_logits, stages});
  }

  float chunked_lm_head_loss(Index rows, Index width, Index classes, const float* hidden, const float* weight,
                             const std::int32_t* targets, float* d_hidden, float* d_weight) override {
    const Workspace::Scope scope(context_.workspace());
    float* logits = context_.workspace().floats(rows * classes);
    float* losses = context_.workspace().floats(rows);
    float* mean = context_.workspace().floats(1);
    for_each(context_, rows * classes, SerialProduct{classes, width, hidden, width, 1, weight, 1, width, logits});
    for_each(context_, rows, ChunkedRow{rows, classes, targets, logits, losses});
    if (d_hidden != nullptr) {
      for_each(context_, rows * width, SerialProduct{width, classes, logits, classes, 1, weight, width, 1, d_hidden});
    }
    if (d_weight != nullptr) {
      for_each(context_, classes * width, SerialProduct{width, rows, logits, 1, classes, hidden, width, 1, d_weight});
    }
    for_each(context_, 1, ChunkedMean{rows, losses, mean});
    float value = 0.0F;
    context_.memory().copy_to_host(&value, mean, sizeof value);
    return value;
  }

 private:
  Context& context_;
};

}  // namespace

std::unique_ptr<LossKernels> make_loss(Context& context) { return std::make_unique<LossGpu>(context); }

}  // namespace samba::SAMBA_GPU
