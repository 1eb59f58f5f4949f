#include "samba/backends/gpu/host/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "samba/backends/gpu/device_errors.h"

namespace samba::gpu_host {

namespace {

constexpr std::size_t kAlignment = 256;
// Large pages where the system has them: opening and closing is then done in few steps.
constexpr std::size_t kPage = std::size_t{2} << 20;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Arena::Arena(std::size_t capacity) : capacity_(std::min(capacity, kReserved)) {
  reserved_ = mmap(nullptr, kReserved + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved_ == MAP_FAILED) throw Error(ErrorKind::resource, "out of memory: the addresses of device memory");
  const std::size_t first_page = round_up(reinterpret_cast<std::uintptr_t>(reserved_), kPage);
  base_ = reinterpret_cast<std::byte*>(first_page);
  (void)madvise(base_, kReserved, MADV_HUGEPAGE);
}

Arena::~Arena() { munmap(reserved_, kReserved + kPage); }

void* Arena::allocate(std::size_t bytes) {
  const std::size_t wanted = round_up(bytes == 0 ? 1 : bytes, kAlignment);
  std::size_t offset = used_;
  auto run = free_.begin();
  while (run != free_.end() && run->second < wanted) ++run;
  if (run != free_.end()) {
    offset = run->first;
    if (run->second > wanted) free_[offset + wanted] = run->second - wanted;
    free_.erase(offset);
  } else {
    if (wanted > capacity_ - used_) refuse_device_memory(bytes, "the host adapter has no more");
    used_ += wanted;
  }
  taken_[offset] = wanted;
  const Scope scope(*this);
  std::memset(base_ + offset, 0xFF, wanted);
  return base_ + offset;
}

void Arena::release(void* pointer) noexcept {
  const auto found = taken_.find(static_cast<std::size_t>(static_cast<std::byte*>(pointer) - base_));
  if (found == taken_.end()) return;
  const auto [offset, bytes] = *found;
  taken_.erase(found);
  const auto run = free_.emplace(offset, bytes).first;
  const auto next = std::next(run);
  if (next != free_.end() && next->first == offset + bytes) {
    run->second += next->second;
    free_.erase(next);
  }
  if (run == free_.begin()) return;
  const auto before = std::prev(run);
  if (before->first + before->second == offset) {
    before->second += run->second;
    free_.erase(run);
  }
}

void Arena::open() {
  if (opened_++ > 0) return;
  if (used_ > 0) mprotect(base_, round_up(used_, kPage), PROT_READ | PROT_WRITE);
}

void Arena::close() noexcept {
  if (--opened_ > 0) return;
  if (used_ > 0) mprotect(base_, round_up(used_, kPage), PROT_NONE);
}

}  // namespace samba::gpu_host
