// How the held-out loss of a run goes: the best evaluation, and when it gets no better any more.
#pragma once

#include <optional>

#include "samba/core/array.h"

namespace samba {

class EvaluationProgress {
 public:
  // `patience`: evaluations in a row that are no better by more than `min_delta` than the last that was; 0: no limit.
  EvaluationProgress(Index patience, double min_delta) : patience_(patience), min_delta_(min_delta) {}

  // True when it is the best so far. One that was not due by evaluation.every (that of a run's last step) is asked
  // about, not remembered: a run that goes on is like one that was not stopped there.
  bool add(Index step, double loss, bool due) {
    const bool best = !best_loss_ || loss < *best_loss_;
    if (!due) return best;
    if (best) {
      best_loss_ = loss;
      best_step_ = step;
    }
    if (!mark_ || loss < *mark_ - min_delta_) {
      mark_ = loss;
      in_a_row_ = 0;
    } else {
      ++in_a_row_;
    }
    return best;
  }

  bool plateau() const { return patience_ > 0 && in_a_row_ >= patience_; }
  Index best_step() const { return best_step_; }  // 0: none yet

 private:
  Index patience_;
  double min_delta_;
  std::optional<double> best_loss_;
  Index best_step_ = 0;
  std::optional<double> mark_;
  Index in_a_row_ = 0;
};

}  // namespace samba
