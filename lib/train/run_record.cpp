#include "samba/train/run_record.h"

#include <algorithm>

#include "samba/core/error.h"
#include "samba/core/json_limits.h"
#include "samba/core/streams.h"

namespace samba {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kMostBeside = std::uint64_t{1} << 22;  // bytes of a file beside the metrics
constexpr std::size_t kMostSample = 4000;

std::optional<double> number_in(const json& line, const char* name) {
  const auto found = line.find(name);
  if (found == line.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

// A step number, or -1.
Index step_in(const json& line) {
  const auto found = line.find("step");
  if (found == line.end() || !found->is_number_integer()) return -1;
  if (found->is_number_unsigned() && found->get<std::uint64_t>() > std::uint64_t{1} << 62) return -1;
  return found->get<Index>();
}

template <class Line>
void add_line(std::vector<Line>& lines, const Line& line) {
  while (!lines.empty() && lines.back().step >= line.step) lines.pop_back();
  lines.push_back(line);
}

void read_line(const std::string& text, RunRecord& record) {
  const json line = parse_bounded(text);
  const Index step = line.is_object() ? step_in(line) : -1;
  if (step < 0) {
    ++record.damaged_lines;
    return;
  }
  if (const auto loss = number_in(line, "loss")) {
    RecordedStep taken;
    taken.step = step;
    taken.loss = *loss;
    taken.lr = number_in(line, "lr").value_or(0.0);
    taken.total_norm = number_in(line, "total_norm");
    const double tokens = number_in(line, "tokens").value_or(0.0);
    taken.tokens = tokens > 0.0 && tokens < 1e18 ? static_cast<std::uint64_t>(tokens) : 0;
    taken.seconds = number_in(line, "seconds").value_or(0.0);
    add_line(record.steps, taken);
    const auto card = line.find("card");
    record.card = card != line.end() && card->is_string() ? card->get<std::string>() : "";
  }
  if (const auto loss = number_in(line, "eval_loss")) {
    add_line(record.evaluations,
             RecordedEvaluation{step, *loss, number_in(line, "bits_per_byte"), number_in(line, "accuracy")});
  }
}

std::string first_line(const Path& path) {
  const std::string text = read_file(path, kMostBeside);
  return text.substr(0, text.find_first_of("\r\n"));
}

// The newest checkpoint by the file `latest`, and its digest by the file beside it.
void read_checkpoint_names(const Path& folder, RunRecord& record) {
  if (!fs::exists(folder / "latest")) return;
  const Path name = first_line(folder / "latest");
  const bool outside =
      name.is_absolute() || std::any_of(name.begin(), name.end(), [](const Path& part) { return part == ".."; });
  if (name.empty() || outside) return;
  record.checkpoint = name.string();
  Path beside = folder / name;
  beside.replace_extension(".json");
  std::error_code error;  // of a name that the system does not take
  if (!fs::is_regular_file(beside, error)) return;
  const json sidecar = parse_bounded(read_file(beside, kMostBeside));
  if (sidecar.is_object() && sidecar.contains("sha256") && sidecar["sha256"].is_string()) {
    record.sha256 = sidecar["sha256"];
  }
}

void read_sample(const Path& path, RunRecord& record) {
  if (!fs::is_regular_file(path) || fs::file_size(path) > kMostBeside) return;
  const std::string text = read_file(path);
  std::size_t last = text.rfind("\n=== step ");
  last = last == std::string::npos ? 0 : last + 1;
  record.sample = text.substr(last, kMostSample);
}

}  // namespace

std::uint64_t RunRecord::tokens_at(Index step) const {
  const auto behind = std::upper_bound(steps.begin(), steps.end(), step,
                                       [](Index value, const RecordedStep& taken) { return value < taken.step; });
  return behind == steps.begin() ? 0 : std::prev(behind)->tokens;
}

RunRecord read_metrics(const Path& metrics) {
  RunRecord record;
  if (!fs::exists(metrics)) return record;
  for (const std::string& line : lines_of(read_file(metrics))) {
    if (!line.empty()) read_line(line, record);
  }
  return record;
}

RunRecord read_run(const Path& path) {
  if (!fs::exists(path)) refuse_value("there is no run " + path.string());
  const bool folder = fs::is_directory(path);
  const Path metrics = folder ? path / "metrics.jsonl" : path;
  if (!fs::is_regular_file(metrics)) {
    refuse_value(path.string() + " is no run: it holds no metrics.jsonl; give the folder that samba train --out made");
  }
  RunRecord record = read_metrics(metrics);
  if (record.steps.empty()) {
    refuse_value(metrics.string() + " has no step of a training yet" +
                 (record.damaged_lines > 0
                      ? ": " + std::to_string(record.damaged_lines) + " lines, none is of a metrics.jsonl"
                      : std::string()));
  }
  const Path place = folder ? path : path.parent_path();
  Path name = (folder || metrics.filename() == "metrics.jsonl" ? place : path).lexically_normal();
  if (name.filename().empty()) name = name.parent_path();
  if (name.empty() || name == ".") name = fs::weakly_canonical(place).filename();
  record.name = name.string();
  if (!folder && metrics.filename() != "metrics.jsonl") return record;
  if (fs::is_regular_file(place / "config.json")) {
    const json config = parse_bounded(read_file(place / "config.json", kMostBeside));
    // In the order of the file, which is for people.
    if (config.is_object()) record.config = nlohmann::ordered_json::parse(read_file(place / "config.json"));
  }
  read_checkpoint_names(place, record);
  read_sample(place / "samples.txt", record);
  return record;
}

}  // namespace samba
