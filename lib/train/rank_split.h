// How the rows of a training step are dealt to ranks so that the gradient keeps its bits (docs/scaling.md).
//
// A gradient that sums over tokens is a balanced tree of 128-token leaves inside a microbatch, and the microbatches are
// a balanced tree of their own (spec 10 sections 3 and 10). A rank takes a whole subtree: with no more ranks than
// microbatches (accumulation_steps) as many whole microbatches; with more, ranks / microbatches of them share one, each
// a power of two of leaves.
#pragma once

#include <string>
#include <vector>

#include "samba/core/array.h"
#include "samba/model/stack_config.h"

namespace samba {

struct StepShape {
  Index rows = 1;    // sequences of a step
  Index length = 1;  // tokens of a sequence
  Index microbatches = 1;
};

struct RankSplit {
  int rank = 0;
  int ranks = 1;
  Index group = 1;             // ranks that share a microbatch
  Index first_microbatch = 0;  // of this rank
  Index microbatches = 1;      // of this rank; with group > 1 the one it has a part of
  Index rows = 1;              // of a call
  Index member = 0;            // which part of the shared microbatch

  // The first row of local microbatch k, counted over the step.
  Index first_row(Index k) const { return (first_microbatch + k) * group * rows + member * rows; }
};

// Why parts of a microbatch do not add up for this stack; empty when they do.
std::string shared_microbatch_refusal(const StackConfig& config);

// The numbers of ranks that give the bits of one process, ascending.
std::vector<int> accepted_ranks(const StackConfig& config, const StepShape& step);

// Error(value) with the accepted numbers for any other.
RankSplit split_step(const StackConfig& config, const StepShape& step, int rank, int ranks);

}  // namespace samba
