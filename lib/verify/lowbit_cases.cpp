// Packing and expanding weights (spec 50 A4, A5), and a stack of packed weights.
#include <algorithm>

#include "samba/model/samba_stack.h"
#include "samba/numerics/packed_weight.h"
#include "samba/verify/kinds.h"
#include "samba/verify/slices.h"

namespace samba::verify {

void run_lowbit_pack(RunContext& run) {
  const Array& w = run.tensor("in.w");
  const Weight narrow = pack_one(w, WeightFormat::bfloat16);
  run.expect("out.bits", narrow.packed().bits());
  run.expect("out.bf16_expanded", expand(narrow.packed()));
  const Weight codes = pack_one(w, WeightFormat::int8);
  run.expect("out.codes", codes.packed().codes());
  run.expect("out.exponents", codes.packed().exponents());
  run.expect("out.int8_expanded", expand(codes.packed()));
}

void run_lowbit_expand(RunContext& run) {
  run.expect("out.int8_expanded",
             expand(ConstPackedWeight::of_codes(run.tensor("in.codes"), run.tensor("in.exponents"))));
}

// A stack of packed weights, whole and token by token.
void run_stack_forward(RunContext& run) {
  const ConstWeightMap weights = run.test.tensors.weights();
  json packed = json::array();
  for (const auto& [name, weight] : weights) {
    if (weight.is_packed()) packed.push_back(name);
  }
  json listed = run.body().at("packed");
  std::sort(listed.begin(), listed.end());
  run.check.text("packed", packed.dump(), listed.dump());
  SambaStack stack(run.executor, config_from_json(run.body().at("config")), weights, SambaStack::Use::inference);
  run.check.text("weight_format", std::string(weight_format_name(stack.weight_format())),
                 run.body().at("weight_format"));
  const Array& ids = run.tensor(run.body().at("ids"));
  run.expect(run.body().at("logits"), stack.forward(ids));
  const Index batch = ids.shape()[0], length = ids.shape()[1];
  const auto state = stack.allocate_state(batch, length);
  std::vector<Array> steps;
  for (Index t = 0; t < length; ++t) {
    steps.push_back(reshaped(stack.step(slice(ids, 1, t, t + 1), *state), {batch, 1, stack.config().vocab}));
  }
  run.expect(run.body().at("logits"), join(steps, 1));
}

}  // namespace samba::verify
