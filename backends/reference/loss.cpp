#include "samba/backends/reference/loss.h"

#include <algorithm>
#include <vector>

#include "samba/backends/reference/clones.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/fold.h"

namespace samba::reference {

namespace {

inline float negate(float x) { return from_bits(to_bits(x) ^ kSignBit); }

inline float row_maximum(Index n, const float* x) {
  float maximum = -kInfinity;
  for (Index v = 0; v < n; ++v) maximum = max(maximum, x[v]);
  return maximum;
}

inline float sum(Index n, const float* x) {
  return dot(
      n, [x](Index i) { return x[i]; }, [](Index) { return 1.0F; });
}

// One row of the loss. shift, exponentials: [classes], filled.
struct RowResult {
  float max, denominator, log_denominator, loss;
};

SAMBA_FMA_CLONES RowResult cross_entropy_row(const CrossEntropyShape& shape, const float* x, std::int32_t target,
                                             float* shift, float* exponentials) {
  const Index classes = shape.classes;
  RowResult row{};
  row.max = row_maximum(classes, x);
  for (Index v = 0; v < classes; ++v) {
    shift[v] = sub(x[v], row.max);
    exponentials[v] = flush(elementary::exp(shift[v]));
  }
  row.denominator = sum(classes, exponentials);
  row.log_denominator = flush(elementary::log(row.denominator));
  if (target == shape.ignore_index) return row;

  row.loss = negate(sub(shift[target], row.log_denominator));
  if (shape.label_smoothing != 0.0F) {
    const float one_minus = sub(1.0F, shape.label_smoothing);
    const float log_probabilities = dot(
        classes, [&](Index v) { return sub(shift[v], row.log_denominator); }, [](Index) { return 1.0F; });
    const float smooth = negate(div(log_probabilities, static_cast<float>(classes)));
    row.loss = add(mul(one_minus, row.loss), mul(shape.label_smoothing, smooth));
  }
  return row;
}

SAMBA_FMA_CLONES void cross_entropy_gradient(const CrossEntropyShape& shape, std::int32_t target, float denominator,
                                             float divisor, const float* exponentials, float* dx) {
  const float other = div(shape.label_smoothing, static_cast<float>(shape.classes));
  const float at_target = add(sub(1.0F, shape.label_smoothing), other);
  for (Index v = 0; v < shape.classes; ++v) {
    const float weight = div(exponentials[v], denominator);
    dx[v] = target == shape.ignore_index ? 0.0F : div(sub(weight, v == target ? at_target : other), divisor);
  }
}

// logits[v] = one serial chain over the features; then the softmax parts of a row and its loss (spec 61 section 6).
SAMBA_FMA_CLONES float chunked_row(Index width, Index classes, const float* hidden, const float* weight,
                                   std::int32_t target, float* exponentials, float* denominator) {
  for (Index v = 0; v < classes; ++v) {
    float acc = 0.0F;
    for (Index j = 0; j < width; ++j) acc = mad(hidden[j], weight[v * width + j], acc);
    exponentials[v] = acc;
  }
  const float maximum = row_maximum(classes, exponentials);
  const float target_shift = sub(exponentials[target], maximum);
  float sum_of_exponentials = 0.0F;
  for (Index v = 0; v < classes; ++v) {
    exponentials[v] = flush(elementary::exp(sub(exponentials[v], maximum)));
    sum_of_exponentials = add(sum_of_exponentials, exponentials[v]);
  }
  *denominator = sum_of_exponentials;
  return negate(sub(target_shift, flush(elementary::log(sum_of_exponentials))));
}

// c[i, j] = one serial chain over p of a(i, p) * b[p, j], b: [terms, n].
SAMBA_FMA_CLONES void serial_product(Index m, Index n, Index terms, const float* a, Index a_row, Index a_term,
                                     const float* b, float* c) {
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < n; ++j) c[i * n + j] = 0.0F;
    for (Index p = 0; p < terms; ++p) {
      const float factor = a[i * a_row + p * a_term];
      for (Index j = 0; j < n; ++j) c[i * n + j] = mad(factor, b[p * n + j], c[i * n + j]);
    }
  }
}

// The mean of the row losses: leaves of 256 rows, tree.
float chunked_mean(Index rows, const float* row_loss) {
  constexpr Index kRowLeaf = 256;
  TreeFold tree;
  for (Index first = 0; first < rows; first += kRowLeaf) {
    float acc = 0.0F;
    for (Index i = first; i < std::min(rows, first + kRowLeaf); ++i) acc = add(acc, row_loss[i]);
    tree.push(acc);
  }
  return div(tree.finish(), static_cast<float>(rows));
}

}  // namespace

void LossReference::cross_entropy(const CrossEntropyShape& shape, const float* logits, const std::int32_t* targets,
                                  float divisor, float* row_loss, float* d_logits, const CrossEntropyStages& stages) {
  const Index classes = shape.classes;
  std::vector<float> scratch(static_cast<std::size_t>(2 * classes));
  for (Index i = 0; i < shape.rows; ++i) {
    float* shift = stages.shift != nullptr ? stages.shift + i * classes : scratch.data();
    float* exponentials = stages.exponentials != nullptr ? stages.exponentials + i * classes : scratch.data() + classes;
    const RowResult row = cross_entropy_row(shape, logits + i * classes, targets[i], shift, exponentials);
    row_loss[i] = row.loss;
    if (stages.max != nullptr) stages.max[i] = row.max;
    if (stages.denominator != nullptr) stages.denominator[i] = row.denominator;
    if (stages.log_denominator != nullptr) stages.log_denominator[i] = row.log_denominator;
    if (d_logits != nullptr) {
      cross_entropy_gradient(shape, targets[i], row.denominator, divisor, exponentials, d_logits + i * classes);
    }
  }
}

float LossReference::chunked_lm_head_loss(Index rows, Index width, Index classes, const float* hidden,
                                          const float* weight, const std::int32_t* targets, float* d_hidden,
                                          float* d_weight) {
  std::vector<float> d_logits(static_cast<std::size_t>(rows * classes));
  std::vector<float> row_loss(static_cast<std::size_t>(rows));
  const float count = static_cast<float>(rows);
  for (Index i = 0; i < rows; ++i) {
    float* row = d_logits.data() + i * classes;
    float denominator = 0.0F;
    row_loss[static_cast<std::size_t>(i)] =
        chunked_row(width, classes, hidden + i * width, weight, targets[i], row, &denominator);
    for (Index v = 0; v < classes; ++v) {
      row[v] = div(sub(div(row[v], denominator), v == targets[i] ? 1.0F : 0.0F), count);
    }
  }
  if (d_hidden != nullptr) serial_product(rows, width, classes, d_logits.data(), classes, 1, weight, d_hidden);
  if (d_weight != nullptr) serial_product(classes, width, rows, d_logits.data(), 1, classes, hidden, d_weight);
  return chunked_mean(rows, row_loss.data());
}

}  // namespace samba::reference
