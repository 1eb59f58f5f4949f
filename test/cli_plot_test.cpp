// samba plot as a user runs it.
#include <catch2/catch.hpp>

#include "command.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;

std::string step_line(int step, double loss) {
  return nlohmann::json{{"step", step}, {"loss", loss}, {"lr", 0.001}, {"tokens", step * 32}, {"seconds", 0.1}}.dump() +
         "\n";
}

// A folder with two runs that nobody trained.
class PlottedRuns {
 public:
  PlottedRuns() {
    for (const char* name : {"a", "b"}) {
      std::filesystem::create_directories(path(name));
      std::string metrics;
      for (int i = 1; i <= 30; ++i) metrics += step_line(i, 3.0 / i + (name[0] == 'a' ? 1.0 : 2.0));
      write_text(path(name) + "/metrics.jsonl", metrics + "{\"step\":30,\"eval_loss\":1.75,\"bits_per_byte\":2.5}\n");
    }
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  CommandResult plot(const std::vector<std::string>& arguments) const {
    std::vector<std::string> all{"plot"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return samba_command(all);
  }
  std::string refusal(const std::vector<std::string>& arguments, int code = 2) const {
    const CommandResult result = plot(arguments);
    CHECK(result.code == code);
    CHECK(result.out.empty());
    return result.err;
  }

 private:
  TemporaryFolder folder_;
};

TEST_CASE("a run becomes SVG, PNG and HTML in one call; the same call gives the same bytes") {
  const PlottedRuns runs;
  std::vector<std::string> arguments{runs.path("a"), runs.path("b") + "/metrics.jsonl"};
  for (const char* name : {"x.svg", "x.png", "x.html"}) {
    arguments.emplace_back("--out");
    arguments.push_back(runs.path(name));
  }
  const CommandResult first = runs.plot(arguments);
  INFO(first.err);
  REQUIRE(first.code == 0);
  CHECK(first.out == runs.path("x.svg") + "\n" + runs.path("x.png") + "\n" + runs.path("x.html") + "\n");
  std::vector<std::string> bytes;
  for (const char* name : {"x.svg", "x.png", "x.html"}) bytes.push_back(read_file(runs.path(name)));
  CHECK_THAT(bytes[0], Contains(">" + runs.path("a").substr(0, 4)) && Contains("</svg>"));
  CHECK(bytes[1].substr(1, 3) == "PNG");
  CHECK_THAT(bytes[2], Contains("<!DOCTYPE html>") && Contains("1.75 at step 30, 2.5 bits per byte"));
  REQUIRE(runs.plot(arguments).code == 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    CHECK(bytes[i] == read_file(runs.path(std::vector<std::string>{"x.svg", "x.png", "x.html"}[i])));
  }
}

TEST_CASE("plot --json tells the figures of the runs") {
  const PlottedRuns runs;
  const CommandResult result = runs.plot({runs.path("a"), "--out", runs.path("x.svg"), "--json", "--smooth", "1"});
  REQUIRE(result.code == 0);
  const nlohmann::json document = nlohmann::json::parse(result.out);
  CHECK(document["files"] == nlohmann::json({runs.path("x.svg")}));
  CHECK(document["runs"][0]["step"] == 30);
  CHECK(document["runs"][0]["tokens"] == 960);
  CHECK(document["runs"][0]["loss"] == document["runs"][0]["smoothed_loss"]);
  CHECK(document["runs"][0]["eval_loss"] == 1.75);
}

TEST_CASE("plot refuses what is no run, a run without a step, an unknown kind of picture, bad figures") {
  const PlottedRuns runs;
  const std::string svg = runs.path("x.svg");
  CHECK_THAT(runs.refusal({}), Contains("RUN is required"));
  CHECK_THAT(runs.refusal({runs.path("none"), "--out", svg}), Contains("there is no run " + runs.path("none")));
  CHECK_THAT(runs.refusal({runs.path("."), "--out", svg}), Contains("is no run: it holds no metrics.jsonl"));
  std::filesystem::create_directories(runs.path("empty"));
  write_text(runs.path("empty/metrics.jsonl"), "");
  CHECK_THAT(runs.refusal({runs.path("empty"), "--out", svg}), Contains("has no step of a training yet"));
  write_text(runs.path("empty/metrics.jsonl"), "this is\nno record\n");
  CHECK_THAT(runs.refusal({runs.path("empty"), "--out", svg}), Contains("2 lines, none is of a metrics.jsonl"));
  CHECK_THAT(runs.refusal({runs.path("a"), "--out", runs.path("x.pdf")}),
             Contains("must end with .svg, .png or .html"));
  CHECK_THAT(runs.refusal({runs.path("a"), runs.path("a"), "--out", svg}), Contains("given twice"));
  CHECK_THAT(runs.refusal({runs.path("a"), "--out", svg, "--smooth", "0"}),
             Contains("--smooth must be a number of steps"));
  CHECK_THAT(runs.refusal({runs.path("a"), "--out", svg, "--x", "days"}), Contains("--x"));
  CHECK_THAT(runs.refusal({runs.path("a"), "--out", runs.path("no/where/x.svg")}), Contains("no/where"));
  CHECK_FALSE(std::filesystem::exists(svg));
}

TEST_CASE("damaged lines are left out with a warning; of steps that come again the later ones count") {
  const PlottedRuns runs;
  const std::string metrics = runs.path("a") + "/metrics.jsonl";
  write_text(metrics, step_line(1, 5.0) + step_line(2, 4.0) + step_line(3, 3.0) + "{\"step\":4,\"lo\n" +
                          step_line(2, 4.5) + "{\"step\":3,\"loss\":2.25");
  const CommandResult result = runs.plot({metrics, "--out", runs.path("x.svg"), "--json"});
  CHECK(result.code == 0);
  CHECK_THAT(result.err, Contains("2 lines of its metrics.jsonl are damaged"));
  CHECK(nlohmann::json::parse(result.out)["runs"][0]["step"] == 2);
  CHECK(nlohmann::json::parse(result.out)["runs"][0]["loss"] == 4.5);
}

}  // namespace
}  // namespace samba
