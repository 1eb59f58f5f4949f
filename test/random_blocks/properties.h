// What must hold of every block, whatever its options, sizes and values:
//   - the cpu executor has the reference's bits, on each instruction set, with 1, 2 and 3 threads: forward, chunks and
//     steps on a state, ragged batches, gradients;
//   - decode and chunks give the bits of one prefill, and the same state;
//   - a row of a batch, or of a ragged batch, gives the bits of that row alone;
//   - a decode session gives the bits of the calls on the state;
//   - a tape of any budget gives the bits of forward and backward;
//   - packed weights give the bits of their expansion.
// Cases are drawn, and a case that fails is shrunk and printed with the line that repeats it.
#pragma once

namespace samba {

enum class RandomBlocks { default_transformer, any_transformer, mamba1, mamba2, mamba3 };

// Draws `cases` blocks from a fixed seed (RC_PARAMS in the environment overrides both). `long_sizes`: sizes and lengths
// across leaves and chunks too. False when one fails; stderr holds the shrunk case.
bool check_random_blocks(RandomBlocks blocks, int cases, bool long_sizes);

}  // namespace samba
