#include "samba/core/thread_team.h"

#include <chrono>
#include <string>
#include <system_error>
#include <utility>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace samba {

namespace {

// Long enough to bridge the scalar work between two regions, short enough not to burn a core that others need.
constexpr std::chrono::microseconds kSpin{30};

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `done()` holds: spins for kSpin, then sleeps on `value` while it equals `seen`.
template <class T, class Done>
void wait_until(const std::atomic<T>& value, T seen, Done&& done) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 1; !done(); ++i) {
    relax();
    if (i % 64 == 0 && std::chrono::steady_clock::now() - start > kSpin) {
      value.wait(seen, std::memory_order_acquire);
      return;
    }
  }
}

void end_workers(std::atomic<bool>& stop, std::atomic<std::uint32_t>& round, std::vector<std::thread>& workers) {
  stop.store(true, std::memory_order_relaxed);
  round.fetch_add(1, std::memory_order_release);
  round.notify_all();
  for (std::thread& worker : workers) worker.join();
}

}  // namespace

ThreadTeam::ThreadTeam(int size) {
  workers_.reserve(static_cast<std::size_t>(size > 1 ? size - 1 : 0));
  try {
    for (int member = 1; member < size; ++member) workers_.emplace_back([this, member] { work(member); });
  } catch (const std::system_error& error) {
    const std::string started = std::to_string(workers_.size() + 1);
    end_workers(stop_, round_, workers_);
    throw Error(ErrorKind::resource, "cannot start thread " + started + " of " + std::to_string(size) + ": " +
                                         error.code().message() + "; give fewer with --threads");
  } catch (...) {
    end_workers(stop_, round_, workers_);
    throw;
  }
}

ThreadTeam::~ThreadTeam() { end_workers(stop_, round_, workers_); }

// The kernel may wake a sleeping worker on the processor of the calling thread, where it waits for milliseconds behind
// it, whatever other processors idle. So the workers may run wherever the caller may, except on its processor.
void ThreadTeam::leave_caller_alone() {
#if defined(__linux__)
  const int here = sched_getcpu();
  if (here == caller_processor_ || here < 0 || here >= CPU_SETSIZE) return;
  caller_processor_ = here;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  CPU_CLR(static_cast<std::size_t>(here), &allowed);
  for (std::thread& worker : workers_) pthread_setaffinity_np(worker.native_handle(), sizeof allowed, &allowed);
#endif
}

void ThreadTeam::call(int member) noexcept {
  try {
    function_(context_, member);
  } catch (...) {
    const std::scoped_lock lock(failure_mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
}

void ThreadTeam::work(int member) {
  // A thread inherits the control word of the one that started it, which may be a caller with flush modes on.
  if (!float_control_is_right()) set_float_control_word(kFloatControlWord);
  std::uint32_t seen = 0;
  while (true) {
    const auto advanced = [&] { return round_.load(std::memory_order_acquire) != seen; };
    while (!advanced()) wait_until(round_, seen, advanced);
    seen = round_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    if (member < members_) call(member);
    // Every worker reports, also one without a part: only then may the next task be written.
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

void ThreadTeam::run_erased(int members, Function function, void* context) {
  if (members <= 1 || workers_.empty()) {
    function(context, 0);
    return;
  }
  leave_caller_alone();
  function_ = function;
  context_ = context;
  members_ = members;
  pending_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  call(0);
  for (int left = pending_.load(std::memory_order_acquire); left != 0;
       left = pending_.load(std::memory_order_acquire)) {
    wait_until(pending_, left, [&] { return pending_.load(std::memory_order_acquire) != left; });
  }
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace samba
