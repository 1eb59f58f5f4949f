// Curves as drawings, SVG, PNG and as the page of a report.
#include <catch2/catch.hpp>
#include <regex>

#include "samba/plot/chart.h"
#include "samba/plot/png.h"
#include "samba/plot/svg.h"
#include "samba/train/run_report.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;

RunRecord falling_run(const std::string& name, int steps, double from) {
  RunRecord run;
  run.name = name;
  for (int i = 1; i <= steps; ++i) {
    RecordedStep step;
    step.step = i;
    step.loss = from / i + 1.0;
    step.lr = 0.001 * i / steps;
    step.total_norm = 0.5;
    step.tokens = static_cast<std::uint64_t>(i) * 32;
    step.seconds = 0.25;
    run.steps.push_back(step);
  }
  run.evaluations = {{steps / 2, 2.0, 2.9, {}}, {steps, 1.5, 2.2, {}}};
  run.config = {
      {"steps", steps},
      {"seed", 7},
      {"model",
       {{"vocab", 256}, {"d_model", 32}, {"layers", {"mamba3", "attention"}}, {"n_heads", 2}, {"intermediate", 32}}},
      {"batch", {{"rows", 2}, {"length", 16}}}};
  run.card = "0123456789abcdef0123456789abcdef";
  return run;
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::vector<std::pair<double, double>> points_of(const std::string& points) {
  std::vector<std::pair<double, double>> found;
  static const std::regex pair("([-0-9.]+),([-0-9.]+)");
  for (std::sregex_iterator it(points.begin(), points.end(), pair); it != std::sregex_iterator(); ++it) {
    found.emplace_back(std::stod((*it)[1]), std::stod((*it)[2]));
  }
  return found;
}

TEST_CASE("ticks are written short") {
  CHECK(plot::tick_text(0.0) == "0");
  CHECK(plot::tick_text(1200) == "1200");
  CHECK(plot::tick_text(12000) == "12k");
  CHECK(plot::tick_text(1500000) == "1.5M");
  CHECK(plot::tick_text(2e9) == "2G");
  CHECK(plot::tick_text(0.0005) == "0.0005");
  CHECK(plot::tick_text(0.00005) == "5e-5");
  CHECK(plot::tick_text(-2.5) == "-2.5");
}

TEST_CASE("a line goes through its values: first at the left, last at the right, a linear axis between") {
  plot::Chart chart;
  chart.panels.push_back({"y", false, 1.0, {{"line", 0, plot::Stroke::line, {0, 50, 100}, {0, 5, 10}}}});
  std::vector<plot::PanelPlace> places;
  const plot::Drawing drawing = plot::draw(chart, &places);
  REQUIRE(places.size() == 1);
  const plot::PanelPlace& place = places[0];
  CHECK(place.low == 0.0);
  CHECK(place.high == Approx(10.5));
  const plot::Polyline* line = nullptr;
  for (const plot::Shape& shape : drawing.shapes) {
    const auto* one = std::get_if<plot::Polyline>(&shape);
    if (one != nullptr && one->paint.ink == plot::Ink::series && one->points.size() == 3) line = one;
  }
  REQUIRE(line != nullptr);
  CHECK(line->points[0].x == Approx(place.left));
  CHECK(line->points[2].x == Approx(place.right));
  CHECK(line->points[0].y == Approx(place.bottom));
  CHECK(line->points[1].x == Approx((place.left + place.right) / 2));
  CHECK(line->points[1].y == Approx((line->points[0].y + line->points[2].y) / 2));
}

TEST_CASE("a logarithmic axis has equal distances for equal ratios and leaves out what is not above zero") {
  plot::Chart chart;
  chart.panels.push_back({"y", true, 1.0, {{"", 0, plot::Stroke::line, {0, 1, 2, 3}, {1, 10, 0, 100}}}});
  const std::string svg = plot::svg_file(plot::draw(chart));
  std::smatch match;
  REQUIRE(
      std::regex_search(svg, match, std::regex("stroke-width=\"2\" stroke-linejoin=\"round\" points=\"([^\"]*)\"")));
  const auto points = points_of(match[1]);
  REQUIRE(points.size() == 3);
  CHECK(points[0].second - points[1].second == Approx(points[1].second - points[2].second).margin(0.02));
}

TEST_CASE("of many values a line keeps the extremes of every column of pixels") {
  plot::Series series{"", 0, plot::Stroke::line, {}, {}};
  for (int i = 0; i < 100000; ++i) {
    series.x.push_back(i);
    series.y.push_back(i == 61234 ? 50.0 : i % 7);
  }
  plot::Chart chart;
  chart.panels.push_back({"y", false, 1.0, {series}});
  std::vector<plot::PanelPlace> places;
  const plot::Drawing drawing = plot::draw(chart, &places);
  std::size_t most = 0;
  double highest = 1e9;
  for (const plot::Shape& shape : drawing.shapes) {
    const auto* line = std::get_if<plot::Polyline>(&shape);
    if (line == nullptr || line->paint.ink != plot::Ink::series) continue;
    most = std::max(most, line->points.size());
    for (const plot::Point& point : line->points) highest = std::min(highest, point.y);
  }
  CHECK(most > 1000);
  CHECK(most < 4000);
  const double wanted =
      places[0].top + (places[0].high - 50.0) / (places[0].high - places[0].low) * (places[0].bottom - places[0].top);
  CHECK(highest == Approx(wanted));
}

TEST_CASE("the picture of a run has its curves, axes, a title and a text for those who do not see it") {
  const RunRecord run = falling_run("runs/<first> & \"co\"", 40, 4.0);
  const std::string svg = loss_svg(run);
  CHECK(svg == loss_svg(run));
  CHECK_THAT(svg, Contains("<title id=\"samba-title\">runs/&lt;first&gt; &amp; &quot;co&quot;</title>"));
  CHECK_THAT(svg, Contains("training loss from 5 at step 1 to 1.1 at step 40") && Contains("held-out loss 1.5"));
  CHECK_THAT(svg, Contains(">learning rate</text>") && Contains(">step</text>") && Contains(">held out</text>"));
  CHECK(count_of(svg, "<circle") == 3);  // two evaluations and the sample in the legend
  CHECK(svg.find("<first>") == std::string::npos);
  const std::string tokens = plot::svg_file(plot::draw(run_chart(std::span(&run, 1), {.tokens = true})));
  CHECK_THAT(tokens, Contains(">tokens</text>") && Contains(">1200</text>"));
}

TEST_CASE("a run of one step is a mark, and one without any step an empty picture") {
  CHECK_THAT(loss_svg(falling_run("one", 1, 3.0)), Contains("<circle"));
  CHECK_THAT(loss_svg(RunRecord()), Contains("</svg>"));
}

TEST_CASE("runs that are drawn together have a color each, and are named in the legend") {
  const std::vector<RunRecord> runs = {falling_run("a", 40, 4.0), falling_run("b", 20, 3.0)};
  const std::string svg = plot::svg_file(plot::draw(run_chart(runs, {})));
  for (const int color : {0, 1}) {
    CHECK_THAT(svg, Contains("stroke=\"" + plot::hex_text(plot::color_of({plot::Ink::series, color})) + "\""));
  }
  CHECK_THAT(svg, Contains(">a</text>") && Contains(">b</text>") && Contains(">2 runs</text>"));
}

TEST_CASE("the colors of both palettes have a contrast of 4.5 to 1 with their ground") {
  const auto linear = [](int value) {
    const double part = value / 255.0;
    return part <= 0.04045 ? part / 12.92 : std::pow((part + 0.055) / 1.055, 2.4);
  };
  const auto luminance = [&](plot::Color color) {
    return 0.2126 * linear(color.red) + 0.7152 * linear(color.green) + 0.0722 * linear(color.blue);
  };
  for (const bool dark : {false, true}) {
    const double ground = luminance(plot::color_of({plot::Ink::background}, dark));
    std::vector<plot::Paint> paints = {{plot::Ink::text}, {plot::Ink::muted}};
    for (int i = 0; i < plot::kSeriesColors; ++i) paints.push_back({plot::Ink::series, i});
    for (const plot::Paint& paint : paints) {
      const double ink = luminance(plot::color_of(paint, dark));
      INFO(dark << " " << static_cast<int>(paint.ink) << " " << paint.series);
      CHECK((std::max(ink, ground) + 0.05) / (std::min(ink, ground) + 0.05) >= 4.5);
    }
  }
}

TEST_CASE("a PNG has the size of the drawing times the scale, the same bytes each time, and no date") {
  const RunRecord run = falling_run("runs/first", 40, 4.0);
  const plot::Drawing drawing = plot::draw(run_chart(std::span(&run, 1), {}));
  const std::string png = plot::png_file(drawing, 2.0);
  CHECK(png == plot::png_file(drawing, 2.0));
  REQUIRE(png.size() > 5000);
  CHECK(png.substr(0, 8) == "\x89PNG\r\n\x1a\n");
  const auto number_at = [&](std::size_t at) {
    unsigned value = 0;
    for (std::size_t i = 0; i < 4; ++i) value = value << 8U | static_cast<unsigned char>(png[at + i]);
    return value;
  };
  CHECK(number_at(16) == static_cast<unsigned>(2 * drawing.width));
  CHECK(number_at(20) == static_cast<unsigned>(2 * drawing.height));
  for (const char* chunk : {"tIME", "tEXt", "iTXt"}) CHECK(png.find(chunk) == std::string::npos);
}

TEST_CASE("the report is one page that loads nothing, with a table of the runs") {
  std::vector<RunRecord> runs = {falling_run("a</script><b>", 40, 4.0), falling_run("b", 20, 3.0)};
  runs[0].sample = "=== step 40\n<i>text\x01\xff";
  const std::string html = run_report_html(runs, {});
  CHECK(html == run_report_html(runs, {}));
  for (const char* outside : {"http://", "https://", "//cdn", "src=", "@import", "url("}) {
    std::string rest = html;  // the name of the SVG namespace is no address that is loaded
    for (std::size_t at; (at = rest.find("http://www.w3.org/2000/svg")) != std::string::npos;) rest.erase(at, 26);
    INFO(outside);
    CHECK(rest.find(outside) == std::string::npos);
  }
  CHECK(count_of(html, "</script>") == 2);
  CHECK_THAT(html, Contains("a&lt;/script&gt;&lt;b&gt;") && Contains("&lt;i&gt;text\xEF\xBF\xBD\xEF\xBF\xBD"));
  CHECK_THAT(html, Contains("<th scope=\"row\">Layers</th><td>2: 1 mamba3, 1 attention</td>"));
  CHECK_THAT(html, Contains("<tr class=\"differs\"><th scope=\"row\">Steps</th><td>40 of 40</td><td>20 of 20</td>"));
  CHECK_THAT(html, Contains("<tr><th scope=\"row\">Seed</th><td>7</td><td>7</td>"));
  CHECK_THAT(html, Contains("1.5 at step 40, 2.2 bits per byte"));
  for (const char* id : {"steps-linear", "steps-log", "tokens-linear", "tokens-log"}) {
    CHECK_THAT(html, Contains("data-chart=\"" + std::string(id) + "\""));
  }
  CHECK(count_of(html, "\" hidden>\n<svg") == 3);
  const std::size_t begin = html.find("id=\"data\">") + 10;
  const auto data = nlohmann::json::parse(html.substr(begin, html.find("</script>", begin) - begin));
  CHECK(data["runs"][0]["name"] == "a</script><b>");
  CHECK(data["runs"][1]["values"]["step"].size() == 20);
  CHECK(data["runs"][1]["values"]["loss"][0] == 4.0);
  CHECK(data["runs"][0]["values"]["evalTokens"] == nlohmann::json({640, 1280}));
  CHECK(data["places"]["steps-log"][0]["log"] == true);
}

TEST_CASE("the smoothed loss is the mean of about the last quarter of the steps, and no more than it is told") {
  SmoothedLoss smoothed;
  CHECK(smoothed.value() == 0.0);
  CHECK(smoothed.add(4.0) == 4.0);
  CHECK(smoothed.add(1.0) == Approx(4.0 - 3.0 / 1.25));
  CHECK(smoothed.add(1.0) == Approx(1.6 - 0.6 / 1.5));
  for (int step = 3; step < 1000; ++step) smoothed.add(2.0);
  const double before = smoothed.value();
  CHECK(smoothed.add(3.0) == Approx(before + (3.0 - before) / 50.0));
  SmoothedLoss plain(1.0);
  plain.add(4.0);
  CHECK(plain.add(1.0) == 1.0);
}

}  // namespace
}  // namespace samba
