#include "samba/train/run_folder.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/core/json_limits.h"
#include "samba/core/streams.h"
#include "samba/numerics/float32.h"
#include "samba/train/model_folder.h"
#include "samba/train/run_charts.h"

namespace samba {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kStepDigits = 8;

std::string bits_text(float value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", to_bits(value));
  return text;
}

bool holds_a_run(const Path& folder) {
  return fs::exists(folder / "config.json") || fs::exists(folder / "checkpoints") || fs::exists(folder / "latest");
}

// The path as the user gave it, without a slash at its end; one that has no name of its own ("." or "..") in full.
Path tidy(const Path& given) {
  Path path = given.lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  if (path.empty() || path.filename() == "." || path.filename() == "..") path = fs::weakly_canonical(given);
  return path;
}

// The step in "step-00000020.samba" or "step-00000020.mlp", or -1.
Index step_of(const Path& name) {
  const std::string stem = name.stem().string();
  if (!stem.starts_with("step-") || (name.extension() != ".samba" && name.extension() != ".mlp")) return -1;
  const std::string digits = stem.substr(5);
  if (digits.size() < kStepDigits || digits.size() > 15 ||
      !std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return -1;
  }
  return std::stoll(digits);
}

// The name that the file `latest` or `best` of a run holds.
std::string named_checkpoint(const Path& folder, const char* file) {
  const Path latest = folder / file;
  if (!fs::exists(latest)) refuse_value(folder.string() + " has no complete checkpoint yet (no file `" + file + "`)");
  std::string name = read_file(latest, 4096);
  while (!name.empty() && (name.back() == '\n' || name.back() == '\r')) name.pop_back();
  const Path relative = name;
  const bool outside = relative.is_absolute() || name.find('\0') != std::string::npos ||
                       std::any_of(relative.begin(), relative.end(), [](const Path& part) { return part == ".."; });
  std::error_code error;  // a name longer than the system takes, links in a ring
  if (name.empty() || outside || fs::status(folder / relative, error).type() == fs::file_type::none) {
    refuse_corrupt(file, latest.string() + " must hold the name of a checkpoint inside the run, got \"" + name + "\"");
  }
  return name;
}

}  // namespace

nlohmann::ordered_json to_json(const StepMetrics& metrics) {
  auto line = nlohmann::ordered_json::object();
  line["step"] = metrics.step;
  line["loss"] = static_cast<double>(metrics.loss);
  line["loss_bits"] = bits_text(metrics.loss);
  line["lr"] = static_cast<double>(metrics.lr);
  line["lr_bits"] = bits_text(metrics.lr);
  line["total_norm"] = metrics.total_norm ? nlohmann::json(static_cast<double>(*metrics.total_norm)) : nullptr;
  if (metrics.total_norm) line["total_norm_bits"] = bits_text(*metrics.total_norm);
  line["tokens"] = metrics.tokens;
  line["ignored_targets"] = metrics.ignored_targets;
  line["seconds"] = std::round(metrics.seconds * 1e6) * 1e-6;
  if (!metrics.parameters_sha256.empty()) line["parameters_sha256"] = metrics.parameters_sha256;
  line["card"] = metrics.card;
  return line;
}

nlohmann::ordered_json to_json(const EvaluationMetrics& metrics) {
  nlohmann::ordered_json line = {{"step", metrics.step}, {"eval_loss", metrics.eval_loss}};
  if (metrics.accuracy) {
    line["accuracy"] = *metrics.accuracy;
  } else {
    line["bits_per_byte"] = metrics.bits_per_byte;
  }
  if (metrics.best) line["best"] = true;
  return line;
}

std::string checkpoint_name(Index step, const std::string& extension) {
  char name[48];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return name + extension;
}

Path old_folder_name(const Path& folder) {
  for (int n = 1;; ++n) {
    Path name = folder;
    name += ".old-" + std::to_string(n);
    if (!fs::exists(fs::symlink_status(name))) return name;
  }
}

Path find_checkpoint(const Path& path) {
  if (!fs::exists(path)) refuse_value("there is no model " + path.string());
  if (!fs::is_directory(path)) return path;
  if (is_model_folder(path)) return path;
  if (!fs::exists(path / "latest")) {
    refuse_value(path.string() +
                 " is no run folder with a checkpoint: it has no file `latest`; give a .samba file, a "
                 "run folder or a safetensors folder");
  }
  return path / named_checkpoint(path, "latest");
}

RunFolder::RunFolder(Path folder, bool must_exist) : folder_(std::move(folder)) {
  std::error_code error;
  if (!must_exist) fs::create_directories(folder_ / "checkpoints", error);
  if (error) throw_file_error("create the run folder", folder_, error.value());
  lock_ = std::make_unique<FolderLock>(folder_);
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>((folder_ / "run.log").string());
    log_ = std::make_shared<spdlog::logger>("run", std::move(sink));
  } catch (const spdlog::spdlog_ex& failure) {
    refuse_value("cannot write " + (folder_ / "run.log").string() + ": " + failure.what());
  }
  log_->set_level(spdlog::get_level());
  log_->flush_on(spdlog::level::info);
  log_->set_error_handler([](const std::string&) {});  // a log that cannot be written stops nothing
}

RunFolder::~RunFolder() = default;

std::unique_ptr<RunFolder> RunFolder::create(const Path& folder, bool force) {
  const Path clean = tidy(folder);
  if (fs::exists(clean) && !fs::is_directory(clean)) {
    refuse_value("--out " + clean.string() + " is a file; a folder is needed");
  }
  if (holds_a_run(clean)) {
    if (!force) {
      refuse_value("--out " + clean.string() +
                   " already holds a run; continue it with --resume, or move it aside with --force");
    }
    const FolderLock in_use(clean);  // refuses a run that another process is working on
    fs::rename(clean, old_folder_name(clean));
  }
  std::unique_ptr<RunFolder> run(new RunFolder(clean, false));
  // Another process may have made a whole run between the look and the lock.
  if (fs::exists(clean / "config.json")) refuse_value("--out " + clean.string() + " already holds a run");
  return run;
}

std::unique_ptr<RunFolder> RunFolder::resume(const Path& path) {
  if (!fs::exists(path)) refuse_value("--resume: there is no run " + path.string());
  const bool archive = !fs::is_directory(path);
  const Path place = archive ? fs::weakly_canonical(path) : tidy(path);
  const Path folder = archive ? place.parent_path().parent_path() : place;
  if (!fs::exists(folder / "config.json")) {
    refuse_value(archive ? "--resume: the file " + path.string() + " is no checkpoint of a run: " + folder.string() +
                               " holds no config.json; the accepted files lie in RUN/checkpoints"
                         : "--resume: " + folder.string() + " holds no run (no config.json)");
  }
  std::unique_ptr<RunFolder> run(new RunFolder(folder, true));
  if (archive) run->archive_ = place;
  return run;
}

std::unique_ptr<RunFolder> RunFolder::follow(const Path& folder, const Path& archive) {
  if (!fs::is_directory(folder)) {
    refuse_value("the run folder " + folder.string() +
                 " is not there for this rank; several ranks need a folder on a file system that all of them share");
  }
  std::unique_ptr<RunFolder> run(new RunFolder);
  run->folder_ = folder;
  run->archive_ = archive;
  run->follows_ = true;
  run->log_ = std::make_shared<spdlog::logger>("run");
  return run;
}

nlohmann::json RunFolder::config() const {
  const Path path = folder_ / "config.json";
  return parse_json(read_file(path), path.string());
}

void RunFolder::write_config(const nlohmann::ordered_json& config) {
  if (follows_) return;
  write_file_atomically(folder_ / "config.json", config.dump(2) + "\n");
}

Path RunFolder::resume_archive() const {
  return archive_.empty() ? folder_ / named_checkpoint(folder_, "latest") : archive_;
}

std::string RunFolder::card_beside(const Path& archive) {
  Path path = archive;
  path.replace_extension(".json");
  if (!fs::exists(path)) return "";
  const nlohmann::json beside = parse_bounded(read_file(path, 1 << 20));
  if (!beside.is_object() || !beside.contains("card") || !beside["card"].is_string()) return "";
  return beside["card"];
}

void RunFolder::add_metrics(const nlohmann::ordered_json& line) {
  if (follows_) return;
  append_to_file(folder_ / "metrics.jsonl", line.dump() + "\n");
}

void RunFolder::cut_metrics(Index step) {
  if (follows_) return;
  const Path path = folder_ / "metrics.jsonl";
  if (!fs::exists(path)) return;
  std::string kept;
  for (const std::string& line : lines_of(read_file(path))) {
    const nlohmann::json value = parse_bounded(line);
    if (value.is_object() && value.contains("step") && value["step"].is_number_integer() && value["step"] <= step) {
      kept += line + "\n";
    }
  }
  write_file_atomically(path, kept);
}

std::vector<std::pair<Index, double>> RunFolder::evaluations() const {
  std::vector<std::pair<Index, double>> found;
  const Path path = folder_ / "metrics.jsonl";
  if (!fs::exists(path)) return found;
  std::istringstream input(read_file(path));
  for (std::string line; std::getline(input, line);) {
    const nlohmann::json value = parse_bounded(line);
    if (!value.is_object() || !value.contains("eval_loss") || !value["eval_loss"].is_number()) continue;
    if (!value.contains("step") || !value["step"].is_number_integer()) continue;
    found.emplace_back(value["step"], value["eval_loss"]);
  }
  return found;
}

void RunFolder::set_best(Index step) {
  if (follows_) return;
  for (const char* extension : {".samba", ".mlp"}) {
    const std::string name = "checkpoints/" + checkpoint_name(step, extension);
    if (step <= 0 || !fs::exists(folder_ / name)) continue;
    write_file_atomically(folder_ / "best", name + "\n");
    return;
  }
  fs::remove(folder_ / "best");
}

void RunFolder::add_sample(Index step, const std::string& text) {
  if (follows_) return;
  append_to_file(folder_ / "samples.txt", "=== step " + std::to_string(step) + "\n" + text + "\n");
}

Path RunFolder::add_batch(const StepBatch& batch) {
  if (follows_) return {};
  const Path place = folder_ / "batches";
  std::error_code error;
  fs::create_directories(place, error);
  if (error) throw_file_error("create the folder", place, error.value());
  const Path file = place / checkpoint_name(batch.step, ".json");
  const auto files = std::distance(fs::directory_iterator(place), fs::directory_iterator());
  if (!fs::exists(file) && files >= static_cast<std::ptrdiff_t>(kMostBatches)) return {};
  write_file_atomically(file, to_json(batch).dump() + "\n");
  return file;
}

void RunFolder::draw_loss() const {
  if (follows_ || !fs::exists(folder_ / "metrics.jsonl")) return;
  write_file_atomically(folder_ / "loss.svg", loss_svg(read_metrics(folder_ / "metrics.jsonl")));
}

Path RunFolder::checkpoint_path(Index step, const std::string& extension) const {
  return folder_ / "checkpoints" / checkpoint_name(step, extension);
}

Path RunFolder::add_checkpoint(Index step, const CheckpointConfig& keep, Sidecar sidecar,
                               const std::function<std::string(const Path&)>& save) {
  const std::string name = checkpoint_name(step, sidecar.extension);
  const Path archive = checkpoint_path(step, sidecar.extension);
  sidecar.sha256 = save(archive);
  if (follows_) return archive;
  auto beside = nlohmann::ordered_json::object();
  beside["step"] = step;
  beside["profile"] = sidecar.profile;
  beside["sha256"] = sidecar.sha256;
  beside["card"] = sidecar.card;
  beside["tokenizer"] = sidecar.tokenizer;
  beside["data"] = {{"order", sidecar.data_order}, {"seed", sidecar.data_seed}, {"rows_drawn", sidecar.rows_drawn}};
  Path sidecar_path = archive;
  sidecar_path.replace_extension(".json");
  write_file_atomically(sidecar_path, beside.dump(2) + "\n");
  sync_file(folder_ / "metrics.jsonl");  // the steps that `latest` says are done
  write_file_atomically(folder_ / "latest", "checkpoints/" + name + "\n");
  if (sidecar.best) set_best(step);
  remove_old(step, keep);
  return archive;
}

std::vector<Index> RunFolder::checkpoint_steps() const {
  std::vector<Index> steps;
  if (!fs::is_directory(folder_ / "checkpoints")) return steps;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_ / "checkpoints")) {
    const Index step = step_of(entry.path().filename());
    if (step >= 0) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void RunFolder::remove_old(Index newest, const CheckpointConfig& keep) const {
  if (keep.keep_last == 0) return;
  std::vector<Index> steps = checkpoint_steps();
  const Index best = fs::exists(folder_ / "best") ? step_of(Path(named_checkpoint(folder_, "best")).filename()) : -1;
  std::erase_if(steps, [&](Index step) {
    return step > newest || step == best || (keep.keep_every > 0 && step > 0 && step % keep.keep_every == 0);
  });
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep.keep_last) < steps.size(); ++i) {
    std::error_code ignored;  // an old file that stays does no harm
    for (const char* extension : {".samba", ".mlp", ".json"}) {
      fs::remove(folder_ / "checkpoints" / checkpoint_name(steps[i], extension), ignored);
    }
  }
}

}  // namespace samba
