#include "samba/train/training_loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/generate/decode_session.h"
#include "samba/model/token_batch.h"
#include "samba/text/tokenizer.h"
#include "samba/train/freeze.h"
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

TrainingRun::TrainingRun(const TrainConfig& config, const ModelOpener& opener)
    : Training({config.steps, config.checkpoint, config.evaluation, config.sample.every, config.train.watch}),
      config_(config),
      opener_(opener),
      data_(open_training_data(config, opener)),
      order_(make_order()) {
  const bool evaluates = window_count(*data_, DataPart::held_out, config_.batch.length) > 0;
  set_evaluates(evaluates);
  if (config_.evaluation.every > 0 && !evaluates) {
    refuse_value(
        "/evaluation/every: " + std::to_string(config_.evaluation.every) +
        ": the shards hold no window of /batch/length + 1 = " + std::to_string(config_.batch.length + 1) +
        " tokens out to evaluate on; samba prepare --held-out P keeps documents for it, --set evaluation.every=0 "
        "trains without");
  }
}

std::unique_ptr<WindowOrder> TrainingRun::make_order() {
  const auto length = static_cast<std::uint64_t>(config_.batch.length);
  const bool permuted = config_.data.order == "permute.v1";
  std::vector<WindowRange> ranges;
  for (const TokenRange& range : data_->ranges(DataPart::training)) {
    if (permuted) {
      ranges.push_back({range.first, (range.count - 1) / length, length});
    } else {
      ranges.push_back({range.first, range.count - length, 1});
    }
  }
  if (!config_.data.weights.empty()) return mixture_order(config_.seed, std::move(ranges), config_.data.weights);
  if (permuted) return permute_order(config_.seed, std::move(ranges));
  if (config_.data.start_positions.empty()) return draw_order(config_.seed, std::move(ranges));
  if (ranges.size() > 1) {
    refuse_value("/data/start_positions: are of one source, /data/paths has " + std::to_string(ranges.size()));
  }
  start_positions_sha256_ = sha256_hex(read_file(config_.data.start_positions));
  return start_positions_order(config_.data.start_positions, config_.batch.rows, ranges[0].count,
                               static_cast<std::uint64_t>(config_.steps));
}

void TrainingRun::keep_beside(const Path& folder) { tokenizer_entry_ = data_->tokenizer().keep(folder); }

nlohmann::ordered_json TrainingRun::resolved() const {
  nlohmann::ordered_json json = {{"format", kFolderFormat}};
  json.update(resolved_json(config_));
  data_->describe(json["data"]);
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
  if (config_.train.init_from.empty()) {
    trainer_ =
        SambaTrainer::create(executor, config_.model, config_.seed, config_.optimizer, config_.schedule, place());
  } else {
    SambaTrainer::require_memory(executor, config_.model, config_.optimizer, place());
    trainer_ = std::make_unique<SambaTrainer>(initial_stack(executor), Generator(config_.seed), config_.optimizer,
                                              config_.schedule, place());
  }
  make_ready(executor);
}

std::unique_ptr<SambaStack> TrainingRun::initial_stack(Executor& executor) const {
  const InitialModel model = opener_.open(config_.train.init_from);
  check_initial_model(model);
  return model.load(executor, config_.model);
}

void TrainingRun::check_initial_model(const InitialModel& model) const {
  const std::string& path = config_.train.init_from;
  if (model.config.vocab != config_.model.vocab) {
    refuse_value("/model/vocab: is " + std::to_string(config_.model.vocab) + ", the model " + path + " has " +
                 std::to_string(model.config.vocab) +
                 " tokens; a model keeps its vocabulary: leave /model out, or train from drawn values");
  }
  // Parameters have no profile, and do not tell how layers are written.
  const auto shape_of = [](StackConfig config) {
    config.samba.reset();
    config.profile = StackProfile::fp32_v1;
    return config_to_json(config);
  };
  const nlohmann::json mine = shape_of(config_.model);
  const nlohmann::json theirs = shape_of(model.config);
  const std::string field = first_difference({{"model", mine}}, {{"model", theirs}});
  if (!field.empty() && field != "/model/dropout") {
    refuse_value(field + ": is not that of the model " + path + " that /train/init_from names; leave /model out");
  }
  const RunTokenizer& given = data_->tokenizer();
  if (model.tokenizer.empty() || given.is_bytes()) return;
  const std::unique_ptr<Tokenizer> its = load_tokenizer(model.tokenizer);
  const Tokenizer& own = given.tokenizer();
  const Index size = std::max(its->vocabulary_size(), own.vocabulary_size());
  for (std::int32_t id = 0; id < size; ++id) {
    if (its->piece(id) == own.piece(id)) continue;
    refuse_value("/data/tokenizer: the token " + std::to_string(id) + " of " + given.path() + " is " +
                 nlohmann::json(own.piece(id)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + ", of " +
                 model.tokenizer + ", which belongs to the model, " +
                 nlohmann::json(its->piece(id)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) +
                 "; a model keeps its vocabulary");
  }
}

void TrainingRun::make_ready(Executor& executor) {
  if (!config_.train.freeze.empty()) {
    trainer_->optimizer().freeze(frozen_tensors(trainer_->stack().registry(), config_.train.freeze));
  }
  OptimizerSettings settings = config_.optimizer;
  Index rows = config_.batch.rows;
  if (trainer_->ranks() != nullptr) {  // calls are of this rank's rows
    settings.accumulation_steps = 1;
    rows = trainer_->ranks()->split().rows;
  }
  const std::optional<Index> budget = config_.train.activation_budget_bytes;
  trainer_->stack().set_activation_budget(budget);
  const MemoryPlan plan = plan_training(executor, config_.model, settings, rows, config_.batch.length, budget);
  trainer_->stack().reserve_workspace(plan.workspace);
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
  make_ready(executor);
}

StepMetrics TrainingRun::step() {
  const auto begin = std::chrono::steady_clock::now();
  const auto done = static_cast<std::uint64_t>(trainer_->completed_steps());
  std::vector<std::uint64_t> starts(static_cast<std::size_t>(config_.batch.rows));
  order_->starts(done, starts);
  const WindowBatch batch = make_batch(*data_, DataPart::training, starts, config_.batch.length);
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

TrainingRun::HeldOutPart TrainingRun::evaluate_windows(std::span<const std::uint64_t> starts) {
  const Index length = config_.batch.length;
  const WindowBatch batch = make_batch(*data_, DataPart::held_out, starts, length);
  HeldOutPart part;
  for (const std::uint64_t start : starts) part.bytes += data_->target_bytes(start, length);
  part.targets = counted_targets(batch.targets.values<std::int32_t>());
  if (part.targets > 0) part.loss = static_cast<double>(trainer_->stack().loss(batch.inputs, batch.targets));
  return part;
}

nlohmann::ordered_json TrainingRun::batch_of_step(Index step) const {
  std::vector<std::uint64_t> starts(static_cast<std::size_t>(config_.batch.rows));
  order_->starts(static_cast<std::uint64_t>(step - 1), starts);
  const WindowBatch batch = make_batch(*data_, DataPart::training, starts, config_.batch.length);
  const auto rows_of = [&](const Array& ids) {
    const auto values = ids.values<std::int32_t>();
    const auto length = static_cast<std::size_t>(config_.batch.length);
    auto rows = nlohmann::ordered_json::array();
    for (std::size_t first = 0; first < values.size(); first += length) {
      rows.push_back(std::vector<std::int32_t>(values.begin() + static_cast<std::ptrdiff_t>(first),
                                               values.begin() + static_cast<std::ptrdiff_t>(first + length)));
    }
    return rows;
  };
  nlohmann::ordered_json json = {
      {"kind", "tokens"}, {"order", order_->name()}, {"seed", config_.seed}, {"starts", starts}};
  // The stream id of the step's dropout; a step without dropout takes none.
  json["stream"] = nullptr;
  if (config_.model.dropout > 0.0F) {
    json["stream"] = static_cast<std::int64_t>(trainer_->generator().counter()) + (step - 1 - completed_steps());
  }
  json["inputs"] = rows_of(batch.inputs);
  json["targets"] = rows_of(batch.targets);
  return json;
}

BatchFigures TrainingRun::figures_of_next_step() {
  std::vector<std::uint64_t> starts(static_cast<std::size_t>(config_.batch.rows));
  order_->starts(static_cast<std::uint64_t>(completed_steps()), starts);
  const auto batch_of = [&](std::span<const std::uint64_t> rows) {
    return make_batch(*data_, DataPart::training, rows, config_.batch.length);
  };
  const WindowBatch batch = batch_of(starts);
  BatchFigures figures;
  // A NaN on the way is told as an error of the operation that meets it; then there is no loss, and no gradient.
  const auto finite = [](const auto& call) {
    try {
      return call();
    } catch (const Error& error) {
      if (error.error_class() != kNonFiniteClass) throw;
      return std::nanf("");
    }
  };
  std::optional<SambaTrainer::StepGradient> step;
  figures.loss = finite([&] {
    step = trainer_->step_gradient(batch.inputs, batch.targets);
    return step->loss;
  });
  for (std::size_t row = 0; row < starts.size(); ++row) {
    const WindowBatch one = batch_of(std::span(starts).subspan(row, 1));
    figures.row_texts.push_back(data_->tokenizer().tokenizer().decode(one.inputs.values<std::int32_t>()));
    const bool counts = counted_targets(one.targets.values<std::int32_t>()) > 0;
    const auto loss = [&] { return trainer_->stack().loss(one.inputs, one.targets); };
    figures.row_losses.push_back(counts ? finite(loss) : std::nanf(""));
  }
  if (!step) return figures;
  const auto gradient = step->gradient.values<float>();
  for (const ParameterTensor& tensor : trainer_->stack().registry().tensors()) {
    figures.gradient.push_back(gradient_figures(
        tensor.name, gradient.subspan(static_cast<std::size_t>(tensor.offset), static_cast<std::size_t>(tensor.size))));
  }
  return figures;
}

EvaluationMetrics TrainingRun::evaluate() {
  const Index length = config_.batch.length;
  const auto rows = static_cast<std::uint64_t>(config_.batch.rows);
  const std::uint64_t all = window_count(*data_, DataPart::held_out, length);
  const auto most = static_cast<std::uint64_t>(config_.evaluation.windows);
  const std::uint64_t windows = most > 0 ? std::min(all, most) : all;
  // Spread evenly over what is held out.
  const auto start_of = [&](std::uint64_t number) {
    __extension__ using Wide = unsigned __int128;
    const auto place = static_cast<std::uint64_t>(Wide{number} * all / windows);
    return window_start(*data_, DataPart::held_out, length, place);
  };
  // Ranks share the calls of up to `rows` windows; all then have every call's loss, and add them up in one order.
  const std::uint64_t calls = (windows + rows - 1) / rows;
  const std::uint64_t size = ranks() == nullptr ? 1 : static_cast<std::uint64_t>(ranks()->size());
  const std::uint64_t rank = ranks() == nullptr ? 0 : static_cast<std::uint64_t>(ranks()->rank());
  std::vector<HeldOutPart> parts(calls);
  agreed(ranks(), [&] {
    for (std::uint64_t call = calls * rank / size; call < calls * (rank + 1) / size; ++call) {
      std::vector<std::uint64_t> starts;
      for (std::uint64_t w = call * rows; w < std::min(windows, (call + 1) * rows); ++w) starts.push_back(start_of(w));
      parts[call] = evaluate_windows(starts);
    }
  });
  if (ranks() != nullptr) {
    std::vector<std::size_t> borders;
    for (std::uint64_t r = 0; r <= size; ++r) borders.push_back(calls * r / size * sizeof(HeldOutPart));
    all_gather(*ranks(), std::as_writable_bytes(std::span(parts)), borders);
  }
  double total = 0.0;
  Index counted = 0;
  std::uint64_t bytes = 0;
  for (const HeldOutPart& part : parts) {
    total += part.loss * (static_cast<double>(part.targets) / static_cast<double>(length));
    counted += part.targets;
    bytes += part.bytes;
  }
  if (counted == 0) refuse_value("evaluation: none of the targets held out counts, all are of prompts");
  const double mean = total / (static_cast<double>(counted) / static_cast<double>(length));
  const double bits = mean / std::log(2.0) * (static_cast<double>(counted) / static_cast<double>(bytes));
  return {trainer_->completed_steps(), mean, bits, std::nullopt};
}

std::vector<std::string> TrainingRun::sample_texts() {
  const RunTokenizer& tokenizer = data_->tokenizer();
  if (tokenizer.is_bytes() && config_.model.vocab < kByteVocabulary) return {};  // it has no text
  DecodeOptions options;
  options.max_tokens = config_.sample.tokens;
  options.sampler.temperature = config_.sample.temperature;
  options.sampler.seed = config_.seed;
  if (!tokenizer.is_bytes()) {
    options.tokenizer = &tokenizer.tokenizer();
    options.end_ids = tokenizer.text().end_ids;
  }
  std::vector<std::string> prompts = config_.sample.prompts;
  if (prompts.empty()) prompts = {config_.sample.prompt};
  std::vector<DecodeRequest> requests;
  for (const std::string& prompt : prompts) {
    requests.push_back({tokenizer.is_bytes() ? byte_tokens(prompt) : tokenizer.text().prompt_tokens(prompt),
                        static_cast<std::uint32_t>(trainer_->completed_steps())});
  }
  const std::vector<DecodeResult> results = decode(trainer_->stack(), requests, options);
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < prompts.size(); ++i) texts.push_back(prompts[i] + results[i].text);
  return texts;
}

Sidecar TrainingRun::sidecar() const {
  Sidecar sidecar;
  if (!tokenizer_entry_.is_null()) sidecar.tokenizer = tokenizer_entry_;
  sidecar.profile = profile_name(config_.model);
  sidecar.data_order = order_->name();
  sidecar.data_seed = config_.seed;
  sidecar.rows_drawn = static_cast<std::uint64_t>(completed_steps()) * static_cast<std::uint64_t>(config_.batch.rows);
  return sidecar;
}

std::string TrainingRun::save(const Path& path) const { return save_checkpoint(*trainer_, path); }

Training::Saving TrainingRun::snapshot() {
  if (ranks() != nullptr || trainer_->stack().executor().memory().is_host()) return {};
  image_.take(*trainer_);
  return [this](const Path& path) { return image_.write(path); };
}

std::string TrainingRun::summary() const {
  return std::to_string(trainer_->stack().registry().total()) + " parameters on " + data_->summary();
}

}  // namespace samba
