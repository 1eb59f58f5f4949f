// Which windows of the tokens a step reads (docs/formats/data_order.md). Every start is a function of (seed, step,
// row): a resumed run needs no history, and rows may be read by whichever process.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/files.h"

namespace samba {

class WindowOrder {
 public:
  virtual ~WindowOrder() = default;
  virtual std::string name() const = 0;
  // `step` is 0-based. Fills one start a row.
  virtual void starts(std::uint64_t step, std::span<std::uint64_t> rows) const = 0;
};

// Starts that a window may have: first, first + stride, ..., `count` of them.
struct WindowRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t stride = 1;
};

// draw.v1: windows drawn with replacement from all starts. Row b of step s has the high 64 bits of w * (number of
// starts), w = words 0 (low) and 1 (high) of block s*B + b of the philox stream (seed XOR 0x53414D4241, 0).
std::unique_ptr<WindowOrder> draw_order(std::uint64_t seed, std::vector<WindowRange> ranges);
std::unique_ptr<WindowOrder> draw_order(std::uint64_t seed, std::uint64_t starts_count);

// permute.v1: each window once an epoch, in an order of its own every epoch (a keyed Feistel permutation).
std::unique_ptr<WindowOrder> permute_order(std::uint64_t seed, std::vector<WindowRange> ranges);
std::unique_ptr<WindowOrder> permute_order(std::uint64_t seed, std::uint64_t windows, std::uint64_t length);
// The same within each range; the ranges take turns by their weights.
std::unique_ptr<WindowOrder> mixture_order(std::uint64_t seed, std::vector<WindowRange> ranges,
                                           std::span<const double> weights);

// Rows of a block of a mixture; each range has its share of them.
inline constexpr std::uint64_t kMixtureBlock = 4096;
// The shares: kMixtureBlock times weight over the sum of the weights, rounded so that they add up to it (largest
// remainders first, the earlier of equal ones). Error(value) names /data/weights/i for a share of none.
std::vector<std::uint64_t> mixture_shares(std::span<const double> weights);

// start_positions: from a text file, one line a step, one start a row. Error(value) names the line.
std::unique_ptr<WindowOrder> start_positions_order(const Path& file, Index rows, std::uint64_t starts_count,
                                                   std::uint64_t steps);

// The place of `index` in the permutation `epoch` of 0 .. count-1.
std::uint64_t permuted_index(std::uint64_t seed, std::uint64_t epoch, std::uint64_t index, std::uint64_t count);

}  // namespace samba
