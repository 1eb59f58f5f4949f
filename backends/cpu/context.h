// What all kernels of one cpu executor share: its threads, its instruction set, and scratch memory of each thread.
#pragma once

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "samba/backends/cpu/daz.h"
#include "samba/backends/host_memory.h"
#include "samba/core/thread_team.h"
#include "samba/kernels/memory.h"

namespace samba::cpu {

class Context {
 public:
  // `targets`: Highway target bits the executor may use; 0: the scalar fallback alone.
  Context(int threads, std::int64_t targets) : team_(threads), scratch_(static_cast<std::size_t>(threads)) {
    chosen_.Update(targets);
  }

  int threads() const { return team_.size(); }

  // The entry of this executor's instruction set in a table made by HWY_EXPORT.
  template <class F, std::size_t kEntries>
  F dispatch(F const (&table)[kEntries]) const {
    return kEntries == 1 ? table[0] : table[chosen_.GetIndex()];
  }

  // Calls body(first, last, thread) for contiguous parts of [0, count), one a thread, each inside a DazScope. The parts
  // depend on count, `grain` (their sizes are multiples of it) and the number of threads alone. The calling thread
  // takes part. An exception of a part is thrown again here.
  template <class Body>
  void parallel(Index count, Index grain, Body&& body) {
    if (count <= 0) return;
    const Index units = (count + grain - 1) / grain;
    const int members = static_cast<int>(std::min<Index>(units, threads()));
    team_.run(members, [&](int thread) {
      const DazScope daz;
      const Index first = units * thread / members * grain;
      const Index last = std::min(count, units * (thread + 1) / members * grain);
      body(first, last, thread);
    });
  }

  // `count` floats for one thread, valid until its next call; kept between calls.
  float* scratch(int thread, Index count) {
    DeviceArray<float>& run = scratch_[static_cast<std::size_t>(thread)];
    if (run.size() < count) run = DeviceArray<float>(memory_, count);
    return run.data();
  }

 private:
  ThreadTeam team_;
  hwy::ChosenTarget chosen_;
  HostMemory memory_;
  std::vector<DeviceArray<float>> scratch_;
};

// The kernel of the context's instruction set: SAMBA_CPU_KERNEL(context, name)(arguments...), after HWY_EXPORT(name).
#define SAMBA_CPU_KERNEL(context, name) (context).dispatch(HWY_DISPATCH_TABLE(name))

}  // namespace samba::cpu
