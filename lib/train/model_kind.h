// Which kind of model a training configuration or a file is about. A kind has its own training (Training), its own
// checkpoint file and its own file NAME_commands.cpp in apps/samba.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "samba/core/files.h"
#include "samba/train/training.h"

namespace samba {

enum class ModelKind {
  stack,  // a stack of blocks on tokens: the Samba archive, samba.stack.v1, a safetensors folder
  mlp,    // the small MLP on rows of features: {"model": {"kind": "mlp"}}
};

// Error(value) for a /model/kind that is none.
ModelKind model_kind_of_config(const nlohmann::json& config);
// Of a checkpoint file or a safetensors folder; what cannot be told apart is taken for a stack.
ModelKind model_kind_of_file(const Path& path);

// The configuration that config.json of a run was made of: without what the run added to it.
nlohmann::json config_of_run(nlohmann::json resolved);

// The configuration checked and completed, without looking at the data. Relative paths are taken from `folder`.
nlohmann::ordered_json resolved_config(const nlohmann::json& config, const Path& folder);
// Opens the data and checks them against the configuration.
std::unique_ptr<Training> make_training(const nlohmann::json& config, const Path& folder);

}  // namespace samba
