// The Mamba-3 kernels of the GPUs on the host adapter: the recorded cases, and that every barrier of theirs is needed.
// (Their twins with the reference are in mamba3_kernels_test.)
#include <catch2/catch.hpp>

#include "golden.h"
#include "mamba3_calls.h"
#include "missing_barriers.h"

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

// The inputs of a case, its values v (the x columns of in_proj) changed by edit(v, token, p).
Drawn edited_inputs(const Case& c, const std::function<void(float&, Index, Index)>& edit) {
  Drawn drawn;
  mamba3_calls::run(*make_executor("reference"), c, Run::backward_products, drawn);
  const Index d_model = 32 * c.heads, width = mamba3::projection_width(d_model);
  for (Index token = 0; token < c.tokens; ++token) {
    for (Index p = 0; p < mamba3::kHeadDim; ++p) {
      edit(drawn["in_proj"][static_cast<std::size_t>(token * width + mamba3::columns(d_model).x + p)], token, p);
    }
  }
  return drawn;
}

// Two chunks forward and backward in samba.fp32.v2; a step; products that are flushed because of few elements, which
// one thread loads.
Results run_with_products(Executor& executor) {
  const Case two_chunks = {1, 1, 69, mamba3_calls::Values::ordinary};
  const Case step = {1, 2, 1, mamba3_calls::Values::ordinary, 30, true};
  static Drawn drawn, drawn_step;
  static Drawn few_tiny = edited_inputs(two_chunks, [](float& v, Index token, Index p) {
    v = p == 7 && token >= 48 && token < 64 && token % 4 == 1 ? 0x1p-122F : 0.0F;
  });
  Results results;
  append(mamba3_calls::run(executor, two_chunks, Run::backward_products, drawn), results);
  append(mamba3_calls::run(executor, step, Run::forward, drawn_step), results);
  append(mamba3_calls::run(executor, two_chunks, Run::forward, few_tiny), results);
  return results;
}

// The long chains of version 1; in the last chunk they are run because of one large value.
Results run_long_chains(Executor& executor) {
  const Case two_chunks = {1, 1, 65, mamba3_calls::Values::ordinary};
  static Drawn drawn = edited_inputs(two_chunks, [](float& v, Index token, Index p) {
    if (token == 64 && p == 9) v = 0x1p70F;
  });
  Results results;
  append(mamba3_calls::run(executor, two_chunks, Run::backward, drawn), results);
  return results;
}

}  // namespace

TEST_CASE("the Mamba-3 cases have the recorded bits with warps of 32 and of 64 in a random order") {
  const Golden forward = {
      {"mamba3"},
      92,
      {{"mamba3/refusals/lengths_1.5_2", kUntypedLength}, {"mamba3/refusals/lengths_True_2", kUntypedLength}}};
  check_golden(forward, "gpu-host", kSmallWarps);
  check_golden({{"mamba3_backward"}, 14}, "gpu-host", kLargeWarps);
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
