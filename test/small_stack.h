// A small hybrid stack and batches for it, shared by the tests of training and checkpoints.
#pragma once

#include <cstdint>
#include <memory>

#include "samba/backends/registry.h"
#include "samba/core/sha256.h"
#include "samba/train/trainer.h"

namespace samba {

inline SambaConfig small_config(double dropout = 0.0, bool tied = true) {
  SambaConfigFields fields;
  fields.vocab = 11;
  fields.d_model = 32;
  fields.layers = {"mamba3", "attention"};
  fields.n_heads = 4;
  fields.n_kv_heads = 2;
  fields.intermediate = 20;
  fields.dropout = dropout;
  fields.tie_embeddings = tied;
  return make_config(fields);
}

inline SambaConfig tiny_attention_config() {
  SambaConfigFields fields;
  fields.vocab = 5;
  fields.d_model = 4;
  fields.layers = {"attention"};
  fields.n_heads = 2;
  fields.intermediate = 3;
  return make_config(fields);
}

// Token ids that depend on the step and their place alone.
inline Array token_array(Index rows, Index length, Index vocab, Index step) {
  Array ids(DType::int32, {rows, length});
  auto values = ids.values<std::int32_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto place = static_cast<Index>(i) + 131 * step;
    values[i] = static_cast<std::int32_t>((place * place + 7 * place / 3) % vocab);
  }
  return ids;
}

// Everything a step may change, as one text.
inline std::string training_digest(const SambaTrainer& trainer) {
  const Array m = trainer.exp_avg(), v = trainer.exp_avg_sq();
  return trainer.stack().parameters_sha256() + " " + sha256_hex(m.data(), m.byte_size()) + " " +
         sha256_hex(v.data(), v.byte_size()) + " t" + std::to_string(trainer.completed_steps()) + " rng" +
         std::to_string(trainer.generator().counter()) + " lr" + std::to_string(trainer.optimizer().settings().lr);
}

}  // namespace samba
