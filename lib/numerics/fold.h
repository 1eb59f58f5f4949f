// The fold of the matrix product (spec 10 section 3): K terms are cut into leaves, each leaf is one serial chain of
// fused steps, and the leaf partials meet in a fixed balanced tree. The tree equals a binary counter of partials, so
// that at most kMaxTreeDepth of them are alive.
#pragma once

#include <cstdint>

#include "samba/numerics/float32.h"

namespace samba {

inline constexpr std::int64_t kLeaf = 128;
inline constexpr std::int64_t kMaxLeaves = 1024;
inline constexpr int kMaxTreeDepth = 11;  // 1024 leaves: ten pairings and the one that waits

SAMBA_HOST_DEVICE constexpr std::int64_t leaf_length(std::int64_t k) {
  if (k <= kLeaf) return k;
  if ((k + kLeaf - 1) / kLeaf <= kMaxLeaves) return kLeaf;
  return (k + kMaxLeaves - 1) / kMaxLeaves;
}

SAMBA_HOST_DEVICE constexpr std::int64_t leaf_count(std::int64_t k) {
  const std::int64_t leaf = leaf_length(k);
  return leaf == 0 ? 0 : (k + leaf - 1) / leaf;
}

// Folds leaf partials that arrive in ascending order.
class TreeFold {
 public:
  SAMBA_HOST_DEVICE void push(float partial) {
    stack_[depth_++] = partial;
    ++pushed_;
    for (std::int64_t rest = pushed_; (rest & 1) == 0; rest >>= 1) merge();
  }
  // The folded value; +0 when nothing was pushed.
  SAMBA_HOST_DEVICE float finish() {
    if (depth_ == 0) return 0.0F;
    while (depth_ > 1) merge();
    return stack_[0];
  }

 private:
  SAMBA_HOST_DEVICE void merge() {
    stack_[depth_ - 2] = flush(stack_[depth_ - 2] + stack_[depth_ - 1]);
    --depth_;
  }
  float stack_[kMaxTreeDepth + 1] = {};
  int depth_ = 0;
  std::int64_t pushed_ = 0;
};

// sum over i < k of a(i) * b(i) with the matrix product's fold. `a` and `b` are callables from the index to a float.
template <class A, class B>
SAMBA_HOST_DEVICE float dot(std::int64_t k, A&& a, B&& b) {
  const std::int64_t leaf = leaf_length(k);
  TreeFold tree;
  for (std::int64_t first = 0; first < k; first += leaf) {
    const std::int64_t end = first + leaf < k ? first + leaf : k;
    float acc = 0.0F;
    for (std::int64_t i = first; i < end; ++i) acc = mad(a(i), b(i), acc);
    tree.push(acc);
  }
  return tree.finish();
}

// True when A microbatches of a step of T tokens are whole subtrees' worth of leaves (spec 10 section 10).
constexpr bool accumulation_is_aligned(std::int64_t tokens, std::int64_t pieces) {
  if (tokens < 1 || pieces < 1 || (pieces & (pieces - 1)) != 0 || tokens % pieces != 0) return false;
  const std::int64_t leaf = leaf_length(tokens);
  return leaf == leaf_length(tokens / pieces) && tokens % leaf == 0 && (tokens / leaf) % pieces == 0;
}

}  // namespace samba
