#include "samba/train/window_order.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <numeric>
#include <system_error>
#include <utility>

#include "samba/core/error.h"
#include "samba/numerics/philox.h"

namespace samba {

namespace {

constexpr std::uint64_t kDataKey = 0x53414D4241;  // "SAMBA": keeps the data's stream apart from the model's
constexpr int kFeistelRounds = 6;
constexpr int kSourceShift = 48;  // of the number that keeps the sources of a mixture apart

// The starts of several ranges, one range behind the other.
class StartTable {
 public:
  explicit StartTable(std::vector<WindowRange> ranges) : ranges_(std::move(ranges)) {
    for (const WindowRange& range : ranges_) {
      count_ += range.count;
      ends_.push_back(count_);
    }
  }
  std::uint64_t count() const { return count_; }
  std::uint64_t start(std::uint64_t index) const {
    const auto found = std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin();
    const WindowRange& range = ranges_[static_cast<std::size_t>(found)];
    const std::uint64_t before = ends_[static_cast<std::size_t>(found)] - range.count;
    return range.first + (index - before) * range.stride;
  }

 private:
  std::vector<WindowRange> ranges_;
  std::vector<std::uint64_t> ends_;
  std::uint64_t count_ = 0;
};

class DrawOrder final : public WindowOrder {
 public:
  DrawOrder(std::uint64_t seed, std::vector<WindowRange> ranges) : key_(seed ^ kDataKey), table_(std::move(ranges)) {}
  std::string name() const override { return "draw.v1"; }
  void starts(std::uint64_t step, std::span<std::uint64_t> rows) const override {
    for (std::size_t b = 0; b < rows.size(); ++b) {
      const PhiloxWords words = philox_block(key_, 0, step * rows.size() + b);
      const std::uint64_t word = words[0] | std::uint64_t{words[1]} << 32;
      __extension__ using Wide = unsigned __int128;
      rows[b] = table_.start(static_cast<std::uint64_t>(Wide{word} * table_.count() >> 64));
    }
  }

 private:
  std::uint64_t key_;
  StartTable table_;
};

class PermuteOrder final : public WindowOrder {
 public:
  PermuteOrder(std::uint64_t seed, std::vector<WindowRange> ranges) : seed_(seed), table_(std::move(ranges)) {}
  std::string name() const override { return "permute.v1"; }
  void starts(std::uint64_t step, std::span<std::uint64_t> rows) const override {
    for (std::size_t b = 0; b < rows.size(); ++b) {
      const std::uint64_t place = step * rows.size() + b;
      rows[b] = table_.start(permuted_index(seed_, place / table_.count(), place % table_.count(), table_.count()));
    }
  }

 private:
  std::uint64_t seed_;
  StartTable table_;
};

// Row r lies in block r / 4096. A permutation of the block gives it a slot; the slots are dealt out to the ranges by
// their shares, so the slot also tells how many rows of the range came before: no count is kept.
class MixtureOrder final : public WindowOrder {
 public:
  MixtureOrder(std::uint64_t seed, std::vector<WindowRange> ranges, std::span<const double> weights)
      : seed_(seed), ranges_(std::move(ranges)), shares_(mixture_shares(weights)) {
    std::partial_sum(shares_.begin(), shares_.end(), std::back_inserter(ends_));
  }
  std::string name() const override { return "permute.v1"; }
  void starts(std::uint64_t step, std::span<std::uint64_t> rows) const override {
    for (std::size_t b = 0; b < rows.size(); ++b) rows[b] = start(step * rows.size() + b);
  }

 private:
  std::uint64_t start(std::uint64_t row) const {
    const std::uint64_t block = row / kMixtureBlock;
    const std::uint64_t slot = permuted_index(of_source(0), block, row % kMixtureBlock, kMixtureBlock);
    const auto source = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), slot) - ends_.begin());
    const std::uint64_t share = shares_[source];
    const std::uint64_t turn = block * share + (slot - (ends_[source] - share));
    const WindowRange& range = ranges_[source];
    return range.first +
           range.stride * permuted_index(of_source(source + 1), turn / range.count, turn % range.count, range.count);
  }
  std::uint64_t of_source(std::uint64_t number) const { return seed_ ^ number << kSourceShift; }

  std::uint64_t seed_;
  std::vector<WindowRange> ranges_;
  std::vector<std::uint64_t> shares_;
  std::vector<std::uint64_t> ends_;
};

class FixedOrder final : public WindowOrder {
 public:
  FixedOrder(std::vector<std::uint64_t> starts, std::size_t rows) : starts_(std::move(starts)), rows_(rows) {}
  std::string name() const override { return "start_positions"; }
  void starts(std::uint64_t step, std::span<std::uint64_t> rows) const override {
    std::copy_n(starts_.begin() + static_cast<std::ptrdiff_t>(step * rows_), rows.size(), rows.begin());
  }

 private:
  std::vector<std::uint64_t> starts_;
  std::size_t rows_;
};

// The starts of one line of a start_positions file.
void read_line(std::string_view line, const std::string& where, Index rows, std::uint64_t starts_count,
               std::vector<std::uint64_t>& starts) {
  Index found = 0;
  const char* place = line.data();
  const char* const end = place + line.size();
  while (true) {
    while (place != end && (*place == ' ' || *place == '\t' || *place == '\r')) ++place;
    if (place == end) break;
    std::uint64_t start = 0;
    const auto [next, error] = std::from_chars(place, end, start);
    if (error != std::errc{} || (next != end && *next != ' ' && *next != '\t' && *next != '\r')) {
      refuse_value(where + ": start positions must be integers >= 0 separated by spaces, got \"" + std::string(line) +
                   "\"");
    }
    if (start >= starts_count) {
      refuse_value(where + ": the start position " + std::to_string(start) +
                   " leaves no room for a sequence; accepted: 0 to " + std::to_string(starts_count - 1));
    }
    starts.push_back(start);
    ++found;
    place = next;
  }
  if (found != rows) {
    refuse_value(where + ": must have " + std::to_string(rows) + " start positions (/batch/rows), got " +
                 std::to_string(found));
  }
}

}  // namespace

std::unique_ptr<WindowOrder> draw_order(std::uint64_t seed, std::vector<WindowRange> ranges) {
  return std::make_unique<DrawOrder>(seed, std::move(ranges));
}

std::unique_ptr<WindowOrder> draw_order(std::uint64_t seed, std::uint64_t starts_count) {
  return draw_order(seed, std::vector<WindowRange>{{0, starts_count, 1}});
}

std::unique_ptr<WindowOrder> permute_order(std::uint64_t seed, std::vector<WindowRange> ranges) {
  return std::make_unique<PermuteOrder>(seed, std::move(ranges));
}

std::unique_ptr<WindowOrder> permute_order(std::uint64_t seed, std::uint64_t windows, std::uint64_t length) {
  return permute_order(seed, std::vector<WindowRange>{{0, windows, length}});
}

std::unique_ptr<WindowOrder> mixture_order(std::uint64_t seed, std::vector<WindowRange> ranges,
                                           std::span<const double> weights) {
  return std::make_unique<MixtureOrder>(seed, std::move(ranges), weights);
}

std::vector<std::uint64_t> mixture_shares(std::span<const double> weights) {
  double sum = 0.0;
  for (const double weight : weights) sum += weight;
  std::vector<std::uint64_t> shares;
  std::vector<double> remainders;
  std::uint64_t left = kMixtureBlock;
  for (const double weight : weights) {
    const double exact = weight / sum * static_cast<double>(kMixtureBlock);
    shares.push_back(std::min(left, static_cast<std::uint64_t>(exact)));
    remainders.push_back(exact - std::floor(exact));
    left -= shares.back();
  }
  for (; left > 0; --left) {
    const auto largest = std::max_element(remainders.begin(), remainders.end()) - remainders.begin();
    ++shares[static_cast<std::size_t>(largest)];
    remainders[static_cast<std::size_t>(largest)] = -1.0;
  }
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] > 0) continue;
    refuse_value("/data/weights/" + std::to_string(i) + ": is less than 1/" + std::to_string(kMixtureBlock) +
                 " of the sum of the weights");
  }
  return shares;
}

std::unique_ptr<WindowOrder> start_positions_order(const Path& file, Index rows, std::uint64_t starts_count,
                                                   std::uint64_t steps) {
  const std::string content = read_file(file);
  std::vector<std::uint64_t> starts;
  std::uint64_t lines = 0;
  std::size_t place = 0;
  while (place < content.size()) {
    const std::size_t end = std::min(content.find('\n', place), content.size());
    ++lines;
    read_line(std::string_view(content).substr(place, end - place),
              "/data/start_positions: line " + std::to_string(lines) + " of " + file.string(), rows, starts_count,
              starts);
    place = end + 1;
  }
  if (lines < steps) {
    refuse_value("/data/start_positions: " + file.string() + " has " + std::to_string(lines) +
                 " lines, one a step; /steps is " + std::to_string(steps));
  }
  return std::make_unique<FixedOrder>(std::move(starts), static_cast<std::size_t>(rows));
}

std::uint64_t permuted_index(std::uint64_t seed, std::uint64_t epoch, std::uint64_t index, std::uint64_t count) {
  if (count <= 1) return 0;
  // A Feistel network permutes 2^(2h) numbers; walk its cycle until the result is one of ours.
  const int half_bits = std::max(1, (static_cast<int>(std::bit_width(count - 1)) + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  const auto stream = static_cast<std::uint32_t>(1 + epoch);
  do {
    std::uint64_t left = index >> half_bits;
    std::uint64_t right = index & mask;
    for (int round = 0; round < kFeistelRounds; ++round) {
      const std::uint64_t block = static_cast<std::uint64_t>(round) << 32 | right;
      const std::uint64_t mixed = left ^ (philox_block(seed ^ kDataKey, stream, block)[0] & mask);
      left = right;
      right = mixed;
    }
    index = left << half_bits | right;
  } while (index >= count);
  return index;
}

}  // namespace samba
