#include "fuzz/fixtures.h"

#include "samba/backends/reference/executor.h"
#include "samba/core/json_fields.h"
#include "samba/numerics/generator.h"

namespace samba::fuzz {

Executor& reference_executor() {
  static const std::unique_ptr<Executor> executor = reference::make_reference_executor();
  return *executor;
}

StackConfig tiny_stack_config() {
  return stack_config_from_json(parse_json(
      R"({"vocab": 5, "d_model": 32, "layers": [{"kind": "transformer", "n_heads": 2, "head_dim": 2, "intermediate": 3},
                                                {"kind": "mamba1"}, {"kind": "mamba2"}]})",
      "tiny stack"));
}

SambaStack& tiny_stack() {
  static const std::unique_ptr<SambaStack> stack = [] {
    Generator generator(7);
    return std::make_unique<SambaStack>(reference_executor(), tiny_stack_config(), generator,
                                        SambaStack::Use::inference);
  }();
  return *stack;
}

}  // namespace samba::fuzz
