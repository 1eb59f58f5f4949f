#include "samba/convert/folder_run.h"

#include <functional>
#include <memory>
#include <vector>

#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/core/json_limits.h"
#include "samba/core/streams.h"
#include "samba/train/mlp_folder.h"
#include "samba/train/model_folder.h"
#include "samba/train/run_folder.h"

namespace samba {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 20;

json read_object(const Path& path) {
  if (!fs::is_regular_file(path)) return nullptr;
  json value = parse_bounded(read_file(path, kMostBytes));
  return value.is_object() ? value : json();
}

// What a folder says of its run, checked against the model beside it.
void check_run(const json& run, Index step, const std::string& source) {
  const JsonFields fields(run, source + ": the run", {"config", "checkpoint"});
  const json& beside = fields.required("checkpoint");
  if (!fields.required("config").is_object() || !beside.is_object() || !beside.contains("data") ||
      beside.value("step", json()) != step) {
    refuse_corrupt("folder", source + ": what it says of the training run does not belong to its model");
  }
}

// A model in training as a converted folder holds it.
struct Carried {
  json run;
  Index step = 0;
  std::string extension;
  std::vector<Path> companions;
  std::function<std::string(const Path&)> write_checkpoint;  // returns its SHA-256
};

Carried carried_stack(const Path& path) {
  const auto model = std::make_shared<OpenModel>(open_model(find_model(path), Reading::everything));
  if (model->run.is_null() || !model->state.training) return {};
  return {model->run, model->state.step, ".samba", model->companions,
          [model](const Path& file) { return write_model_file(stored_model(*model), file); }};
}

Carried carried_mlp(const Path& path) {
  json run;
  const MlpState state = read_mlp_folder(path, &run);
  if (run.is_null()) return {};
  return {run, state.step, ".mlp", {}, [state](const Path& file) { return save_mlp_checkpoint(state, file); }};
}

void write_run(const Carried& carried, const Path& from, const Path& folder) {
  const Path checkpoints = folder / "checkpoints";
  fs::create_directory(checkpoints);
  const std::string name = checkpoint_name(carried.step, carried.extension);
  json beside = carried.run["checkpoint"];
  beside["sha256"] = carried.write_checkpoint(checkpoints / name);
  Path sidecar = checkpoints / name;
  sidecar.replace_extension(".json");
  write_file_atomically(sidecar, beside.dump(2) + "\n");
  for (const Path& file : carried.companions) write_file_atomically(folder / file.filename(), read_file(file));
  const std::string metrics = metrics_until(from / kMetricsName, carried.step);
  if (!metrics.empty()) write_file_atomically(folder / kMetricsName, metrics);
  write_file_atomically(folder / "config.json", carried.run["config"].dump(2) + "\n");
  write_file_atomically(folder / "latest", "checkpoints/" + name + "\n");
  sync_folder(checkpoints);
}

}  // namespace

json run_of_checkpoint(const Path& checkpoint) {
  Path sidecar = checkpoint;
  sidecar.replace_extension(".json");
  if (sidecar == checkpoint) return nullptr;
  json beside = read_object(sidecar);
  const Path folder = fs::absolute(checkpoint).parent_path().parent_path();
  json config = fs::exists(folder / "latest") ? read_object(folder / "config.json") : json();
  if (config.is_null() || !beside.contains("data") || !beside.contains("step")) return nullptr;
  return {{"config", std::move(config)}, {"checkpoint", std::move(beside)}};
}

Path metrics_of_checkpoint(const Path& checkpoint) {
  const Path metrics = fs::absolute(checkpoint).parent_path().parent_path() / kMetricsName;
  return fs::is_regular_file(metrics) ? metrics : Path();
}

std::string metrics_until(const Path& metrics, Index step) {
  if (!fs::is_regular_file(metrics)) return "";
  std::string kept;
  for (const std::string& line : lines_of(read_file(metrics))) {
    const json value = json::parse(line, nullptr, false);  // the last line of a run that died may be half
    if (!value.is_object() || !value.value("step", json()).is_number_integer() || value["step"] > step) continue;
    kept.append(line).append("\n");
  }
  return kept;
}

ResumedFolder run_folder_of(const Path& path) {
  if (!fs::is_directory(path) || fs::exists(path / "latest") || !fs::exists(path / "model.safetensors"))
    return {path, {}};
  const Carried carried = is_mlp_folder(path) ? carried_mlp(path) : carried_stack(path);
  if (carried.run.is_null()) {
    refuse_value("--resume: " + path.string() + " holds a model, but no training run to go on with");
  }
  check_run(carried.run, carried.step, path.string());
  const Path folder = fs::weakly_canonical(path);
  Path staged = folder;
  staged += ".run";
  write_new_folder(staged, [&](const Path& place) { write_run(carried, folder, place); });
  const Path moved = old_folder_name(folder);
  fs::rename(folder, moved);
  fs::rename(staged, folder);
  sync_folder(folder.parent_path());
  return {path, moved};
}

}  // namespace samba
