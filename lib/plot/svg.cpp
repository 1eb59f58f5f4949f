#include "samba/plot/svg.h"

#include <cstdio>
#include <cstdlib>
#include <limits>

namespace samba::plot {

namespace {

// At most two decimals, without zeros at the end.
std::string number(double value) {
  char text[48];
  std::snprintf(text, sizeof text, "%.2f", value);
  std::string result = text;
  while (result.back() == '0') result.pop_back();
  if (result.back() == '.') result.pop_back();
  return result == "-0" ? "0" : result;
}

std::string attribute(const char* name, const std::string& value) {
  return std::string(" ") + name + "=\"" + value + "\"";
}
std::string attribute(const char* name, double value) { return attribute(name, number(value)); }

class Writer {
 public:
  explicit Writer(bool classes) : classes_(classes) {}

  void operator()(const Rectangle& shape) {
    text_ += "<rect" + attribute("x", shape.corner.x) + attribute("y", shape.corner.y) +
             attribute("width", shape.width) + attribute("height", shape.height) + fill(shape.paint) + "/>\n";
  }

  void operator()(const Polyline& shape) {
    if (shape.points.empty()) return;
    std::string points;
    for (const Point& point : shape.points) {
      points += (points.empty() ? "" : " ") + number(point.x) + "," + number(point.y);
    }
    text_ += "<polyline fill=\"none\"" +
             (classes_ ? attribute("class", "l " + name_of(shape.paint))
                       : attribute("stroke", hex_text(color_of(shape.paint)))) +
             opacity("stroke-opacity", shape.paint) + attribute("stroke-width", shape.width) +
             (shape.dashed ? attribute("stroke-dasharray", "5 4") : "") + " stroke-linejoin=\"round\"" +
             attribute("points", points) + "/>\n";
  }

  void operator()(const Circle& shape) {
    text_ += "<circle" + attribute("cx", shape.center.x) + attribute("cy", shape.center.y) +
             attribute("r", shape.radius) + fill(shape.paint) + "/>\n";
  }

  void operator()(const Text& shape) {
    static constexpr const char* kAnchors[] = {"start", "middle", "end"};
    const std::string x = number(shape.at.x), y = number(shape.at.y);
    text_ += "<text" + attribute("x", x) + attribute("y", y) + attribute("font-size", shape.size) +
             attribute("text-anchor", kAnchors[static_cast<int>(shape.anchor)]) + fill(shape.paint) +
             (shape.bold ? " font-weight=\"600\"" : "") +
             (shape.upright ? attribute("transform", "rotate(-90 " + x + " " + y + ")") : "") + ">" +
             escaped(shape.text) + "</text>\n";
  }

  std::string take() { return std::move(text_); }

 private:
  static std::string name_of(const Paint& paint) {
    switch (paint.ink) {
      case Ink::background:
        return "i-background";
      case Ink::text:
        return "i-text";
      case Ink::muted:
        return "i-muted";
      case Ink::grid:
        return "i-grid";
      case Ink::series:
        break;
    }
    return "s" + std::to_string(paint.series % kSeriesColors);
  }

  std::string fill(const Paint& paint) const {
    return (classes_ ? attribute("class", "f " + name_of(paint)) : attribute("fill", hex_text(color_of(paint)))) +
           opacity("fill-opacity", paint);
  }

  static std::string opacity(const char* name, const Paint& paint) {
    return paint.opacity < 1.0 ? attribute(name, paint.opacity) : "";
  }

  bool classes_;
  std::string text_;
};

std::string shapes_of(const Drawing& drawing, bool classes) {
  Writer writer(classes);
  for (const Shape& shape : drawing.shapes) std::visit(writer, shape);
  return writer.take();
}

std::string view_box(const Drawing& drawing) {
  return attribute("viewBox", "0 0 " + number(drawing.width) + " " + number(drawing.height));
}

std::string names(const Drawing& drawing, const std::string& id) {
  return " role=\"img\"" + attribute("aria-labelledby", id + "-title " + id + "-description") + ">\n<title id=\"" + id +
         "-title\">" + escaped(drawing.title) + "</title>\n<desc id=\"" + id + "-description\">" +
         escaped(drawing.description) + "</desc>\n";
}

constexpr const char* kFonts = " font-family=\"DejaVu Sans, Verdana, sans-serif\"";

}  // namespace

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : shortened(text, std::numeric_limits<std::size_t>::max())) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string svg_file(const Drawing& drawing) {
  return "<svg xmlns=\"http://www.w3.org/2000/svg\"" + view_box(drawing) + attribute("width", drawing.width) +
         attribute("height", drawing.height) + kFonts + names(drawing, "samba") +
         "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n" + shapes_of(drawing, false) + "</svg>\n";
}

std::string svg_element(const Drawing& drawing, const std::string& id) {
  return "<svg" + attribute("id", id) + view_box(drawing) + names(drawing, id) + shapes_of(drawing, true) + "</svg>\n";
}

}  // namespace samba::plot
