// What a context of a device does between begin_step and run_step (kernels/step_graph.h), the same for every target:
// launches are kept; at the end a graph that was made of a like step is given the arguments of this one and launched.
//
// A Device offers
//   std::unique_ptr<Graph> make_graph(const LaunchList&);  // null: refused
//   void launch_one(const LaunchList&, std::size_t i);
//   void free_now(void* memory) noexcept;
// and a Graph
//   bool change(const LaunchList&, std::size_t i);         // launch i becomes that of the list
//   bool launch();                                         // false: refused, and nothing has run
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "samba/backends/gpu/launch_list.h"

namespace samba {

// How steps were carried out, for tests.
struct StepCounts {
  std::int64_t plain = 0;    // launch by launch
  std::int64_t graphs = 0;   // made
  std::int64_t replays = 0;  // steps that were one launch of a graph
  std::int64_t changes = 0;  // launches of graphs whose arguments were renewed
  std::int64_t refused = 0;  // calls of the driver
};

template <class Device, class Graph>
class StepQueue {
 public:
  static constexpr std::size_t kMostGraphs = 8;
  static constexpr std::size_t kMostSeen = 32;

  explicit StepQueue(Device& device) : device_(device) {}

  // Where launches go; null: they are carried out.
  LaunchList* list() { return keeping_ ? &list_ : nullptr; }
  const StepCounts& counts() const { return counts_; }

  void begin() {
    list_.clear();
    keeping_ = true;
    interrupted_ = false;
  }

  // The host needs what was kept so far, or changes what it reads.
  void settle() {
    if (!keeping_ || list_.size() == 0) return;
    interrupted_ = true;
    launch_all();
  }

  void run() {
    if (!keeping_) return;
    keeping_ = false;
    try {
      if (interrupted_ || !run_graph()) {
        ++counts_.plain;
        launch_all();
      }
    } catch (...) {
      drop();
      throw;
    }
    drop();
  }

  void drop() noexcept {
    keeping_ = false;
    list_.clear();
    for (void* memory : released_) device_.free_now(memory);
    released_.clear();
  }

  // Whether memory stays until the step has run, which may read it.
  bool keeps(void* memory) {
    if (keeping_) released_.push_back(memory);
    return keeping_;
  }

 private:
  struct Kept {
    LaunchList launches;  // as the graph has them
    std::unique_ptr<Graph> graph;
  };

  // Launches carry out their calls, which must not be kept again.
  void launch_all() {
    const bool keeping = std::exchange(keeping_, false);
    for (std::size_t i = 0; i < list_.size(); ++i) device_.launch_one(list_, i);
    list_.clear();
    keeping_ = keeping;
  }

  // Graphs by their kernels, the one that was used last in front. A graph is made when a step is seen for the second
  // time: what comes once (one number of rows, a chunk that closes in some of them) costs nothing.
  bool run_graph() {
    if (refused_ || list_.size() == 0) return false;
    for (auto kept = graphs_.begin(); kept != graphs_.end(); ++kept) {
      if (!kept->launches.is_like(list_)) continue;
      graphs_.splice(graphs_.begin(), graphs_, kept);
      return replay(graphs_.front());
    }
    const std::uint64_t key = key_of(list_);
    if (std::find(seen_.begin(), seen_.end(), key) == seen_.end()) {
      if (seen_.size() == kMostSeen) seen_.erase(seen_.begin());
      seen_.push_back(key);
      return false;
    }
    std::unique_ptr<Graph> graph = device_.make_graph(list_);
    if (graph == nullptr) return refuse();
    ++counts_.graphs;
    if (graphs_.size() == kMostGraphs) graphs_.pop_back();
    graphs_.push_front({list_, std::move(graph)});
    return replay(graphs_.front());
  }

  bool replay(Kept& kept) {
    for (std::size_t i = 0; i < list_.size(); ++i) {
      if (kept.launches.has_launch(list_, i)) continue;
      if (!kept.graph->change(list_, i)) return refuse();
      kept.launches.replace(i, list_);
      ++counts_.changes;
    }
    if (!kept.graph->launch()) return refuse();
    ++counts_.replays;
    return true;
  }

  // The driver does not want graphs: from now on steps are launched one by one.
  bool refuse() {
    ++counts_.refused;
    refused_ = true;
    graphs_.clear();
    return false;
  }

  static std::uint64_t key_of(const LaunchList& list) {
    std::uint64_t key = 0xCBF29CE484222325U;  // FNV-1a of the kernels
    for (std::size_t i = 0; i < list.size(); ++i) {
      key = (key ^ reinterpret_cast<std::uintptr_t>(list.kernel(i))) * 0x100000001B3U;
    }
    return key;
  }

  Device& device_;
  LaunchList list_;
  bool keeping_ = false;
  bool interrupted_ = false;  // a part of the step has run
  bool refused_ = false;
  std::vector<void*> released_;
  std::vector<std::uint64_t> seen_;
  std::list<Kept> graphs_;
  StepCounts counts_;
};

}  // namespace samba
