#include "samba/train/training_loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/formats/gguf_metadata.h"
#include "samba/generate/decode_session.h"
#include "samba/text/tokenizer.h"
#include "samba/train/memory_plan.h"
#include "samba/train/model_folder.h"

namespace samba {

namespace {

// Which of the fields an archive carries differs from the configuration; "" when none does. The learning rate of an
// archive is that of its last scheduled step, so it is compared without a schedule only.
std::string archive_difference(const SambaTrainer& trainer, const TrainConfig& config) {
  if (trainer.stack().config() != config.model) return "/model";
  OptimizerSettings settings = trainer.optimizer().settings();
  if (config.schedule) settings.lr = config.optimizer.lr;
  if (settings != config.optimizer) return "/optimizer";
  if (trainer.optimizer().schedule() != config.schedule) return "/schedule";
  if (trainer.generator().seed() != config.seed) return "/seed";
  return "";
}

}  // namespace

TrainingRun::TrainingRun(const TrainConfig& config)
    : Training({config.steps, config.checkpoint, config.data.evaluation_bytes > 0, config.evaluation.every,
                config.sample.every}),
      config_(config),
      text_(config.data.paths) {
  read_tokenizer();
  const auto held_back = static_cast<std::uint64_t>(config_.data.evaluation_bytes);
  const auto length = static_cast<std::uint64_t>(config_.batch.length);
  const std::uint64_t size = text_.size();
  training_bytes_ = size > held_back ? size - held_back : 0;
  if (tokenizer_.tokenizer != nullptr) {
    training_bytes_ = character_border(text_, training_bytes_);
    encoded_ = std::make_unique<EncodedText>(text_, training_bytes_, tokenizer_, config_.model.vocab);
  }
  if (training_tokens() < length + 1) {
    refuse_value("/data: the training text has " + std::to_string(training_tokens()) +
                 (encoded_ ? " tokens" : " bytes") +
                 (held_back > 0 ? " without the " + std::to_string(held_back) + " held back" : std::string()) +
                 ", one sequence needs /batch/length + 1 = " + std::to_string(length + 1));
  }
  if (encoded_ && held_back > 0 && encoded_->size() - encoded_->training_tokens() < length + 1) {
    refuse_value("/data/evaluation_bytes: the " + std::to_string(held_back) + " bytes held back are " +
                 std::to_string(encoded_->size() - encoded_->training_tokens()) +
                 " tokens, one sequence needs /batch/length + 1 = " + std::to_string(length + 1));
  }
  sha256_ = text_.checked_sha256(training_bytes_, encoded_ ? kByteVocabulary : config_.model.vocab);
  const std::uint64_t starts = training_tokens() - length;
  if (!config_.data.start_positions.empty()) {
    start_positions_sha256_ = sha256_hex(read_file(config_.data.start_positions));
    order_ = start_positions_order(config_.data.start_positions, config_.batch.rows, starts,
                                   static_cast<std::uint64_t>(config_.steps));
  } else if (config_.data.order == "permute.v1") {
    order_ = permute_order(config_.seed, (training_tokens() - 1) / length, length);
  } else {
    order_ = draw_order(config_.seed, starts);
  }
}

void TrainingRun::read_tokenizer() {
  const std::string& path = config_.data.tokenizer;
  if (path.empty()) return;
  if (std::filesystem::is_regular_file(path) && is_gguf(path)) {
    refuse_unsupported("/data/tokenizer: " + path +
                       " is a GGUF file; give a tokenizer.json or tokenizer.model (samba convert writes one)");
  }
  tokenizer_ = read_tokenizer_text(path);
  tokenizer_sha256_ = samba::tokenizer_sha256(path);
  if (tokenizer_.tokenizer->vocabulary_size() <= config_.model.vocab) return;
  refuse_value("/model/vocab: " + std::to_string(config_.model.vocab) + " is less than the " +
               std::to_string(tokenizer_.tokenizer->vocabulary_size()) + " tokens of " + path);
}

void TrainingRun::keep_beside(const Path& folder) {
  if (tokenizer_.tokenizer != nullptr) tokenizer_entry_ = keep_tokenizer(tokenizer_, config_.data.tokenizer, folder);
}

WindowBatch TrainingRun::batch_at(std::span<const std::uint64_t> starts) const {
  return encoded_ ? make_batch(encoded_->tokens(), starts, config_.batch.length)
                  : make_batch(text_, starts, config_.batch.length);
}

nlohmann::ordered_json TrainingRun::resolved() const {
  nlohmann::ordered_json json = {{"format", kFolderFormat}};
  json.update(resolved_json(config_));
  json["data"]["bytes"] = training_bytes_;
  json["data"]["sha256"] = sha256_;
  if (encoded_) {
    json["data"]["tokens"] = encoded_->training_tokens();
    json["data"]["tokenizer_sha256"] = tokenizer_sha256_;
  }
  if (!start_positions_sha256_.empty()) json["data"]["start_positions_sha256"] = start_positions_sha256_;
  return json;
}

void TrainingRun::join(Communicator& ranks) {
  const StepShape step{config_.batch.rows, config_.batch.length, config_.optimizer.accumulation_steps};
  split_step(config_.model, step, ranks.rank(), ranks.size());  // refuses before anything is made
  set_ranks(ranks);
}

RankPlace TrainingRun::place() const { return {ranks(), config_.batch.rows, config_.batch.length}; }

void TrainingRun::start(Executor& executor) {
  trainer_ = SambaTrainer::create(executor, config_.model, config_.seed, config_.optimizer, config_.schedule, place());
  reserve_workspace(executor);
}

void TrainingRun::resume(Executor& executor, const Path& archive) {
  auto trainer = load_for_training(executor, archive, {}, place());
  const std::string difference = archive_difference(*trainer, config_);
  if (!difference.empty()) {
    refuse_value("cannot resume from " + archive.string() + ": " + difference +
                 " differs from the configuration of the run");
  }
  check_resumed_steps(trainer->completed_steps(), archive);
  trainer_ = std::move(trainer);
  reserve_workspace(executor);
}

void TrainingRun::reserve_workspace(Executor& executor) {
  OptimizerSettings settings = config_.optimizer;
  Index rows = config_.batch.rows;
  if (trainer_->ranks() != nullptr) {  // calls are of this rank's rows
    settings.accumulation_steps = 1;
    rows = trainer_->ranks()->split().rows;
  }
  const MemoryPlan plan = plan_training(executor, config_.model, settings, rows, config_.batch.length);
  trainer_->stack().reserve_workspace(plan.workspace);
}

StepMetrics TrainingRun::step() {
  const auto begin = std::chrono::steady_clock::now();
  const auto done = static_cast<std::uint64_t>(trainer_->completed_steps());
  std::vector<std::uint64_t> starts(static_cast<std::size_t>(config_.batch.rows));
  order_->starts(done, starts);
  const WindowBatch batch = batch_at(starts);
  const StepResult result = trainer_->train_step(batch.inputs, batch.targets);
  const Index tokens = config_.batch.rows * config_.batch.length;
  return {result.step,
          result.loss,
          result.lr,
          result.total_norm,
          static_cast<std::uint64_t>(result.step) * static_cast<std::uint64_t>(tokens),
          tokens - result.counted_targets,
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
}

EvaluationMetrics TrainingRun::evaluate() {
  const auto length = static_cast<std::uint64_t>(config_.batch.length);
  const std::uint64_t windows = (all_tokens() - training_tokens() - 1) / length;
  double total = 0.0;
  for (std::uint64_t first = 0; first < windows;) {
    const auto rows = std::min<std::uint64_t>(static_cast<std::uint64_t>(config_.batch.rows), windows - first);
    std::vector<std::uint64_t> starts(rows);
    for (std::uint64_t row = 0; row < rows; ++row) starts[row] = training_tokens() + (first + row) * length;
    const WindowBatch batch = batch_at(starts);
    total += static_cast<double>(trainer_->stack().loss(batch.inputs, batch.targets)) * static_cast<double>(rows);
    first += rows;
  }
  const double mean = total / static_cast<double>(windows);
  double bits_per_byte = mean / std::log(2.0);
  if (encoded_) {  // the bytes that the predicted tokens stand for
    const std::uint64_t predicted = windows * length;
    const std::uint64_t start = training_tokens() + 1;
    bits_per_byte *= static_cast<double>(predicted) / static_cast<double>(encoded_->bytes_of(start, start + predicted));
  }
  return {trainer_->completed_steps(), mean, bits_per_byte, std::nullopt};
}

std::string TrainingRun::sample_text() {
  DecodeOptions options;
  options.max_tokens = config_.sample.tokens;
  options.sampler.temperature = config_.sample.temperature;
  options.sampler.seed = config_.seed;
  if (encoded_) {
    options.tokenizer = tokenizer_.tokenizer.get();
    options.end_ids = tokenizer_.end_ids;
  }
  const DecodeRequest request{
      encoded_ ? tokenizer_.prompt_tokens(config_.sample.prompt) : byte_tokens(config_.sample.prompt),
      static_cast<std::uint32_t>(trainer_->completed_steps())};
  return config_.sample.prompt + decode(trainer_->stack(), {&request, 1}, options)[0].text;
}

Sidecar TrainingRun::sidecar() const {
  Sidecar sidecar;
  if (encoded_) sidecar.tokenizer = tokenizer_entry_;
  sidecar.profile = profile_name(config_.model);
  sidecar.data_order = order_->name();
  sidecar.data_seed = config_.seed;
  sidecar.rows_drawn = static_cast<std::uint64_t>(completed_steps()) * static_cast<std::uint64_t>(config_.batch.rows);
  return sidecar;
}

std::string TrainingRun::save(const Path& path) const { return save_checkpoint(*trainer_, path); }

std::string TrainingRun::summary() const {
  return std::to_string(trainer_->stack().registry().total()) + " parameters on " + std::to_string(training_bytes_) +
         " bytes" + (encoded_ ? " (" + std::to_string(training_tokens()) + " tokens)" : std::string()) + " of " +
         std::to_string(text_.files()) + " file(s)";
}

}  // namespace samba
