// Which kind of model a training configuration or a file is about. A kind has its own training (Training), its own
// checkpoint file and its own file NAME_commands.cpp in apps/samba.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "samba/core/files.h"
#include "samba/train/initial_model.h"
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

// The configuration that config.json of a run was made of: without what the run added to it, with the copy of the
// tokenizer that lies in its folder, when that is named.
nlohmann::json config_of_run(nlohmann::json resolved, const Path& run = {});

// The configuration checked and completed, without looking at the data. Relative paths are taken from `folder`. A
// configuration without /model takes it from the model at /train/init_from, whose tokenizer it takes too.
nlohmann::ordered_json resolved_config(const nlohmann::json& config, const Path& folder, const ModelOpener& opener);
// Opens the data and checks them against the configuration.
std::unique_ptr<Training> make_training(const nlohmann::json& config, const Path& folder, const ModelOpener& opener);

}  // namespace samba
