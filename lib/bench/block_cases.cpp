// Rows "block/KIND/PASS/Nt": one block, called as the public interface calls it (lib/blocks/module.h): a prefill of
// `length` tokens, one decode step behind them, the gradients of the prefill.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "samba/bench/shapes.h"
#include "samba/blocks/module.h"
#include "samba/core/error.h"
#include "samba/model/samba_stack.h"
#include "samba/numerics/generator.h"
#include "samba/numerics/philox.h"

namespace samba::bench {

namespace {

constexpr Index kSteps = 16;  // of one repetition
constexpr Index kMostLength = 65536;

Array draw(std::uint32_t stream, Shape shape) {
  Array values = Array::zeros(std::move(shape));
  for (std::size_t i = 0; i < values.floats().size(); ++i) values.floats()[i] = stream_normal(1, stream, i, 0.0F, 1.0F);
  return values;
}

// The options of the layer as its block takes them: what the weights' shapes say is left out.
nlohmann::json block_options_of(const nlohmann::json& layer) {
  nlohmann::json options = layer;
  options.erase("kind");
  options.erase("intermediate");
  return options;
}

struct BlockSetup {
  std::string kind;
  nlohmann::json options;
  StackConfig stack;  // of this one layer
  Index length = 0;

  BlockModule make(Executor& executor) const {
    Generator generator(1);
    const SambaStack drawn(executor, stack, generator, SambaStack::Use::inference);
    const std::string prefix = "layers.0.";
    ArrayMap weights;
    for (auto& [name, value] : drawn.weights()) {
      if (name.starts_with(prefix)) weights.emplace(name.substr(prefix.size()), value);
    }
    return {executor, kind, options, ConstWeightMap(weights.begin(), weights.end())};
  }
};

class BlockPrefill final : public Subject {
 public:
  BlockPrefill(Executor& executor, const BlockSetup& setup)
      : block_(setup.make(executor)), x_(draw(3, {1, setup.length, setup.stack.d_model})) {
    block_.set_reports(false);
  }
  void run() override { block_.forward(x_); }

 private:
  BlockModule block_;
  Array x_;
};

class BlockStep final : public Subject {
 public:
  BlockStep(Executor& executor, const BlockSetup& setup)
      : block_(setup.make(executor)),
        prompt_(draw(3, {1, setup.length, setup.stack.d_model})),
        x_(draw(4, {1, 1, setup.stack.d_model})),
        most_(setup.length + kSteps) {
    block_.set_reports(false);
  }
  void prepare() override {
    session_.reset();
    state_ = block_.allocate_state(1, most_);
    block_.forward(prompt_, *state_);
    session_ = std::make_unique<DecodeSession>(block_.open_session(*state_));
  }
  void run() override {
    for (Index i = 0; i < kSteps; ++i) session_->step(x_);
  }

 private:
  BlockModule block_;
  Array prompt_, x_;
  Index most_;
  std::unique_ptr<ModuleState> state_;
  std::unique_ptr<DecodeSession> session_;
};

class BlockBackward final : public Subject {
 public:
  BlockBackward(Executor& executor, const BlockSetup& setup)
      : block_(setup.make(executor)),
        x_(draw(3, {1, setup.length, setup.stack.d_model})),
        gradient_(draw(5, {1, setup.length, setup.stack.d_model})) {}
  void run() override { block_.backward(x_, gradient_); }

 private:
  BlockModule block_;
  Array x_, gradient_;
};

ThreadMeasurement measurement_of(const BlockSetup& setup, const std::string& base, const std::string& pass) {
  const LayerConfig& layer = setup.stack.layers.front();
  ThreadMeasurement m{.base = base + "/" + pass, .make = {}, .cost = {}, .units = 1.0, .unit = "calls/s"};
  const Cost forward = layer_cost(setup.stack, layer, 0, setup.length);
  if (pass == "prefill") {
    m.make = [setup](Executor& executor) { return std::make_unique<BlockPrefill>(executor, setup); };
    m.cost = forward;
  } else if (pass == "step") {
    m.make = [setup](Executor& executor) { return std::make_unique<BlockStep>(executor, setup); };
    for (Index i = 0; i < kSteps; ++i) m.cost = m.cost + layer_cost(setup.stack, layer, setup.length + i, 1);
    m.cost.working_set = m.cost.bytes / static_cast<double>(kSteps);
    m.units = static_cast<double>(kSteps);
  } else {
    m.make = [setup](Executor& executor) { return std::make_unique<BlockBackward>(executor, setup); };
    m.cost = forward * 3.0;  // the forward again, then twice its products
  }
  return m;
}

}  // namespace

void add_block(const RowSource& row, std::vector<Case>& cases) {
  const JsonFields fields = row.fields();
  BlockSetup setup;
  setup.length = fields.integer("length", 512, 1, kMostLength);
  const nlohmann::json stack{{"vocab", 2},
                             {"d_model", fields.integer("d_model", std::nullopt, 1, kMostLength)},
                             {"layers", nlohmann::json::array({fields.required("layer")})}};
  try {
    setup.stack = stack_config_from_json(stack, row.pointer);
  } catch (const Error& error) {  // "ROW/layers/0/...": the row has one layer, at /layer
    std::string message = error.what();
    const std::size_t at = message.find("/layers/0");
    if (at != std::string::npos) message.replace(at, 9, "/layer");
    throw Error(error.kind(), message);
  }
  setup.kind = block_kind_name(setup.stack.layers.front().kind);
  setup.options = block_options_of(fields.required("layer"));
  const std::string base = "block/" + fields.text("name", setup.kind);
  for (const std::string& pass : row.choices("passes", {"prefill", "step", "backward"})) {
    ThreadMeasurement measurement = measurement_of(setup, base, pass);
    cases.push_back({thread_rows(measurement.base, row.threads), row.quick(),
                     [measurement](const Context& context, const Wanted& wanted) {
                       return measure_on_threads(context, wanted, measurement);
                     }});
  }
}

}  // namespace samba::bench
