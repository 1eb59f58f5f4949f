#include "samba/core/temporaries.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>

namespace samba {

namespace {

struct Slot {
  std::atomic<int> state{0};  // 0: free, 1: being written, 2: holds a path
  std::array<char, 4096> path{};
};

std::array<Slot, 16> slots;

}  // namespace

void remember_temporary(const Path& path) noexcept {
  const std::size_t length = path.native().size();
  for (Slot& slot : slots) {
    int free = 0;
    if (length >= slot.path.size() || !slot.state.compare_exchange_strong(free, 1)) continue;
    std::memcpy(slot.path.data(), path.c_str(), length + 1);
    slot.state.store(2);
    return;
  }
}

void forget_temporary(const Path& path) noexcept {
  for (Slot& slot : slots) {
    if (slot.state.load() == 2 && path.native() == slot.path.data()) slot.state.store(0);
  }
}

void remove_temporaries(bool folders) noexcept {
  for (Slot& slot : slots) {
    if (slot.state.load() != 2) continue;
    if (::unlink(slot.path.data()) == 0 || !folders) continue;
    try {
      std::error_code ignored;
      std::filesystem::remove_all(slot.path.data(), ignored);
    } catch (...) {  // memory is out: it stays
    }
  }
}

}  // namespace samba
