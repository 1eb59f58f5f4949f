// samba bench: kernels and whole models beside the limits of this machine.

#include "samba/bench/bench.h"

#include <algorithm>
#include <iostream>
#include <thread>

#include "commands.h"
#include "output.h"
#include "progress.h"
#include "samba/bench/report.h"
#include "samba/core/error.h"
#include "samba/core/files.h"
#include "samba/core/interrupt.h"

namespace samba::apps {

namespace {

struct BenchFlags {
  std::vector<std::string> rows;
  std::vector<std::string> shapes;
  std::string out;
  int repeat = 7;
  bool quick = false;
  bool list = false;
  bool paced = false;
};

// One thread, and all of this process's cores; or the number that --threads gives. A device has threads of its own.
std::vector<int> thread_counts(const CommonOptions& common) {
  if (common.threads > 0) return {common.threads};
  if (common.device != "auto" && common.device != "cpu" && common.device != "reference") return {1};
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return cores > 1 ? std::vector<int>{1, cores} : std::vector<int>{1};
}

std::string list_text(const std::vector<std::string>& names, bool json) {
  if (json) return json_line(nlohmann::ordered_json{{"rows", names}});
  std::string text;
  for (const std::string& name : names) text += name + "\n";
  return text;
}

void write_report(const Path& folder, const bench::BenchReport& report) {
  std::string table = bench::machine_text(report.machine) + bench::table_header();
  for (const bench::Row& row : report.rows) table += bench::table_row(row);
  write_file_atomically(folder / "bench.json", bench::report_json(report).dump(1) + "\n");
  write_file_atomically(folder / "bench.txt", table + bench::skipped_text(report.skipped));
  write_file_atomically(folder / "roofline.svg", bench::roofline_svg(report));
}

// Before each repetition a line is read from stdin, after it an empty line is printed.
bench::Pace paced_by_stdin() {
  return {.before =
              [] {
                std::string line;
                return static_cast<bool>(std::getline(std::cin, line));
              },
          .after = [] { print("\n"); }};
}

int run(const BenchFlags& flags, const CommonOptions& common) {
  bench::Context context;
  context.device = common.device;
  context.instruction_set = common.instruction_set;
  context.numeric_mode = parse_numeric_mode(common.numeric_mode);
  context.threads = thread_counts(common);
  context.measuring.repetitions = flags.repeat;
  if (flags.paced) context.measuring.pace = paced_by_stdin();
  context.executable = "/proc/self/exe";
  const bench::BenchOptions options{flags.rows, flags.quick};
  const std::vector<Path> paths(flags.shapes.begin(), flags.shapes.end());
  const std::vector<bench::ShapesFile> files = paths.empty() ? bench::built_in_shapes() : bench::read_shapes(paths);
  const std::vector<bench::Case> cases = bench::cases_of(files, context.threads);
  if (flags.list) {
    print(list_text(bench::selected_rows(cases, options), common.json));
    return 0;
  }

  if (!flags.out.empty()) {  // before minutes of measuring
    std::error_code error;
    std::filesystem::create_directories(flags.out, error);
    if (error) throw_file_error("create the folder", flags.out, error.value());
  }

  const InterruptGuard guard;
  std::unique_ptr<Progress> progress;
  bench::BenchEvents events;
  events.interrupted = [] { return interrupt_requested(); };
  events.progress = [&](std::size_t done, std::size_t total, const std::string& name) {
    if (!progress) progress = std::make_unique<Progress>(common.progress, "bench", "cases", 0, total);
    progress->update(done, name);
  };
  events.on_machine = [&](const bench::Machine& machine) {
    if (!common.json) print(bench::machine_text(machine) + bench::table_header());
  };
  events.on_row = [&](const bench::Row& row) {
    if (!common.json) print(bench::table_row(row));
  };
  const bench::BenchReport report = bench::run_bench(context, cases, options, events);
  if (progress) progress->finish();
  print(common.json ? json_line(bench::report_json(report)) : bench::skipped_text(report.skipped));
  if (!flags.out.empty()) write_report(flags.out, report);
  return interrupt_requested() ? kInterruptedExitCode : 0;
}

}  // namespace

void add_bench_command(CLI::App& app, CommandLine& line) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand("bench", "measure kernels and models against the limits of this machine");
  command->add_option("ROW", flags->rows, "rows to measure: names, or parts of names (decode, llama_28m/1t)");
  command
      ->add_option("--shapes", flags->shapes,
                   "a file or folder that defines the rows (default: the program's own); repeatable")
      ->allow_extra_args(false);
  command->add_flag("--quick", flags->quick, "a few rows, within a minute");
  command->add_option("--repeat", flags->repeat, "repetitions of each row after a warm-up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--paced", flags->paced,
                    "wait for a line on stdin before each repetition and print one after it (scripts/bench_peers.py)");
  command->add_flag("--list", flags->list, "only the names of the rows");
  command->add_option("--out", flags->out, "a folder for bench.json, bench.txt and roofline.svg");
  line.on(command, "samba bench --quick\n  samba bench decode/llama_28m gemm/nt --threads 1",
          [flags, &line] { return run(*flags, line.common); });
}

}  // namespace samba::apps
