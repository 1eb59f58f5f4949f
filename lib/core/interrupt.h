// Ctrl-C (SIGINT) and SIGTERM as a question a loop asks between two steps. The second signal ends the process at once.
#pragma once

namespace samba {

// While one of these lives, the first signal only sets the flag.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};

bool interrupt_requested() noexcept;

// The exit code of a command that was interrupted and has put everything in order.
inline constexpr int kInterruptedExitCode = 130;

}  // namespace samba
