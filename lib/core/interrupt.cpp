#include "samba/core/interrupt.h"

#include <unistd.h>
#include <csignal>

namespace samba {

namespace {

volatile std::sig_atomic_t requested = 0;

extern "C" void on_interrupt(int) {
  if (requested != 0) ::_exit(kInterruptedExitCode);
  requested = 1;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  requested = 0;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

InterruptGuard::~InterruptGuard() {
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGTERM, SIG_DFL);
}

bool interrupt_requested() noexcept { return requested != 0; }

}  // namespace samba
