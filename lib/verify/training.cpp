#include "samba/verify/training.h"

#include <stdlib.h>

#include <limits>

#include "samba/core/files.h"
#include "samba/core/sha256.h"
#include "samba/train/checkpoint.h"
#include "samba/verify/slices.h"

namespace samba::verify {
namespace {

// The axes of a nested list, taken from the first element of each level.
Shape shape_of(const json& lists) {
  Shape shape;
  for (const json* level = &lists; level->is_array(); level = &(*level)[0]) {
    shape.push_back(static_cast<Index>(level->size()));
    if (level->empty()) break;
  }
  return shape;
}

void flatten(const json& lists, std::vector<std::int64_t>& values) {
  if (!lists.is_array()) {
    values.push_back(lists.get<std::int64_t>());
    return;
  }
  for (const json& entry : lists) flatten(entry, values);
}

}  // namespace

std::unique_ptr<SambaTrainer> make_trainer(Executor& executor, const SambaConfig& config, const json& options) {
  OptimizerSettings settings = optimizer_settings(member_or_empty(options, "optimizer"));
  if (!options.value("max_norm", json()).is_null()) settings.max_norm = number_of(options["max_norm"]);
  settings.accumulation_steps = options.value("accumulation_steps", Index{1});
  return SambaTrainer::create(executor, config, options.at("seed").get<std::uint64_t>(), settings,
                              optional_schedule(options));
}

Array token_array(const json& lists) {
  const Shape shape = shape_of(lists);
  std::vector<std::int64_t> values;
  flatten(lists, values);
  if (static_cast<Index>(values.size()) != element_count(shape)) {
    refuse_corrupt("case", "token ids with rows of unequal length");
  }
  bool wide = false;
  for (const std::int64_t value : values) wide = wide || value != static_cast<std::int32_t>(value);
  Array array(wide ? DType::int64 : DType::int32, shape);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (wide) {
      array.values<std::int64_t>()[i] = values[i];
    } else {
      array.values<std::int32_t>()[i] = static_cast<std::int32_t>(values[i]);
    }
  }
  return array;
}

void check_step(Checker& check, SambaTrainer& trainer, ConstArray ids, ConstArray targets, const json& record,
                const std::string& where) {
  const StepResult result = trainer.train_step(std::move(ids), std::move(targets));
  check.integer(where + "/t", result.step, record.at("t").get<Index>());
  check.bits(where + "/loss", result.loss, record.at("loss_bits"));
  check.bits(where + "/lr", result.lr, record.at("lr_bits"));
  check.holds(where + "/total_norm", result.total_norm.has_value() == !record.at("total_norm_bits").is_null(),
              result.total_norm ? "a norm without clipping" : "no norm");
  if (result.total_norm) check.bits(where + "/total_norm", *result.total_norm, record.at("total_norm_bits"));
  check.text(where + "/params_sha256", trainer.stack().parameters_sha256(), record.at("params_sha256"));
  check.text(where + "/exp_avg_sha256", sha256_of(trainer.exp_avg()), record.at("exp_avg_sha256"));
  check.text(where + "/exp_avg_sq_sha256", sha256_of(trainer.exp_avg_sq()), record.at("exp_avg_sq_sha256"));
  check.text(where + "/rng_counter", std::to_string(trainer.generator().counter()), record.at("rng_counter").dump());
}

void check_checkpoint_file(Checker& check, const SambaTrainer& trainer, const std::filesystem::path& path,
                           const json& expected, const std::string& where) {
  const std::string returned = save_checkpoint(trainer, path);
  const std::string content = read_file(path);
  check.text(where + " SHA-256", sha256_hex(content), expected.at("sha256"));
  check.text(where + " SHA-256 as returned", returned, expected.at("sha256"));
  if (expected.contains("bytes")) {
    check.integer(where + " bytes", static_cast<std::int64_t>(content.size()), expected["bytes"].get<std::int64_t>());
  }
}

Greedy decode_greedily(SambaStack& stack, std::span<const std::int32_t> prompt, Index tokens) {
  const auto vocab = static_cast<std::size_t>(stack.config().vocab);
  const auto length = static_cast<Index>(prompt.size());
  const auto state = stack.allocate_state(1, length + tokens);
  Greedy greedy{Array(DType::int32, {tokens}), Array::zeros({tokens, stack.config().vocab})};
  std::vector<float> row(vocab);
  stack.prefill(prompt, length, *state, row);
  for (Index i = 0; i < tokens; ++i) {
    const auto token = static_cast<std::int32_t>(argmax(row));
    greedy.tokens.values<std::int32_t>()[static_cast<std::size_t>(i)] = token;
    std::copy(row.begin(), row.end(), greedy.logits.floats().begin() + i * static_cast<Index>(vocab));
    if (i + 1 < tokens) stack.step(std::span(&token, 1), *state, row);
  }
  return greedy;
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "samba-verify-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw_file_error("make a folder", name, errno);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace samba::verify
