#include "samba/convert/folder_run.h"

#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/core/json_limits.h"
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
void check_run(const json& run, const OpenModel& model, const std::string& source) {
  const JsonFields fields(run, source + ": the run", {"config", "checkpoint"});
  const json& beside = fields.required("checkpoint");
  if (!fields.required("config").is_object() || !beside.is_object() || !beside.contains("data") ||
      beside.value("step", json()) != model.state.step) {
    refuse_corrupt("folder", source + ": what it says of the training run does not belong to its model");
  }
}

void write_run(const OpenModel& model, const Path& folder) {
  const json& run = model.run;
  const Path checkpoints = folder / "checkpoints";
  fs::create_directory(checkpoints);
  const std::string name = checkpoint_name(model.state.step);
  json beside = run["checkpoint"];
  beside["sha256"] = write_model_file(stored_model(model), checkpoints / name);
  Path sidecar = checkpoints / name;
  sidecar.replace_extension(".json");
  write_file_atomically(sidecar, beside.dump(2) + "\n");
  for (const Path& file : model.companions) write_file_atomically(folder / file.filename(), read_file(file));
  write_file_atomically(folder / "config.json", run["config"].dump(2) + "\n");
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

ResumedFolder run_folder_of(const Path& path) {
  if (!fs::is_directory(path) || fs::exists(path / "latest") || !fs::exists(path / "model.safetensors"))
    return {path, {}};
  const OpenModel model = open_model(find_model(path), Reading::everything);
  if (model.run.is_null() || !model.state.training) {
    refuse_value("--resume: " + path.string() + " holds a model, but no training run to go on with");
  }
  check_run(model.run, model, path.string());
  const Path folder = fs::weakly_canonical(path);
  Path staged = folder;
  staged += ".run";
  write_new_folder(staged, [&](const Path& place) { write_run(model, place); });
  const Path moved = old_folder_name(folder);
  fs::rename(folder, moved);
  fs::rename(staged, folder);
  sync_folder(folder.parent_path());
  return {path, moved};
}

}  // namespace samba
