// Checkpoints of a stack. A Samba stack is saved as the streamed archive of spec 62; what that cannot hold, a general
// stack among it, as samba.stack.v1 (docs/formats/stack.md). Both are loaded, and legacy JSON files are; for inference
// also folders of safetensors files (docs/formats/model_folder.md).
//
// Refusals of a load are Error(corrupt) whose error_class() is a class of spec 62 sections 4 and 5, or of the pages
// above; a file that cannot be opened is Error(value). Nothing is handed out before the whole file was verified.
// Memory: header and arrays.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "samba/core/files.h"
#include "samba/formats/samba_archive.h"
#include "samba/kernels/executor.h"
#include "samba/model/samba_stack.h"
#include "samba/train/trainer.h"

namespace samba {

// Atomic and durable: on any failure the old file at `path` stays. Returns the SHA-256 of the whole file (hex).
// Several ranks call it together and write the file together; it has the bytes of one process.
std::string save_checkpoint(const SambaTrainer& trainer, const Path& path, const FileProgress& progress = {});

// Config, parameters, moments, counters, optimizer, schedule and random stream; continuing gives the bits of the
// uninterrupted run, and saving at once gives the file's bytes. `place`: as of SambaTrainer, whatever number of ranks
// wrote the file; a rank keeps its share of the moments.
std::unique_ptr<SambaTrainer> load_for_training(Executor& executor, const Path& path, const FileProgress& progress = {},
                                                const RankPlace& place = {});

// Config and parameters only: no memory for moments or gradients. Packed weights stay packed.
std::unique_ptr<SambaStack> load_for_inference(Executor& executor, const Path& path, const FileProgress& progress = {});

// What the file says about itself. Everything is verified, as for inference, unless `verify_arrays` is false: then the
// arrays of the file are not read (those of a legacy file or a folder always are).
struct CheckpointSummary {
  bool legacy = false;
  std::uint64_t bytes = 0;
  StackConfig config;
  nlohmann::json state;  // the state without arrays: optimizer, schedule, rng, ...
};
CheckpointSummary inspect_checkpoint(const Path& path, bool verify_arrays, const FileProgress& progress = {});

}  // namespace samba
