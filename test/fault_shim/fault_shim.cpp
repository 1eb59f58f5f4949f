// A library that is loaded in front of the C library (LD_PRELOAD) and makes one of its calls fail: the file system and
// memory of a machine in trouble, on demand. Controlled by environment variables, read at the first call:
//
//   SAMBA_FAULT_CALL    the call that fails: open, read, write, fsync, close, rename, fchmod, mkdir, mmap, malloc,
//                       thread; empty: none fails
//   SAMBA_FAULT_NUMBER  the number of the failing call, from 1; 0: none fails
//   SAMBA_FAULT_KIND    errno by name (ENOSPC, EIO, EINTR, ENOMEM, EMFILE, EAGAIN, EDQUOT), or "short": half of the
//                       bytes are moved, or "lost": the pages of a mapping cannot be read
//   SAMBA_FAULT_PATH    count only calls on paths that hold this text (of malloc and thread: all are counted)
//   SAMBA_FAULT_FROM    "1": every later call fails too (of malloc those for 64 KiB and more)
//   SAMBA_FAULT_REPORT  a file that gets "COUNTED FIRED\n" when the process ends: how many calls were counted, and
//                       whether one failed
//
// Nothing fails before main() begins or after it returns. A failing close closes all the same, as Linux does. `open`
// counts openat, creat and fopen too; `read` pread; `write` pwrite and writev; `fsync` fdatasync; `malloc` calloc,
// realloc and aligned memory.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
// glibc's own, under names that nobody takes the place of.
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* pointer, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {

constexpr size_t kLarge = size_t{64} << 10;

struct Settings {
  char call[16] = {};
  char path[256] = {};
  char report[512] = {};
  long number = 0;
  int error = 0;
  bool shortened = false;
  bool lost = false;
  bool from = false;
};

Settings settings;
std::atomic<int> ready{0};  // 0: not read, 1: being read, 2: read
std::atomic<long> counted{0};
std::atomic<bool> fired{false};
std::atomic<bool> within_main{false};

int error_of(const char* name) {
  struct {
    const char* name;
    int error;
  } const known[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO},       {"EINTR", EINTR},  {"ENOMEM", ENOMEM},
                     {"EMFILE", EMFILE}, {"EAGAIN", EAGAIN}, {"EDQUOT", EDQUOT}};
  for (const auto& entry : known) {
    if (std::strcmp(entry.name, name) == 0) return entry.error;
  }
  return 0;
}

void copy_variable(const char* name, char* target, std::size_t size) {
  const char* value = std::getenv(name);
  if (value != nullptr) std::snprintf(target, size, "%s", value);
}

// True when the settings can be used; while another thread, or this one further up, reads them, nothing fails.
bool have_settings() {
  if (ready.load(std::memory_order_acquire) == 2) return true;
  int unread = 0;
  if (!ready.compare_exchange_strong(unread, 1)) return false;
  char kind[16] = {}, number[24] = {}, from[4] = {};
  copy_variable("SAMBA_FAULT_CALL", settings.call, sizeof settings.call);
  copy_variable("SAMBA_FAULT_PATH", settings.path, sizeof settings.path);
  copy_variable("SAMBA_FAULT_REPORT", settings.report, sizeof settings.report);
  copy_variable("SAMBA_FAULT_KIND", kind, sizeof kind);
  copy_variable("SAMBA_FAULT_NUMBER", number, sizeof number);
  copy_variable("SAMBA_FAULT_FROM", from, sizeof from);
  settings.number = std::atol(number);
  settings.error = error_of(kind);
  settings.shortened = std::strcmp(kind, "short") == 0;
  settings.lost = std::strcmp(kind, "lost") == 0;
  settings.from = from[0] == '1';
  ready.store(2, std::memory_order_release);
  return true;
}

// True when this call is the one that fails. Memory that is out is so for large pieces first: `bytes` of malloc.
bool fails(const char* call, size_t bytes = kLarge) {
  if (!within_main.load() || !have_settings() || std::strcmp(settings.call, call) != 0) return false;
  const long count = counted.fetch_add(1) + 1;
  const bool later = settings.from && count > settings.number && bytes >= kLarge;
  if (settings.number == 0 || !(count == settings.number || later)) return false;
  fired.store(true);
  errno = settings.error;
  return true;
}

bool fails_on(const char* call, const char* path) {
  if (!have_settings() || std::strcmp(settings.call, call) != 0) return false;
  return std::strstr(path, settings.path) != nullptr && fails(call);
}

bool fails_on(const char* call, int descriptor) {
  if (!have_settings() || std::strcmp(settings.call, call) != 0) return false;
  char link[40], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = ::readlink(link, path, sizeof path - 1);
  if (length < 0) return false;
  path[length] = '\0';
  return fails_on(call, path);
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

int open_at(int folder, const char* path, int flags, mode_t mode) {
  if (fails_on("open", path)) return -1;
  return static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode));
}

using Main = int (*)(int, char**, char**);
Main real_main = nullptr;

int watched_main(int count, char** arguments, char** environment) {
  have_settings();
  within_main.store(true);
  const int code = real_main(count, arguments, environment);
  within_main.store(false);
  return code;
}

// The report is written without any of the calls that may fail.
[[gnu::destructor]] void report() {
  if (!have_settings() || settings.report[0] == '\0') return;
  char text[64];
  const int length = std::snprintf(text, sizeof text, "%ld %d\n", counted.load(), fired.load() ? 1 : 0);
  const long file = ::syscall(SYS_openat, AT_FDCWD, settings.report, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return;
  (void)!::syscall(SYS_write, file, text, length);
  ::syscall(SYS_close, file);
}

}  // namespace

extern "C" {

int __libc_start_main(Main main, int count, char** arguments, void (*init)(), void (*fini)(), void (*loader_fini)(),
                      void* stack_end) {
  real_main = main;
  const auto real = next<int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*)>("__libc_start_main");
  return real(watched_main, count, arguments, init, fini, loader_fini, stack_end);
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at(folder, path, flags, mode);
}
int creat(const char* path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

FILE* fopen(const char* path, const char* mode) {
  if (fails_on("open", path)) return nullptr;
  static const auto real = next<FILE* (*)(const char*, const char*)>("fopen");
  return real(path, mode);
}
FILE* fopen64(const char* path, const char* mode) {
  if (fails_on("open", path)) return nullptr;
  static const auto real = next<FILE* (*)(const char*, const char*)>("fopen64");
  return real(path, mode);
}

ssize_t read(int descriptor, void* data, size_t bytes) {
  if (bytes > 0 && fails_on("read", descriptor)) {
    if (!settings.shortened) return -1;
    bytes = std::max<size_t>(1, bytes / 2);
  }
  return ::syscall(SYS_read, descriptor, data, bytes);
}
ssize_t pread(int descriptor, void* data, size_t bytes, off_t offset) {
  if (bytes > 0 && fails_on("read", descriptor)) {
    if (!settings.shortened) return -1;
    bytes = std::max<size_t>(1, bytes / 2);
  }
  return ::syscall(SYS_pread64, descriptor, data, bytes, offset);
}
ssize_t pread64(int descriptor, void* data, size_t bytes, off64_t offset) {
  return pread(descriptor, data, bytes, offset);
}

ssize_t write(int descriptor, const void* data, size_t bytes) {
  if (bytes > 0 && fails_on("write", descriptor)) {
    if (!settings.shortened) return -1;
    bytes = std::max<size_t>(1, bytes / 2);
  }
  return ::syscall(SYS_write, descriptor, data, bytes);
}
ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  if (bytes > 0 && fails_on("write", descriptor)) {
    if (!settings.shortened) return -1;
    bytes = std::max<size_t>(1, bytes / 2);
  }
  return ::syscall(SYS_pwrite64, descriptor, data, bytes, offset);
}
ssize_t pwrite64(int descriptor, const void* data, size_t bytes, off64_t offset) {
  return pwrite(descriptor, data, bytes, offset);
}
ssize_t writev(int descriptor, const iovec* parts, int count) {
  if (count > 0 && fails_on("write", descriptor)) {
    if (!settings.shortened) return -1;
    return ::syscall(SYS_writev, descriptor, parts, 1);
  }
  return ::syscall(SYS_writev, descriptor, parts, count);
}

int fsync(int descriptor) {
  return fails_on("fsync", descriptor) ? -1 : static_cast<int>(::syscall(SYS_fsync, descriptor));
}
int fdatasync(int descriptor) {
  return fails_on("fsync", descriptor) ? -1 : static_cast<int>(::syscall(SYS_fdatasync, descriptor));
}
int close(int descriptor) {
  const bool failed = fails_on("close", descriptor);
  const int result = static_cast<int>(::syscall(SYS_close, descriptor));
  if (!failed) return result;
  errno = settings.error;
  return -1;
}
int rename(const char* from, const char* to) noexcept {
  if (fails_on("rename", to)) return -1;
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int fchmod(int descriptor, mode_t mode) noexcept {
  return fails_on("fchmod", descriptor) ? -1 : static_cast<int>(::syscall(SYS_fchmod, descriptor, mode));
}
int mkdir(const char* path, mode_t mode) noexcept {
  return fails_on("mkdir", path) ? -1 : static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

void* mmap(void* address, size_t bytes, int protection, int flags, int descriptor, off_t offset) noexcept {
  if (descriptor >= 0 && fails_on("mmap", descriptor)) {
    if (!settings.lost) return MAP_FAILED;
    // A file without a byte behind the mapping: to touch it is SIGBUS.
    descriptor = static_cast<int>(::syscall(SYS_memfd_create, "lost", 0));
  }
  return reinterpret_cast<void*>(::syscall(SYS_mmap, address, bytes, protection, flags, descriptor, offset));
}

void* malloc(size_t bytes) noexcept { return fails("malloc", bytes) ? nullptr : __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) noexcept { return fails("malloc") ? nullptr : __libc_calloc(count, bytes); }
void* realloc(void* pointer, size_t bytes) noexcept {
  return bytes > 0 && fails("malloc", bytes) ? nullptr : __libc_realloc(pointer, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  return fails("malloc", bytes) ? nullptr : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** pointer, size_t alignment, size_t bytes) noexcept {
  if (fails("malloc", bytes)) return ENOMEM;
  *pointer = __libc_memalign(alignment, bytes);
  return *pointer == nullptr ? ENOMEM : 0;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) noexcept {
  if (fails("thread")) return settings.error;
  static const auto real = next<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  return real(thread, attributes, start, argument);
}

}  // extern "C"
