#include "samba/kernels/memory.h"

#include <algorithm>

#include "samba/core/sanitizer.h"

namespace samba {

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kSmallestBlock = std::size_t{1} << 20;
// Bytes that nobody may touch behind a piece; none but where the address sanitizer looks.
constexpr std::size_t kGuard = kAddressSanitizer ? kAlignment : 0;

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
  const std::size_t bytes = (wanted + kAlignment - 1) / kAlignment * kAlignment + kGuard;
  while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].byte_size()) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    const std::size_t grown = blocks_.empty() ? kSmallestBlock : 2 * blocks_.back().byte_size();
    blocks_.emplace_back(memory_, static_cast<Index>(std::max(bytes, grown)));
    used_ = 0;
  }
  DeviceArray<std::byte>& block = blocks_[block_];
  void* pointer = block.data() + used_;
  if (kAddressSanitizer && memory_.is_host()) {
    forbid_access(pointer, block.byte_size() - used_);
    for (std::size_t i = block_ + 1; i < blocks_.size(); ++i) forbid_access(blocks_[i].data(), blocks_[i].byte_size());
    allow_access(pointer, static_cast<std::size_t>(std::max<Index>(count, 0)) * element);
  }
  used_ += bytes;
  std::size_t before = 0;
  for (std::size_t i = 0; i < block_; ++i) before += blocks_[i].byte_size();
  peak_ = std::max(peak_, before + used_);
  return pointer;
}

}  // namespace samba
