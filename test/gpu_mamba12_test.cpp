// The Mamba-1 and Mamba-2 kernels on the host adapter: the recorded cases, orders of threads, and missing barriers.
// (Their twins with the reference are in mamba1_kernels_test and mamba2_kernels_test.)
#include <catch2/catch.hpp>

#include "golden.h"
#include "mamba1_twins.h"
#include "mamba2_twins.h"
#include "missing_barriers.h"

namespace samba {
namespace {

void append(Results& results, const Results& more) { results.insert(results.end(), more.begin(), more.end()); }

// Two segments and two leaves of channels.
Results run_mamba1(Executor& executor) {
  Draws draws(32);
  mamba1_twins::Inputs in(draws, {1, 19, 66}, Draw::normal);
  Results r = mamba1_twins::gradients(executor, in);
  append(r, {in.gate, in.delta, in.y, in.skip, in.kept});
  in.run(executor, true);
  append(r, {in.gate, in.after});
  return r;
}

// Three chunks (the one between has a state before it and a gradient behind it), and one new row in an open chunk.
Results run_mamba2(Executor& executor) {
  using mamba2_twins::Inputs;
  Draws draws(33);
  Inputs in(draws, {1, 513, 32, 0}, Draw::normal);
  Results r = mamba2_twins::gradients(executor, in);
  append(r, {in.gate, in.decay, in.pass_states, in.chunk_states, in.h_last});
  Inputs step(draws, {1, 1, 32, 140}, Draw::normal);
  step.run(executor, Inputs::State::carried, Inputs::Extra::all);
  append(r, {step.gate, step.scores, step.y_diag, step.y_off, step.h_last});

  // One product that is flushed, of elements that one thread each loads.
  Inputs tiny(draws, {1, 20, 32, 0}, Draw::normal);
  for (Index i = 0; i < tiny.x_bc.size(); ++i) tiny.x_bc[i] = 0.0F;
  const Index query = tiny.call.inner() + mamba2::kStateSize + 5, key = tiny.call.inner() + 5;
  tiny.x_bc[17 * tiny.call.channels() + query] = 0x1p-126F;
  tiny.x_bc[9 * tiny.call.channels() + key] = 0x1p-3F;
  tiny.run(executor, Inputs::State::fresh, Inputs::Extra::none);
  append(r, {tiny.scores});
  return r;
}

Golden part_of(const char* folder, const char* id_part, std::size_t cases, const Reasons& reasons = {}) {
  Golden golden = {{folder}, cases, reasons};
  golden.options.id_part = id_part;
  return golden;
}

Reasons untyped_lengths(const std::string& folder) {
  return {{folder + "/refusals/lengths_float", kUntypedLength}, {folder + "/refusals/lengths_bool", kUntypedLength}};
}

}  // namespace

TEST_CASE("the Mamba-1 cases have the recorded bits, forward, in steps and backward") {
  check_golden({{"mamba1"}, 121, untyped_lengths("mamba1")}, "gpu-host", {2, "warp32"});
  check_golden(part_of("mamba12_backward", "/m1_", 16), "gpu-host", {2, "warp64-seed7"});
}

TEST_CASE("the Mamba-2 cases have the recorded bits, forward, in steps and backward") {
  check_golden({{"mamba2"}, 146, untyped_lengths("mamba2")}, "gpu-host", {2, "warp64-seed7"});
  check_golden(part_of("mamba12_backward", "/m2_", 22), "gpu-host", {2, "warp32"});
}

TEST_CASE("no order of blocks, warps and threads between barriers changes a bit of the Mamba kernels") {
  for (const auto run : {run_mamba1, run_mamba2}) {
    const Results want = run(*make_executor("reference"));
    for (const char* order : {"warp32", "warp32-seed1", "warp64", "warp64-seed2"}) {
      INFO(order);
      CHECK(same_bits(run(*make_executor("gpu-host", {2, order})), want));
    }
  }
}

TEST_CASE("a Mamba kernel without one of its barriers gives other bits in some order") {
  CHECK(check_missing_barriers(run_mamba1) == 8);
  CHECK(check_missing_barriers(run_mamba2) >= 20);
}

}  // namespace samba
