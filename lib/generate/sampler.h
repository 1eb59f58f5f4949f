// One token from a row of logits, in identical arithmetic: every device and thread count draws the same token.
//
// The order, each line rounded and flushed as in spec 10 (v: a token id):
//   1. repetition penalty r != 1, for every distinct id of the context: l_v = l_v > 0 ? div(l_v, r) : mul(l_v, r)
//   2. temperature t: l_v = div(l_v, t). t = 0 ends here: the largest l_v, lowest id on ties
//   3. m = max of l; e_v = exp(sub(l_v, m))
//   4. sort by (e_v descending, v ascending); c_i = add(c_(i-1), e_i) from +0
//   5. top-k keeps the first k; top-p keeps the shortest start with c_i >= mul(p, total of the kept);
//      min-p keeps those with e_i >= mul(min_p, e_0)
//   6. u = unit(word of element i of the stream (seed, sample)), i = index of the generated token;
//      the first kept one with c_i > mul(u, total of the kept), or the last kept one
// So the draw of token i depends on the seed, the sample's number and i only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "samba/core/array.h"

namespace samba {

struct SamplerOptions {
  double temperature = 0.0;  // 0: greedy
  Index top_k = 0;           // 0: all
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  std::uint64_t seed = 0;
};

// Error(value) that names the option.
void check_sampler_options(const SamplerOptions& options);

class Sampler {
 public:
  // `vocab` sizes the scratch memory: next() allocates nothing.
  Sampler(const SamplerOptions& options, Index vocab);

  // `logits`: vocab floats. `context`: ids so far, for the repetition penalty. `sample`: number of the prompt or
  // sample. `index`: 0 for the first generated token. A non-finite logit is Error(check).
  std::int32_t next(std::span<const float> logits, std::span<const std::int32_t> context, std::uint32_t sample,
                    std::uint64_t index);

 private:
  struct Candidate {
    float weight;
    std::int32_t id;
  };

  std::int32_t greedy() const;
  std::size_t take_candidates();

  SamplerOptions options_;
  std::vector<float> logits_;
  std::vector<char> seen_;
  std::vector<Candidate> candidates_;
  std::vector<float> sums_;
};

// The natural logarithm of the probability of `id`, from the untouched logits: sub(sub(l_id, m), log(serial sum of
// exp(sub(l_v, m)) over ascending v)).
float log_probability(std::span<const float> logits, std::int32_t id);

}  // namespace samba
