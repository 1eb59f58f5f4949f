// A picture as a list of shapes, whatever it becomes: SVG (svg.h), PNG (png.h), a part of a page (train/run_report.h).
//
// Lengths are pixels from the upper left corner. Colors are said by what they are for; a palette makes them light or
// dark.
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace samba::plot {

enum class Ink { background, text, muted, grid, series };

struct Paint {
  Ink ink = Ink::text;
  int series = 0;  // of Ink::series: which color, counted around
  double opacity = 1.0;
};

struct Point {
  double x = 0.0, y = 0.0;
};

struct Polyline {
  std::vector<Point> points;
  Paint paint;
  double width = 1.0;
  bool dashed = false;
};

enum class Anchor { start, middle, end };

struct Text {
  Point at;  // on the baseline
  std::string text;
  double size = 12.0;
  Anchor anchor = Anchor::start;
  Paint paint = {};
  bool bold = false;
  bool upright = false;  // written from below to above
};

struct Circle {
  Point center;
  double radius = 3.0;
  Paint paint;
};

struct Rectangle {
  Point corner;
  double width = 0.0, height = 0.0;
  Paint paint;
};

using Shape = std::variant<Rectangle, Polyline, Circle, Text>;

struct Drawing {
  double width = 0.0, height = 0.0;
  std::string title, description;  // read out where pictures are not seen
  std::vector<Shape> shapes;       // the later ones above
};

// Red, green, blue in 0..255.
struct Color {
  int red = 0, green = 0, blue = 0;
};

inline constexpr int kSeriesColors = 8;

// The colors of both palettes have a contrast of at least 4.5 to 1 with their background, but for the grid.
Color color_of(const Paint& paint, bool dark = false);
std::string hex_text(Color color);  // "#2563c9"

// About how wide a text is in a sans-serif face, for placing things beside it.
double text_width(const std::string& text, double size);

// At most `most` characters, the middle of a longer text left out. Bytes that are no UTF-8 and control characters
// become U+FFFD.
std::string shortened(const std::string& text, std::size_t most);

}  // namespace samba::plot
