// What all kernels of one executor of the host adapter share. The same members as the context of the devices
// (backends/gpu/device_context.h).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "samba/backends/gpu/host/arena.h"
#include "samba/backends/gpu/host/grid.h"
#include "samba/backends/gpu/step_queue.h"
#include "samba/backends/registry.h"
#include "samba/kernels/memory.h"
#include "samba/kernels/pinned_memory.h"

namespace samba::gpu_host {

inline constexpr const char* kTargetName = "gpu-host";

// Copies between host and device, for tests that count them.
struct Traffic {
  Index copies_to_device = 0, bytes_to_device = 0;
  Index copies_to_host = 0, bytes_to_host = 0;
};

class Context;

class ArenaMemory final : public Memory, public PinnedMemory {
 public:
  ArenaMemory(Context& context, std::size_t bytes) : context_(context), arena_(bytes) {}
  void* allocate(std::size_t bytes) override { return arena_.allocate(bytes); }
  void release(void* pointer) noexcept override;
  void copy_to_device(void* device, const void* host, std::size_t bytes) override;
  void copy_to_host(void* host, const void* device, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void fill_zero(void* device, std::size_t bytes) override;
  void synchronize() override;
  void* allocate_pinned(std::size_t bytes) override { return ::operator new(bytes); }
  void release_pinned(void* pointer) noexcept override { ::operator delete(pointer); }
  Arena& arena() { return arena_; }
  const Traffic& traffic() const { return traffic_; }

 private:
  void move(void* to, const void* from, std::size_t bytes);

  Context& context_;
  Arena arena_;
  Traffic traffic_;
};

// A launch graph of the host adapter: it carries out its own copy of the launches, which only change() renews.
class HostGraph {
 public:
  HostGraph(Context& context, const LaunchList& list) : context_(context), launches_(list) {}
  bool change(const LaunchList& list, std::size_t i);
  bool launch();

 private:
  Context& context_;
  LaunchList launches_;
};

class Context {
 public:
  explicit Context(const ExecutorOptions& options);

  Memory& memory() { return memory_; }
  Workspace& workspace() { return workspace_; }
  std::string device_name() const;
  std::string description() const { return std::string("the host adapter (") + device_name() + ")"; }
  int threads() const { return runner_.options().threads; }
  // Threads of a launch over elements: enough to fill the device, each takes several elements.
  Index most_threads() const { return 512; }
  // Launches with this many blocks are worth having.
  Index multiprocessors() const { return 1; }

  void run(const Grid& grid, int threads, const std::function<void()>& body);

  // A decode step is kept there and carried out as a whole.
  StepQueue<Context, HostGraph>& step() { return step_; }
  std::unique_ptr<HostGraph> make_graph(const LaunchList& list);
  void launch_one(const LaunchList& list, std::size_t i);
  void free_now(void* pointer) noexcept { memory_.arena().release(pointer); }
  bool takes_graph_call() { return graph_calls_left_ > 0 && graph_calls_left_-- > 0; }

  Arena& arena() { return memory_.arena(); }
  GridRunner& runner() { return runner_; }
  const Traffic& traffic() const { return memory_.traffic(); }

 private:
  StepQueue<Context, HostGraph> step_{*this};
  ArenaMemory memory_;
  Workspace workspace_{memory_};
  GridRunner runner_;
  std::uint64_t launches_left_;
  std::uint64_t graph_calls_left_;
};

// Copies and zeros of a step that is kept, as kernels (copies.gpu.h).
void launch_copy(Context& context, void* to, const void* from, std::size_t bytes);
void launch_zero(Context& context, void* to, std::size_t bytes);

// Options of tests that no command has: the barrier at this line of the file that ends so is left out of all executors
// made from now on; line 0 ends that.
void skip_barrier(const std::string& file, int line);
// Graphs keep the launches that they were made with: tests see that a stale argument shows.
void keep_stale_launches(bool stale);
// How `executor` has carried out its decode steps.
StepCounts step_counts(Executor& executor);
// What `executor` has copied since it was made.
Traffic traffic(Executor& executor);
// The barriers that kernels of `executor` have met, "file:line" each with the line apart.
std::vector<Site> barrier_sites(Executor& executor);

}  // namespace samba::gpu_host
