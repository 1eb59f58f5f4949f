// Which rank owns which elements of the flat parameter buffer: their gradient's sum ends there, their moments live
// there and nowhere else, their new values come from there.
//
// The buffer is cut into buckets that become final one after the other during a backward (the head first, then the
// layers from the last to the first, the embedding at the end), each bucket into as many shares as there are ranks.
// Shares are borders of the leaves of the clip norm's sums of squares (spec 61 section 3), so that every leaf has one
// owner. The sum over ranks goes by halves: at level l rank r meets rank r XOR 2^l, the lower of the two keeps the
// lower half of the shares it holds; so share i of a bucket ends at the rank whose number is i with its bits reversed.
#pragma once

#include <vector>

#include "samba/core/array.h"
#include "samba/model/registry.h"

namespace samba {

// Elements [first, first + count) of the flat buffer, all of one tensor.
struct ParameterRange {
  std::size_t tensor = 0;
  Index first = 0;
  Index count = 0;
};

struct GradientBucket {
  std::vector<Index> borders;  // ranks + 1: share i is [borders[i], borders[i + 1])

  Index first() const { return borders.front(); }
  Index end() const { return borders.back(); }
};

// A run of shares of a bucket.
struct ShareRun {
  int first = 0;
  int end = 0;
};

class GradientShares {
 public:
  // Layers are joined until a bucket has `bucket_elements`; the embedding is always a bucket of its own, the last one.
  GradientShares(const Registry& registry, int ranks, Index bucket_elements);

  int ranks() const { return ranks_; }
  int levels() const { return levels_; }  // log2(ranks)
  const std::vector<GradientBucket>& buckets() const { return buckets_; }

  // What rank `rank` holds of a bucket after `levels` levels of the sum.
  ShareRun held(int rank, int levels) const;
  // What it owns in the end, bucket by bucket, ascending in each.
  const std::vector<ParameterRange>& owned(int rank) const { return owned_[static_cast<std::size_t>(rank)]; }
  Index owned_elements(int rank) const;
  // The ranges of owned(rank) that lie in bucket b are [owned_first(rank, b), owned_first(rank, b + 1)).
  std::size_t owned_first(int rank, std::size_t bucket) const {
    return owned_first_[static_cast<std::size_t>(rank)][bucket];
  }

 private:
  void add_bucket(const Registry& registry, std::size_t first_tensor, std::size_t end_tensor);
  void add_owned(const Registry& registry);

  int ranks_;
  int levels_ = 0;
  std::vector<GradientBucket> buckets_;
  std::vector<std::vector<ParameterRange>> owned_;
  std::vector<std::vector<std::size_t>> owned_first_;
};

}  // namespace samba
