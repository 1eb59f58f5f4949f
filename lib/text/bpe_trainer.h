// Makes a byte-level BPE tokenizer from text.
//
// Lines (with their line end) are cut into pieces by the form's pre-tokenizer. Pieces start as bytes; the pair of
// neighbours that is most frequent over all pieces is merged, of equally frequent ones the pair with the lower ids,
// until the vocabulary has its size or no pair is frequent enough. Ids: special tokens, the 256 bytes in the order of
// their characters in the byte alphabet, merges. The result is a function of text and options alone, not of the
// threads.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/array.h"

namespace samba {

struct BpeTraining {
  Index vocabulary_size = 8192;  // special tokens and bytes included
  Index min_frequency = 2;       // of a pair that is merged
  std::vector<std::string> special_tokens{"<|endoftext|>"};
  std::string form = "gpt2";  // how text is cut: one of bpe_forms()
  int threads = 1;
};

// "gpt2", "llama3", "qwen2", "smollm"
const std::vector<std::string>& bpe_forms();

struct TrainedBpe {
  std::string json;  // a tokenizer.json
  Index vocabulary_size = 0;
  Index merges = 0;
  Index distinct_pieces = 0;
};

// `progress` is told the merges made and wanted. Error(value): options that do not
// fit together.
TrainedBpe train_bpe(std::span<const std::string_view> texts, const BpeTraining& options,
                     const std::function<void(Index done, Index wanted)>& progress = {});

}  // namespace samba
