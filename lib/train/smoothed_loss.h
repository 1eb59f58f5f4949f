// The loss without the noise of single steps: a mean over all steps so far whose weights fall by a factor a step.
//
//   m(t) = f m(t-1) + (1 - f) loss(t),  m(0) = 0;   smoothed(t) = m(t) / (1 - f^t)
//
// With f = 0.98 about the last fifty steps count; f = 0 is the loss itself. The same numbers appear on the terminal, in
// TensorBoard's files and in pictures: they follow from the losses of the run alone.
#pragma once

namespace samba {

inline constexpr double kLossSmoothing = 0.98;

class SmoothedLoss {
 public:
  explicit SmoothedLoss(double factor = kLossSmoothing) : factor_(factor) {}

  double add(double loss) {
    mean_ = factor_ * mean_ + (1.0 - factor_) * loss;
    rest_ *= factor_;
    return value();
  }
  double value() const { return rest_ < 1.0 ? mean_ / (1.0 - rest_) : 0.0; }  // 0 before the first step

 private:
  double factor_;
  double mean_ = 0.0;
  double rest_ = 1.0;  // f^t
};

}  // namespace samba
