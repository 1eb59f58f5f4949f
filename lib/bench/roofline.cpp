// The picture of a benchmark: where each row lies below the roofs of the machine.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "samba/bench/report.h"
#include "samba/plot/svg.h"

namespace samba::bench {

namespace {

using plot::escaped;

constexpr double kWidth = 800.0;
constexpr double kHeight = 480.0;
constexpr double kLeft = 60.0;
constexpr double kRight = 20.0;
constexpr double kTop = 40.0;
constexpr double kBottom = 45.0;
constexpr const char* kColors[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd"};

std::string number(double value, const char* pattern = "%.2f") {
  char text[48];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

// Decimal logarithms of operations a byte and of GFLOP/s, mapped to the drawing area.
struct Axes {
  double left = -1.0, right = 3.0, low = 0.0, high = 3.0;
  double x(double intensity) const {
    return kLeft + (std::log10(intensity) - left) / (right - left) * (kWidth - kLeft - kRight);
  }
  double y(double gflops) const {
    return kTop + (high - std::log10(gflops)) / (high - low) * (kHeight - kTop - kBottom);
  }
};

struct Point {
  double intensity = 0.0, gflops = 0.0;
  int threads = 1;
  std::string name;
};

std::vector<Point> points_of(const BenchReport& report) {
  std::vector<Point> points;
  for (const Row& row : report.rows) {
    if (row.cost.flops <= 0.0 || row.cost.bytes <= 0.0 || row.timing.wall_min <= 0.0) continue;
    points.push_back({row.cost.intensity(), row.cost.flops / row.timing.wall_min / 1e9, row.threads, row.name});
  }
  return points;
}

Axes make_axes(const BenchReport& report, const std::vector<Point>& points) {
  Axes axes;
  for (const Point& point : points) {
    axes.left = std::min(axes.left, std::floor(std::log10(point.intensity)));
    axes.right = std::max(axes.right, std::ceil(std::log10(point.intensity)));
    axes.low = std::min(axes.low, std::floor(std::log10(point.gflops)));
    axes.high = std::max(axes.high, std::ceil(std::log10(point.gflops)));
  }
  for (const auto& [threads, limits] : report.machine.limits) {
    axes.high = std::max(axes.high, std::ceil(std::log10(limits.flops / 1e9)));
  }
  return axes;
}

std::string text_at(double x, double y, const std::string& text, const char* anchor, const char* color = "black") {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor + "\" fill=\"" + color +
         "\">" + escaped(text) + "</text>\n";
}

std::string grid(const Axes& axes) {
  std::string svg;
  for (double decade = axes.low; decade <= axes.high; decade += 1.0) {
    const double y = axes.y(std::pow(10.0, decade));
    svg += "<line x1=\"" + number(kLeft) + "\" x2=\"" + number(kWidth - kRight) + "\" y1=\"" + number(y) + "\" y2=\"" +
           number(y) + "\" stroke=\"#ddd\"/>\n" +
           text_at(kLeft - 8, y + 4, number(std::pow(10.0, decade), "%g"), "end");
  }
  for (double decade = axes.left; decade <= axes.right; decade += 1.0) {
    const double x = axes.x(std::pow(10.0, decade));
    svg += "<line x1=\"" + number(x) + "\" x2=\"" + number(x) + "\" y1=\"" + number(kTop) + "\" y2=\"" +
           number(kHeight - kBottom) + "\" stroke=\"#ddd\"/>\n" +
           text_at(x, kHeight - kBottom + 18, number(std::pow(10.0, decade), "%g"), "middle");
  }
  return svg;
}

// From the left edge along the bandwidth to the ridge, then flat.
std::string roof(const Axes& axes, const MachineLimits& limits, const char* color) {
  const double peak = limits.flops / 1e9, bandwidth = limits.best_read_bytes() / 1e9;
  const double first = std::max(std::pow(10.0, axes.left), std::pow(10.0, axes.low) / bandwidth);
  const double ridge = peak / bandwidth;
  std::string points = number(axes.x(first)) + "," + number(axes.y(std::min(peak, first * bandwidth)));
  if (ridge > first) points += " " + number(axes.x(ridge)) + "," + number(axes.y(peak));
  points += " " + number(kWidth - kRight) + "," + number(axes.y(peak));
  return "<polyline fill=\"none\" stroke=\"" + std::string(color) + "\" stroke-width=\"1.5\" points=\"" + points +
         "\"/>\n";
}

}  // namespace

std::string roofline_svg(const BenchReport& report) {
  const std::vector<Point> points = points_of(report);
  const Axes axes = make_axes(report, points);
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(kWidth, "%.0f") + " " +
                    number(kHeight, "%.0f") + "\" font-family=\"sans-serif\" font-size=\"12\">\n" +
                    "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n" + grid(axes);
  std::size_t color = 0;
  std::map<int, const char*> colors;
  double legend = kLeft;
  for (const auto& [threads, limits] : report.machine.limits) {
    colors[threads] = kColors[color++ % std::size(kColors)];
    svg += roof(axes, limits, colors[threads]);
    svg += text_at(legend, kTop - 12,
                   std::to_string(threads) + (threads == 1 ? " thread: " : " threads: ") +
                       number(limits.flops / 1e9, "%.0f") + " GFLOP/s, " +
                       number(limits.best_read_bytes() / 1e9, "%.0f") + " GB/s",
                   "start", colors[threads]);
    legend += 250.0;
  }
  for (const Point& point : points) {
    const auto found = colors.find(point.threads);
    svg += "<circle cx=\"" + number(axes.x(point.intensity)) + "\" cy=\"" + number(axes.y(point.gflops)) +
           "\" r=\"3\" fill=\"" + (found == colors.end() ? "black" : found->second) +
           "\" fill-opacity=\"0.7\"><title>" + escaped(point.name) + ": " + number(point.gflops, "%.1f") +
           " GFLOP/s</title></circle>\n";
  }
  svg += text_at(kWidth / 2, kHeight - 8, "operations a byte of memory", "middle");
  svg += text_at(kLeft, 14, "GFLOP/s; " + report.machine.processor + ", " + report.machine.time + " UTC", "start");
  return svg + "</svg>\n";
}

}  // namespace samba::bench
