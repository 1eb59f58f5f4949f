// Guards of the floating-point control word: what a caller has set does not reach samba's arithmetic, samba's does not
// reach the caller, and threads that are started under a wrong control word put their own right.
#include <catch2/catch.hpp>
#include <thread>

#include "bits.h"
#include "samba/backends/registry.h"
#include "samba/blocks/functional.h"
#include "samba/core/float_environment.h"
#include "samba/core/thread_team.h"
#include "small_stack.h"

namespace samba {
namespace {

#if defined(__x86_64__)

constexpr std::uint32_t kFlushModes = 0x8040U;  // flush-to-zero and denormals-are-zero
constexpr std::uint32_t kTowardZero = 0x6000U;

// Another control word for the length of a scope.
class Foreign {
 public:
  explicit Foreign(std::uint32_t bits) : saved_(float_control_word()) { set_float_control_word(saved_ | bits); }
  ~Foreign() { set_float_control_word(saved_); }
  Foreign(const Foreign&) = delete;
  Foreign& operator=(const Foreign&) = delete;

 private:
  std::uint32_t saved_;
};

// Initial values, logits, two steps: everything they leave behind.
std::string life_of_a_stack(const std::string& device, std::uint32_t foreign) {
  const Foreign word(foreign);
  const auto executor = make_executor(device, {3, ""});  // its threads start under the foreign word
  OptimizerSettings settings;
  settings.max_norm = 0.5;
  const auto trainer = SambaTrainer::create(*executor, small_config(0.1), 7, settings);
  const Array logits = trainer->stack().forward(token_array(2, 9, 11, 0));
  for (Index step = 1; step <= 2; ++step) {
    trainer->train_step(token_array(2, 9, 11, step), token_array(2, 9, 11, step + 1));
  }
  CHECK((float_control_word() & (kFlushModes | kTowardZero)) == foreign);
  return training_digest(*trainer) + sha256_hex(logits.data(), logits.byte_size());
}

#endif

}  // namespace

TEST_CASE("training and inference have the same bits whatever control word the process has, and leave it as it was") {
#if defined(__x86_64__)
  for (const char* device : {"reference", "cpu"}) {
    INFO(device);
    const std::string want = life_of_a_stack(device, 0);
    for (const std::uint32_t foreign : {kFlushModes, kTowardZero, kFlushModes | kTowardZero}) {
      CHECK(life_of_a_stack(device, foreign) == want);
    }
  }
#endif
}

TEST_CASE("a product that rounds up to the smallest normal number stays, with flush-to-zero on in the process") {
#if defined(__x86_64__)
  const float a = from_bits(0x3F7FFFFFU), b = from_bits(0x00800000U);
  const ConstArray x{DType::float32, {1, 1}, &a}, weight{DType::float32, {1, 1}, &b};
  for (const char* device : {"reference", "cpu"}) {
    const auto executor = make_executor(device, {1, ""});
    const Foreign word(kFlushModes);
    CHECK(to_bits(functional::linear(*executor, x, weight).floats()[0]) == 0x00800000U);
    CHECK((float_control_word() & kFlushModes) == kFlushModes);
  }
#endif
}

TEST_CASE("every thread of a team that was made under another control word has the right one") {
#if defined(__x86_64__)
  const Foreign word(kFlushModes | kTowardZero);
  ThreadTeam team(4);
  std::vector<int> right(4, 0);
  team.run(4, [&](int member) { right[static_cast<std::size_t>(member)] = float_control_is_right() ? 1 : 0; });
  CHECK(right == std::vector<int>{0, 1, 1, 1});  // member 0 is the caller
#endif
}

TEST_CASE("a scope puts the control word right and gives the caller's back, sticky flags aside") {
#if defined(__x86_64__)
  const Foreign word(kFlushModes);
  {
    const FloatScope scope;
    CHECK(float_control_is_right());
  }
  CHECK((float_control_word() & kFlushModes) == kFlushModes);
#endif
}

}  // namespace samba
