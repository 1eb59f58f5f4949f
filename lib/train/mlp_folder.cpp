#include "samba/train/mlp_folder.h"

#include "samba/core/error.h"
#include "samba/formats/canonical_json.h"
#include "samba/formats/file_hashes.h"
#include "samba/formats/safetensors.h"
#include "samba/train/model_folder.h"

namespace samba {

namespace {

using nlohmann::json;

constexpr const char* kFormat = "samba.mlp_folder.v1";
constexpr std::uint64_t kMostConfigBytes = 131072;  // the configuration of a run is in it

[[noreturn]] void refuse(const Path& path, const std::string& reason) {
  refuse_corrupt("folder", path.string() + ": " + reason);
}

json read_config(const Path& folder) {
  const Path path = folder / "config.json";
  const std::string text = read_file(path, kMostConfigBytes);
  try {
    return parse_json(text, JsonReadOptions{.lone_surrogates = true, .most_digits = 4300});
  } catch (const Error& error) {
    refuse(path, error.what());
  }
}

// The parts of the configuration; missing and unknown keys are refused.
void check_keys(const json& config, const std::vector<std::string>& keys, const Path& path) {
  if (!config.is_object()) refuse(path, "must be an object");
  for (const std::string& key : keys) {
    if (!config.contains(key)) refuse(path, "the key " + key + " is missing");
  }
  if (config.size() != keys.size()) refuse(path, "has unknown keys");
}

std::vector<float> moments_of(const SafetensorsFile& file, const char* name, const Path& path) {
  const auto found = file.tensors.find(name);
  if (found == file.tensors.end() || found->second.dtype() != DType::float32 ||
      found->second.shape() != Shape{kMlpParameters} || file.tensors.size() != 2) {
    refuse(path, "must hold exactly exp_avg and exp_avg_sq, float32 of shape (195,)");
  }
  const auto values = found->second.floats();
  return {values.begin(), values.end()};
}

ConstArrayMap views_of(const ArrayMap& arrays) {
  ConstArrayMap views;
  for (const auto& [name, array] : arrays) views.emplace(name, array.view());
  return views;
}

// Runs what checks the content of a folder; what it refuses is the folder's fault.
template <class Check>
auto of_folder(const Path& path, Check&& check) {
  try {
    return check();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::value && error.kind() != ErrorKind::type) throw;
    refuse(path, error.what());
  }
}

double number_of(const json& object, const char* name, const Path& path) {
  if (!object.is_object() || !object.contains(name) || !object[name].is_number()) {
    refuse(path, std::string("config/") + name + " must be a number");
  }
  return object[name].get<double>();
}

}  // namespace

bool is_mlp_folder(const Path& path) {
  const Path config = path / "config.json";
  if (!is_model_folder(path) || !std::filesystem::is_regular_file(config)) return false;
  if (std::filesystem::file_size(config) > kMostConfigBytes) return false;
  return read_file(config, kMostConfigBytes).find(kFormat) != std::string::npos;
}

void write_mlp_folder(const MlpState& state, WeightFormat format, const Path& folder, const MlpRunRecord& record) {
  check_mlp_state(state);
  const ArrayMap arrays = mlp_arrays(state.weights);
  const WeightMap weights = pack(arrays, format);
  json config = {{"format", kFormat}, {"weight_format", weight_format_name(format)}};
  ConstArrayMap moments;
  if (format == WeightFormat::float32) {
    moments = {{"exp_avg", {DType::float32, {kMlpParameters}, state.exp_avg.data()}},
               {"exp_avg_sq", {DType::float32, {kMlpParameters}, state.exp_avg_sq.data()}}};
    const OptimizerSettings& settings = state.settings;
    config["optimizer"] = {{"lr", settings.lr},
                           {"beta1", settings.beta1},
                           {"beta2", settings.beta2},
                           {"eps", settings.eps},
                           {"weight_decay", settings.weight_decay}};
    config["step"] = state.step;
    config["flags"] = state.flags;
    config["data_schedule"] = state.data_schedule;
    if (!record.run.is_null()) config["run"] = record.run;
  }
  write_new_folder(folder, [&](const Path& place) {
    write_safetensors(place / "model.safetensors", stored_arrays(weights), {{"format", kFormat}});
    if (!moments.empty()) write_safetensors(place / "optimizer.safetensors", moments, {{"format", kFormat}});
    if (config.contains("run") && !record.metrics.empty()) {
      write_file_atomically(place / "metrics.jsonl", record.metrics);
    }
    write_file_atomically(place / "config.json", canonical_json(config, ControlEscapes::short_forms) + "\n");
    write_hashes(place);
  });
}

MlpState read_mlp_folder(const Path& folder, json* run) {
  check_hashes(folder, HashedFiles::weights);
  const Path config_path = folder / "config.json";
  json config = read_config(folder);
  if (run != nullptr) *run = config.is_object() ? config.value("run", json()) : json();
  if (config.is_object()) config.erase("run");
  if (config.is_object() && config.value("weight_format", json()) != "float32") {
    refuse_unsupported(folder.string() +
                       " holds packed weights, which are for inference: the checkpoint file needs float32 weights and "
                       "their moments");
  }
  check_keys(config, {"format", "weight_format", "optimizer", "step", "flags", "data_schedule"}, config_path);
  MlpState state;
  const Path model_path = folder / "model.safetensors";
  const SafetensorsFile model = read_safetensors(model_path);
  state.weights = of_folder(model_path, [&] { return flat_mlp_arrays(views_of(model.tensors)); });
  const Path optimizer_path = folder / "optimizer.safetensors";
  const SafetensorsFile optimizer = read_safetensors(optimizer_path);
  state.exp_avg = moments_of(optimizer, "exp_avg", optimizer_path);
  state.exp_avg_sq = moments_of(optimizer, "exp_avg_sq", optimizer_path);
  const json& settings = config["optimizer"];
  state.settings.lr = number_of(settings, "lr", config_path);
  state.settings.beta1 = number_of(settings, "beta1", config_path);
  state.settings.beta2 = number_of(settings, "beta2", config_path);
  state.settings.eps = number_of(settings, "eps", config_path);
  state.settings.weight_decay = number_of(settings, "weight_decay", config_path);
  const json& flags = config["flags"];
  const bool four = flags.is_array() && flags.size() == state.flags.size();
  for (std::size_t i = 0; i < state.flags.size(); ++i) {
    if (!four || (flags[i] != 0 && flags[i] != 1)) refuse(config_path, "flags must be four of 0 and 1");
    state.flags[i] = flags[i].get<std::int32_t>();
  }
  const json& step = config["step"];
  if (!step.is_number_unsigned() || step > kMlpMostSteps) refuse(config_path, "step must be an integer in [0, 2^31)");
  state.step = step.get<Index>();
  state.data_schedule = config["data_schedule"];
  of_folder(config_path, [&] {
    check_mlp_state(state);
    state.settings = rounded_mlp_settings(state.settings);
    return 0;
  });
  return state;
}

std::unique_ptr<MlpInference> open_mlp(Executor& executor, const Path& path) {
  if (!std::filesystem::is_directory(path)) return load_mlp_for_inference(executor, path);
  check_hashes(path, HashedFiles::weights);
  const Path model_path = path / "model.safetensors";
  const SafetensorsFile model = read_safetensors(model_path);
  const ConstArrayMap views = views_of(model.tensors);
  return of_folder(model_path, [&] { return std::make_unique<MlpInference>(executor, weights_of_stored(views)); });
}

}  // namespace samba
