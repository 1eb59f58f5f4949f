// Twins: the Mamba-3 kernels of the cpu executor give the bits of the reference executor's, with every instruction set
// and with 1, 2 and 3 threads, and those of the GPUs on the host adapter, forward and backward, for values of every
// kind.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bits.h"
#include "mamba3_calls.h"
#include "samba/backends/registry.h"

namespace samba {
namespace {

using namespace mamba3_calls;

void compare_with(Executor& executor, const Case& c, Run what, const Arrays& want,
                  std::map<std::string, Floats>& drawn) {
  const Arrays got = run(executor, c, what, drawn);
  for (const auto& [name, values] : want.pieces) {
    INFO(describe(c) << ", " << executor.name() << " " << executor.instruction_set() << ", threads "
                     << executor.threads() << ": " << name);
    CHECK(bits_equal(got.pieces.at(name), values));
  }
}

// The host adapter: small warps and large ones in a random order in turn.
std::unique_ptr<Executor> next_gpu_host() {
  static bool large = false;
  large = !large;
  return make_executor("gpu-host", large ? ExecutorOptions{1, "warp64-seed5"} : ExecutorOptions{2, "warp32"});
}

bool has_gpu_host() {
  const std::vector<std::string> devices = compiled_devices();
  return std::find(devices.begin(), devices.end(), "gpu-host") != devices.end();
}

void compare_twins(const Case& c, Run what) {
  const std::unique_ptr<Executor> reference = make_executor("reference", {});
  std::map<std::string, Floats> drawn;
  const Arrays want = run(*reference, c, what, drawn);
  for (const std::string& set : instruction_sets()) {
    // The scalar fallback is slow: one number of threads is enough where there are many steps.
    const bool slow = set == "scalar" && what != Run::forward && c.batch * c.heads * c.tokens > 100;
    for (int threads = slow ? 3 : 1; threads <= 3; ++threads) {
      compare_with(*make_executor("cpu", {.threads = threads, .instruction_set = set}), c, what, want, drawn);
    }
  }
  if (has_gpu_host()) compare_with(*next_gpu_host(), c, what, want, drawn);
}

constexpr Values kKinds[] = {Values::ordinary, Values::planted, Values::tiny, Values::huge};

TEST_CASE("the forward of a zero state gives the reference's bits in every array") {
  for (const Values kind : kKinds) {
    for (const Case& c : {Case{1, 1, 1, kind}, Case{2, 3, 5, kind}, Case{1, 2, 64, kind}, Case{3, 1, 66, kind},
                          Case{1, 5, 131, kind}, Case{1, 1, 200, kind}}) {
      compare_twins(c, Run::forward);
    }
  }
}

TEST_CASE("a call that continues a state gives the reference's bits, wherever the buffered rows end") {
  for (const Values kind : kKinds) {
    for (const Index buffered : {0, 1, 31, 62, 63, 64}) {
      for (const Index tokens : {1, 3}) compare_twins({1, 1, tokens, kind, buffered, true}, Run::forward);
    }
    compare_twins({2, 1, 70, kind, 33, true}, Run::forward);
    compare_twins({2, 3, 1, kind, 40, true}, Run::forward);
    compare_twins({1, 2, 140, kind, 7, true}, Run::forward);
  }
}

TEST_CASE("input states enter the first chunk with the reference's bits") {
  for (const Values kind : kKinds) {
    for (const Index tokens : {1, 64, 130}) compare_twins({1, 2, tokens, kind, 0, true, true}, Run::forward);
  }
}

TEST_CASE("the backward gives the reference's bits in every array") {
  for (const Run what : {Run::backward, Run::backward_products}) {
    for (const Values kind : kKinds) {
      for (const Case& c : {Case{1, 1, 1, kind}, Case{2, 3, 5, kind}, Case{1, 2, 64, kind}, Case{1, 1, 67, kind}}) {
        compare_twins(c, what);
      }
    }
  }
  compare_twins({1, 1, 200, Values::ordinary}, Run::backward_products);
  compare_twins({1, 1, 200, Values::ordinary}, Run::backward);  // suffix sums over four blocks
  compare_twins({9, 2, 66, Values::ordinary}, Run::backward);   // more tail chains than a vector has lanes
}

}  // namespace
}  // namespace samba
