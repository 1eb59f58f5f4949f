// One pass over a prompt with everything that can be seen of it: logits of all positions, hidden states of layers, the
// state behind it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "samba/generate/sequence.h"
#include "samba/model/samba_stack.h"

namespace samba {

struct PrefillOptions {
  Index chunk = kPrefillChunk;  // tokens read at once; any size gives the same bits
  bool logits = false;          // of every position
  // Hidden states by name: "0", "1", ... what comes out of that layer; "embed" what goes into the first one; "final"
  // what the output head reads.
  std::vector<std::string> hidden;
};

struct PrefillResult {
  Sequence sequence;                    // has read the prompt
  Array logits;                         // (L, vocab) when asked for
  std::map<std::string, Array> hidden;  // (L, d_model) each
};

// The names that `text` asks for: names separated by commas, "all" for every layer. Error(value) for an unknown one.
std::vector<std::string> parse_hidden_names(const StackConfig& config, const std::string& text);

// Error(value): an empty prompt, an id outside the vocabulary, more tokens than the model has positions.
PrefillResult prefill(SambaStack& stack, const std::vector<std::int32_t>& prompt, const PrefillOptions& options = {});

}  // namespace samba
