// Packing and expanding weights (spec 50 A4, A5).
#include "samba/numerics/packed_weight.h"
#include "samba/verify/kinds.h"

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

}  // namespace samba::verify
