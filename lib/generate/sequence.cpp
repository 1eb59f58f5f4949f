#include "samba/generate/sequence.h"

#include <algorithm>
#include <string>

#include "samba/core/error.h"

namespace samba {

namespace {

constexpr Index kLeastCapacity = 256;

}  // namespace

Sequence Sequence::clone() const {
  Sequence copy;
  copy.tokens = tokens;
  if (state != nullptr) copy.state = state->clone();
  copy.logits = logits;
  copy.generated = generated;
  copy.sample = sample;
  return copy;
}

void reserve(SambaStack& stack, Sequence& sequence, Index positions) {
  const Index limit = position_limit(stack.config());
  if (positions > limit) {
    refuse_value("the sequence needs " + std::to_string(positions) + " positions; the model has " +
                 std::to_string(limit));
  }
  const Index have = sequence.state == nullptr ? 0 : sequence.state->max_tokens();
  if (positions <= have) return;
  const Index capacity = std::min(limit, std::max({positions, have <= limit / 2 ? 2 * have : limit, kLeastCapacity}));
  sequence.state = sequence.state == nullptr ? stack.allocate_state(1, capacity)
                                             : stack.restore_state(sequence.state->contents(), capacity);
}

bool read_tokens(SambaStack& stack, Sequence& sequence, Index chunk, const std::function<bool()>& interrupted) {
  const std::size_t count = sequence.tokens.size();
  if (sequence.read() == count) return true;
  reserve(stack, sequence, static_cast<Index>(count));
  std::vector<float> logits(static_cast<std::size_t>(stack.config().vocab));
  sequence.logits.clear();
  while (sequence.read() < count) {
    if (interrupted && interrupted()) return false;
    const std::size_t length = std::min(count - sequence.read(), static_cast<std::size_t>(chunk));
    const std::span<const std::int32_t> ids = std::span(sequence.tokens).subspan(sequence.read(), length);
    stack.prefill(ids, static_cast<Index>(length), *sequence.state, logits);
  }
  sequence.logits = std::move(logits);
  return true;
}

void check_token_ids(std::span<const std::int32_t> tokens, Index vocab, const std::string& name) {
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    if (tokens[t] >= 0 && tokens[t] < vocab) continue;
    refuse_value(name + ": token " + std::to_string(tokens[t]) + " at position " + std::to_string(t) +
                 " is outside the vocabulary [0, " + std::to_string(vocab) + ")");
  }
}

}  // namespace samba
