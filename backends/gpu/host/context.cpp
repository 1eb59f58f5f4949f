#include "samba/backends/gpu/host/context.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>
#include <thread>

#include "samba/backends/gpu/device_errors.h"

namespace samba::gpu_host {

namespace {

struct HostOptions {
  GridOptions grid;
  std::size_t memory = Arena::kReserved;
  std::uint64_t launches = ~std::uint64_t{0};     // before the device fails
  std::uint64_t graph_calls = ~std::uint64_t{0};  // before the driver refuses graphs
};

GridOptions& test_options() {
  static GridOptions options;
  return options;
}

bool stale_launches = false;

[[noreturn]] void refuse_set(const std::string& whole) {
  refuse_value(
      "instruction set '" + whole +
      "' is unknown to the device gpu-host; accepted: warp32, warp64, and with -seedN behind it a random order " +
      "of blocks, warps and threads, with -memoryN N MiB of device memory, with -launchesN a device that " +
      "fails after N launches, with -graphsN one whose driver refuses launch graphs after N calls");
}

// The number behind `word` in a part of `whole`, or nothing.
std::optional<std::uint64_t> number_after(const std::string& part, const std::string& word) {
  const std::string digits = part.substr(std::min(word.size(), part.size()));
  if (part.rfind(word, 0) != 0 || digits.empty() || digits.size() > 10) return std::nullopt;
  if (digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return std::stoull(digits);
}

// "warp32", "warp64-seed7", "warp32-memory64-launches1000"
HostOptions host_options(const ExecutorOptions& options) {
  HostOptions host;
  host.grid = test_options();
  const int processors = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  if (options.threads < 0)
    refuse_value("threads must be 0 (all cores) or positive, got " + std::to_string(options.threads));
  host.grid.threads = options.threads > 0 ? options.threads : processors;
  const std::string& set = options.instruction_set;
  if (set.empty()) return host;
  std::istringstream parts(set);
  std::string part;
  std::getline(parts, part, '-');
  const auto warp = number_after(part, "warp");
  if (!warp || (*warp != 32 && *warp != 64)) refuse_set(set);
  host.grid.warp = static_cast<int>(*warp);
  while (std::getline(parts, part, '-')) {
    if (const auto seed = number_after(part, "seed")) {
      host.grid.seed = *seed;
    } else if (const auto mebibytes = number_after(part, "memory")) {
      host.memory = static_cast<std::size_t>(*mebibytes) << 20;
    } else if (const auto launches = number_after(part, "launches")) {
      host.launches = *launches;
    } else if (const auto calls = number_after(part, "graphs")) {
      host.graph_calls = *calls;
    } else {
      refuse_set(set);
    }
  }
  return host;
}

}  // namespace

void ArenaMemory::release(void* pointer) noexcept {
  if (!context_.step().keeps(pointer)) context_.free_now(pointer);
}

void ArenaMemory::copy_to_device(void* device, const void* host, std::size_t bytes) {
  context_.step().settle();
  ++traffic_.copies_to_device;
  traffic_.bytes_to_device += static_cast<Index>(bytes);
  move(device, host, bytes);
}

void ArenaMemory::copy_to_host(void* host, const void* device, std::size_t bytes) {
  context_.step().settle();
  ++traffic_.copies_to_host;
  traffic_.bytes_to_host += static_cast<Index>(bytes);
  move(host, device, bytes);
}

void ArenaMemory::copy(void* to, const void* from, std::size_t bytes) {
  if (context_.step().list() != nullptr) return launch_copy(context_, to, from, bytes);
  move(to, from, bytes);
}

void ArenaMemory::fill_zero(void* device, std::size_t bytes) {
  if (context_.step().list() != nullptr) return launch_zero(context_, device, bytes);
  const Arena::Scope scope(arena_);
  if (bytes > 0) std::memset(device, 0, bytes);
}

void ArenaMemory::synchronize() { context_.step().settle(); }

void ArenaMemory::move(void* to, const void* from, std::size_t bytes) {
  const Arena::Scope scope(arena_);
  if (bytes > 0) std::memcpy(to, from, bytes);
}

bool HostGraph::change(const LaunchList& list, std::size_t i) {
  if (!context_.takes_graph_call()) return false;
  if (!stale_launches) launches_.replace(i, list);
  return true;
}

bool HostGraph::launch() {
  if (!context_.takes_graph_call()) return false;
  const Arena::Scope scope(context_.arena());
  for (std::size_t i = 0; i < launches_.size(); ++i) context_.launch_one(launches_, i);
  return true;
}

Context::Context(const ExecutorOptions& options)
    : memory_(*this, host_options(options).memory),
      runner_(host_options(options).grid),
      launches_left_(host_options(options).launches),
      graph_calls_left_(host_options(options).graph_calls) {
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
  if (launches_left_-- == 0) refuse_device_call(kTargetName, kLaunching, "no launch is left, as --isa asks");
  const Arena::Scope scope(memory_.arena());
  runner_.run(grid, threads, body);
}

std::unique_ptr<HostGraph> Context::make_graph(const LaunchList& list) {
  return takes_graph_call() ? std::make_unique<HostGraph>(*this, list) : nullptr;
}

void Context::launch_one(const LaunchList& list, std::size_t i) {
  const LaunchExtent& extent = list.extent(i);
  const std::vector<void*> arguments(list.arguments(i).begin(), list.arguments(i).end());
  run(Grid{extent.x, extent.y, extent.z}, static_cast<int>(extent.threads),
      [&] { list.call(i)(list.kernel(i), arguments.data()); });
}

void keep_stale_launches(bool stale) { stale_launches = stale; }

void skip_barrier(const std::string& file, int line) {
  test_options().skipped_file = file;
  test_options().skipped_line = line;
}

}  // namespace samba::gpu_host
