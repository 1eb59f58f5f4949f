// The hash suites: larger blocks and stacks, drawn by seed, of which the digests are recorded.
#include <catch2/catch.hpp>

#include "golden.h"

namespace samba {
namespace {

Golden transformer_suite() {
  Golden golden = {{"hashes/transformer.json"}, 34};
  for (const char* id :
       {"fixed15_d256_l200_decode", "fixed15_qwen3_d768_l64", "fixed15_gemma_window_d256_l130_decode"}) {
    golden.not_applicable[std::string("transformer/") + id] = kNoFixed15;
  }
  for (const char* id : {"bf16_d256_l130_decode", "bf16_d768_l64"}) {
    golden.not_applicable[std::string("transformer/") + id] = "samba has no bfloat16 weights";
  }
  for (const char* id : {"int8_d256_l130_decode", "int8_d768_l64"}) {
    golden.not_applicable[std::string("transformer/") + id] = "samba has no int8 weights";
  }
  return golden;
}

Golden mamba1_suite() {
  return {{"hashes/mamba1.json"},
          12,
          {{"mamba1/d256_bf16_l130_decode", "samba has no bfloat16 weights"},
           {"mamba1/d256_int8_l130", "samba has no int8 weights"}}};
}

Golden mamba3_suite() {
  return {{"hashes/mamba3.json"},
          12,
          {{"mamba3/d256_bf16_l130_decode", "samba has no bfloat16 weights"},
           {"mamba3/d256_int8_l130", "samba has no int8 weights"}}};
}

Golden train_suite() { return {{"hashes/samba_train.json"}, 6}; }

Golden infer_suite() {
  return {{"hashes/samba_infer.json"},
          5,
          {{"samba_infer/hybrid_tied_5m_int8", "samba has no int8 weights"},
           {"samba_infer/hybrid_tied_5m_bf16", "samba has no bfloat16 weights"}}};
}

}  // namespace

TEST_CASE("the hash suites hold on the cpu, on each instruction set") {
  for_each_instruction_set([](const ExecutorOptions& options) {
    check_golden(transformer_suite(), "cpu", options);
    check_golden(mamba1_suite(), "cpu", options);
    check_golden(mamba3_suite(), "cpu", options);
    check_golden(train_suite(), "cpu", options);
    check_golden(infer_suite(), "cpu", options);
  });
}

}  // namespace samba
