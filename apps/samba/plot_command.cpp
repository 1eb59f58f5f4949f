// samba plot: the curves of runs as pictures and as a page.

#include <spdlog/spdlog.h>

#include <algorithm>

#include "commands.h"
#include "output.h"
#include "samba/core/error.h"
#include "samba/core/files.h"
#include "samba/core/numbers.h"
#include "samba/plot/png.h"
#include "samba/plot/svg.h"
#include "samba/train/run_charts.h"
#include "samba/train/run_report.h"

namespace samba::apps {

namespace {

struct PlotOptions {
  std::vector<std::string> runs;
  std::vector<std::string> out;
  std::string x = "steps";
  bool log = false;
  double smooth = kSmoothedSteps;
};

using Draw = std::string (*)(std::span<const RunRecord>, const RunChartOptions&);

std::string draw_svg(std::span<const RunRecord> runs, const RunChartOptions& options) {
  return plot::svg_file(plot::draw(run_chart(runs, options)));
}
std::string draw_png(std::span<const RunRecord> runs, const RunChartOptions& options) {
  return plot::png_file(plot::draw(run_chart(runs, options)));
}

Draw drawing_for(const std::string& file) {
  const std::string extension = Path(file).extension().string();
  if (extension == ".svg") return draw_svg;
  if (extension == ".png") return draw_png;
  if (extension == ".html" || extension == ".htm") return run_report_html;
  refuse_value("--out " + file + ": the name must end with .svg, .png or .html");
}

int plot_runs(const PlotOptions& options, const CommonOptions& common) {
  std::vector<std::string> files = options.out;
  if (files.empty()) files = {"plot.html"};
  std::vector<Draw> drawings;
  for (const std::string& file : files) drawings.push_back(drawing_for(file));
  if (options.runs.size() > kMostPlottedRuns) {
    refuse_value("at most " + std::to_string(kMostPlottedRuns) + " runs are drawn together, got " +
                 std::to_string(options.runs.size()));
  }
  if (!(options.smooth >= 1.0 && options.smooth <= 1e9)) {
    refuse_value("--smooth must be a number of steps, at least 1, got " + number_text(options.smooth));
  }
  std::vector<RunRecord> runs;
  for (const std::string& path : options.runs) {
    runs.push_back(read_run(path));
    if (runs.back().damaged_lines > 0) {
      spdlog::warn("{}: {} lines of its metrics.jsonl are damaged and left out", path, runs.back().damaged_lines);
    }
    for (std::size_t i = 0; i + 1 < runs.size(); ++i) {
      if (runs[i].name == runs.back().name) refuse_value("the run " + path + " is given twice");
    }
  }
  const RunChartOptions chart{options.x == "tokens", options.log, options.smooth};
  for (std::size_t i = 0; i < files.size(); ++i) write_file_atomically(files[i], drawings[i](runs, chart));
  if (common.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const RunRecord& run : runs) {
      nlohmann::ordered_json one = {{"run", run.name},
                                    {"step", run.steps.back().step},
                                    {"tokens", run.steps.back().tokens},
                                    {"loss", run.steps.back().loss},
                                    {"smoothed_loss", smoothed_losses(run, options.smooth).back()},
                                    {"card", run.card}};
      if (!run.evaluations.empty()) one["eval_loss"] = run.evaluations.back().loss;
      list.push_back(std::move(one));
    }
    print(json_line({{"files", files}, {"runs", std::move(list)}}));
    return 0;
  }
  for (const std::string& file : files) print(file + "\n");
  return 0;
}

}  // namespace

void add_plot_command(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<PlotOptions>();
  CLI::App* command = app.add_subcommand("plot", "draw loss and learning rate of runs");
  command->add_option("RUN", options->runs, "folders of runs, or their metrics.jsonl")->required();
  command
      ->add_option("--out", options->out,
                   "FILE.svg, FILE.png or FILE.html, a report with the runs' figures; repeatable (default: plot.html)")
      ->allow_extra_args(false);
  command->add_option("--x", options->x, "steps or tokens")
      ->check(CLI::IsMember({"steps", "tokens"}))
      ->capture_default_str();
  command->add_flag("--log", options->log, "a logarithmic axis of the loss");
  command
      ->add_option("--smooth", options->smooth,
                   "of about how many steps the smoothed loss is the mean; 1: not smoothed")
      ->capture_default_str();
  line.on(
      command,
      "samba plot runs/first\n  samba plot runs/first runs/second --out compare.svg --out compare.png --x tokens --log",
      [options, &line] { return plot_runs(*options, line.common); });
}

}  // namespace samba::apps
