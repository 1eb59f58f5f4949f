// The kinds "stack_refusal" and "checkpoint_variants": what a stack and its checkpoints refuse (spec 60 section 11,
// spec 62 sections 4 and 5).
#include "samba/train/checkpoint.h"
#include "samba/verify/kinds.h"
#include "samba/verify/training.h"

namespace samba::verify {
namespace {

SambaConfig config_of(const json& fields) {
  const auto optional = [&](const char* name) {
    const json value = fields.value(name, json());
    return value.is_null() ? std::nullopt : std::optional(value.get<Index>());
  };
  SambaConfigFields given;
  given.vocab = fields.at("vocab").get<Index>();
  given.d_model = fields.at("d_model").get<Index>();
  given.layers = fields.at("layers").get<std::vector<std::string>>();
  given.n_heads = optional("n_heads");
  given.n_kv_heads = optional("n_kv_heads");
  given.head_dim = optional("head_dim");
  given.intermediate = optional("intermediate");
  given.tie_embeddings = fields.at("tie_embeddings").get<bool>();
  given.norm_eps = number_of(fields.at("norm_eps"));
  given.dropout = number_of(fields.at("dropout"));
  return make_config(given);
}

class StackCalls {
 public:
  StackCalls(RunContext& run, SambaTrainer& trainer) : run_(run), trainer_(trainer) {}

  void perform(const json& call) {
    const std::string op = call.at("op");
    SambaStack& stack = trainer_.stack();
    if (op == "state") {
      states_[call.at("state")] =
          stack.allocate_state(call.at("batch_size").get<Index>(), call.at("max_tokens").get<Index>());
    } else if (op == "forward") {
      forward(call, token_array(call.at("ids")));
    } else if (op == "step") {
      const Array ids = token_array(call.at("ids"));
      call.contains("state") ? stack.step(ids, state(call)) : stack.step(ids);
    } else if (op == "loss") {
      stack.loss(token_array(call.at("ids")), token_array(call.at("targets")));
    } else if (op == "loss_and_grads") {
      GradientOptions options;
      if (call.contains("num_items")) options.num_items = call["num_items"].get<Index>();
      stack.loss_and_grads(token_array(call.at("ids")), token_array(call.at("targets")), options);
    } else if (op == "train_step") {
      trainer_.train_step(token_array(call.at("ids")), token_array(call.at("targets")));
    } else {
      load_weights(call.at("edits"));
    }
  }

  // Everything that a refused call must leave as it was, by name.
  std::map<std::string, std::string> fingerprints() {
    std::map<std::string, std::string> found;
    found["parameters"] = trainer_.stack().parameters_sha256();
    found["exp_avg"] = sha256_of(trainer_.exp_avg());
    found["exp_avg_sq"] = sha256_of(trainer_.exp_avg_sq());
    found["t"] = std::to_string(trainer_.completed_steps());
    found["rng_counter"] = std::to_string(trainer_.generator().counter());
    for (const auto& [name, state] : states_) {
      found[name + ".tokens"] = std::to_string(state->tokens());
      for (std::size_t i = 0; i < state->layers(); ++i) {
        const std::string layer = name + ".layers." + std::to_string(i) + ".";
        for (const auto& [piece, array] : state->layer(i).pieces()) found[layer + piece] = sha256_of(array);
        for (const auto& [counter, value] : state->layer(i).counters()) found[layer + counter] = std::to_string(value);
      }
    }
    return found;
  }

 private:
  SambaState& state(const json& call) { return *states_.at(call.at("state")); }

  void forward(const json& call, const Array& ids) {
    SambaStack& stack = trainer_.stack();
    if (!call.contains("lengths")) {
      call.contains("state") ? stack.forward(ids, state(call)) : stack.forward(ids);
      return;
    }
    for (const json& length : call["lengths"]) {
      if (!length.is_number_integer()) throw NotApplicable("the interface cannot hold a length that is no integer");
    }
    const auto lengths = call["lengths"].get<std::vector<Index>>();
    call.contains("state") ? stack.forward(ids, state(call), lengths) : stack.forward(ids, lengths);
  }

  void load_weights(const json& edits) {
    const ArrayMap current = trainer_.stack().weights();
    ConstArrayMap weights;
    ArrayMap edited;
    for (const auto& [name, array] : current) weights[name] = array.view();
    for (const auto& [name, reference] : edits.items()) {
      weights.erase(name);
      if (reference.is_null()) continue;
      Array value = resolve_tensor(reference, [&](const std::string& like) { return current.at(like).view(); });
      weights[name] = edited.emplace(name, std::move(value)).first->second.view();
    }
    trainer_.stack().load_weights(weights);
  }

  RunContext& run_;
  SambaTrainer& trainer_;
  std::map<std::string, std::unique_ptr<SambaState>> states_;
};

std::unique_ptr<SambaTrainer> construct(RunContext& run) {
  return make_trainer(run.executor, config_of(run.body().at("config")), run.body().at("options"));
}

void run_variant(RunContext& run, const json& variant) {
  const std::string name = variant.at("name");
  const auto path = run.test.folder() / variant.at("file").get<std::string>();
  if (variant.at("inference").is_null()) {
    run.check.text(name + " for inference", config_to_json(load_for_inference(run.executor, path)->config()).dump(),
                   config_to_json(config_of(run.body().at("config"))).dump());
  } else {
    expect_refusal(run.check, name + " for inference", variant["inference"],
                   [&] { load_for_inference(run.executor, path); });
  }
  if (!variant.at("train").is_null()) {
    expect_refusal(run.check, name + " for training", variant["train"], [&] { load_for_training(run.executor, path); });
    return;
  }
  const auto trainer = load_for_training(run.executor, path);
  const Array ids = token_array(run.body().at("ids"));
  const Array targets = token_array(run.body().at("targets"));
  if (variant.contains("next_step")) {
    check_step(run.check, *trainer, ids, targets, variant["next_step"], name + " next step");
  }
  if (variant.contains("next_step_refusal")) {
    expect_refusal(run.check, name + " next step", variant["next_step_refusal"],
                   [&] { trainer->train_step(ids, targets); });
  }
}

}  // namespace

void run_stack_refusal(RunContext& run) {
  if (run.body().contains("expect_refusal")) {
    expect_refusal(run.check, "construction", run.body()["expect_refusal"], [&] { construct(run); });
    return;
  }
  const auto trainer = construct(run);
  StackCalls calls(run, *trainer);
  std::size_t number = 0;
  for (const json& call : run.body().at("calls")) {
    const std::string where = "calls/" + std::to_string(number++) + " " + call.at("op").get<std::string>();
    if (!call.contains("expect_refusal")) {
      calls.perform(call);
      continue;
    }
    const auto before = calls.fingerprints();
    expect_refusal(run.check, where, call["expect_refusal"], [&] { calls.perform(call); });
    const auto after = calls.fingerprints();
    for (const auto& [name, value] : before) {
      run.check.text(where + ": " + name + " after the refusal", after.at(name), value);
    }
  }
}

void run_checkpoint_variants(RunContext& run) {
  for (const json& variant : run.body().at("variants")) run_variant(run, variant);
}

}  // namespace samba::verify
