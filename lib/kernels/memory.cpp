#include "samba/kernels/memory.h"

#include <algorithm>

namespace samba {

namespace {
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kSmallestBlock = std::size_t{1} << 20;
}  // namespace

std::size_t Workspace::reserved_bytes() const {
  std::size_t total = 0;
  for (const auto& block : blocks_) total += block.byte_size();
  return total;
}

std::size_t Workspace::peak_bytes() const { return peak_; }

void Workspace::reserve(std::size_t bytes) {
  if (bytes <= reserved_bytes() || block_ != 0 || used_ != 0) return;
  blocks_.clear();
  blocks_.emplace_back(memory_, static_cast<Index>(bytes));
}

void* Workspace::take(Index count, std::size_t element) {
  const std::size_t wanted = static_cast<std::size_t>(std::max<Index>(count, 1)) * element;
  const std::size_t bytes = (wanted + kAlignment - 1) / kAlignment * kAlignment;
  while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].byte_size()) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    const std::size_t grown = blocks_.empty() ? kSmallestBlock : 2 * blocks_.back().byte_size();
    blocks_.emplace_back(memory_, static_cast<Index>(std::max(bytes, grown)));
    used_ = 0;
  }
  void* pointer = blocks_[block_].data() + used_;
  used_ += bytes;
  std::size_t before = 0;
  for (std::size_t i = 0; i < block_; ++i) before += blocks_[i].byte_size();
  peak_ = std::max(peak_, before + used_);
  return pointer;
}

}  // namespace samba
