#include "samba/train/gradient_shares.h"

#include <algorithm>

#include "samba/numerics/fold.h"

namespace samba {

namespace {

constexpr Index kMostLayerBuckets = 64;  // every bucket costs 2 log2(ranks) messages

int reversed_bits(int value, int bits) {
  int reversed = 0;
  for (int bit = 0; bit < bits; ++bit) reversed |= ((value >> bit) & 1) << (bits - 1 - bit);
  return reversed;
}

// The tensor of [first_tensor, end_tensor) that holds element `flat`.
std::size_t tensor_of(const Registry& registry, Index flat) {
  const std::vector<ParameterTensor>& tensors = registry.tensors();
  const auto after = std::upper_bound(tensors.begin(), tensors.end(), flat,
                                      [](Index value, const ParameterTensor& tensor) { return value < tensor.offset; });
  return static_cast<std::size_t>(after - tensors.begin()) - 1;
}

}  // namespace

GradientShares::GradientShares(const Registry& registry, int ranks, Index bucket_elements) : ranks_(ranks) {
  while ((1 << levels_) < ranks_) ++levels_;
  const std::size_t last = registry.tensors().size();
  bucket_elements = std::max(bucket_elements, registry.total() / kMostLayerBuckets);
  add_bucket(registry, registry.final_norm(), last);
  std::size_t end = registry.final_norm();
  std::size_t layer = 0;
  while (registry.layer_first(layer) != registry.final_norm()) ++layer;
  while (layer-- > 0) {
    const std::size_t first = registry.layer_first(layer);
    const Index elements = registry.tensors()[end].offset - registry.tensors()[first].offset;
    if (elements < bucket_elements && layer > 0) continue;
    add_bucket(registry, first, end);
    end = first;
  }
  add_bucket(registry, 0, end);  // the embedding
  add_owned(registry);
}

void GradientShares::add_bucket(const Registry& registry, std::size_t first_tensor, std::size_t end_tensor) {
  const std::vector<ParameterTensor>& tensors = registry.tensors();
  const Index first = tensors[first_tensor].offset;
  const Index end = tensors[end_tensor - 1].offset + tensors[end_tensor - 1].size;
  GradientBucket bucket;
  bucket.borders.push_back(first);
  for (int share = 1; share < ranks_; ++share) {
    const Index even = first + (end - first) * share / ranks_;
    const ParameterTensor& tensor = tensors[tensor_of(registry, even)];
    const Index leaf = leaf_length(tensor.size);
    bucket.borders.push_back(tensor.offset + (even - tensor.offset) / leaf * leaf);
  }
  bucket.borders.push_back(end);
  buckets_.push_back(std::move(bucket));
}

ShareRun GradientShares::held(int rank, int levels) const {
  ShareRun run{0, ranks_};
  for (int level = 0; level < levels; ++level) {
    const int middle = (run.first + run.end) / 2;
    if (((rank >> level) & 1) == 0) {
      run.end = middle;
    } else {
      run.first = middle;
    }
  }
  return run;
}

void GradientShares::add_owned(const Registry& registry) {
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto share = static_cast<std::size_t>(reversed_bits(rank, levels_));
    std::vector<ParameterRange> ranges;
    std::vector<std::size_t> firsts{0};
    for (const GradientBucket& bucket : buckets_) {
      for (Index at = bucket.borders[share]; at < bucket.borders[share + 1];) {
        const std::size_t tensor = tensor_of(registry, at);
        const ParameterTensor& of = registry.tensors()[tensor];
        const Index end = std::min(bucket.borders[share + 1], of.offset + of.size);
        ranges.push_back({tensor, at, end - at});
        at = end;
      }
      firsts.push_back(ranges.size());
    }
    owned_.push_back(std::move(ranges));
    owned_first_.push_back(std::move(firsts));
  }
}

Index GradientShares::owned_elements(int rank) const {
  Index count = 0;
  for (const ParameterRange& range : owned(rank)) count += range.count;
  return count;
}

}  // namespace samba
