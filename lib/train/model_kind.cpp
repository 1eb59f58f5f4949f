#include "samba/train/model_kind.h"

#include "samba/core/json_fields.h"
#include "samba/model/stack_config.h"
#include "samba/train/mlp_checkpoint.h"
#include "samba/train/mlp_folder.h"
#include "samba/train/mlp_run.h"
#include "samba/train/training_loop.h"

namespace samba {

ModelKind model_kind_of_config(const nlohmann::json& config) {
  const auto model = config.is_object() ? config.find("model") : config.end();
  if (model == config.end() || !model->is_object() || !model->contains("kind")) return ModelKind::stack;
  if ((*model)["kind"] != "mlp") refuse_choice("/model/kind", (*model)["kind"], {"mlp"});
  return ModelKind::mlp;
}

ModelKind model_kind_of_file(const Path& path) {
  if (std::filesystem::is_directory(path)) return is_mlp_folder(path) ? ModelKind::mlp : ModelKind::stack;
  return is_mlp_checkpoint(path) ? ModelKind::mlp : ModelKind::stack;
}

nlohmann::json config_of_run(nlohmann::json resolved, const Path& run) {
  if (!resolved.is_object()) return resolved;
  resolved.erase("format");
  const auto data = resolved.find("data");
  if (data == resolved.end() || !data->is_object()) return resolved;
  for (const char* computed : {"sha256", "bytes", "rows", "start_positions_sha256", "tokens", "tokenizer_sha256"}) {
    data->erase(computed);
  }
  const auto tokenizer = data->find("tokenizer");
  if (run.empty() || tokenizer == data->end() || tokenizer->is_null()) return resolved;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (!std::filesystem::exists(run / name)) continue;
    *tokenizer = std::filesystem::absolute(run / name).lexically_normal().string();
    break;
  }
  return resolved;
}

namespace {

// The model that a configuration begins from gives what the configuration leaves open: /model, /data/tokenizer.
nlohmann::json completed(nlohmann::json config, const Path& folder, const ModelOpener& opener) {
  if (!config.is_object() || !config.contains("train") || !config["train"].is_object()) return config;
  const nlohmann::json& from = config["train"].value("init_from", nlohmann::json());
  const bool given = config.contains("model") && !config["model"].is_null();
  if (!from.is_string() || from.get<std::string>().empty() || given) return config;
  const InitialModel model = opener.open(std::filesystem::absolute(folder / from.get<std::string>()));
  config["model"] = config_to_json(model.config);
  const auto data = config.find("data");
  if (model.tokenizer.empty() || data == config.end() || !data->is_object()) return config;
  if (data->value("tokenizer", nlohmann::json()).is_null()) (*data)["tokenizer"] = model.tokenizer;
  return config;
}

}  // namespace

nlohmann::ordered_json resolved_config(const nlohmann::json& config, const Path& folder, const ModelOpener& opener) {
  if (model_kind_of_config(config) == ModelKind::mlp) return resolved_json(parse_mlp_train_config(config, folder));
  return resolved_json(parse_train_config(completed(config, folder, opener), folder));
}

std::unique_ptr<Training> make_training(const nlohmann::json& config, const Path& folder, const ModelOpener& opener) {
  if (model_kind_of_config(config) == ModelKind::mlp) {
    return std::make_unique<MlpRun>(parse_mlp_train_config(config, folder));
  }
  return std::make_unique<TrainingRun>(parse_train_config(completed(config, folder, opener), folder), opener);
}

}  // namespace samba
