#include "samba/bench/process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "samba/bench/measure.h"
#include "samba/core/error.h"

extern char** environ;

namespace samba::bench {

namespace {

constexpr int kSampleMilliseconds = 5;  // between two looks at its memory

[[noreturn]] void fail(const std::string& program, int error) {
  throw Error(ErrorKind::resource, "cannot run " + program + ": " + std::strerror(error));
}

class Pipe {
 public:
  explicit Pipe(const std::string& program) {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) fail(program, errno);
  }
  ~Pipe() {
    for (const int end : ends_) {
      if (end >= 0) ::close(end);
    }
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int reader() const { return ends_[0]; }
  int writer() const { return ends_[1]; }
  void close_writer() {
    ::close(ends_[1]);
    ends_[1] = -1;
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

pid_t spawn(std::vector<std::string> arguments, int out) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  pid_t process = 0;
  const int error = ::posix_spawn(&process, pointers.front(), &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail(arguments.front(), error);
  return process;
}

// The high-water mark of a running process. (What wait4 tells counts the memory of whoever started it.)
std::size_t peak_resident_of(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
  }
  return 0;  // it has ended
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& arguments) {
  Pipe pipe(arguments.front());
  const double start = wall_seconds();
  const pid_t process = spawn(arguments, pipe.writer());
  pipe.close_writer();
  ProcessResult result;
  std::array<char, 4096> buffer{};
  for (;;) {
    pollfd ready{pipe.reader(), POLLIN, 0};
    const int found = ::poll(&ready, 1, kSampleMilliseconds);
    result.peak_resident = std::max(result.peak_resident, peak_resident_of(process));
    if (found <= 0) continue;
    const ssize_t got = ::read(pipe.reader(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    if (result.out.empty()) result.first_output_seconds = wall_seconds() - start;
    result.out.append(buffer.data(), static_cast<std::size_t>(got));
  }
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  result.seconds = wall_seconds() - start;
  if (result.out.empty()) result.first_output_seconds = result.seconds;
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace samba::bench
