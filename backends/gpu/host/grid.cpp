#include "samba/backends/gpu/host/grid.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string_view>

#include "samba/core/error.h"
#include "samba/numerics/philox.h"

namespace samba::gpu_host {

namespace {

[[noreturn]] void refuse_kernel(const std::string& what) { throw Error(ErrorKind::internal, "gpu-host: " + what); }

// A random permutation of [0, count) from (seed, order): element i goes where its word ranks.
template <class T>
void permute(std::vector<T>& values, std::uint64_t seed, std::uint64_t order) {
  for (std::size_t i = values.size(); i > 1; --i) {
    const std::uint32_t word = stream_word(seed, static_cast<std::uint32_t>(order), (order >> 32 << 20) + i);
    std::swap(values[i - 1], values[word % i]);
  }
}

}  // namespace

std::string site_text(const Site& site) {
  const std::string_view file = site.file;
  const std::size_t slash = file.rfind('/');
  return std::string(slash == std::string_view::npos ? file : file.substr(slash + 1)) + ":" + std::to_string(site.line);
}

bool Block::is_skipped(const Site& site) const {
  return options_.skipped_line != 0 && site.line == options_.skipped_line &&
         std::string_view(site.file).ends_with(options_.skipped_file);
}

void Block::barrier(const Site& site) {
  Thread& self = threads_[place.thread];
  if (place.thread == 0 && std::find(sites_.begin(), sites_.end(), site) == sites_.end()) sites_.push_back(site);
  if (is_skipped(site)) return;
  self.state = State::at_barrier;
  self.site = site;
  self.fiber->wait();
}

// Two buffers in turn: whoever writes the first again has passed the second's meeting, after all its reads.
std::uint32_t Block::exchange(std::uint32_t value, unsigned from, const Site& site) {
  const unsigned self_index = place.thread;
  const unsigned warp = self_index / place.warp * place.warp;
  const unsigned turn = threads_[self_index].exchanges++ & 1;
  threads_[self_index].value[turn] = value;
  threads_[self_index].state = State::at_exchange;
  threads_[self_index].site = site;
  threads_[self_index].fiber->wait();
  return threads_[warp + from].value[turn];
}

void Block::step(unsigned thread, const std::function<void()>& body) {
  Thread& t = threads_[thread];
  place.thread = thread;
  if (t.fiber == nullptr) {
    if (idle_.empty()) idle_.push_back(std::make_unique<Fiber>());
    t.fiber = std::move(idle_.back());
    idle_.pop_back();
    t.fiber->start(body);
  } else {
    t.fiber->resume();
  }
  if (t.fiber->finished()) {
    t.state = State::finished;
    idle_.push_back(std::move(t.fiber));
  }
}

// Lets the threads [first, end) go on when all of them wait alike.
bool Block::release(unsigned first, unsigned end, State waiting, const char* what) {
  for (unsigned i = first; i < end; ++i) {
    const Thread& t = threads_[i];
    if (t.state == waiting && t.site == threads_[first].site) continue;
    if (t.state == State::ready) return false;
    if (waiting == State::at_barrier && t.state == State::at_exchange) return false;
    if (waiting == State::at_exchange && t.state == State::at_barrier && threads_[first].state == State::at_barrier) {
      return false;
    }
    const Thread& waits = t.state == waiting ? t : threads_[first];
    if (waits.state != waiting) return false;
    refuse_kernel(std::string("threads of a block part at the ") + what + " " + site_text(waits.site) + ": thread " +
                  std::to_string(i) + " is " +
                  (t.state == State::finished ? std::string("finished") : "at " + site_text(t.site)) + ", thread " +
                  std::to_string(first) + " at " + site_text(threads_[first].site));
  }
  for (unsigned i = first; i < end; ++i) threads_[i].state = State::ready;
  return true;
}

// Warps in a random order, and the threads of each.
void Block::shuffle_order(std::uint64_t order) {
  const unsigned warp = static_cast<unsigned>(options_.warp);
  const unsigned warps = (count_ + warp - 1) / warp;
  std::vector<unsigned> warp_order(warps);
  for (unsigned w = 0; w < warps; ++w) warp_order[w] = w;
  permute(warp_order, options_.seed, order);
  order_.clear();
  std::vector<unsigned> lanes;
  for (const unsigned w : warp_order) {
    lanes.clear();
    for (unsigned i = w * warp; i < std::min(count_, (w + 1) * warp); ++i) lanes.push_back(i);
    permute(lanes, options_.seed, order + w + 1);
    order_.insert(order_.end(), lanes.begin(), lanes.end());
  }
}

void Block::run(const Grid& grid, const Grid& at, int threads, const std::function<void()>& body, std::uint64_t order) {
  count_ = static_cast<unsigned>(threads);
  // Of all executors: one that is made where another was must not find its shared memory.
  static std::atomic<std::uint64_t> blocks{0};
  serial_ = ++blocks;
  if (threads_.size() < count_) threads_.resize(count_);
  for (unsigned i = 0; i < count_; ++i) {
    threads_[i].state = State::ready;
    threads_[i].exchanges = 0;
  }
  order_.resize(count_);
  for (unsigned i = 0; i < count_; ++i) order_[i] = i;
  place = {0, count_, at, grid, static_cast<unsigned>(options_.warp)};
  block = this;

  try {
    run_threads(body, order);
  } catch (...) {
    for (Thread& thread : threads_)
      thread.fiber.reset();  // they wait where they are; nothing of theirs is to be undone
    block = nullptr;
    throw;
  }
  block = nullptr;
}

// Rounds: every thread that may go on does so until it waits or ends; then those that have met go on.
void Block::run_threads(const std::function<void()>& body, std::uint64_t order) {
  const unsigned warp = static_cast<unsigned>(options_.warp);
  for (bool done = false; !done;) {
    if (options_.seed != 0) shuffle_order(order += 64);
    bool moved = false;
    for (const unsigned i : order_) {
      if (threads_[i].state != State::ready) continue;
      step(i, body);
      moved = true;
    }
    done = true;
    for (unsigned i = 0; i < count_; ++i) done = done && threads_[i].state == State::finished;
    if (done) break;
    for (unsigned first = 0; first < count_; first += warp) {
      moved |= release(first, std::min(count_, first + warp), State::at_exchange, "shuffle");
    }
    moved |= release(0, count_, State::at_barrier, "barrier");
    if (!moved) refuse_kernel("the threads of a block wait for each other for ever");
  }
}

std::vector<Site> Block::take_sites() { return std::exchange(sites_, {}); }

GridRunner::GridRunner(GridOptions options) : options_(std::move(options)), team_(options_.threads) {
  for (int i = 0; i < team_.size(); ++i) blocks_.push_back(std::make_unique<Block>(options_));
}

void GridRunner::run(const Grid& grid, int threads, const std::function<void()>& body) {
  if (threads < 1 || threads > kMostThreads || grid.y > 65535 || grid.z > 65535) {
    refuse_kernel("a launch of " + std::to_string(threads) + " threads and (" + std::to_string(grid.x) + ", " +
                  std::to_string(grid.y) + ", " + std::to_string(grid.z) + ") blocks");
  }
  const std::uint64_t count = std::uint64_t{grid.x} * grid.y * grid.z;
  const std::uint64_t launch = ++launches_;
  std::vector<std::uint32_t> order;
  if (options_.seed != 0) {
    order.resize(count);
    for (std::uint32_t i = 0; i < count; ++i) order[i] = i;
    permute(order, options_.seed, launch << 32);
  }
  std::atomic<std::uint64_t> next{0};
  const int members = static_cast<int>(std::min<std::uint64_t>(count, static_cast<std::uint64_t>(team_.size())));
  team_.run(members, [&](int member) {
    for (std::uint64_t turn = next.fetch_add(1); turn < count; turn = next.fetch_add(1)) {
      const std::uint64_t i = order.empty() ? turn : order[turn];
      const Grid at{static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                    static_cast<unsigned>(i / grid.x / grid.y)};
      blocks_[static_cast<std::size_t>(member)]->run(grid, at, threads, body, (launch << 32) + i * 4096);
    }
  });
  for (const auto& each : blocks_) {
    const std::vector<Site> met = each->take_sites();
    sites_.insert(sites_.end(), met.begin(), met.end());
  }
  std::sort(sites_.begin(), sites_.end());
  sites_.erase(std::unique(sites_.begin(), sites_.end()), sites_.end());
}

}  // namespace samba::gpu_host
