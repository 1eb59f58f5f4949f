#include "samba/train/model_kind.h"

#include "samba/core/json_fields.h"
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

nlohmann::json config_of_run(nlohmann::json resolved) {
  if (!resolved.is_object()) return resolved;
  resolved.erase("format");
  const auto data = resolved.find("data");
  if (data == resolved.end() || !data->is_object()) return resolved;
  for (const char* computed : {"sha256", "bytes", "rows", "start_positions_sha256", "tokens", "tokenizer_sha256"}) {
    data->erase(computed);
  }
  return resolved;
}

nlohmann::ordered_json resolved_config(const nlohmann::json& config, const Path& folder) {
  if (model_kind_of_config(config) == ModelKind::mlp) return resolved_json(parse_mlp_train_config(config, folder));
  return resolved_json(parse_train_config(config, folder));
}

std::unique_ptr<Training> make_training(const nlohmann::json& config, const Path& folder) {
  if (model_kind_of_config(config) == ModelKind::mlp) {
    return std::make_unique<MlpRun>(parse_mlp_train_config(config, folder));
  }
  return std::make_unique<TrainingRun>(parse_train_config(config, folder));
}

}  // namespace samba
