// The host adapter: carries out the grid of a kernel on the processor, so that the very kernel source of the devices is
// tested where there is no device.
//
// Every device thread of a block is a fiber. A block runs on one thread of the process; several blocks run side by
// side. Between two barriers the threads of a block run one after the other: with a seed in a random order of blocks,
// warps and threads, so that a missing barrier shows. A kernel that leaves the rules of the devices is refused with an
// error that says how: threads of a block that wait at different barriers, a barrier or a shuffle that some threads do
// not reach.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "samba/backends/gpu/host/fiber.h"
#include "samba/core/thread_team.h"

namespace samba::gpu_host {

// The extent of a launch in blocks.
struct Grid {
  unsigned x = 1, y = 1, z = 1;
};

struct Site {
  const char* file = "";
  int line = 0;
  auto operator<=>(const Site& other) const = default;
};
std::string site_text(const Site& site);

inline constexpr int kMostThreads = 1024;  // of a block

struct GridOptions {
  int threads = 1;           // of the process
  int warp = 32;             // or 64
  std::uint64_t seed = 0;    // of the orders; 0: ascending
  int skipped_line = 0;      // tests remove a barrier: the one at this line of
  std::string skipped_file;  // the file whose path ends so
};

// What a kernel asks about itself; of the device thread in hand.
struct ThreadPlace {
  unsigned thread = 0;
  unsigned block_threads = 0;
  Grid block;
  Grid grid;
  unsigned warp = 32;
};
inline thread_local constinit ThreadPlace place{};

class Block;
inline thread_local constinit Block* block = nullptr;

// One block in execution, on one thread of the process.
class Block {
 public:
  explicit Block(const GridOptions& options) : options_(options) {}

  void run(const Grid& grid, const Grid& at, int threads, const std::function<void()>& body, std::uint64_t order);

  // Called by device threads.
  void barrier(const Site& site);
  std::uint32_t exchange(std::uint32_t value, unsigned from, const Site& site);  // of the lane `from` of the warp
  std::uint64_t serial() const { return serial_; }  // of the block in hand: shared memory starts anew in each

  std::vector<Site> take_sites();  // the barriers that were met

 private:
  enum class State { ready, at_barrier, at_exchange, finished };
  struct Thread {
    std::unique_ptr<Fiber> fiber;
    State state = State::ready;
    Site site;
    unsigned exchanges = 0;
    std::uint32_t value[2] = {0, 0};
  };

  void run_threads(const std::function<void()>& body, std::uint64_t order);
  void step(unsigned thread, const std::function<void()>& body);
  bool release(unsigned first, unsigned end, State waiting, const char* what);
  void shuffle_order(std::uint64_t order);
  bool is_skipped(const Site& site) const;

  const GridOptions& options_;
  std::vector<Thread> threads_;
  std::vector<std::unique_ptr<Fiber>> idle_;
  std::vector<unsigned> order_;
  std::vector<Site> sites_;
  unsigned count_ = 0;
  std::uint64_t serial_ = 0;
};

class GridRunner {
 public:
  explicit GridRunner(GridOptions options);

  const GridOptions& options() const { return options_; }
  void run(const Grid& grid, int threads, const std::function<void()>& body);
  std::vector<Site> barrier_sites() const { return sites_; }  // all that were met, sorted

 private:
  GridOptions options_;
  ThreadTeam team_;
  std::vector<std::unique_ptr<Block>> blocks_;  // one a thread of the process
  std::vector<Site> sites_;
  std::uint64_t launches_ = 0;
};

// Shared memory of a block: the same run for all its threads, filled with NaN when a block begins. Tag is a type of its
// own for each declaration.
template <class T, int kCount, class Tag>
T* shared_array(Tag) {
  struct Storage {
    std::uint64_t serial = 0;
    const Block* owner = nullptr;
    std::vector<T> values;
  };
  static thread_local Storage storage;
  if (storage.owner != block || storage.serial != block->serial()) {
    storage.owner = block;
    storage.serial = block->serial();
    storage.values.resize(kCount);
    std::fill_n(reinterpret_cast<unsigned char*>(storage.values.data()), kCount * sizeof(T),
                static_cast<unsigned char>(0xFF));
  }
  return storage.values.data();
}

}  // namespace samba::gpu_host
