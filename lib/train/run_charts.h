// Runs as pictures: loss and learning rate over steps or tokens.
#pragma once

#include <span>
#include <string>

#include "samba/plot/chart.h"
#include "samba/train/run_record.h"
#include "samba/train/smoothed_loss.h"

namespace samba {

struct RunChartOptions {
  bool tokens = false;       // the x axis counts tokens, not steps
  bool logarithmic = false;  // the axis of the loss
  double smoothed_steps = kSmoothedSteps;
};

// More runs are not told apart by their colors.
inline constexpr std::size_t kMostPlottedRuns = plot::kSeriesColors;

// The losses of a run without the noise of single steps (smoothed_loss.h), one a step.
std::vector<double> smoothed_losses(const RunRecord& run, double steps);

// What a run counts beside steps: "tokens", "rows".
std::string unit_of(const RunRecord& run);

// One run: its loss step by step, smoothed, and of what is held out. Several: a color each, without the single steps
// when there are more than three.
plot::Chart run_chart(std::span<const RunRecord> runs, const RunChartOptions& options);

// The picture that a run keeps of itself.
std::string loss_svg(const RunRecord& run);

}  // namespace samba
