// One continuation on its way: what turns logits into a token, its text and the end.
#pragma once

#include <span>

#include "samba/generate/decode_session.h"
#include "samba/generate/stop_filter.h"

namespace samba {

class DecodeRow {
 public:
  // `sequence` has read all its tokens and has logits. `number`: of its events and result.
  DecodeRow(std::size_t number, Sequence sequence, const DecodeOptions& options, Index max_tokens);

  std::size_t number() const { return number_; }
  bool done() const { return done_; }
  Sequence& sequence() { return sequence_; }
  std::int32_t last_token() const { return sequence_.tokens.back(); }

  // Takes the next token from its logits.
  DecodeEvent take(Sampler& sampler, std::span<const float> logits);
  // The result; a row that is not done was interrupted.
  DecodeResult finish();

 private:
  void add_text(DecodeEvent& event);

  std::size_t number_;
  Sequence sequence_;
  const DecodeOptions& options_;
  Index max_tokens_;
  std::optional<DecodeStream> characters_;
  StopFilter stop_;
  DecodeResult result_;
  bool done_ = false;
};

}  // namespace samba
