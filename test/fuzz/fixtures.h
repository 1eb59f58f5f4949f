// What readers and seeds share: an executor without vector kernels, and a stack so small that its files are.
#pragma once

#include <map>
#include <string>

#include "samba/kernels/executor.h"
#include "samba/model/samba_stack.h"
#include "samba/train/prepare.h"
#include "samba/train/trainer.h"

namespace samba::fuzz {

Executor& reference_executor();

StackConfig tiny_stack_config();
SambaStack& tiny_stack();  // always the same weights

// A trainer of this configuration after one step, with clipping and a schedule.
std::unique_ptr<SambaTrainer> trained(const StackConfig& config);
StackConfig stack_of(const char* json);

// Folders as their files: by name, '/' between the parts.
using Files = std::map<std::string, std::string>;
Files files_below(const Path& folder);

const Files& sound_folder();  // a model with its moments (docs/formats/model_folder.md)
const Files& sound_shards();  // of plain texts and of prompts with completions
const Files& sound_run();     // of one step

// A preparation that was stopped before its end. Its texts stay in the scratch folder.
struct StoppedPreparation {
  PrepareOptions options;
  Files files;
};
const StoppedPreparation& stopped_preparation();

}  // namespace samba::fuzz
