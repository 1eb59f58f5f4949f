// Rows "prefill/MODEL/Nt", "decode/MODEL/Nt", "training/MODEL/Nt" and their speed-ups: whole models with the weights
// that training would start from. The values change nothing in the time of a float32 model. "identity/PASS/MODEL/Nt"
// has the same in the numeric mode fast beside it.
#include <algorithm>

#include "samba/bench/shapes.h"
#include "samba/core/error.h"
#include "samba/model/samba_stack.h"
#include "samba/numerics/generator.h"
#include "samba/train/trainer.h"

namespace samba::bench {

namespace {

constexpr std::uint64_t kSeed = 1;
constexpr Index kMostLength = 65536;

std::vector<std::int32_t> some_tokens(Index count, Index vocab) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>((i * 7919 + 13) % static_cast<std::size_t>(vocab));
  return ids;
}

std::unique_ptr<SambaStack> make_stack(Executor& executor, const StackConfig& config) {
  Generator generator(kSeed);
  return std::make_unique<SambaStack>(executor, config, generator, SambaStack::Use::inference);
}

class Prefill final : public Subject {
 public:
  Prefill(Executor& executor, const StackConfig& config, Index length)
      : stack_(make_stack(executor, config)),
        state_(stack_->allocate_state(1, length)),
        ids_(some_tokens(length, config.vocab)),
        logits_(static_cast<std::size_t>(config.vocab)) {}

  void prepare() override { state_->reset(); }
  void run() override {
    state_->reset();
    stack_->prefill(ids_, static_cast<Index>(ids_.size()), *state_, logits_);
  }

 private:
  std::unique_ptr<SambaStack> stack_;
  std::unique_ptr<SambaState> state_;
  std::vector<std::int32_t> ids_;
  std::vector<float> logits_;
};

class Decode final : public Subject {
 public:
  Decode(Executor& executor, const StackConfig& config, Index position, Index tokens)
      : stack_(make_stack(executor, config)),
        state_(stack_->allocate_state(1, position + tokens)),
        prompt_(some_tokens(position, config.vocab)),
        ids_(some_tokens(tokens, config.vocab)),
        logits_(static_cast<std::size_t>(config.vocab)) {}

  void prepare() override {
    state_->reset();
    stack_->prefill(prompt_, static_cast<Index>(prompt_.size()), *state_, logits_);
  }
  void run() override {
    for (const std::int32_t& id : ids_) stack_->step(std::span(&id, 1), *state_, logits_);
  }

 private:
  std::unique_ptr<SambaStack> stack_;
  std::unique_ptr<SambaState> state_;
  std::vector<std::int32_t> prompt_, ids_;
  std::vector<float> logits_;
};

class TrainingStep final : public Subject {
 public:
  TrainingStep(Executor& executor, const StackConfig& config, Index rows, Index length)
      : trainer_(SambaTrainer::create(executor, config, kSeed, {.max_norm = 1.0})),
        inputs_(DType::int32, {rows, length}),
        targets_(DType::int32, {rows, length}) {
    const std::vector<std::int32_t> ids = some_tokens(rows * length + 1, config.vocab);
    std::copy(ids.begin(), ids.end() - 1, inputs_.values<std::int32_t>().begin());
    std::copy(ids.begin() + 1, ids.end(), targets_.values<std::int32_t>().begin());
  }

  void run() override { trainer_->train_step(inputs_, targets_); }

 private:
  std::unique_ptr<SambaTrainer> trainer_;
  Array inputs_, targets_;
};

// "prefill/NAME": NAME is given, or that of the model.
std::string base_name(const RowSource& row, const JsonFields& fields, const std::string& kind) {
  return kind + "/" + fields.text("name", row.json.value("model", ""));
}

ThreadMeasurement prefill_measurement(const RowSource& row) {
  const JsonFields fields = row.fields();
  const StackConfig config = row.model();
  const Index length = fields.integer("length", 512, 1, kMostLength);
  return {.base = base_name(row, fields, "prefill"),
          .make = [=](Executor& executor) { return std::make_unique<Prefill>(executor, config, length); },
          .cost = prefill_cost(config, length),
          .units = static_cast<double>(length),
          .unit = "tokens/s"};
}

ThreadMeasurement decode_measurement(const RowSource& row) {
  const JsonFields fields = row.fields();
  const StackConfig config = row.model();
  const Index position = fields.integer("position", 128, 1, kMostLength);
  const Index tokens = fields.integer("tokens", 32, 1, kMostLength);
  Cost cost;
  for (Index t = 0; t < tokens; ++t) cost = cost + decode_cost(config, position + t);
  return {.base = base_name(row, fields, "decode"),
          .make = [=](Executor& executor) { return std::make_unique<Decode>(executor, config, position, tokens); },
          .cost = cost,
          .units = static_cast<double>(tokens),
          .unit = "tokens/s"};
}

ThreadMeasurement training_measurement(const RowSource& row) {
  const JsonFields fields = row.fields();
  const StackConfig config = row.model();
  if (const auto reason = inference_only_reason(config)) {
    fields.refuse("model", "a model that can be trained (" + reason->pointer + " " + reason->text + ")");
  }
  const Index rows = fields.integer("rows", 8, 1, kMostLength), length = fields.integer("length", 128, 1, kMostLength);
  return {.base = base_name(row, fields, "training"),
          .make = [=](Executor& executor) { return std::make_unique<TrainingStep>(executor, config, rows, length); },
          .cost = training_cost(config, rows, length),
          .units = static_cast<double>(rows * length),
          .unit = "tokens/s"};
}

void add_measurement(const RowSource& row, ThreadMeasurement measurement, std::vector<Case>& cases) {
  std::vector<std::string> names = thread_rows(measurement.base, row.threads);
  cases.push_back({std::move(names), row.quick(),
                   [measurement = std::move(measurement)](const Context& context, const Wanted& wanted) {
                     return measure_on_threads(context, wanted, measurement);
                   }});
}

// The mode identical beside the mode fast, which is the limit.
Row measure_identity(const Context& context, const ThreadMeasurement& m, const std::string& name, int threads) {
  std::vector<std::unique_ptr<Executor>> executors;
  std::vector<std::unique_ptr<Subject>> subjects;
  std::vector<Side> sides;
  for (const NumericMode mode : {NumericMode::identical, NumericMode::fast}) {
    executors.push_back(context.executor(threads, mode));
    subjects.push_back(m.make(*executors.back()));
    Subject* subject = subjects.back().get();
    sides.push_back({.work = [subject] { subject->run(); }, .prepare = [subject] { subject->prepare(); }});
  }
  const std::vector<Timing> timings = measure(sides, context.measuring);
  Row row{.name = name, .threads = threads, .unit = m.unit, .limit_name = "numeric mode fast"};
  row.achieved = m.units / timings[0].wall_min;
  row.limit = m.units / timings[1].wall_min;
  row.timing = timings[0];
  return row;
}

}  // namespace

void add_prefill(const RowSource& row, std::vector<Case>& cases) {
  add_measurement(row, prefill_measurement(row), cases);
}

void add_decode(const RowSource& row, std::vector<Case>& cases) {
  add_measurement(row, decode_measurement(row), cases);
}

void add_training(const RowSource& row, std::vector<Case>& cases) {
  add_measurement(row, training_measurement(row), cases);
}

void add_identity(const RowSource& row, std::vector<Case>& cases) {
  const std::string pass = row.fields().choice("pass", "prefill", {"prefill", "decode", "training"});
  ThreadMeasurement measurement = pass == "prefill"  ? prefill_measurement(row)
                                  : pass == "decode" ? decode_measurement(row)
                                                     : training_measurement(row);
  measurement.base = "identity/" + measurement.base;
  Case c{.rows = {}, .quick = row.quick(), .run = {}};
  for (const int threads : row.threads) c.rows.push_back(thread_row(measurement.base, threads));
  c.run = [measurement](const Context& context, const Wanted& wanted) {
    std::vector<Row> rows;
    for (const int threads : context.threads) {
      const std::string name = thread_row(measurement.base, threads);
      if (wanted(name)) rows.push_back(measure_identity(context, measurement, name, threads));
    }
    return rows;
  };
  cases.push_back(std::move(c));
}

}  // namespace samba::bench
