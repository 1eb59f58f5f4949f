#include "samba/backends/gpu/host/context.h"

#include <cstring>
#include <thread>

#include "samba/core/error.h"
#include "samba/core/numbers.h"

namespace samba::gpu_host {

namespace {

GridOptions& test_options() {
  static GridOptions options;
  return options;
}

std::uint64_t number_after(const std::string& text, const std::string& word, const std::string& whole) {
  if (text.rfind(word, 0) == 0 && text.size() > word.size() &&
      text.find_first_not_of("0123456789", word.size()) == std::string::npos && text.size() < word.size() + 10) {
    return std::stoull(text.substr(word.size()));
  }
  refuse_value("instruction set '" + whole +
               "' is unknown to the device gpu-host; accepted: warp32, warp64, and with " +
               "-seedN behind it a random order of blocks, warps and threads");
}

// "warp32", "warp64-seed7"
GridOptions grid_options(const ExecutorOptions& options) {
  GridOptions grid = test_options();
  const int processors = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  if (options.threads < 0)
    refuse_value("threads must be 0 (all cores) or positive, got " + std::to_string(options.threads));
  grid.threads = options.threads > 0 ? options.threads : processors;
  const std::string& set = options.instruction_set;
  if (set.empty()) return grid;
  const std::size_t dash = set.find('-');
  grid.warp = static_cast<int>(number_after(set.substr(0, dash), "warp", set));
  if (grid.warp != 32 && grid.warp != 64) number_after("", "warp", set);
  if (dash != std::string::npos) grid.seed = number_after(set.substr(dash + 1), "seed", set);
  return grid;
}

}  // namespace

void ArenaMemory::copy(void* to, const void* from, std::size_t bytes) {
  const Arena::Scope scope(arena_);
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void ArenaMemory::fill_zero(void* device, std::size_t bytes) {
  const Arena::Scope scope(arena_);
  if (bytes > 0) std::memset(device, 0, bytes);
}

Context::Context(const ExecutorOptions& options) : runner_(grid_options(options)) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("fma")) {
    throw Error(ErrorKind::resource, "the device gpu-host needs a processor with fused multiply-add (FMA)");
  }
#endif
}

std::string Context::device_name() const {
  const GridOptions& options = runner_.options();
  return "warp" + std::to_string(options.warp) + (options.seed != 0 ? "-seed" + std::to_string(options.seed) : "");
}

void Context::run(const Grid& grid, int threads, const std::function<void()>& body) {
  const Arena::Scope scope(memory_.arena());
  runner_.run(grid, threads, body);
}

void skip_barrier(const std::string& file, int line) {
  test_options().skipped_file = file;
  test_options().skipped_line = line;
}

}  // namespace samba::gpu_host
