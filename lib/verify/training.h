// Inside lib/verify: options of training as cases write them, and what a training step is compared with.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "samba/model/loss.h"
#include "samba/train/optimizer.h"
#include "samba/train/schedule.h"
#include "samba/train/trainer.h"
#include "samba/verify/runner.h"
#include "samba/verify/slices.h"

namespace samba::verify {

// Absent keys have the defaults of spec 61.
CrossEntropyOptions cross_entropy_options(const json& options);
// The hyperparameters, max_norm and accumulation_steps of one object.
OptimizerSettings optimizer_settings(const json& options);
std::optional<Schedule> optional_schedule(const json& options);

// A trainer with initial values from options.seed; options as in stack_train.
std::unique_ptr<SambaTrainer> make_trainer(Executor& executor, const SambaConfig& config, const json& options);

// int32 (batch, length) of nested lists of integers, whatever their rank; int64 where a value needs it.
Array token_array(const json& lists);

// Takes a step and compares it with its record (golden/README.md section 5, stack_train point 4).
void check_step(Checker& check, SambaTrainer& trainer, ConstArray ids, ConstArray targets, const json& record,
                const std::string& where);

// A whole checkpoint file: its SHA-256 and, where listed, its length.
void check_checkpoint_file(Checker& check, const SambaTrainer& trainer, const std::filesystem::path& path,
                           const json& expected, const std::string& where);

// Greedy decoding with a state of one row: the prompt at once, then single tokens; argmax, the lowest index on ties.
struct Greedy {
  Array tokens;  // int32 (n,)
  Array logits;  // (n, vocab): row i gave token i
};
Greedy decode_greedily(SambaStack& stack, std::span<const std::int32_t> prompt, Index tokens);

// A folder that goes away with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace samba::verify
