// The hash suites: larger blocks and stacks, drawn by seed, of which the digests are recorded.
#include <algorithm>
#include <catch2/catch.hpp>

#include "golden.h"

namespace samba {
namespace {

Golden transformer_suite() { return {{"hashes/transformer.json"}, 34}; }

Golden mamba1_suite() { return {{"hashes/mamba1.json"}, 12}; }

Golden mamba2_suite() { return {{"hashes/mamba2.json"}, 13}; }

Golden mamba3_suite() { return {{"hashes/mamba3.json"}, 12}; }

Golden train_suite() { return {{"hashes/samba_train.json"}, 6}; }

Golden infer_suite() { return {{"hashes/samba_infer.json"}, 5}; }

// The part that the narrower instruction sets, which need longer, go through.
Golden part(const Golden& suite, const std::string& id_part, std::size_t cases) {
  Golden golden = {suite.names, cases};
  golden.options.id_part = id_part;
  return golden;
}

}  // namespace

TEST_CASE("the hash suite of the transformer holds on the cpu") {
  check_golden_on_cpu(transformer_suite(), part(transformer_suite(), "d256_gqa", 3));
}

TEST_CASE("the hash suite of Mamba-1 holds on the cpu") {
  check_golden_on_cpu(mamba1_suite(), part(mamba1_suite(), "d128", 6));
}

TEST_CASE("the hash suite of Mamba-2 holds on the cpu") {
  check_golden_on_cpu(mamba2_suite(), part(mamba2_suite(), "backward_d128", 2));
}

TEST_CASE("the hash suite of Mamba-3 holds on the cpu") {
  check_golden_on_cpu(mamba3_suite(), part(mamba3_suite(), "d128", 6));
}

TEST_CASE("the hash suites of stacks in training and inference hold on the cpu") {
  check_golden_on_cpu(train_suite(), part(train_suite(), "hybrid_untied_accumulate2", 1));
  check_golden_on_cpu(infer_suite(), part(infer_suite(), "attention_untied_5m", 1));
}

TEST_CASE("blocks of the hash suites hold on the reference executor") {
  check_golden(part(transformer_suite(), "d256_mha_l64", 1), "reference");
  check_golden(part(transformer_suite(), "backward_d256_gqa", 1), "reference");
  check_golden(part(mamba1_suite(), "d128", 6), "reference");
  check_golden(part(mamba2_suite(), "d128", 8), "reference");
  check_golden(part(mamba3_suite(), "d128", 6), "reference");
}

TEST_CASE("the hash suites of blocks and of stacks in inference hold on the GPU kernels of the host adapter") {
  const std::vector<std::string> devices = compiled_devices();
  if (std::find(devices.begin(), devices.end(), "gpu-host") == devices.end()) {
    WARN("skipped: the device gpu-host is not compiled in");
    return;
  }
  check_golden(transformer_suite(), "gpu-host", ExecutorOptions{2, "warp32"});
  check_golden(mamba1_suite(), "gpu-host", ExecutorOptions{2, "warp64-seed3"});
  check_golden(mamba2_suite(), "gpu-host", ExecutorOptions{2, "warp64-seed3"});
  check_golden(mamba3_suite(), "gpu-host", ExecutorOptions{2, "warp64-seed3"});
  check_golden(infer_suite(), "gpu-host", ExecutorOptions{2, "warp32"});
}

}  // namespace samba
