// Layers of equal rotary options share one table: its bytes are taken once.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "count_allocations.h"
#include "samba/backends/registry.h"
#include "samba/model/samba_stack.h"

namespace samba {
namespace {

constexpr Index kPositions = 4000;
constexpr Index kHeadDim = 8;
constexpr std::size_t kTableBytes = 2 * static_cast<std::size_t>(kPositions * kHeadDim / 2) * sizeof(float);

// Bytes that a first state of kPositions positions takes in a stack of three layers.
std::size_t state_bytes(const nlohmann::json& first, const nlohmann::json& second, const nlohmann::json& third) {
  nlohmann::json config = {{"vocab", 7}, {"d_model", 16}, {"tie_embeddings", true}};
  for (const nlohmann::json& options : {first, second, third}) {
    nlohmann::json layer = {{"kind", "transformer"}, {"n_heads", 2}, {"intermediate", 8}};
    layer.update(options);
    config["layers"].push_back(layer);
  }
  const auto executor = make_executor("cpu", {1, ""});
  SambaStack stack(*executor, stack_config_from_json(config), SambaStack::Use::inference);
  const std::size_t before = allocated_bytes;
  stack.allocate_state(1, kPositions);
  return allocated_bytes - before;
}

}  // namespace

TEST_CASE("layers of equal rotary options share one table, layers of other options have their own") {
  const nlohmann::json plain = nlohmann::json::object();
  const nlohmann::json theta = {{"rope_theta", 500000.0}};
  const nlohmann::json scaled = {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}};
  const std::size_t one = state_bytes(plain, plain, plain);
  CHECK(state_bytes(theta, theta, theta) == one);
  const std::size_t another = state_bytes(plain, theta, plain) - one;
  CHECK(another >= kTableBytes);
  CHECK(state_bytes(plain, theta, scaled) == one + 2 * another);
}

}  // namespace samba
