// Runs the built executable as a user does and reads what it says.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "samba/core/files.h"
#include "temporary_folder.h"

namespace samba {

struct CommandResult {
  int code = 0;  // exit code, or 128 + signal
  std::string out;
  std::string err;
  std::uint64_t peak_resident = 0;  // bytes; never less than what this process held when it started the command
};

// A started `samba ARGUMENTS...`.
class Command {
 public:
  // `limit_bytes`: no file may grow beyond it (0: no limit). `input`: the file that is its stdin. `prepare`: called in
  // the new process, before the program begins.
  explicit Command(const std::vector<std::string>& arguments, std::uint64_t limit_bytes = 0,
                   const std::string& input = "/dev/null", const std::function<void()>& prepare = {}) {
    if (::pipe(out_) != 0 || ::pipe(err_) != 0) throw std::runtime_error("no pipe");
    std::vector<std::string> all{SAMBA_EXECUTABLE};
    all.insert(all.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& argument : all) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    process_ = ::fork();
    if (process_ != 0) {
      ::close(out_[1]);
      ::close(err_[1]);
      return;
    }
    ::dup2(out_[1], STDOUT_FILENO);
    ::dup2(err_[1], STDERR_FILENO);
    for (const int end : {out_[0], out_[1], err_[0], err_[1]}) ::close(end);
    ::close(STDIN_FILENO);
    ::open(input.c_str(), O_RDONLY);
    if (limit_bytes > 0) {
      const rlimit limit{limit_bytes, limit_bytes};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    ::unsetenv("SAMBA_LOG");
    ::unsetenv("SAMBA_ISA");
    if (prepare) prepare();
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  void interrupt() const { ::kill(process_, SIGINT); }
  void kill() const { ::kill(process_, SIGKILL); }
  // Reads from stdout until `text` was seen; false when it ended before.
  bool wait_for(const std::string& text) {
    while (result_.out.find(text) == std::string::npos) {
      if (!read_some(out_[0], result_.out)) return false;
    }
    return true;
  }
  void close_stdout() {
    ::close(out_[0]);
    out_[0] = -1;
  }

  CommandResult finish() {
    std::thread errors([this] {
      while (read_some(err_[0], result_.err)) {
      }
    });
    while (out_[0] >= 0 && read_some(out_[0], result_.out)) {
    }
    errors.join();
    int status = 0;
    rusage usage{};
    ::wait4(process_, &status, 0, &usage);
    result_.peak_resident = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
    if (out_[0] >= 0) ::close(out_[0]);
    ::close(err_[0]);
    result_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result_;
  }

 private:
  static bool read_some(int end, std::string& text) {
    char buffer[4096];
    const ssize_t got = ::read(end, buffer, sizeof buffer);
    if (got > 0) text.append(buffer, static_cast<std::size_t>(got));
    return got > 0;
  }

  int out_[2] = {};
  int err_[2] = {};
  pid_t process_ = 0;
  CommandResult result_;
};

inline CommandResult samba_command(const std::vector<std::string>& arguments, std::uint64_t limit_bytes = 0) {
  return Command(arguments, limit_bytes).finish();
}

// The JSON lines of an output.
inline std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

// The metrics of a run but for the time they took.
inline std::vector<nlohmann::json> metrics_of(const Path& run) {
  std::vector<nlohmann::json> lines = json_lines(read_file(run / "metrics.jsonl"));
  for (nlohmann::json& line : lines) line.erase("seconds");
  return lines;
}

// ---- a tiny run ----

inline void write_text(const Path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

inline nlohmann::json tiny_config(const std::string& text) {
  return {
      {"seed", 3},
      {"steps", 20},
      {"model",
       {{"vocab", 256}, {"d_model", 32}, {"layers", {"mamba3", "attention"}}, {"n_heads", 2}, {"intermediate", 32}}},
      {"data", {{"paths", {text}}, {"evaluation_bytes", 200}}},
      {"batch", {{"rows", 2}, {"length", 16}}},
      {"optimizer", {{"max_norm", 1.0}}},
      {"schedule", {{"kind", "cosine"}, {"peak_lr", 0.003}, {"warmup_steps", 2}, {"total_steps", 20}}},
      {"checkpoint", {{"every", 10}}}};
}

// A folder with text.txt and tiny.json, ready for `samba train --config`.
class TinyRun {
 public:
  TinyRun() {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "the quick brown fox no. " + std::to_string(i) + " jumps over the lazy dog\n";
    write_text(path() / "text.txt", text);
    write(tiny_config("text.txt"));
  }
  Path path() const { return folder_.path(); }
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  void write(const nlohmann::json& config) const { write_text(path() / "tiny.json", config.dump(2)); }

  // samba train --config tiny.json --out OUT ...
  CommandResult train(const std::string& out, std::vector<std::string> more = {}, std::uint64_t limit = 0) const {
    std::vector<std::string> arguments{"train", "--config", file("tiny.json"), "--out", file(out)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return samba_command(arguments, limit);
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace samba
