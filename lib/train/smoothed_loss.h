// The loss without the noise of single steps: a mean of about the last fifty, and of fewer at the beginning, where the
// loss falls fast: about the last quarter of the steps so far.
//
//   m(1) = loss(1);   m(t) = m(t-1) + (loss(t) - m(t-1)) / min(steps, 1 + (t - 1) / 4)
//
// The same numbers appear on the terminal, in TensorBoard's files and in pictures: they follow from the losses of the
// run alone.
#pragma once

#include <algorithm>

namespace samba {

inline constexpr double kSmoothedSteps = 50.0;

class SmoothedLoss {
 public:
  // `steps` >= 1; of 1 the mean is the last loss.
  explicit SmoothedLoss(double steps = kSmoothedSteps) : steps_(steps) {}

  double add(double loss) {
    mean_ += (loss - mean_) / std::min(steps_, 1.0 + count_ / 4.0);
    count_ += 1.0;
    return mean_;
  }
  double value() const { return mean_; }  // 0 before the first step

 private:
  double steps_;
  double mean_ = 0.0;
  double count_ = 0.0;
};

}  // namespace samba
