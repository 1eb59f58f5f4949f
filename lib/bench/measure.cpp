#include "samba/bench/measure.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

namespace samba::bench {

namespace {

constexpr int kLeastRounds = 3;
constexpr std::chrono::milliseconds kOtherSideSleeps{60};  // OpenBLAS's threads spin this long at most

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2.0;
}

struct Samples {
  std::vector<double> wall, cpu;
};

void run_once(const Side& side, bool settle, Samples* samples) {
  if (side.prepare) side.prepare();
  if (settle) {
    std::this_thread::sleep_for(kOtherSideSleeps);
    side.work();  // wakes this side's threads
  }
  const double cpu = cpu_seconds(), wall = wall_seconds();
  side.work();
  const double seconds = wall_seconds() - wall;
  if (samples == nullptr) return;
  samples->wall.push_back(seconds);
  samples->cpu.push_back(cpu_seconds() - cpu);
  if (side.observe) side.observe(seconds);
}

}  // namespace

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double cpu_seconds() {
  std::timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::vector<Timing> measure(std::span<const Side> sides, const MeasureOptions& options) {
  std::vector<Samples> samples(sides.size());
  const double start = wall_seconds();
  for (const Side& side : sides) run_once(side, false, nullptr);
  for (int round = 0; round < options.repetitions; ++round) {
    const bool late = options.most_seconds > 0.0 && wall_seconds() - start > options.most_seconds;
    if (round >= kLeastRounds && late) break;
    if (options.pace.before && !options.pace.before() && round > 0) break;
    for (std::size_t i = 0; i < sides.size(); ++i) {
      run_once(sides[i], options.foreign_threads && sides[i].threads > 1, &samples[i]);
    }
    if (options.pace.after) options.pace.after();
  }
  std::vector<Timing> timings;
  for (const Samples& s : samples) {
    timings.push_back({*std::min_element(s.wall.begin(), s.wall.end()), median(s.wall),
                       *std::min_element(s.cpu.begin(), s.cpu.end()), median(s.cpu), static_cast<int>(s.wall.size())});
  }
  return timings;
}

}  // namespace samba::bench
