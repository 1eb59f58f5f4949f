#include "last_resort.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

#include "samba/core/temporaries.h"

namespace samba::apps {

namespace {

constexpr int kResourceExitCode = 4;
constexpr std::size_t kReserve = std::size_t{64} << 10;  // below what malloc would give back to the system

std::atomic<void*> reserve{nullptr};
std::atomic<bool> memory_failed{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler reads it");

[[noreturn]] void end(std::string_view message) {
  (void)!::write(STDERR_FILENO, message.data(), message.size());
  ::_exit(kResourceExitCode);
}

void on_failed_allocation() {
  memory_failed = true;
  std::free(reserve.exchange(nullptr));
  throw std::bad_alloc();
}

// Some that may not throw allocate: a destructor of a JSON value, parts of the standard library. The exception is not
// always to be seen here, but where an allocation has failed before, it was that.
void on_terminate() {
  bool out_of_memory = memory_failed;
  try {
    if (const std::exception_ptr failure = std::current_exception()) std::rethrow_exception(failure);
  } catch (const std::bad_alloc&) {
    out_of_memory = true;
  } catch (...) {
  }
  if (!out_of_memory) std::abort();
  std::free(reserve.exchange(nullptr));
  remove_temporaries(true);
  end("samba: out of memory\n");
}

// Before other objects of the program are made, which takes memory too.
[[gnu::constructor(101)]] void prepare_early() {
  std::set_new_handler(on_failed_allocation);
  std::set_terminate(on_terminate);
}

void on_lost_page(int) {
  remove_temporaries(false);
  end("samba: cannot read a mapped file: the device failed, or the file became shorter while it was in use\n");
}

#if !defined(__SANITIZE_ADDRESS__)
// A JSON value whose memory failed half-way is not whole, and its destructor follows a null pointer: that is told as
// what it is. Any other address, any before an allocation failed, and a signal that another process sent takes its
// usual way, with a core dump at the place of the fault.
void on_wrong_address(int, siginfo_t* info, void*) {
  constexpr std::uintptr_t kBesideNull = 4096;
  const bool null_followed = info->si_code > 0 && reinterpret_cast<std::uintptr_t>(info->si_addr) < kBesideNull;
  if (memory_failed && null_followed) {
    remove_temporaries(false);
    end("samba: out of memory\n");
  }
  std::signal(SIGSEGV, SIG_DFL);
  std::raise(SIGSEGV);  // comes when this returns
}
#endif

}  // namespace

void prepare_last_resort() {
  reserve = std::malloc(kReserve);
  std::set_new_handler(on_failed_allocation);
  std::set_terminate(on_terminate);
  struct sigaction action {};
  action.sa_handler = on_lost_page;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
#if !defined(__SANITIZE_ADDRESS__)
  action.sa_sigaction = on_wrong_address;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGSEGV, &action, nullptr);
#endif
}

}  // namespace samba::apps
