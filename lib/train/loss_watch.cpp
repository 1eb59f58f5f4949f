#include "samba/train/loss_watch.h"

#include <algorithm>
#include <cmath>

namespace samba {

namespace {

constexpr Index kLeastLosses = 20;
constexpr double kLeastDeviation = 0.01;  // of the mean

}  // namespace

std::optional<LossSpike> LossWatch::add(double loss) {
  if (!(config_.deviations > 0.0)) return std::nullopt;
  std::optional<LossSpike> spike;
  const auto count = static_cast<Index>(losses_.size());
  if (count >= std::min(kLeastLosses, config_.window)) {
    double mean = 0.0, squares = 0.0;
    for (const double one : losses_) mean += one / static_cast<double>(count);
    for (const double one : losses_) squares += (one - mean) * (one - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(count));
    const double limit = mean + config_.deviations * std::max(deviation, std::abs(mean) * kLeastDeviation);
    const bool above = loss > limit;
    if (above && !above_) spike = LossSpike{loss, mean, deviation, limit};
    above_ = above;
  }
  losses_.push_back(loss);
  if (static_cast<Index>(losses_.size()) > config_.window) losses_.pop_front();
  return spike;
}

}  // namespace samba
