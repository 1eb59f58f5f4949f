#include "samba/model/token_batch.h"

#include <algorithm>
#include <limits>
#include <string>

#include "samba/core/error.h"

namespace samba {

namespace {

std::int64_t integer_at(const ConstArray& array, Index index) {
  switch (array.dtype) {
    case DType::int32:
      return static_cast<const std::int32_t*>(array.data)[index];
    case DType::int64:
      return static_cast<const std::int64_t*>(array.data)[index];
    case DType::uint8:
      return static_cast<const std::uint8_t*>(array.data)[index];
    case DType::uint16:
      return static_cast<const std::uint16_t*>(array.data)[index];
    case DType::int8:
      return static_cast<const std::int8_t*>(array.data)[index];
    default:
      throw Error(ErrorKind::internal, "integer_at: not an integer array");
  }
}

void require_integers(const ConstArray& array, const char* name) {
  switch (array.dtype) {
    case DType::int32:
    case DType::int64:
    case DType::uint8:
    case DType::uint16:
    case DType::int8:
      return;
    default:
      refuse_type(std::string(name) + " must be integers, got " + std::string(dtype_name(array.dtype)));
  }
}

[[noreturn]] void refuse_id(const char* name, std::int64_t id, Index index, Index vocab) {
  refuse_value(std::string(name) + ": id " + std::to_string(id) + " at flat index " + std::to_string(index) +
               " is outside [0, " + std::to_string(vocab) + ")");
}

[[noreturn]] void refuse_target(std::int64_t target, Index index, Index vocab) {
  refuse_value("targets: " + std::to_string(target) + " at flat index " + std::to_string(index) +
               " is neither in [0, " + std::to_string(vocab) + ") nor " + std::to_string(kIgnoredTarget));
}

TokenBatch empty_batch(const ConstArray& ids, const char* name) {
  require_integers(ids, name);
  if (ids.shape.size() != 2) {
    refuse_value(std::string(name) + " must have two axes (batch, length), got the shape " + shape_text(ids.shape));
  }
  TokenBatch batch{ids.shape[0], ids.shape[1], {}};
  if (batch.rows < 1 || batch.length < 1) {
    refuse_value(std::string(name) + " must have at least one row and one token, got the shape " +
                 shape_text(ids.shape));
  }
  batch.ids.reserve(static_cast<std::size_t>(ids.size()));
  return batch;
}

void append_ids(TokenBatch& batch, const ConstArray& ids, Index vocab, const char* name) {
  for (Index i = 0; i < ids.size(); ++i) {
    const std::int64_t id = integer_at(ids, i);
    if (id < 0 || id >= vocab) refuse_id(name, id, i, vocab);
    batch.ids.push_back(static_cast<std::int32_t>(id));
  }
}

}  // namespace

TokenBatch checked_ids(ConstArray ids, Index vocab, const char* name) {
  TokenBatch batch = empty_batch(ids, name);
  append_ids(batch, ids, vocab, name);
  return batch;
}

TokenBatch checked_ragged_ids(ConstArray ids, std::span<const Index> lengths, Index vocab) {
  TokenBatch batch = empty_batch(ids, "ids");
  if (static_cast<Index>(lengths.size()) != batch.rows) {
    refuse_value("lengths must have one entry a row, " + std::to_string(batch.rows) + ", got " +
                 std::to_string(lengths.size()));
  }
  for (std::size_t row = 0; row < lengths.size(); ++row) {
    if (lengths[row] < 1 || lengths[row] > batch.length) {
      refuse_value("lengths[" + std::to_string(row) + "] must be in [1, " + std::to_string(batch.length) + "], got " +
                   std::to_string(lengths[row]));
    }
  }
  for (Index i = 0; i < ids.size(); ++i) {
    const bool padding = i % batch.length >= lengths[static_cast<std::size_t>(i / batch.length)];
    const std::int64_t id = padding ? 0 : integer_at(ids, i);
    if (id < 0 || id >= vocab) refuse_id("ids", id, i, vocab);
    batch.ids.push_back(static_cast<std::int32_t>(id));
  }
  return batch;
}

TokenBatch checked_step_ids(ConstArray ids, Index vocab) {
  require_integers(ids, "ids");
  const bool column = ids.shape.size() == 2 && ids.shape[1] == 1;
  if (ids.shape.size() != 1 && !column) {
    refuse_value("ids of a step must have the shape (batch,) or (batch, 1), got " + shape_text(ids.shape));
  }
  ids.shape = {ids.shape[0], 1};
  return checked_ids(ids, vocab);
}

TokenBatch checked_targets(ConstArray targets, const TokenBatch& inputs, Index vocab) {
  require_integers(targets, "targets");
  if (targets.shape != Shape{inputs.rows, inputs.length}) {
    refuse_value("targets must have the shape of the inputs, " + shape_text({inputs.rows, inputs.length}) + ", got " +
                 shape_text(targets.shape));
  }
  TokenBatch batch{inputs.rows, inputs.length, {}};
  batch.ids.reserve(inputs.ids.size());
  for (Index i = 0; i < targets.size(); ++i) {
    const std::int64_t target = integer_at(targets, i);
    if (target != kIgnoredTarget && (target < 0 || target >= vocab)) refuse_target(target, i, vocab);
    batch.ids.push_back(static_cast<std::int32_t>(target));
  }
  return batch;
}

void check_ids(std::span<const std::int32_t> ids, Index vocab, const char* name) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) refuse_id(name, ids[i], static_cast<Index>(i), vocab);
  }
}

void check_targets(std::span<const std::int32_t> targets, Index vocab) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] != kIgnoredTarget && (targets[i] < 0 || targets[i] >= vocab)) {
      refuse_target(targets[i], static_cast<Index>(i), vocab);
    }
  }
}

Index counted_targets(std::span<const std::int32_t> targets) {
  return static_cast<Index>(targets.size()) - std::count(targets.begin(), targets.end(), kIgnoredTarget);
}

}  // namespace samba
