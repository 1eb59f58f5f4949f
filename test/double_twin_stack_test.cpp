// Whole language models against their double-precision twin (double_twins/stack.h): logits of one call and of a decode
// token by token, the loss, and the gradients of every parameter.
//
// The bounds are those of double_twin_forward_test.cpp, with room for every layer: each adds the error of a block and
// passes on that of the layers below.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "double_twins/cases.h"
#include "double_twins/slopes.h"
#include "double_twins/stack.h"
#include "samba/model/samba_stack.h"

namespace samba {
namespace {

using nlohmann::json;
using twin::Doubles;
using twin::Tensors;
using twin::to_doubles;

constexpr double kBoundPerLayer = 4.0;

struct Model {
  std::string name;
  json config;
};

// Every kind of block, every final norm, both heads, the scale and the cap.
std::vector<Model> models() {
  const json attention = {{"kind", "transformer"}, {"n_heads", 4}, {"n_kv_heads", 2}, {"intermediate", 20}};
  json window = attention;
  window["window"] = 3;
  json gemma = {{"kind", "transformer"}, {"n_heads", 4},         {"n_kv_heads", 1},     {"head_dim", 10},
                {"intermediate", 24},    {"attn_softcap", 20.0}, {"mlp", "geglu_tanh"}, {"norm", "rmsnorm_offset"}};
  json gpt = {{"kind", "transformer"}, {"n_heads", 2},    {"intermediate", 24}, {"norm", "layernorm"},
              {"norm_bias", true},     {"mlp", "gelu"},   {"mlp_bias", true},   {"qkv_bias", true},
              {"o_bias", true},        {"norm_eps", 1e-5}};
  json qwen = {{"kind", "transformer"}, {"n_heads", 2},    {"n_kv_heads", 1},  {"head_dim", 8},
               {"intermediate", 24},    {"qk_norm", true}, {"rope_theta", 1e6}};
  return {
      {"the Samba stack, tied",
       {{"vocab", 13}, {"d_model", 32}, {"layers", {"mamba3", "attention"}}, {"n_heads", 4}, {"intermediate", 20}}},
      {"the Samba stack, untied",
       {{"vocab", 13},
        {"d_model", 32},
        {"layers", {"attention", "mamba3", "attention"}},
        {"n_heads", 4},
        {"n_kv_heads", 2},
        {"intermediate", 20},
        {"tie_embeddings", false},
        {"norm_eps", 1e-6}}},
      {"every kind, untied",
       {{"vocab", 11},
        {"d_model", 32},
        {"layers",
         {attention, {{"kind", "mamba1"}}, {{"kind", "mamba2"}, {"dt_limit", {0.0, 0.2}}}, {{"kind", "mamba3"}}}},
        {"tie_embeddings", false}}},
      {"scale, soft cap and offset norm, tied",
       {{"vocab", 12},
        {"d_model", 24},
        {"layers", {window, {{"kind", "mamba1"}}}},
        {"final_norm", "rmsnorm_offset"},
        {"embedding_scale", 4.75},
        {"logits_softcap", 3.0}}},
      {"like Gemma",
       {{"vocab", 12},
        {"d_model", 24},
        {"layers", {gemma, gemma}},
        {"final_norm", "rmsnorm_offset"},
        {"embedding_scale", 4.898979663848877},
        {"logits_softcap", 30.0}}},
      {"like GPT",
       {{"vocab", 12},
        {"d_model", 24},
        {"layers", {gpt, gpt}},
        {"final_norm", "layernorm"},
        {"final_norm_bias", true},
        {"tie_embeddings", false}}},
      {"like Qwen, heads wider than the model",
       {{"vocab", 12}, {"d_model", 10}, {"layers", {qwen, qwen}}, {"norm_eps", 1e-6}}},
  };
}

struct Subject {
  Subject(const Model& model, Index rows, Index length)
      : config(stack_config_from_json(model.config)), batch(rows), twin(config) {
    std::vector<WeightSpec> specs;
    const Registry registry(config);
    for (const ParameterTensor& tensor : registry.tensors()) specs.push_back({tensor.name, tensor.shape});
    weights = twin::model_weights(specs, false, 40);
    for (Index i = 0; i < rows * length; ++i) {
      ids.push_back(static_cast<std::int32_t>((i * i + 5 * i / 2) % config.vocab));
      targets.push_back(i % 5 == 3 ? -100 : static_cast<std::int32_t>((7 * i + i * i / 3) % config.vocab));
    }
    Index longest = length;
    for (const WeightSpec& spec : specs) longest = std::max(longest, spec.shape.back());
    chain = static_cast<std::size_t>(longest);
  }

  static Array array(const std::vector<std::int32_t>& values, Index rows) {
    Array result(DType::int32, {rows, static_cast<Index>(values.size()) / rows});
    std::copy(values.begin(), values.end(), result.values<std::int32_t>().begin());
    return result;
  }

  double bound() const { return kBoundPerLayer * static_cast<double>(config.layers.size() + 1); }

  StackConfig config;
  Index batch;
  twin::StackTwin twin;
  ArrayMap weights;
  std::vector<std::int32_t> ids, targets;
  std::size_t chain = 1;
};

void check_close(std::span<const float> got, const Doubles& want, const Subject& subject, const std::string& what) {
  const double found = distance(got, std::span<const double>(want), subject.chain);
  INFO(what << ": distance " << found << ", bound " << subject.bound());
  CHECK(found <= subject.bound());
}

}  // namespace

TEST_CASE("The logits of a model are those of its double-precision twin, in one call and token by token") {
  for (const auto& executor : every_executor()) {
    for (const Model& model : models()) {
      INFO(model.name << " on " << executor->name() << " " << executor->instruction_set());
      constexpr Index kLength = 9;
      const Subject subject(model, 2, kLength);
      SambaStack stack(*executor, subject.config, views(subject.weights), SambaStack::Use::inference);
      const Doubles want = subject.twin.forward(to_doubles(subject.weights), subject.ids, 2);
      check_close(stack.forward(Subject::array(subject.ids, 2)).floats(), want, subject, "logits");

      const auto state = stack.allocate_state(2, kLength);
      const Index vocab = subject.config.vocab;
      for (Index t = 0; t < kLength; ++t) {
        const Array one = Subject::array({subject.ids[twin::at(t)], subject.ids[twin::at(kLength + t)]}, 2);
        const Array logits = stack.step(one, *state);
        Doubles row(want.begin() + t * vocab, want.begin() + (t + 1) * vocab);
        row.insert(row.end(), want.begin() + (kLength + t) * vocab, want.begin() + (kLength + t + 1) * vocab);
        check_close(logits.floats(), row, subject, "step " + std::to_string(t));
      }
    }
  }
}

TEST_CASE("The loss is the twin's mean cross-entropy and every gradient its slope") {
  const auto reference = make_executor("reference");
  const auto cpu = make_executor("cpu");
  std::size_t trained = 0;
  for (const Model& model : models()) {
    const Subject subject(model, 2, 6);
    INFO(model.name);
    SambaStack stack(trained++ % 2 == 0 ? *reference : *cpu, subject.config, views(subject.weights));
    const LossAndGradients result =
        stack.loss_and_grads(Subject::array(subject.ids, 2), Subject::array(subject.targets, 2));
    Tensors values = to_doubles(subject.weights);
    const auto loss = [&] { return subject.twin.loss(values, subject.ids, subject.targets, 2); };
    check_close(std::vector<float>{result.loss}, {loss()}, subject, "loss");
    // The gradient of a Mamba layer's D, one number here, may cancel over the tokens to a hundredth of its terms.
    const twin::SlopeTests tests = {1, 2, largest<float>(result.gradients.floats()) / 64.0};
    for (const ParameterTensor& tensor : stack.registry().tensors()) {
      const auto gradient = result.gradients.floats().subspan(twin::at(tensor.offset), twin::at(tensor.size));
      twin::check_slopes(loss, values.at(tensor.name), gradient, subject.chain, subject.bound(), tensor.name, tests);
    }
  }
  CHECK(trained == 7);
}

TEST_CASE("The bound tells a model from one with another head, norm, scale or cap") {
  const auto executor = make_executor("cpu");
  const Model base = models()[3];
  const Subject subject(base, 2, 6);
  SambaStack stack(*executor, subject.config, views(subject.weights));
  const Array logits = stack.forward(Subject::array(subject.ids, 2));
  const std::vector<json> changes = {
      {{"embedding_scale", 4.7502}}, {{"logits_softcap", 3.0002}}, {{"final_norm", "rmsnorm"}}, {{"norm_eps", 1e-3}}};
  for (const json& change : changes) {
    INFO(change.dump());
    Model other = base;
    other.config.update(change);
    const Subject changed(other, 2, 6);
    const Doubles want = changed.twin.forward(to_doubles(subject.weights), subject.ids, 2);
    CHECK(distance(logits.floats(), std::span<const double>(want), subject.chain) > 2 * subject.bound());
  }
}

}  // namespace samba
