#include "last_resort.h"

#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

#include "samba/core/temporaries.h"

namespace samba::apps {

namespace {

constexpr int kResourceExitCode = 4;
constexpr std::size_t kReserve = std::size_t{64} << 10;  // below what malloc would give back to the system

void* reserve = nullptr;

[[noreturn]] void end(std::string_view message) {
  (void)!::write(STDERR_FILENO, message.data(), message.size());
  ::_exit(kResourceExitCode);
}

void on_failed_allocation() {
  std::free(reserve);
  reserve = nullptr;
  throw std::bad_alloc();
}

// A destructor of a JSON value allocates, and may not throw.
void on_terminate() {
  try {
    if (const std::exception_ptr failure = std::current_exception()) std::rethrow_exception(failure);
  } catch (const std::bad_alloc&) {
    std::free(reserve);
    remove_temporaries(true);
    end("samba: out of memory\n");
  } catch (...) {
  }
  std::abort();
}

void on_lost_page(int) {
  remove_temporaries(false);
  end("samba: cannot read a mapped file: the device failed, or the file became shorter while it was in use\n");
}

}  // namespace

void prepare_last_resort() {
  reserve = std::malloc(kReserve);
  std::set_new_handler(on_failed_allocation);
  std::set_terminate(on_terminate);
  struct sigaction action {};
  action.sa_handler = on_lost_page;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace samba::apps
