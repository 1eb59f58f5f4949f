// How a stack's tensors are named and laid out in a GGUF file, in both directions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/array.h"
#include "samba/model/stack_config.h"

namespace samba {

enum class GgufArchitecture { llama, qwen2, qwen3, gemma, mamba, mamba2 };

std::string_view gguf_architecture_name(GgufArchitecture architecture);  // "llama"
// Empty for a name that is none of them.
std::optional<GgufArchitecture> find_gguf_architecture(std::string_view name);
std::string gguf_architecture_names();  // "llama, qwen2, ..."

// How the stored values become those of the registry.
enum class GgufChange {
  none,
  interleaved_halves,  // rows of a head, its two halves in turn: q and k of the llama family
  one_added,           // 1 + w is stored: the norms of gemma
  decay_rate,          // -exp(A_log) is stored
};

struct GgufTensorPlace {
  std::string registry;  // "layers.0.q_proj.weight"
  Shape registry_shape;
  std::string name;  // "blk.0.attn_q.weight"
  Shape shape;       // in the file, slowest axis first; axes of size 1 may differ
  GgufChange change = GgufChange::none;
  Index head = 0;  // rows of a head, of interleaved_halves
};

// One for every tensor of the registry, in its order. Layers must be of kinds the architecture has.
std::vector<GgufTensorPlace> gguf_tensor_places(GgufArchitecture architecture, const StackConfig& config);

// Where row `row` of the registry's tensor lies in the file, with interleaved halves.
inline Index interleaved_row(Index row, Index head) {
  const Index in_head = row % head, half = head / 2;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

// The factors by which llama3's rope scaling divides the inverse frequencies, as GGUF files hold them in
// rope_freqs.weight.
std::vector<float> llama3_rope_factors(Index rotary_dim, float theta, const RopeScaling& scaling);

// The scaling that has these factors, each within 1e-4: none where all are 1, else llama3's with low_freq_factor 1,
// high_freq_factor 4 and 8192 original positions, as in every published model, or another power of two from 16 to 2^20.
// Nothing when there is none.
std::optional<RopeScaling> scaling_of_rope_factors(std::span<const float> factors, float theta);

}  // namespace samba
