// The kinds "samba_train" and "samba_infer" of the hash suites: whole stacks (test/golden/hashes/README.md, 4 to 6).
#include "samba/numerics/generator.h"
#include "samba/train/checkpoint.h"
#include "samba/verify/hash_results.h"
#include "samba/verify/kinds.h"
#include "samba/verify/slices.h"
#include "samba/verify/training.h"

namespace samba::verify {
namespace {

// The integer recipe for token ids: token(b, p, k) = ((p*position + b*row + k*step) >> shift) mod vocab, unsigned.
class TokenRecipe {
 public:
  TokenRecipe(const json& recipe, Index vocab) : recipe_(recipe), vocab_(static_cast<std::uint64_t>(vocab)) {}

  std::int32_t token(Index row, Index position, Index step) const {
    const std::uint64_t mixed = at("position") * static_cast<std::uint64_t>(position) +
                                at("row") * static_cast<std::uint64_t>(row) +
                                at("step") * static_cast<std::uint64_t>(step);
    return static_cast<std::int32_t>((mixed >> at("shift")) % vocab_);
  }
  Array ids(Index rows, Index first, Index length, Index step) const {
    Array array(DType::int32, {rows, length});
    for (Index i = 0; i < rows * length; ++i) {
      array.values<std::int32_t>()[static_cast<std::size_t>(i)] = token(i / length, first + i % length, step);
    }
    return array;
  }
  Array targets(Index rows, Index length, Index step) const {
    Array array = ids(rows, 1, length, step);
    if (!recipe_.contains("ignore")) return array;
    const json& ignore = recipe_["ignore"];
    for (Index i = 0; i < rows * length; ++i) {
      const Index mixed =
          i % length + (i / length) * ignore.at("row").get<Index>() + step * ignore.at("step").get<Index>();
      if (mixed % ignore.at("modulus").get<Index>() == ignore.at("remainder").get<Index>()) {
        array.values<std::int32_t>()[static_cast<std::size_t>(i)] = kIgnoredTarget;
      }
    }
    return array;
  }

 private:
  std::uint64_t at(const char* name) const { return recipe_.at(name).get<std::uint64_t>(); }

  const json& recipe_;
  std::uint64_t vocab_;
};

void add_greedy(HashResults& results, const std::string& name, SambaStack& stack, const TokenRecipe& recipe,
                const json& lengths) {
  const Array prompt = recipe.ids(1, 0, lengths.at("prompt").get<Index>(), 0);
  Greedy greedy = decode_greedily(stack, prompt.values<std::int32_t>(), lengths.at("tokens").get<Index>());
  results.add(name + ".tokens", std::move(greedy.tokens));
  results.add(name + ".logits", std::move(greedy.logits));
}

const json* checkpoint_after(const json& expect, std::size_t step) {
  for (const json& checkpoint : expect.at("checkpoints")) {
    if (checkpoint.at("after_step").get<std::size_t>() == step) return &checkpoint;
  }
  return nullptr;
}

// Takes the steps from `first` (0-based) on, compares each with its record and saves where the case says so.
void train(RunContext& run, SambaTrainer& trainer, const TokenRecipe& recipe, std::size_t first,
           const TemporaryFolder& folder, const std::string& prefix) {
  const Index batch = run.dim("batch"), length = run.dim("length");
  const json& steps = run.body().at("steps");
  for (std::size_t i = first; i < steps.size(); ++i) {
    const auto k = static_cast<Index>(i + 1);
    run.begin_call(prefix + "steps/" + std::to_string(k));
    check_step(run.check, trainer, recipe.ids(batch, 0, length, k), recipe.targets(batch, length, k), steps[i],
               prefix + "steps/" + std::to_string(k));
    if (const json* checkpoint = checkpoint_after(run.body().at("expect"), i + 1)) {
      check_checkpoint_file(run.check, trainer, folder / (prefix + std::to_string(k)), *checkpoint,
                            prefix + "checkpoint after step " + std::to_string(k));
    }
  }
}

std::unique_ptr<SambaStack> make_stack(RunContext& run, const SambaConfig& config) {
  const json& body = run.body();
  const json& expect = body.at("expect");
  const WeightFormat format = parse_weight_format(body.at("weight_format"));
  std::unique_ptr<SambaStack> stack;
  if (body.contains("draws")) {
    const WeightMap weights = drawn_weights(run, draw_tensors(run));
    stack = std::make_unique<SambaStack>(run.executor, config, weights, SambaStack::Use::inference);
  } else {
    Generator generator(body.at("seed").get<std::uint64_t>());
    stack = std::make_unique<SambaStack>(run.executor, config, generator, SambaStack::Use::inference);
    run.check.text("params_sha256", stack->parameters_sha256(), expect.at("params_sha256"));
    if (format != WeightFormat::float32) stack->load_weights(pack(stack->weights(), format));
  }
  const bool packed = format != WeightFormat::float32;
  run.check.text(packed ? "expanded_params_sha256" : "params_sha256", stack->parameters_sha256(),
                 expect.at(packed ? "expanded_params_sha256" : "params_sha256"));
  run.check.text("weight_format", std::string(weight_format_name(stack->weight_format())), body["weight_format"]);
  return stack;
}

Array infer_steps(SambaStack& stack, const Array& ids, SambaState& state) {
  std::vector<Array> rows;
  for (Index t = 0; t < ids.shape()[1]; ++t) {
    const Array logits = stack.step(slice(ids, 1, t, t + 1), state);
    rows.push_back(reshaped(logits, {ids.shape()[0], 1, stack.config().vocab}));
  }
  return join(rows, 1);
}

}  // namespace

void run_samba_train(RunContext& run) {
  const json& body = run.body();
  const json& expect = body.at("expect");
  const auto trainer = make_trainer(run.executor, config_from_json(body.at("config")), body.at("options"));
  SambaStack& stack = trainer->stack();
  stack.set_stage_recorder(run.trace);
  run.check.integer("parameters", stack.registry().total(), expect.at("start").at("parameters").get<Index>());
  run.check.text("start params_sha256", stack.parameters_sha256(), expect["start"].at("params_sha256"));
  run.check.text("start rng_counter", std::to_string(trainer->generator().counter()),
                 expect["start"].at("rng_counter").dump());

  HashResults results(run);
  const TokenRecipe recipe(body.at("ids"), stack.config().vocab);
  const Index batch = run.dim("batch"), length = run.dim("length");
  const Array ids = recipe.ids(batch, 0, length, 1);
  const Array targets = recipe.targets(batch, length, 1);
  results.add("out.start.logits", stack.forward(ids));
  run.check.bits("eval_loss", stack.loss(ids, targets), expect.at("eval_loss_bits"));
  Index counted = 0;
  for (const std::int32_t target : targets.values<std::int32_t>()) counted += target != kIgnoredTarget ? 1 : 0;
  run.check.integer("target_count", counted, expect.at("target_count").get<Index>());

  const TemporaryFolder folder;
  train(run, *trainer, recipe, 0, folder, "");
  add_greedy(results, "out.greedy", stack, recipe, body.at("greedy"));
  results.check_complete();

  const auto saved = body.at("save_after").at(0).get<std::size_t>();
  const auto resumed = load_for_training(run.executor, folder / std::to_string(saved));
  resumed->stack().set_stage_recorder(run.trace);
  train(run, *resumed, recipe, saved, folder, "resumed ");
}

void run_samba_infer(RunContext& run) {
  const json& body = run.body();
  const auto stack = make_stack(run, config_from_json(body.at("config")));
  stack->set_stage_recorder(run.trace);
  run.check.integer("parameters", stack->registry().total(), body.at("expect").at("parameters").get<Index>());

  HashResults results(run);
  const TokenRecipe recipe(body.at("ids"), stack->config().vocab);
  const Array ids = recipe.ids(run.dim("batch"), 0, run.dim("length"), 0);
  std::map<std::string, std::unique_ptr<SambaState>> states;
  std::size_t number = 0;
  for (const json& call : body.at("calls")) {
    const std::string op = call.at("op");
    const std::string where = "calls/" + std::to_string(number++) + " " + op;
    run.begin_call(where);
    if (op == "state") {
      states[call.at("state")] =
          stack->allocate_state(call.at("batch_size").get<Index>(), call.at("max_tokens").get<Index>());
      continue;
    }
    if (op == "greedy") {
      add_greedy(results, call.at("y"), *stack, recipe, call);
      continue;
    }
    const Array part = cut_positions(call, ids);
    SambaState* state = call.contains("state") ? states.at(call["state"]).get() : nullptr;
    Array logits;
    if (call.contains("lengths")) {
      logits = stack->forward(part, call["lengths"].get<std::vector<Index>>());
    } else if (op == "steps") {
      logits = infer_steps(*stack, part, *state);
    } else {
      logits = state != nullptr ? stack->forward(part, *state) : stack->forward(part);
    }
    results.check_same_as(call, logits);
    results.add(call.at("y"), std::move(logits));
    if (!call.contains("expect")) continue;
    for (std::size_t i = 0; i < call["expect"].at("state_layers").size(); ++i) {
      const BlockState& layer = state->layer(i);
      check_state_results(run, results, where + ": layer " + std::to_string(i), call["expect"]["state_layers"][i],
                          layer.pieces(), layer.counters());
    }
  }
  results.check_complete();
}

}  // namespace samba::verify
