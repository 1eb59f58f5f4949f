// Launches that were kept instead of carried out: kernels in their order, each with a copy of its arguments.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace samba {

struct LaunchExtent {
  unsigned x = 1, y = 1, z = 1;  // blocks
  unsigned threads = 1;          // of a block
  bool operator==(const LaunchExtent&) const = default;
};

class LaunchList {
 public:
  // Calls a kernel with arguments at these places; of targets whose kernels are functions of the host.
  using Call = void (*)(const void* kernel, void* const* arguments);

  template <class... P>
  void add(const void* function, Call caller, const LaunchExtent& extent, const P&... values) {
    static_assert((std::is_trivially_copyable_v<P> && ...));
    static_assert(((alignof(P) <= alignof(std::max_align_t)) && ...));
    launches_.push_back({function, caller, extent, places_.size(), sizeof...(P), bytes_.size(), 0});
    (append(&values, sizeof(P), alignof(P)), ...);
    launches_.back().bytes = bytes_.size() - launches_.back().first_byte;
  }
  void clear() {  // keeps its memory for the next step
    launches_.clear();
    places_.clear();
    bytes_.clear();
  }

  std::size_t size() const { return launches_.size(); }
  const void* kernel(std::size_t i) const { return launches_[i].kernel; }
  Call call(std::size_t i) const { return launches_[i].call; }
  const LaunchExtent& extent(std::size_t i) const { return launches_[i].extent; }

  // Of launch i, valid until the next call of this list.
  std::span<void*> arguments(std::size_t i) const {
    const Launch& launch = launches_[i];
    pointers_.clear();
    for (std::size_t a = 0; a < launch.count; ++a) {
      pointers_.push_back(const_cast<std::byte*>(bytes_.data()) + places_[launch.first_place + a]);
    }
    return pointers_;
  }

  // Whether the lists have the same kernels in the same order: one differs from the other in extents and arguments.
  bool is_like(const LaunchList& other) const {
    if (size() != other.size()) return false;
    for (std::size_t i = 0; i < size(); ++i) {
      if (launches_[i].kernel != other.launches_[i].kernel) return false;
    }
    return true;
  }
  // Of a list that is_like this one: whether launch i is the very same. (Bytes between members of an argument count as
  // well: a difference there is one too many, never one too few.)
  bool has_launch(const LaunchList& other, std::size_t i) const {
    const Launch &mine = launches_[i], &its = other.launches_[i];
    return mine.extent == its.extent &&
           std::memcmp(bytes_.data() + mine.first_byte, other.bytes_.data() + its.first_byte, mine.bytes) == 0;
  }
  // Launch i becomes that of a list that is_like this one.
  void replace(std::size_t i, const LaunchList& other) {
    launches_[i].extent = other.launches_[i].extent;
    std::memcpy(bytes_.data() + launches_[i].first_byte, other.bytes_.data() + other.launches_[i].first_byte,
                launches_[i].bytes);
  }

 private:
  struct Launch {
    const void* kernel;
    Call call;
    LaunchExtent extent;
    std::size_t first_place, count;  // of its arguments
    std::size_t first_byte, bytes;
  };

  void append(const void* argument, std::size_t size, std::size_t alignment) {
    // Where it lies follows from the kernels before it: lists that are alike lie alike.
    const std::size_t place = (bytes_.size() + alignment - 1) / alignment * alignment;
    bytes_.resize(place + size);
    std::memcpy(bytes_.data() + place, argument, size);
    places_.push_back(place);
  }

  std::vector<Launch> launches_;
  std::vector<std::size_t> places_;  // of arguments in bytes_
  std::vector<std::byte> bytes_;
  mutable std::vector<void*> pointers_;
};

// Keeps the launch of a kernel; the arguments become those of its parameters.
template <class Grid, class... P, class... A>
void keep_launch(LaunchList& list, const Grid& grid, int threads, void (*kernel)(P...), LaunchList::Call call,
                 const A&... arguments) {
  list.add<P...>(reinterpret_cast<const void*>(kernel), call, {grid.x, grid.y, grid.z, static_cast<unsigned>(threads)},
                 static_cast<P>(arguments)...);
}

}  // namespace samba
