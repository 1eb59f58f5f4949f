// The checkpoint file of the small MLP (spec 50 section B5, docs/formats/mlp_checkpoint.md): one line of canonical
// JSON.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "samba/core/files.h"
#include "samba/model/mlp_inference.h"
#include "samba/train/mlp_state.h"
#include "samba/train/mlp_trainer.h"

namespace samba {

inline constexpr std::size_t kMlpCheckpointBytes = 32768;  // of a whole file, at most

// Who reads decides how the messages begin: "SmallMLPTrainer checkpoint ...", "MLPInference checkpoint ...".
enum class MlpReader { trainer, inference };

// The bytes of the file, the newline at its end included.
std::string mlp_checkpoint_bytes(const MlpState& state);
// Checks everything, in the order of spec 50 section B5; whatever is wrong is Error(corrupt, "mlp", ...).
MlpState parse_mlp_checkpoint(std::string_view bytes, MlpReader reader = MlpReader::trainer);

// Writes the file atomically with mode 0600; returns its SHA-256. A state that is refused (check_mlp_state()) writes
// nothing.
std::string save_mlp_checkpoint(const MlpState& state, const Path& path);
MlpState read_mlp_checkpoint(const Path& path, MlpReader reader = MlpReader::trainer);

std::unique_ptr<MlpTrainer> load_mlp_for_training(Executor& executor, const Path& path);
// Checks the whole file and keeps the weights alone.
std::unique_ptr<MlpInference> load_mlp_for_inference(Executor& executor, const Path& path);

// Whether a file is meant as such a checkpoint, intact or not: JSON that speaks of this schema near its beginning.
bool is_mlp_checkpoint(const Path& path);

}  // namespace samba
