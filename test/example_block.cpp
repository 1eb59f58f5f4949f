// A transformer block from named tensors: a prompt at once, one token after it, and the gradients of a loss.
#include <iostream>
#include <nlohmann/json.hpp>

#include "samba/backends/registry.h"
#include "samba/blocks/module.h"

int main() {
  const auto executor = samba::make_executor("cpu");
  const samba::Index d_model = 32, kv_width = 16, intermediate = 48;  // 4 heads of 8, two of them key-value heads
  samba::ArrayMap weights;
  const auto add = [&](const std::string& name, samba::Shape shape, float value) {
    samba::Array tensor(samba::DType::float32, shape);
    for (std::size_t i = 0; i < tensor.floats().size(); ++i) tensor.floats()[i] = i % 7 == 0 ? value : -value / 8;
    weights.emplace(name, std::move(tensor));
  };
  add("input_layernorm.weight", {d_model}, 1.0F);
  add("post_attention_layernorm.weight", {d_model}, 1.0F);
  for (const char* name : {"q_proj.weight", "o_proj.weight"}) add(name, {d_model, d_model}, 0.2F);
  for (const char* name : {"k_proj.weight", "v_proj.weight"}) add(name, {kv_width, d_model}, 0.2F);
  for (const char* name : {"gate_proj.weight", "up_proj.weight"}) add(name, {intermediate, d_model}, 0.2F);
  add("down_proj.weight", {d_model, intermediate}, 0.2F);
  samba::BlockModule block(*executor, "transformer", {{"n_heads", 4}, {"n_kv_heads", 2}},
                           samba::ConstArrayMap(weights.begin(), weights.end()));

  add("prompt", {1, 5, d_model}, 1.0F);
  add("token", {1, 1, d_model}, 0.5F);
  const auto state = block.allocate_state(1, 16);  // one row, room for 16 tokens
  const samba::Array prefill = block.forward(weights.at("prompt"), *state);
  const samba::Array next = block.step(weights.at("token"), *state);
  const samba::NamedGradients gradients = block.backward(weights.at("prompt"), prefill);

  std::cout << "tokens cached: " << state->counters().at("cached_tokens") << ", output " << next.floats()[0]
            << ", gradients:";
  for (const std::string& name : gradients.names) std::cout << " " << name;
  std::cout << "\n";
}
