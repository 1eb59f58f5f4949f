// A sequence of tokens and the decode state that has read it, or most of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "samba/model/samba_stack.h"

namespace samba {

struct Sequence {
  std::vector<std::int32_t> tokens;   // all so far: prompts and what was generated
  std::unique_ptr<SambaState> state;  // of one row; has read the first state->tokens() of them. Null: none is read
  std::vector<float> logits;          // behind the last token when all are read, else empty
  std::uint64_t generated = 0;        // how many of them were generated: the sampler's next index
  std::uint32_t sample = 0;           // the sampler's stream

  std::size_t read() const { return state == nullptr ? 0 : static_cast<std::size_t>(state->tokens()); }
  Sequence clone() const;
};

// Tokens that are read at once: any number gives the same bits, this one keeps buffers small and Ctrl-C quick.
inline constexpr Index kPrefillChunk = 2048;

// Makes room for `positions` positions in all; the state grows by doubling, up to the model's limit. Error(value) when
// the model does not have as many.
void reserve(SambaStack& stack, Sequence& sequence, Index positions);

// Reads the tokens that are not read yet and leaves the logits behind the last; when none is left nothing happens.
// False when `interrupted` said so between two chunks.
bool read_tokens(SambaStack& stack, Sequence& sequence, Index chunk = kPrefillChunk,
                 const std::function<bool()>& interrupted = {});

// Refuses (Error(value)) `tokens` with an id outside the vocabulary; the message begins with `name`.
void check_token_ids(std::span<const std::int32_t> tokens, Index vocab, const std::string& name);

}  // namespace samba
