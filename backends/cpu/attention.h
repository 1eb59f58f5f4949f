// AttentionKernels of the cpu executor: three passes over the visible keys of a block of rows (spec 20 section 13),
// lanes over rows, keys or depth, threads over blocks. Attention matrices live in tiles, never whole.
#pragma once

#include <cstdint>
#include <vector>

#include "samba/backends/cpu/context.h"
#include "samba/kernels/attention.h"
#include "samba/kernels/extended_gradients.h"

namespace samba::cpu {

// Units a thread takes at least, so that starting threads does not cost more than they do: `steps` fused steps a unit.
constexpr Index attention_grain(Index steps) { return 1 + 65536 / (steps + 1); }

class AttentionCpu final : public AttentionKernels, public SoftcapGradients {
 public:
  explicit AttentionCpu(Context& context) : context_(context) {}

  void attention_forward(const AttentionShape& shape, const float* q, const KeyValueView& view, float* context,
                         const AttentionStages& stages) override;
  void attention_backward(const AttentionShape& shape, const float* q, const float* k, const float* v,
                          const float* d_context, float* dq, float* dk, float* dv,
                          const AttentionBackwardStages& stages) override;
  void store_keys_values(const AttentionShape& shape, const float* k, const float* v, float* keys, float* values,
                         const KeyValueView& layout) override;

 private:
  // Of every (batch row, KV head), the largest magnitude among the span's keys as bits.
  void find_key_peaks(const AttentionShape& shape, const KeyValueView& view);

  Context& context_;
  std::vector<std::uint32_t> key_peaks_;
  std::vector<float*> slots_;  // scratch of each thread in a backward
};

}  // namespace samba::cpu
