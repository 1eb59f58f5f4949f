#include "samba/train/run_charts.h"

#include <cstdio>

#include "samba/plot/svg.h"

namespace samba {

namespace {

constexpr std::size_t kMostFaintRuns = 3;
constexpr int kKeyColor = plot::kSeriesColors - 1;  // gray: of what is said of all runs

std::string text_of(double value) {
  char text[48];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

struct RunSeries {
  plot::Series each, smoothed, held_out, lr;
};

RunSeries series_of(const RunRecord& run, const RunChartOptions& options, int color, int held_out_color) {
  RunSeries series;
  series.each.stroke = plot::Stroke::faint;
  series.held_out.stroke = plot::Stroke::points;
  for (plot::Series* one : {&series.each, &series.smoothed, &series.lr}) one->color = color;
  series.held_out.color = held_out_color;
  for (const RecordedStep& step : run.steps) {
    const double x = options.tokens ? static_cast<double>(step.tokens) : static_cast<double>(step.step);
    for (plot::Series* one : {&series.each, &series.smoothed, &series.lr}) one->x.push_back(x);
    series.each.y.push_back(step.loss);
    series.lr.y.push_back(step.lr);
  }
  series.smoothed.y = smoothed_losses(run, options.smoothed_steps);
  for (const RecordedEvaluation& evaluation : run.evaluations) {
    series.held_out.x.push_back(options.tokens ? static_cast<double>(run.tokens_at(evaluation.step))
                                               : static_cast<double>(evaluation.step));
    series.held_out.y.push_back(evaluation.loss);
  }
  return series;
}

std::string description_of(const RunRecord& run, const RunChartOptions& options) {
  const RecordedStep& first = run.steps.front();
  const RecordedStep& last = run.steps.back();
  std::string text = run.name + ": training loss from " + text_of(first.loss) + " at step " +
                     std::to_string(first.step) + " to " + text_of(last.loss) + " at step " +
                     std::to_string(last.step) + ", smoothed " +
                     text_of(smoothed_losses(run, options.smoothed_steps).back());
  if (!run.evaluations.empty()) {
    const RecordedEvaluation& evaluation = run.evaluations.back();
    text += "; held-out loss " + text_of(evaluation.loss) + " at step " + std::to_string(evaluation.step);
  }
  return text + "; learning rate from " + text_of(first.lr) + " to " + text_of(last.lr) + ".";
}

}  // namespace

std::vector<double> smoothed_losses(const RunRecord& run, double steps) {
  SmoothedLoss smoothed(steps);
  std::vector<double> losses;
  losses.reserve(run.steps.size());
  for (const RecordedStep& step : run.steps) losses.push_back(smoothed.add(step.loss));
  return losses;
}

std::string unit_of(const RunRecord& run) {
  const auto model = run.config.is_object() ? run.config.find("model") : run.config.end();
  const bool rows = run.config.is_object() && model != run.config.end() && model->is_object() &&
                    model->value("kind", nlohmann::ordered_json()) == "mlp";
  return rows ? "rows" : "tokens";
}

plot::Chart run_chart(std::span<const RunRecord> runs, const RunChartOptions& options) {
  plot::Chart chart;
  const bool alone = runs.size() == 1;
  chart.title = alone ? runs[0].name : std::to_string(runs.size()) + " runs";
  chart.x_label = options.tokens && !runs.empty() ? unit_of(runs[0]) : "step";
  plot::Panel loss, lr;
  loss.y_label = options.logarithmic ? "loss (logarithmic)" : "loss";
  loss.logarithmic = options.logarithmic;
  loss.share = 3.0;
  lr.y_label = "learning rate";
  bool any_held_out = false;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunRecord& run = runs[i];
    if (run.steps.empty()) continue;
    const int color = static_cast<int>(i);
    RunSeries series = series_of(run, options, color, alone ? 1 : color);
    chart.description += (chart.description.empty() ? "" : " ") + description_of(run, options);
    any_held_out |= !run.evaluations.empty();
    if (alone) {
      series.each.label = "training, each step";
      series.smoothed.label = "training, smoothed";
      if (!run.evaluations.empty()) series.held_out.label = "held out";
    } else {
      chart.legend.push_back({run.name, color, plot::Stroke::line, {}, {}});
    }
    if (runs.size() <= kMostFaintRuns) loss.series.push_back(std::move(series.each));
    loss.series.push_back(std::move(series.smoothed));
    if (!run.evaluations.empty()) loss.series.push_back(std::move(series.held_out));
    lr.series.push_back(std::move(series.lr));
  }
  if (!alone && !chart.legend.empty()) {
    if (runs.size() <= kMostFaintRuns) {
      chart.legend.push_back({"training, each step", kKeyColor, plot::Stroke::faint, {}, {}});
    }
    chart.legend.push_back({"training, smoothed", kKeyColor, plot::Stroke::line, {}, {}});
    if (any_held_out) chart.legend.push_back({"held out", kKeyColor, plot::Stroke::points, {}, {}});
  }
  chart.panels = {std::move(loss), std::move(lr)};
  return chart;
}

std::string loss_svg(const RunRecord& run) {
  plot::Chart chart = run_chart(std::span(&run, 1), {});
  chart.title = run.name.empty() ? "Loss" : run.name;
  return plot::svg_file(plot::draw(chart));
}

}  // namespace samba
