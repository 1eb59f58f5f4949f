// The Mamba-3 kernels of the GPUs on the host adapter: the recorded cases, whole stacks against the cpu, and that every
// barrier of theirs is needed.
// (Their twins with the reference are in mamba3_kernels_test.)
#include <catch2/catch.hpp>

#include "golden.h"
#include "mamba3_calls.h"
#include "missing_barriers.h"
#include "samba/model/samba_stack.h"
#include "samba/model/stack_config.h"
#include "small_stack.h"

namespace samba {
namespace {

const ExecutorOptions kSmallWarps = {2, "warp32"};
const ExecutorOptions kLargeWarps = {1, "warp64-seed9"};

void append(const mamba3_calls::Arrays& arrays, Results& results) {
  for (const auto& [name, floats] : arrays.pieces) {
    Values& values = results.emplace_back(static_cast<Index>(floats.size()));
    std::copy(floats.begin(), floats.end(), values.data());
  }
}

using Drawn = std::map<std::string, mamba3_calls::Floats>;
using mamba3_calls::Case;
using mamba3_calls::Run;

Drawn draw_inputs(const Case& c) {
  Drawn drawn;
  mamba3_calls::run(*make_executor("reference"), c, Run::backward_products, drawn);
  return drawn;
}

// v of a token: the x columns of its in_proj row.
float& value_at(Drawn& drawn, const Case& c, Index token, Index p) {
  const Index d_model = 32 * c.heads;
  const Index at = token * mamba3::projection_width(d_model) + mamba3::columns(d_model).x + p;
  return drawn["in_proj"][static_cast<std::size_t>(at)];
}

// The states fade slowly, so that what a chunk takes over from another one counts.
Drawn slow_inputs(const Case& c) {
  Drawn drawn = draw_inputs(c);
  std::fill(drawn["dt_bias"].begin(), drawn["dt_bias"].end(), -6.0F);
  return drawn;
}

// Products that are flushed because of four elements, which one thread loads.
Drawn tiny_inputs(const Case& c) {
  Drawn drawn = draw_inputs(c);
  for (Index token = 0; token < c.tokens; ++token) {
    for (Index p = 0; p < mamba3::kHeadDim; ++p) value_at(drawn, c, token, p) = 0.0F;
  }
  for (const Index token : {49, 53, 57, 61}) value_at(drawn, c, token, 7) = 0x1p-122F;
  return drawn;
}

// One large value, for which the long chain of the last chunk is run.
Drawn large_inputs(const Case& c) {
  Drawn drawn = slow_inputs(c);
  value_at(drawn, c, c.tokens - 1, 9) = 0x1p70F;
  return drawn;
}

// Three chunks forward and backward in samba.fp32.v2, two forward, a step.
Results run_with_products(Executor& executor) {
  const Case three_chunks = {1, 1, 133, mamba3_calls::Values::ordinary};
  const Case two_chunks = {1, 1, 66, mamba3_calls::Values::ordinary};
  const Case step = {1, 2, 1, mamba3_calls::Values::ordinary, 30, true};
  static Drawn slow = slow_inputs(three_chunks), tiny = tiny_inputs(two_chunks), drawn;
  Results results;
  append(mamba3_calls::run(executor, three_chunks, Run::backward_products, slow), results);
  append(mamba3_calls::run(executor, two_chunks, Run::forward, tiny), results);
  append(mamba3_calls::run(executor, step, Run::forward, drawn), results);
  return results;
}

// Version 1.
Results run_long_chains(Executor& executor) {
  const Case two_chunks = {1, 1, 65, mamba3_calls::Values::ordinary};
  static Drawn large = large_inputs(two_chunks);
  Results results;
  append(mamba3_calls::run(executor, two_chunks, Run::backward, large), results);
  return results;
}

// The second in samba.fp32.v2.
std::vector<StackConfig> hybrids() {
  return {small_config(), stack_config_from_json(nlohmann::json::parse(R"({
            "vocab": 11, "d_model": 64, "profile": "samba.fp32.v2",
            "layers": [{"kind": "mamba3"}, {"kind": "transformer", "n_heads": 4, "intermediate": 20}]})"))};
}

std::string trained(Executor& executor, const StackConfig& config) {
  OptimizerSettings settings;
  settings.lr = 0.01;
  settings.max_norm = 1.0;
  const auto trainer = SambaTrainer::create(executor, config, 3, settings);
  for (Index step = 0; step < 2; ++step) {
    trainer->train_step(token_array(2, 67, config.vocab, step), token_array(2, 67, config.vocab, step + 1));
  }
  return training_digest(*trainer);
}

// The logits behind a prefill of `prefilled` of 67 tokens, the rest one by one.
std::vector<float> decoded(Executor& executor, const StackConfig& config, Index prefilled) {
  Generator generator(5);
  SambaStack stack(executor, config, generator, SambaStack::Use::inference);
  const Array ids = token_array(1, 67, config.vocab, 1);
  const auto tokens = ids.values<std::int32_t>();
  const auto state = stack.allocate_state(1, 80);
  std::vector<float> logits(static_cast<std::size_t>(config.vocab));
  stack.prefill(tokens.first(static_cast<std::size_t>(prefilled)), prefilled, *state, logits);
  for (Index t = prefilled; t < 67; ++t) stack.step(tokens.subspan(static_cast<std::size_t>(t), 1), *state, logits);
  return logits;
}

}  // namespace

TEST_CASE("hybrid stacks train and decode on the GPU kernels with the bits of the cpu") {
  const auto cpu = make_executor("cpu");
  for (const StackConfig& config : hybrids()) {
    CHECK(trained(*make_executor("gpu-host", kSmallWarps), config) == trained(*cpu, config));
    const std::vector<float> want = decoded(*cpu, config, 67);
    for (const Index prefilled : {67, 58, 64, 1}) {
      INFO("prefilled " << prefilled);
      CHECK(bits_equal(decoded(*make_executor("gpu-host", kLargeWarps), config, prefilled), want));
    }
  }
}

TEST_CASE("the Mamba-3 cases have the recorded bits with warps of 32 and of 64 in a random order") {
  const Golden forward = {
      {"mamba3"},
      92,
      {{"mamba3/refusals/lengths_1.5_2", kUntypedLength}, {"mamba3/refusals/lengths_True_2", kUntypedLength}}};
  check_golden(forward, "gpu-host", kSmallWarps);
  // The case of many sequences by itself: launches take longer the more memory the device holds.
  Golden backward = {{"mamba3_backward"}, 13};
  backward.options.accept = [](const std::string& id, const std::string&) {
    return id.find("b129_l1") == std::string::npos;
  };
  check_golden(backward, "gpu-host", kLargeWarps);
  check_golden({{"mamba3_backward/b129_l1.safetensors"}, 1}, "gpu-host", kSmallWarps);
}

TEST_CASE("no order of blocks, warps and threads between barriers changes a bit of the Mamba-3 kernels") {
  const auto reference = make_executor("reference");
  const Results want = run_with_products(*reference), want_chains = run_long_chains(*reference);
  for (const char* set : {"warp32-seed1", "warp64-seed2", "warp64"}) {
    INFO(set);
    CHECK(same_bits(run_with_products(*make_executor("gpu-host", {2, set})), want));
    CHECK(same_bits(run_long_chains(*make_executor("gpu-host", {2, set})), want_chains));
  }
}

TEST_CASE("a Mamba-3 kernel without one of its barriers gives other bits in some order") {
  CHECK(check_missing_barriers(run_with_products) >= 20);
  CHECK(check_missing_barriers(run_long_chains, "mamba3_pair_chains.gpu.h") >= 2);
}

}  // namespace samba
