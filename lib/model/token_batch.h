// Checked batches of token ids and targets.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "samba/core/array.h"

namespace samba {

inline constexpr std::int32_t kIgnoredTarget = -100;

// (rows, length) row-major.
struct TokenBatch {
  Index rows = 0;
  Index length = 0;
  std::vector<std::int32_t> ids;
};

// The checks of spec 60 section 4: rank 2, an integer dtype, at least one row and one token, every id in [0, vocab).
TokenBatch checked_ids(ConstArray ids, Index vocab, const char* name = "ids");
// The same for a ragged batch: ids at positions >= lengths[row] may be anything and become 0.
TokenBatch checked_ragged_ids(ConstArray ids, std::span<const Index> lengths, Index vocab);
// ids (rows,) or (rows, 1).
TokenBatch checked_step_ids(ConstArray ids, Index vocab);
// `targets` has the shape of `inputs`, each in [0, vocab) or -100.
TokenBatch checked_targets(ConstArray targets, const TokenBatch& inputs, Index vocab);

// Error(value) for the first id outside [0, vocab).
void check_ids(std::span<const std::int32_t> ids, Index vocab, const char* name = "ids");
// Error(value) for the first target that is neither in [0, vocab) nor -100.
void check_targets(std::span<const std::int32_t> targets, Index vocab);

Index counted_targets(std::span<const std::int32_t> targets);  // those that are not -100

}  // namespace samba
