// A case that keeps digests alone tells no more than that a result differs: the earliest stage in which it does is
// found by computing it on the reference executor too.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "samba/backends/registry.h"
#include "samba/numerics/float32.h"
#include "samba/verify/verify.h"

namespace samba {
namespace {

// Moves one element of every rotation by one ulp.
class FaultyRope final : public RopeKernels {
 public:
  explicit FaultyRope(RopeKernels& sound) : sound_(sound) {}
  void rotate(const RopeShape& shape, const float* x, const float* cosines, const float* sines, float* out) override {
    sound_.rotate(shape, x, cosines, sines, out);
    out[kFaulty] = from_bits(to_bits(out[kFaulty]) + 1);
  }
  void rotate_backward(const RopeShape& shape, const float* d_out, const float* cosines, const float* sines,
                       float* dx) override {
    sound_.rotate_backward(shape, d_out, cosines, sines, dx);
  }
  static constexpr std::size_t kFaulty = 3;

 private:
  RopeKernels& sound_;
};

class FaultyExecutor final : public Executor {
 public:
  std::string name() const override { return "faulty"; }
  std::string instruction_set() const override { return sound_->instruction_set(); }
  int threads() const override { return sound_->threads(); }
  NumericMode numeric_mode() const override { return sound_->numeric_mode(); }
  Memory& memory() override { return sound_->memory(); }
  ElementwiseKernels& elementwise() override { return sound_->elementwise(); }
  LinearKernels& linear() override { return sound_->linear(); }
  Fixed15Kernels& fixed15() override { return sound_->fixed15(); }
  NormKernels& norm() override { return sound_->norm(); }
  EmbeddingKernels& embedding() override { return sound_->embedding(); }
  RandomKernels& random() override { return sound_->random(); }
  LossKernels& loss() override { return sound_->loss(); }
  OptimizerKernels& optimizer() override { return sound_->optimizer(); }
  ConvKernels& conv() override { return sound_->conv(); }
  RopeKernels& rope() override { return rope_; }
  AttentionKernels& attention() override { return sound_->attention(); }
  Mamba1Kernels& mamba1() override { return sound_->mamba1(); }
  Mamba2Kernels& mamba2() override { return sound_->mamba2(); }
  Mamba3Kernels& mamba3() override { return sound_->mamba3(); }

 private:
  std::unique_ptr<Executor> sound_ = make_executor("cpu", {1, ""});
  FaultyRope rope_{sound_->rope()};
};

// The first case of a file that differs on the faulty executor.
verify::CaseResult first_different(const std::string& file, const std::string& part, bool with_reference = true) {
  FaultyExecutor faulty;
  verify::VerifyOptions options;
  options.id_part = part;
  if (with_reference) options.reference = [] { return make_executor("reference"); };
  const std::filesystem::path path = std::filesystem::path(SAMBA_GOLDEN_DIR) / file;
  for (const verify::CaseResult& result : verify::verify_cases(faulty, {&path, 1}, options).results) {
    if (result.verdict == verify::Verdict::different) return result;
  }
  throw std::runtime_error("no case of " + file + " differs");
}

}  // namespace

TEST_CASE("of a published column that differs the earliest stage is told, with both values") {
  const verify::CaseResult result = first_different("columns/transformer-decode-session.json", "infer");
  REQUIRE(result.first);
  CHECK_FALSE(result.first->index);  // the digest alone
  REQUIRE(result.stage);
  CHECK_THAT(result.stage->name, Catch::EndsWith("stage.q_rope.out"));
  CHECK(result.stage->index == static_cast<Index>(FaultyRope::kFaulty));
  CHECK(result.stage->ulp == 1);
  CHECK(result.stage->different == 1);
  CHECK(result.stage->got_bits == result.stage->want_bits + 1);
  CHECK_THAT(verify::result_line(result), Catch::Contains("earliest difference from the reference executor: ") &&
                                              Catch::Contains("stage.q_rope.out"));
}

TEST_CASE("of a hash suite's block too; of a stack's column the earliest layer") {
  const verify::CaseResult block = first_different("hashes/transformer.json", "d256_mha_l64");
  REQUIRE(block.stage);
  CHECK_THAT(block.stage->name, Catch::Contains("calls/") && Catch::EndsWith("q_rope.out"));
  CHECK(block.stage->index == static_cast<Index>(FaultyRope::kFaulty));
  const verify::CaseResult stack = first_different("columns/samba-bf16w.json", "");
  REQUIRE(stack.stage);
  CHECK(stack.stage->name == "calls/1 forward: stage.layer1.out");  // layer 0 is mamba3
}

TEST_CASE("without a reference executor no stage is looked for") {
  CHECK_FALSE(first_different("columns/transformer-decode-session.json", "infer", false).stage);
}

}  // namespace samba
