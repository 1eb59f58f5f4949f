// The recorded cases of the transformer, Mamba-1, Mamba-2 and Mamba-3 blocks on every executor: forward, decode,
// ragged, sessions, gradients, tapes and refusals.
#include <catch2/catch.hpp>

#include "golden.h"

namespace samba {
namespace {

Golden transformer_cases() { return {{"attention"}, 139}; }
Golden transformer_backward_cases() { return {{"attention_backward"}, 62}; }
Golden mamba1_cases() {
  return {{"mamba1"},
          121,
          {{"mamba1/refusals/lengths_float", kUntypedLength}, {"mamba1/refusals/lengths_bool", kUntypedLength}}};
}
Golden mamba2_cases() {
  return {{"mamba2"},
          146,
          {{"mamba2/refusals/lengths_float", kUntypedLength}, {"mamba2/refusals/lengths_bool", kUntypedLength}}};
}
Golden backward_cases(const std::string& block, std::size_t cases) {
  Golden golden = {{"mamba12_backward"}, cases};
  golden.options.id_part = block;
  return golden;
}
Golden mamba1_backward_cases() { return backward_cases("/m1_", 16); }
Golden mamba2_backward_cases() { return backward_cases("/m2_", 22); }
Golden mamba3_cases() {
  return {{"mamba3", "mamba3_backward"},
          106,
          {{"mamba3/refusals/lengths_1.5_2", kUntypedLength}, {"mamba3/refusals/lengths_True_2", kUntypedLength}}};
}

}  // namespace

TEST_CASE("every transformer case has the recorded bits on the reference executor") {
  check_golden(transformer_cases(), "reference");
  check_golden(transformer_backward_cases(), "reference");
}

TEST_CASE("every Mamba-1 case has the recorded bits on the reference executor") {
  check_golden(mamba1_cases(), "reference");
  check_golden(mamba1_backward_cases(), "reference");
}

TEST_CASE("every Mamba-2 case has the recorded bits on the reference executor") {
  check_golden(mamba2_cases(), "reference");
  check_golden(mamba2_backward_cases(), "reference");
}

TEST_CASE("every Mamba-3 case has the recorded bits on the reference executor") {
  check_golden(mamba3_cases(), "reference");
}

TEST_CASE("every transformer case has the recorded bits on the cpu, on each instruction set and number of threads") {
  for_each_cpu([](const ExecutorOptions& options) {
    check_golden(transformer_cases(), "cpu", options);
    check_golden(transformer_backward_cases(), "cpu", options);
  });
}

TEST_CASE("every Mamba-1 case has the recorded bits on the cpu, on each instruction set and number of threads") {
  for_each_cpu([](const ExecutorOptions& options) {
    check_golden(mamba1_cases(), "cpu", options);
    check_golden(mamba1_backward_cases(), "cpu", options);
  });
}

TEST_CASE("every Mamba-2 case has the recorded bits on the cpu, on each instruction set and number of threads") {
  for_each_cpu([](const ExecutorOptions& options) {
    check_golden(mamba2_cases(), "cpu", options);
    check_golden(mamba2_backward_cases(), "cpu", options);
  });
}

TEST_CASE("every Mamba-3 case has the recorded bits on the cpu, on each instruction set and number of threads") {
  for_each_cpu([](const ExecutorOptions& options) { check_golden(mamba3_cases(), "cpu", options); });
}

}  // namespace samba
