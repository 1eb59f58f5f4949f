#include "samba/train/rank_split.h"

#include <bit>

#include "samba/core/error.h"
#include "samba/numerics/fold.h"

namespace samba {

namespace {

bool is_power_of_two(Index value) { return value > 0 && std::has_single_bit(static_cast<std::uint64_t>(value)); }

// Whether `ranks` ranks are whole subtrees of a step.
bool admits(const StepShape& step, bool shares, Index ranks) {
  if (!is_power_of_two(ranks)) return false;
  if (ranks <= step.microbatches) return step.microbatches % ranks == 0;
  const Index group = ranks / step.microbatches;
  const Index rows = step.rows / step.microbatches;
  if (!shares || ranks % step.microbatches != 0 || rows % group != 0) return false;
  const Index tokens = rows / group * step.length;
  return leaf_length(rows * step.length) == kLeaf && tokens % kLeaf == 0 && is_power_of_two(tokens / kLeaf);
}

}  // namespace

std::string shared_microbatch_refusal(const StackConfig& config) {
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const std::string layer = "layer " + std::to_string(i);
    switch (config.layers[i].kind) {
      case BlockKind::mamba3:
        break;
      case BlockKind::transformer:
        // The norm of a head sums over (token, head) rows, whose leaves are not whole tokens.
        if (config.layers[i].transformer.qk_norm) return layer + " normalises heads (qk_norm)";
        break;
      case BlockKind::mamba1:
        return layer + " is mamba1, whose A_log gradient is a chain over sequences";
      case BlockKind::mamba2:
        return layer + " is mamba2, whose gradients join blocks of tokens one after the other";
    }
  }
  return "";
}

std::vector<int> accepted_ranks(const StackConfig& config, const StepShape& step) {
  const bool shares = shared_microbatch_refusal(config).empty();
  std::vector<int> accepted;
  for (Index ranks = 1; ranks <= step.rows; ranks *= 2) {
    if (admits(step, shares, ranks)) accepted.push_back(static_cast<int>(ranks));
  }
  return accepted;
}

RankSplit split_step(const StackConfig& config, const StepShape& step, int rank, int ranks) {
  const std::string refusal = shared_microbatch_refusal(config);
  if (!admits(step, refusal.empty(), ranks)) {
    std::string accepted;
    for (const int count : accepted_ranks(config, step)) {
      accepted += (accepted.empty() ? "" : ", ") + std::to_string(count);
    }
    std::string why = "a rank must hold whole microbatches, or a power of two of 128-token leaves of one";
    if (!refusal.empty()) why = "a rank must hold whole microbatches, because " + refusal;
    refuse_value("ranks: " + std::to_string(ranks) + " ranks cannot give the bits of one process for a step of " +
                 std::to_string(step.rows) + " x " + std::to_string(step.length) + " tokens in " +
                 std::to_string(step.microbatches) + " microbatch" + (step.microbatches == 1 ? "" : "es") + ": " + why +
                 "; accepted: " + accepted);
  }
  RankSplit split;
  split.rank = rank;
  split.ranks = ranks;
  const Index rows = step.rows / step.microbatches;
  if (ranks <= step.microbatches) {
    split.microbatches = step.microbatches / ranks;
    split.first_microbatch = rank * split.microbatches;
    split.rows = rows;
  } else {
    split.group = ranks / step.microbatches;
    split.first_microbatch = rank / split.group;
    split.rows = rows / split.group;
    split.member = rank % split.group;
  }
  return split;
}

}  // namespace samba
