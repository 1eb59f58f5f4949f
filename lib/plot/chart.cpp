#include "samba/plot/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

namespace samba::plot {

namespace {

constexpr double kLeft = 74.0, kRight = 26.0, kTop = 14.0, kBottom = 50.0, kBetween = 22.0;
constexpr double kTitleSize = 15.0, kTextSize = 12.0, kLegendRow = 20.0, kSwatch = 22.0;
constexpr std::size_t kMostTitle = 90, kMostLabel = 44;

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  bool empty() const { return low > high; }
  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

bool usable(const Panel& panel, const Series& series, std::size_t i) {
  return std::isfinite(series.x[i]) && std::isfinite(series.y[i]) && (!panel.logarithmic || series.y[i] > 0.0);
}

double axis_value(const PanelPlace& place, double y) { return place.logarithmic ? std::log10(y) : y; }

// Calls visit(x, y) with the values that are drawn.
template <class Visit>
void for_each_value(const Panel& panel, const Visit& visit) {
  for (const Series& series : panel.series) {
    for (std::size_t i = 0; i < std::min(series.x.size(), series.y.size()); ++i) {
      if (usable(panel, series, i)) visit(series.x[i], series.y[i]);
    }
  }
}

Range x_range(const Chart& chart) {
  Range range;
  for (const Panel& panel : chart.panels) {
    for_each_value(panel, [&](double x, double) { range.take(x); });
  }
  if (range.empty()) return {0.0, 1.0};
  if (range.low == range.high) range.high = range.low + 1.0;
  return range;
}

void set_y_range(const Panel& panel, PanelPlace& place) {
  place.logarithmic = panel.logarithmic;
  Range range;
  for_each_value(panel, [&](double, double y) { range.take(axis_value(place, y)); });
  if (range.empty()) range = {0.0, 1.0};
  const double size = std::max(std::abs(range.low), std::abs(range.high));
  const double margin = std::max((range.high - range.low) * 0.05, size > 0.0 ? size * 1e-3 : 1e-9);
  const bool from_zero = !place.logarithmic && range.low >= 0.0 && range.low < margin;
  place.low = from_zero ? 0.0 : range.low - margin;
  place.high = range.high + margin;
}

// 1, 2 or 5 times a power of ten, so that about `wanted` of them fit.
double tick_distance(double range, double wanted) {
  const double raw = range / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * (1.0 - 1e-9)) return factor * power;
  }
  return 10.0 * power;
}

std::vector<double> linear_ticks(double low, double high, double wanted) {
  const double distance = tick_distance(high - low, wanted);
  std::vector<double> ticks;
  const double first = std::ceil(low / distance - 1e-9);
  for (double k = first; k * distance <= high + distance * 1e-9 && ticks.size() < 100; k += 1.0) {
    ticks.push_back(k == 0.0 ? 0.0 : k * distance);
  }
  return ticks;
}

// Of an axis from 10^low to 10^high: powers of ten, with more between them where there are few; plain values within
// less than a decade.
std::vector<double> logarithmic_ticks(double low, double high, double wanted) {
  if (high - low < 0.7) return linear_ticks(std::pow(10.0, low), std::pow(10.0, high), wanted);
  std::vector<double> ticks;
  const double skip = std::max(1.0, std::ceil((high - low) / (wanted * 1.5)));
  for (double decade = std::floor(low); decade <= std::ceil(high) && ticks.size() < 100; decade += skip) {
    for (const double factor : {1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0}) {
      const bool coarse = factor == 1.0 || factor == 2.0 || factor == 5.0;
      if (!coarse && high - low > wanted / 6.0) continue;
      if (factor > 1.0 && high - low > wanted / 2.0) continue;
      const double place = decade + std::log10(factor);
      if (place >= low - 1e-9 && place <= high + 1e-9) ticks.push_back(factor * std::pow(10.0, decade));
    }
  }
  return ticks;
}

// The points of a line: of each column of pixels no more than the first, the least, the greatest and the last.
class Thinner {
 public:
  std::vector<Point> points;

  void add(Point point) {
    const double column = std::floor(point.x);
    if (count_ > 0 && column != column_) flush();
    column_ = column;
    if (count_++ == 0) {
      first_ = low_ = high_ = last_ = {point, 0};
      return;
    }
    last_ = {point, count_};
    if (point.y < low_.point.y) low_ = last_;
    if (point.y > high_.point.y) high_ = last_;
  }
  void flush() {
    Numbered kept[] = {first_, low_, high_, last_};
    std::sort(std::begin(kept), std::end(kept),
              [](const Numbered& a, const Numbered& b) { return a.number < b.number; });
    for (std::size_t i = 0; i < std::size(kept) && count_ > 0; ++i) {
      if (i == 0 || kept[i].number != kept[i - 1].number) points.push_back(kept[i].point);
    }
    count_ = 0;
  }

 private:
  struct Numbered {
    Point point;
    std::size_t number = 0;
  };
  double column_ = 0.0;
  std::size_t count_ = 0;
  Numbered first_, low_, high_, last_;
};

class ChartDrawing {
 public:
  explicit ChartDrawing(const Chart& chart) : chart_(chart) {
    drawing_.width = chart.width;
    drawing_.height = chart.height;
    drawing_.title = chart.title;
    drawing_.description = chart.description;
  }

  Drawing take(std::vector<PanelPlace>* places) {
    double top = kTop;
    if (chart_.title_drawn) {
      top += kTitleSize;
      text({{kLeft, top}, shortened(chart_.title, kMostTitle), kTitleSize, Anchor::start, {}, true});
      top += 10.0;
    }
    top = legend(top) + 8.0;
    place_panels(top);
    for (std::size_t i = 0; i < places_.size(); ++i) panel(chart_.panels[i], places_[i], i + 1 == places_.size());
    if (places != nullptr) *places = places_;
    return std::move(drawing_);
  }

 private:
  void text(Text shape) { drawing_.shapes.emplace_back(std::move(shape)); }
  void line(Point from, Point to, Paint paint, double width = 1.0) {
    drawing_.shapes.emplace_back(Polyline{{from, to}, paint, width});
  }

  std::vector<Series> legend_entries() const {
    if (!chart_.legend.empty()) return chart_.legend;
    std::vector<Series> entries;
    for (const Panel& panel : chart_.panels) {
      for (const Series& series : panel.series) {
        if (!series.label.empty()) entries.push_back({series.label, series.color, series.stroke, {}, {}});
      }
    }
    return entries;
  }

  // Rows of samples and labels from `top` on; returns their lower end.
  double legend(double top) {
    double x = kLeft, y = top + kLegendRow / 2.0;
    bool any = false;
    for (const Series& entry : legend_entries()) {
      const std::string label = shortened(entry.label, kMostLabel);
      const double width = kSwatch + 6.0 + text_width(label, kTextSize) + 18.0;
      if (any && x + width > chart_.width - kRight) {
        x = kLeft;
        y += kLegendRow;
      }
      any = true;
      stroke({{x, y}, {x + kSwatch, y}}, entry);
      if (entry.stroke == Stroke::points) {
        drawing_.shapes.emplace_back(Circle{{x + kSwatch / 2.0, y}, 3.5, {Ink::series, entry.color}});
      }
      text({{x + kSwatch + 6.0, y + 4.0}, label, kTextSize, Anchor::start, {Ink::text}});
      x += width;
    }
    return any ? y + kLegendRow / 2.0 : top;
  }

  void place_panels(double top) {
    const Range range = x_range(chart_);
    double shares = 0.0;
    for (const Panel& panel : chart_.panels) shares += panel.share;
    const auto gaps = static_cast<double>(chart_.panels.empty() ? 0 : chart_.panels.size() - 1) * kBetween;
    const double height = std::max(40.0, chart_.height - kBottom - top - gaps);
    for (const Panel& panel : chart_.panels) {
      PanelPlace place{kLeft, chart_.width - kRight, top, top + height * panel.share / shares, range.low, range.high};
      set_y_range(panel, place);
      top = place.bottom + kBetween;
      places_.push_back(place);
    }
  }

  static double x_of(const PanelPlace& place, double x) {
    return place.left + (x - place.first) / (place.last - place.first) * (place.right - place.left);
  }
  static double y_of(const PanelPlace& place, double y) {
    return place.top + (place.high - axis_value(place, y)) / (place.high - place.low) * (place.bottom - place.top);
  }

  void panel(const Panel& panel, const PanelPlace& place, bool lowest) {
    const double wanted = std::max(2.0, (place.bottom - place.top) / 46.0);
    const std::vector<double> ticks = place.logarithmic ? logarithmic_ticks(place.low, place.high, wanted)
                                                        : linear_ticks(place.low, place.high, wanted);
    for (const double tick : ticks) {
      const double y = y_of(place, tick);
      line({place.left, y}, {place.right, y}, {Ink::grid});
      text({{place.left - 8.0, y + 4.0}, tick_text(tick), kTextSize, Anchor::end, {Ink::muted}});
    }
    for (const double tick : linear_ticks(place.first, place.last, 8.0)) {
      const double x = x_of(place, tick);
      line({x, place.top}, {x, place.bottom}, {Ink::grid});
      if (lowest) text({{x, place.bottom + 18.0}, tick_text(tick), kTextSize, Anchor::middle, {Ink::muted}});
    }
    line({place.left, place.bottom}, {place.right, place.bottom}, {Ink::muted});
    line({place.left, place.top}, {place.left, place.bottom}, {Ink::muted});
    text(
        {{18.0, (place.top + place.bottom) / 2.0}, panel.y_label, kTextSize, Anchor::middle, {Ink::text}, false, true});
    if (lowest) {
      text({{(place.left + place.right) / 2.0, place.bottom + 38.0}, chart_.x_label, kTextSize, Anchor::middle});
    }
    for (const Stroke kind : {Stroke::faint, Stroke::line, Stroke::points}) {
      for (const Series& series : panel.series) {
        if (series.stroke == kind) curve(panel, place, series);
      }
    }
  }

  void stroke(std::vector<Point> points, const Series& series) {
    Polyline line;
    line.points = std::move(points);
    line.paint = {Ink::series, series.color, series.stroke == Stroke::faint ? 0.4 : 1.0};
    line.width = series.stroke == Stroke::line ? 2.0 : 1.0;
    line.dashed = series.stroke == Stroke::points;
    drawing_.shapes.emplace_back(std::move(line));
  }

  void curve(const Panel& panel, const PanelPlace& place, const Series& series) {
    Thinner thinner;
    std::vector<Point> marks;
    for (std::size_t i = 0; i < std::min(series.x.size(), series.y.size()); ++i) {
      if (!usable(panel, series, i)) continue;
      const Point point{x_of(place, series.x[i]), y_of(place, series.y[i])};
      thinner.add(point);
      if (series.stroke == Stroke::points) marks.push_back(point);
    }
    thinner.flush();
    const bool alone = thinner.points.size() == 1;
    if (alone && series.stroke != Stroke::points) marks = thinner.points;  // a line of one value is nothing to see
    if (!alone) stroke(std::move(thinner.points), series);
    constexpr double kLeastDistance = 7.0;  // marks nearer than this would become a band
    double before = -kLeastDistance;
    for (std::size_t i = 0; i < marks.size(); ++i) {
      if (marks[i].x - before < kLeastDistance && i + 1 < marks.size()) continue;
      before = marks[i].x;
      drawing_.shapes.emplace_back(Circle{marks[i], 3.5, {Ink::series, series.color}});
    }
  }

  const Chart& chart_;
  Drawing drawing_;
  std::vector<PanelPlace> places_;
};

}  // namespace

std::string tick_text(double value) {
  static constexpr struct {
    double unit;
    const char* name;
  } kUnits[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  char text[48];
  const double size = std::abs(value);
  for (const auto& [unit, name] : kUnits) {
    if (size < unit || size < 1e4) continue;
    std::snprintf(text, sizeof text, "%.5g%s", value / unit, name);
    return text;
  }
  std::snprintf(text, sizeof text, "%.5g", value);
  std::string result = text;
  const std::size_t exponent = result.find("e-0");
  if (exponent != std::string::npos) result.erase(exponent + 2, 1);
  return result;
}

Drawing draw(const Chart& chart, std::vector<PanelPlace>* places) { return ChartDrawing(chart).take(places); }

}  // namespace samba::plot
