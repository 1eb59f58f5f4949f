// Rows about whole processes: "start/MODEL/Nt", from the start of `samba decode` to its first token, and
// "memory/MODEL/Nt", its peak resident memory beside what `samba inspect --memory` says. The model is a file of initial
// values in a temporary folder, read from the page cache.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "samba/bench/process.h"
#include "samba/bench/shapes.h"
#include "samba/core/error.h"
#include "samba/model/samba_stack.h"
#include "samba/numerics/generator.h"
#include "samba/train/stored_model.h"

namespace samba::bench {

namespace {

constexpr double kMebibyte = 1024.0 * 1024.0;
constexpr Index kMostTokens = 4096;
const std::string kPrompt = "1,0,1,1";  // ids that every vocabulary has
constexpr Index kPromptTokens = 4;

class TemporaryModel {
 public:
  TemporaryModel(const Context& context, const StackConfig& config) {
    std::string name = (std::filesystem::temp_directory_path() / "samba-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw_file_error("make", name, errno);
    folder_ = name;
    const auto executor = context.executor(1);
    Generator generator(1);
    StoredModel model;
    model.state.config = config;
    {
      const SambaStack stack(*executor, config, generator, SambaStack::Use::inference);
      for (auto& [weight, array] : stack.weights()) model.weights.emplace(weight, std::move(array));
    }
    write_model_file(model, file());
  }
  ~TemporaryModel() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  TemporaryModel(const TemporaryModel&) = delete;
  TemporaryModel& operator=(const TemporaryModel&) = delete;

  Path file() const { return folder_ / "model.samba"; }

 private:
  Path folder_;
};

ProcessResult run_samba(const Context& context, std::vector<std::string> arguments, int threads) {
  arguments.insert(arguments.begin(), context.executable.string());
  arguments.insert(arguments.end(), {"--threads", std::to_string(threads), "--progress", "never", "--device",
                                     context.device, "--log-level", "error"});
  ProcessResult result = run_process(arguments);
  if (result.code != 0) {
    throw Error(ErrorKind::check, "samba " + arguments[1] + " ended with exit code " + std::to_string(result.code));
  }
  return result;
}

std::vector<std::string> decode_arguments(const Path& model, Index tokens) {
  return {"decode", "--model", model.string(), "--tokens", kPrompt, "--max-tokens", std::to_string(tokens)};
}

struct ProcessCase {
  StackConfig config;
  Index tokens = 0;
};

Row measure_start(const Context& context, const ProcessCase& process, const std::string& name, int threads) {
  const TemporaryModel model(context, process.config);
  double best = 1e30;
  const auto run = [&] {
    best = std::min(best,
                    run_samba(context, decode_arguments(model.file(), process.tokens), threads).first_output_seconds);
  };
  const std::vector<Side> sides{{.work = run}};
  const std::vector<Timing> timings = measure(sides, context.measuring);
  const MachineLimits& limits = context.machine.at(threads);
  // The file is read once, then the prompt.
  const Cost reading{0.0, static_cast<double>(std::filesystem::file_size(model.file())), 0.0};
  Row row{.name = name, .threads = threads, .unit = "ms", .less_is_better = true, .limit_name = "read and prefill"};
  row.achieved = 1e3 * best;
  row.limit =
      1e3 * (least_seconds(reading, limits) + least_seconds(prefill_cost(process.config, kPromptTokens), limits));
  row.timing = timings[0];
  return row;
}

double planned_bytes(const Context& context, const Path& model, Index tokens, int threads) {
  const ProcessResult inspected = run_samba(context,
                                            {"inspect", model.string(), "--memory", "--json", "--batch", "1",
                                             "--length", std::to_string(kPromptTokens + tokens)},
                                            threads);
  return nlohmann::json::parse(inspected.out).at("memory").at("inference").at("total").get<double>();
}

Row measure_memory(const Context& context, const ProcessCase& process, const std::string& name, int threads) {
  const TemporaryModel model(context, process.config);
  const ProcessResult decoded = run_samba(context, decode_arguments(model.file(), process.tokens), threads);
  Row row{.name = name, .threads = threads, .unit = "MiB", .less_is_better = true, .limit_name = "inspect --memory"};
  row.achieved = static_cast<double>(decoded.peak_resident) / kMebibyte;
  row.limit = planned_bytes(context, model.file(), process.tokens, threads) / kMebibyte;
  row.timing.wall_min = row.timing.wall_median = decoded.seconds;
  row.timing.repetitions = 1;
  return row;
}

void add_process_rows(const RowSource& row, const std::string& prefix, Index tokens,
                      Row (*measure_row)(const Context&, const ProcessCase&, const std::string&, int),
                      std::vector<Case>& cases) {
  const JsonFields fields = row.fields();
  const ProcessCase process{row.model(), fields.integer("tokens", tokens, 1, kMostTokens)};
  const std::string base = prefix + "/" + fields.text("name", row.json.value("model", ""));
  Case c{.rows = {}, .quick = row.quick(), .run = {}};
  for (const int threads : row.threads) c.rows.push_back(thread_row(base, threads));
  c.run = [process, base, measure_row](const Context& context, const Wanted& wanted) {
    std::vector<Row> rows;
    for (const int threads : context.threads) {
      const std::string name = thread_row(base, threads);
      if (wanted(name) && !context.executable.empty()) rows.push_back(measure_row(context, process, name, threads));
    }
    return rows;
  };
  cases.push_back(std::move(c));
}

}  // namespace

void add_start(const RowSource& row, std::vector<Case>& cases) {
  add_process_rows(row, "start", 1, measure_start, cases);
}

void add_memory(const RowSource& row, std::vector<Case>& cases) {
  add_process_rows(row, "memory", 32, measure_memory, cases);
}

}  // namespace samba::bench
