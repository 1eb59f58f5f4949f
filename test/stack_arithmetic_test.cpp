// What a general stack adds to the arithmetic (docs/stack_arithmetic.md): embedding scale, logits softcap, offset and
// layer norms at the end, the untied head. Exact against stacks that state the same differently, and against double.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "bits.h"
#include "general_stack.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/philox.h"

namespace samba {
namespace {

constexpr Index kVocab = 24;

StackConfig config_of(const std::string& changes) {
  nlohmann::json model = nlohmann::json::parse(R"({
    "vocab": 24, "d_model": 32,
    "layers": [{"kind": "transformer", "n_heads": 2, "head_dim": 24, "n_kv_heads": 1, "intermediate": 40},
               {"kind": "mamba1"}]})");
  model.update(nlohmann::json::parse(changes));
  return stack_config_from_json(model);
}

Array ids_of(std::uint64_t seed) {
  Array ids(DType::int32, {2, 7});
  auto values = ids.values<std::int32_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::int32_t>(stream_word(seed, 0, i) % static_cast<std::uint64_t>(kVocab));
  }
  return ids;
}

// Weights with a final norm that is not constant.
ArrayMap weights_of(Executor& executor, const StackConfig& config) {
  Generator generator(8);
  ArrayMap weights = SambaStack(executor, config, generator, widest_use(config)).weights();
  for (const char* name : {"norm_f.weight", "norm_f.bias"}) {
    const auto found = weights.find(name);
    if (found == weights.end()) continue;
    for (std::size_t i = 0; i < found->second.floats().size(); ++i) {
      found->second.floats()[i] = 0.5F - stream_coin(99, found->first == "norm_f.bias" ? 1 : 0, i);
    }
  }
  return weights;
}

ConstArrayMap views_of(const ArrayMap& arrays) {
  ConstArrayMap views;
  for (const auto& [name, array] : arrays) views.emplace(name, array.view());
  return views;
}

class Stages final : public StageRecorder {
 public:
  explicit Stages(Executor& executor) : executor_(executor) {}
  void record(std::string_view name, const Shape& shape, const float* device) override {
    Array host = Array::zeros(shape);
    executor_.memory().copy_to_host(host.data(), device, host.byte_size());
    arrays_.insert_or_assign(std::string(name), std::move(host));
  }
  std::span<const float> operator[](const std::string& name) const { return arrays_.at(name).floats(); }

 private:
  Executor& executor_;
  std::map<std::string, Array> arrays_;
};

std::span<const float> part(const SambaStack& stack, const LossAndGradients& result, const char* name) {
  const ParameterTensor& tensor = stack.registry().tensors()[static_cast<std::size_t>(stack.registry().find(name))];
  return std::span(result.gradients.floats())
      .subspan(static_cast<std::size_t>(tensor.offset), static_cast<std::size_t>(tensor.size));
}

TEST_CASE("A scale of two is the stack whose embeddings are twice as large, with twice the gradient") {
  const auto executor = make_executor("cpu", {1, ""});
  const StackConfig scaled = config_of(R"({"tie_embeddings": false, "embedding_scale": 2})");
  const StackConfig plain = config_of(R"({"tie_embeddings": false})");
  ArrayMap weights = weights_of(*executor, scaled);
  SambaStack with(*executor, scaled, views_of(weights));
  for (float& value : weights.at("embed.weight").floats()) value *= 2.0F;
  SambaStack without(*executor, plain, views_of(weights));
  CHECK(bits_equal(with.forward(ids_of(1)).floats(), without.forward(ids_of(1)).floats()));
  const auto a = with.loss_and_grads(ids_of(1), ids_of(2)), b = without.loss_and_grads(ids_of(1), ids_of(2));
  CHECK(same_bits(a.loss, b.loss));
  for (const char* name : {"layers.0.q_proj.weight", "layers.1.A_log", "norm_f.weight", "lm_head.weight"}) {
    CHECK(bits_equal(part(with, a, name), part(without, b, name)));
  }
  std::vector<float> doubled;
  for (const float value : part(without, b, "embed.weight")) doubled.push_back(2.0F * value);
  CHECK(bits_equal(part(with, a, "embed.weight"), doubled));
}

TEST_CASE("Scale and softcap round at every step: x = F(F(e)F(s)), l = F(F(tanh(div(z, cap)))F(cap))") {
  const auto executor = make_executor("reference");
  const StackConfig config = config_of(R"({"embedding_scale": 5.656854, "logits_softcap": 0.1})");
  const ArrayMap weights = weights_of(*executor, config);
  SambaStack stack(*executor, config, views_of(weights));
  Stages stages(*executor);
  stack.set_stage_recorder(&stages);
  stack.loss_and_grads(ids_of(1), ids_of(2));
  std::vector<float> scaled, capped, d_uncapped, d_unscaled;
  for (const float e : stages["embed"]) scaled.push_back(mul(e, 5.656854F));
  CHECK(bits_equal(stages["embed_scaled"], scaled));
  float largest = 0.0F;
  for (std::size_t i = 0; i < stages["logits"].size(); ++i) {
    const float t = flush(elementary::tanh(div(stages["logits_uncapped"][i], 0.1F)));
    capped.push_back(mul(t, 0.1F));
    d_uncapped.push_back(mul(stages["dlogits"][i], sub(1.0F, mul(t, t))));
    largest = std::max(largest, std::abs(stages["logits_uncapped"][i]));
  }
  CHECK(largest > 0.05F);  // the cap bends
  CHECK(bits_equal(stages["logits"], capped));
  CHECK(bits_equal(stages["d_logits_uncapped"], d_uncapped));
  for (const float d : stages["d_layer0.in"]) d_unscaled.push_back(mul(d, 5.656854F));
  CHECK(bits_equal(stages["d_embed_unscaled"], d_unscaled));
}

TEST_CASE("An offset norm at the end is the norm of 1 + w, with its gradient") {
  const auto executor = make_executor("cpu", {1, ""});
  const StackConfig offset = config_of(R"({"final_norm": "rmsnorm_offset"})");
  const StackConfig plain = config_of("{}");
  ArrayMap weights = weights_of(*executor, offset);
  SambaStack with(*executor, offset, views_of(weights));
  for (float& value : weights.at("norm_f.weight").floats()) value = add(1.0F, value);
  SambaStack without(*executor, plain, views_of(weights));
  CHECK(bits_equal(with.forward(ids_of(1)).floats(), without.forward(ids_of(1)).floats()));
  const auto a = with.loss_and_grads(ids_of(1), ids_of(2)), b = without.loss_and_grads(ids_of(1), ids_of(2));
  CHECK(bits_equal(a.gradients.floats(), b.gradients.floats()));
}

TEST_CASE("A layer norm at the end is the block's layer norm, with and without bias") {
  const auto executor = make_executor("cpu", {1, ""});
  for (const bool bias : {true, false}) {
    const StackConfig config =
        config_of(bias ? R"({"final_norm": "layernorm", "final_norm_bias": true})" : R"({"final_norm": "layernorm"})");
    const ArrayMap weights = weights_of(*executor, config);
    SambaStack stack(*executor, config, views_of(weights), SambaStack::Use::inference);
    Stages stages(*executor);
    stack.set_stage_recorder(&stages);
    stack.forward(ids_of(1));
    const std::span<const float> x = stages["layer1.out"], y = stages["norm_f"];
    for (std::size_t row = 0; row < 14; ++row) {
      double mean = 0.0, square = 0.0;
      for (std::size_t j = 0; j < 32; ++j) mean += static_cast<double>(x[row * 32 + j]) / 32.0;
      for (std::size_t j = 0; j < 32; ++j) square += std::pow(static_cast<double>(x[row * 32 + j]) - mean, 2.0) / 32.0;
      for (std::size_t j = 0; j < 32; ++j) {
        double wanted = (static_cast<double>(x[row * 32 + j]) - mean) / std::sqrt(square + 1e-5) *
                        static_cast<double>(weights.at("norm_f.weight").floats()[j]);
        if (bias) wanted += static_cast<double>(weights.at("norm_f.bias").floats()[j]);
        if (std::abs(static_cast<double>(y[row * 32 + j]) - wanted) > 1e-5) FAIL("row " << row << " column " << j);
      }
    }
  }
}

// The loss of the head in double: offset norm, product, softcap, mean cross-entropy.
struct Head {
  std::vector<double> x, norm, weight;  // (14, 32), (32), (24, 32)
  double cap = 0.0;

  double loss(std::span<const std::int32_t> targets) const {
    double total = 0.0;
    for (std::size_t row = 0; row < 14; ++row) {
      double square = 0.0;
      for (std::size_t j = 0; j < 32; ++j) square += x[row * 32 + j] * x[row * 32 + j] / 32.0;
      const double scale = 1.0 / std::sqrt(square + 1e-5);
      double sum = 0.0, hit = 0.0;
      for (std::size_t v = 0; v < 24; ++v) {
        double z = 0.0;
        for (std::size_t j = 0; j < 32; ++j) z += x[row * 32 + j] * scale * (1.0 + norm[j]) * weight[v * 32 + j];
        z = cap * std::tanh(z / cap);
        sum += std::exp(z);
        if (static_cast<std::int32_t>(v) == targets[row]) hit = z;
      }
      total += (std::log(sum) - hit) / 14.0;
    }
    return total;
  }
};

std::vector<double> doubles(std::span<const float> values) { return {values.begin(), values.end()}; }

TEST_CASE(
    "The gradient of offset norm, untied head and softcap is that of the loss, by central differences in double") {
  const auto executor = make_executor("cpu", {1, ""});
  const StackConfig config =
      config_of(R"({"final_norm": "rmsnorm_offset", "logits_softcap": 0.25, "tie_embeddings": false})");
  const ArrayMap weights = weights_of(*executor, config);
  SambaStack stack(*executor, config, views_of(weights));
  Stages stages(*executor);
  stack.set_stage_recorder(&stages);
  const Array targets = ids_of(2);
  const auto result = stack.loss_and_grads(ids_of(1), targets);
  Head head{doubles(stages["layer1.out"]), doubles(weights.at("norm_f.weight").floats()),
            doubles(weights.at("lm_head.weight").floats()), 0.25};
  const auto classes = targets.values<std::int32_t>();
  CHECK(static_cast<double>(result.loss) == Approx(head.loss(classes)).epsilon(1e-6));
  const auto check = [&](std::vector<double>& values, std::span<const float> gradient) {
    double largest = 0.0;
    for (std::size_t i = 0; i < values.size(); i += 5) {
      const double kept = values[i], step = 1e-5;
      values[i] = kept + step;
      const double above = head.loss(classes);
      values[i] = kept - step;
      const double wanted = (above - head.loss(classes)) / (2.0 * step);
      values[i] = kept;
      largest = std::max(largest, std::abs(wanted));
      if (std::abs(static_cast<double>(gradient[i]) - wanted) > 1e-6 + 1e-4 * std::abs(wanted)) {
        FAIL("element " << i << ": " << gradient[i] << " against " << wanted);
      }
    }
    CHECK(largest > 1e-3);
  };
  check(head.x, stages["d_layer1.out"]);
  check(head.norm, part(stack, result, "norm_f.weight"));
  check(head.weight, part(stack, result, "lm_head.weight"));
}

TEST_CASE("The gradient of the scaled, tied embeddings is that of the loss, by finite differences") {
  const auto executor = make_executor("cpu", {1, ""});
  const StackConfig config = config_of(R"({"embedding_scale": 6, "logits_softcap": 4})");
  ArrayMap weights = weights_of(*executor, config);
  SambaStack stack(*executor, config, views_of(weights));
  const Array inputs = ids_of(1), targets = ids_of(2);
  const auto result = stack.loss_and_grads(inputs, targets);
  const std::span<const float> gradient = part(stack, result, "embed.weight");
  const std::span<float> values = weights.at("embed.weight").floats();
  // Along the gradient the loss falls by the square of its length.
  double square = 0.0;
  for (const float g : gradient) square += static_cast<double>(g) * static_cast<double>(g);
  const double step = 4e-3 / std::sqrt(square);
  const std::vector<float> kept(values.begin(), values.end());
  const auto loss_at = [&](double along) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(static_cast<double>(kept[i]) + along * static_cast<double>(gradient[i]));
    }
    stack.load_weights(views_of(weights));
    return static_cast<double>(stack.loss(inputs, targets));
  };
  CHECK((loss_at(step) - loss_at(-step)) / (2.0 * step) == Approx(square).epsilon(2e-3));
}

TEST_CASE("The kernels of scale and softcap give the same bits on every executor") {
  std::vector<float> x = {0.0F,   -0.0F,  1e-40F, -1e-40F, 1.0F,   -3.5F,     1e30F,
                          -1e30F, 1e-30F, 0.3F,   88.0F,   -0.01F, kInfinity, -kInfinity};
  for (std::size_t i = 0; i < 5000; ++i) x.push_back((stream_coin(4, 0, i) - 0.5F) * 40.0F);
  const auto n = static_cast<Index>(x.size());
  const auto run = [&](const std::string& name, int threads, int which) {
    const auto executor = make_executor(name, {threads, ""});
    std::vector<float> out(x.size()), squashed(x.size());
    ElementwiseKernels& kernels = executor->elementwise();
    if (which == 0) kernels.scale(n, 1.7F, x.data(), out.data());
    if (which >= 1) kernels.softcap_forward(n, 7.5F, x.data(), squashed.data(), out.data());
    if (which == 2) kernels.softcap_backward(n, squashed.data(), x.data(), out.data());
    return out;
  };
  for (const int which : {0, 1, 2}) {
    const std::vector<float> wanted = run("reference", 1, which);
    CHECK(bits_equal(run("cpu", 1, which), wanted));
    CHECK(bits_equal(run("cpu", 3, which), wanted));
  }
}

}  // namespace
}  // namespace samba
