// The tutorials: stacks trained on a text, every loss, norm and hash of every step, the final checkpoint and what it
// continues. On the cpu all steps; the reference executor takes the first three of each, which is some minutes less
// and goes through every kernel that the others use.
#include <catch2/catch.hpp>

#include "golden.h"

namespace samba {
namespace {

const Golden kTutorials = {{"samba/tutorial_hybrid_1m.safetensors", "samba/tutorial_untied_dropout_acc2.safetensors"},
                           2};

}  // namespace

TEST_CASE("the tutorials reach every recorded value on the cpu") { check_golden(kTutorials, "cpu"); }

TEST_CASE("the tutorials reach every recorded value on the cpu with one thread and the narrower instruction sets") {
  Golden golden = kTutorials;
  golden.options.most_tutorial_steps = 4;
  for (const std::string& instruction_set : instruction_sets()) {
    check_golden(golden, "cpu", ExecutorOptions{1, instruction_set});
  }
}

TEST_CASE("the first three steps of the tutorials have the recorded bits on the reference executor") {
  Golden golden = kTutorials;
  golden.options.most_tutorial_steps = 3;
  check_golden(golden, "reference");
}

}  // namespace samba
