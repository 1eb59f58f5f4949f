// Embedding. The gradient of a row is one chain over the positions of its id, in ascending order: the positions of an
// id are linked first, then the first of them walks along the links, one thread a column.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/kernels/weight.h"

namespace samba::SAMBA_GPU {

namespace {

struct GatherRows {
  Index width;
  const std::int32_t* ids;
  const float* weight;
  float* y;
  SAMBA_DEVICE void operator()(Index i) const {
    y[i] = flush(weight[static_cast<Index>(ids[i / width]) * width + i % width]);
  }
};

// next[t] = the next position with the id of t, or `positions`; later[next[t]] = 1. `later` holds zeros.
struct LinkPositions {
  Index positions;
  const std::int32_t* ids;
  std::int32_t *next, *later;
  SAMBA_DEVICE void operator()(Index t) const {
    Index other = t + 1;
    while (other < positions && ids[other] != ids[t]) ++other;
    next[t] = static_cast<std::int32_t>(other);
    if (other < positions) later[other] = 1;
  }
};

struct AddRows {
  Index positions, width;
  const std::int32_t *ids, *next, *later;
  const float* dy;
  Index padding_id;
  float* d_weight;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index t = i / width, j = i % width;
    if (later[t] != 0 || ids[t] == padding_id) return;
    float* cell = d_weight + static_cast<Index>(ids[t]) * width + j;
    float sum = *cell;
    for (Index p = t; p < positions; p = next[p]) sum = add(sum, dy[p * width + j]);
    *cell = sum;
  }
};

class EmbeddingGpu final : public EmbeddingKernels {
 public:
  explicit EmbeddingGpu(Context& context) : context_(context) {}

  void embedding_forward(Index positions, Index width, const std::int32_t* ids, const float* weight,
                         float* y) override {
    for_each(context_, positions * width, GatherRows{width, ids, weight, y});
  }
  void embedding_forward(Index positions, Index width, const std::int32_t* ids, const ConstPackedWeight& weight,
                         float* y) override {
    gather_packed(context_, positions, width, ids, weight, y);
  }
  void embedding_backward(Index positions, Index vocab, Index width, const std::int32_t* ids, const float* dy,
                          bool carry, Index padding_id, float* d_weight) override {
    if (!carry) context_.memory().fill_zero(d_weight, static_cast<std::size_t>(vocab * width) * sizeof(float));
    const Workspace::Scope scope(context_.workspace());
    std::int32_t* next = context_.workspace().ints(positions);
    std::int32_t* later = context_.workspace().ints(positions);
    context_.memory().fill_zero(later, static_cast<std::size_t>(positions) * sizeof(std::int32_t));
    for_each(context_, positions, LinkPositions{positions, ids, next, later});
    for_each(context_, positions * width, AddRows{positions, width, ids, next, later, dy, padding_id, d_weight});
  }

 private:
  Context& context_;
};

}  // namespace

std::unique_ptr<EmbeddingKernels> make_embedding(Context& context) { return std::make_unique<EmbeddingGpu>(context); }

}  // namespace samba::SAMBA_GPU
