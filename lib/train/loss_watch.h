// Tells when the loss of a step leaps: it is above the mean of the last losses by more than so many of their standard
// deviations (of at least a hundredth of the mean, so that a loss that hardly moves does not make noise of itself).
//
//   window: the last `window` losses before the step; none is told before there are 20 (or `window`, when it is less)
//   limit = mean + deviations * max(standard deviation, mean / 100)
//
// A loss that stays above the limit is told once; the next one is told after a loss that was not above it. All of it
// follows from the losses of the run: one that is resumed tells the same.
#pragma once

#include <deque>
#include <optional>

#include "samba/core/array.h"

namespace samba {

struct WatchConfig {
  double deviations = 6.0;  // 0: nothing is told
  Index window = 100;       // losses
};

struct LossSpike {
  double loss = 0.0, mean = 0.0, deviation = 0.0, limit = 0.0;
};

class LossWatch {
 public:
  explicit LossWatch(const WatchConfig& config) : config_(config) {}

  // The loss of the next step, which is finite.
  std::optional<LossSpike> add(double loss);

 private:
  WatchConfig config_;
  std::deque<double> losses_;
  bool above_ = false;
};

}  // namespace samba
