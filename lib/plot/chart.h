// Curves over a common axis, in one or several panels one above the other.
//
//   Chart chart{.title = "runs/first", .x_label = "step"};
//   chart.panels.push_back({.y_label = "loss", .series = {{.label = "training", .x = steps, .y = losses}}});
//   write_file_atomically("loss.svg", svg_file(draw(chart)));
#pragma once

#include <string>
#include <vector>

#include "samba/plot/drawing.h"

namespace samba::plot {

enum class Stroke {
  faint,  // every value, in the background
  line,
  points,  // few values: marked, with a dashed line between them
};

struct Series {
  std::string label;  // "" leaves it out of the legend
  int color = 0;
  Stroke stroke = Stroke::line;
  std::vector<double> x, y;  // x ascending; values that are not finite, or <= 0 on a logarithmic axis, are left out
};

struct Panel {
  std::string y_label;
  bool logarithmic = false;
  double share = 1.0;  // of the height, beside the other panels
  std::vector<Series> series;
};

struct Chart {
  std::string title, description;
  std::string x_label;
  std::vector<Panel> panels;
  std::vector<Series> legend = {};  // entries instead of the labels of the panels' series
  bool title_drawn = true;          // else it is only read out
  double width = 920.0, height = 560.0;
};

// Where a panel was drawn, for whoever finds values below a pointer: left, right, top, bottom in pixels, the values
// there.
struct PanelPlace {
  double left = 0.0, right = 0.0, top = 0.0, bottom = 0.0;
  double first = 0.0, last = 0.0;  // x
  double low = 0.0, high = 0.0;    // y; their decimal logarithms on a logarithmic axis
  bool logarithmic = false;
};

Drawing draw(const Chart& chart, std::vector<PanelPlace>* places = nullptr);

// "1200", "12k", "1.5M", "0.001", "5e-5"
std::string tick_text(double value);

}  // namespace samba::plot
