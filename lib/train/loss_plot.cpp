#include "samba/train/loss_plot.h"
#include "samba/core/json_limits.h"
#include "samba/core/streams.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace samba {

namespace {

constexpr double kWidth = 800.0;
constexpr double kHeight = 420.0;
constexpr double kLeft = 60.0;
constexpr double kRight = 20.0;
constexpr double kTop = 30.0;
constexpr double kBottom = 45.0;
constexpr std::size_t kMostPoints = 2000;  // more are thinned: a screen shows no more

// Maps steps and losses to the drawing area.
struct Axes {
  double first = 0.0, last = 1.0, low = 0.0, high = 1.0;
  double x(double step) const { return kLeft + (step - first) / (last - first) * (kWidth - kLeft - kRight); }
  double y(double loss) const { return kTop + (high - loss) / (high - low) * (kHeight - kTop - kBottom); }
};

std::string number(double value, const char* pattern = "%.2f") {
  char text[48];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

Axes make_axes(const LossCurve& curve) {
  std::vector<double> losses = curve.loss;
  losses.insert(losses.end(), curve.eval_loss.begin(), curve.eval_loss.end());
  std::vector<double> steps = curve.step;
  steps.insert(steps.end(), curve.eval_step.begin(), curve.eval_step.end());
  if (losses.empty()) return {};
  const auto [low, high] = std::minmax_element(losses.begin(), losses.end());
  const auto [first, last] = std::minmax_element(steps.begin(), steps.end());
  const double margin = std::max((*high - *low) * 0.05, 1e-3);
  return {*first, std::max(*last, *first + 1.0), *low - margin, *high + margin};
}

// A step between ticks of 1, 2 or 5 times a power of ten.
double tick_distance(double range) {
  const double raw = range / 6.0;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10.0 * power;
}

std::string polyline(const std::vector<double>& steps, const std::vector<double>& losses, const Axes& axes,
                     const char* color) {
  std::string points;
  const std::size_t stride = std::max<std::size_t>(1, steps.size() / kMostPoints);
  for (std::size_t i = 0; i < steps.size(); i += stride) {
    points += number(axes.x(steps[i])) + "," + number(axes.y(losses[i])) + " ";
  }
  return "<polyline fill=\"none\" stroke=\"" + std::string(color) + "\" stroke-width=\"1.5\" points=\"" + points +
         "\"/>\n";
}

std::string text_at(double x, double y, const std::string& text, const char* anchor) {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor + "\">" + text + "</text>\n";
}

}  // namespace

LossCurve read_loss_curve(const Path& metrics) {
  LossCurve curve;
  for (const std::string& line : lines_of(read_file(metrics))) {
    const nlohmann::json value = parse_bounded(line);
    if (!value.is_object() || !value.contains("step") || !value["step"].is_number()) continue;
    if (value.contains("loss") && value["loss"].is_number()) {
      curve.step.push_back(value["step"].get<double>());
      curve.loss.push_back(value["loss"].get<double>());
    }
    if (value.contains("eval_loss") && value["eval_loss"].is_number()) {
      curve.eval_step.push_back(value["step"].get<double>());
      curve.eval_loss.push_back(value["eval_loss"].get<double>());
    }
  }
  return curve;
}

std::string loss_svg(const LossCurve& curve) {
  const Axes axes = make_axes(curve);
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(kWidth, "%.0f") + " " +
                    number(kHeight, "%.0f") + "\" font-family=\"sans-serif\" font-size=\"12\">\n" +
                    "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  const double loss_tick = tick_distance(axes.high - axes.low);
  for (double loss = std::ceil(axes.low / loss_tick) * loss_tick; loss <= axes.high; loss += loss_tick) {
    const std::string y = number(axes.y(loss));
    svg += "<line x1=\"" + number(kLeft) + "\" x2=\"" + number(kWidth - kRight) + "\" y1=\"" + y + "\" y2=\"" + y +
           "\" stroke=\"#ddd\"/>\n" + text_at(kLeft - 8, axes.y(loss) + 4, number(loss, "%.4g"), "end");
  }
  const double step_tick = std::max(1.0, tick_distance(axes.last - axes.first));
  for (double step = std::ceil(axes.first / step_tick) * step_tick; step <= axes.last; step += step_tick) {
    svg += text_at(axes.x(step), kHeight - kBottom + 18, number(step, "%.0f"), "middle");
  }
  svg += polyline(curve.step, curve.loss, axes, "#1f77b4");
  svg += polyline(curve.eval_step, curve.eval_loss, axes, "#d62728");
  svg += text_at(kWidth / 2, kHeight - 8, "step", "middle");
  svg += text_at(kLeft, kTop - 10, curve.eval_loss.empty() ? "loss" : "loss (blue: training, red: held back)", "start");
  return svg + "</svg>\n";
}

}  // namespace samba
