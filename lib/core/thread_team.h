// A team of threads that carries out one task at a time, all members together. Members spin briefly between tasks (the
// small regions of a decode step follow each other within microseconds), then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace samba {

class ThreadTeam {
 public:
  // `size` >= 1 members, the calling thread of run() one of them. Error(resource) when too few threads can be started.
  explicit ThreadTeam(int size);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(member) for member = 0 .. members - 1, member 0 on the calling thread, and returns when all are done.
  // members <= size(). The first exception of a member is thrown again here. Not re-entrant: a task does not call
  // run().
  template <class Task>
  void run(int members, Task&& task) {
    run_erased(
        members, [](void* context, int member) { (*static_cast<std::remove_reference_t<Task>*>(context))(member); },
        const_cast<void*>(static_cast<const void*>(&task)));  // cast back to what it was, const or not
  }

 private:
  using Function = void (*)(void* context, int member);

  void run_erased(int members, Function function, void* context);
  void work(int member);
  void call(int member) noexcept;
  void leave_caller_alone();

  // The task in hand; written before `round_` is advanced, read after it was seen.
  Function function_ = nullptr;
  void* context_ = nullptr;
  int members_ = 0;
  alignas(64) std::atomic<std::uint32_t> round_{0};
  alignas(64) std::atomic<int> pending_{0};
  std::atomic<bool> stop_{false};
  int caller_processor_ = -1;  // the processor the workers keep off; -1: none yet
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::vector<std::thread> workers_;
};

}  // namespace samba
