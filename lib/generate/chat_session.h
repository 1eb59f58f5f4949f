// A conversation of several turns. What was said stays in the decode state: a turn reads its own tokens alone.
#pragma once

#include <optional>
#include <string>

#include "samba/generate/decode_session.h"
#include "samba/text/chat_template.h"

namespace samba {

class ChatSession {
 public:
  // `options`: how answers are made; one row, one sample. The template's end token ends an answer as well. `system` as
  // for ChatTemplate::begin.
  ChatSession(SambaStack& stack, ChatTemplate chat, std::optional<std::string> system, DecodeOptions options);

  // Goes on with a conversation that another session, or `decode`, has left.
  void resume(Sequence sequence);

  // The tokens that `user` adds in front of the answer.
  std::vector<std::int32_t> tokens_of(const std::string& user) const;

  // The answer of at most `max_tokens` tokens, fewer where the model's positions end. Error(value) when there is no
  // room for the turn; then, and after an interruption before the first token, the conversation is as it was.
  DecodeResult answer(const std::string& user, Index max_tokens, const DecodeHooks& hooks = {});

  const Sequence& sequence() const { return sequence_; }

 private:
  SambaStack& stack_;
  ChatTemplate chat_;
  std::optional<std::string> system_;
  DecodeOptions options_;
  Sequence sequence_;
};

// Takes away a token at the end that ended an answer and was not read: the next turn begins with the template's own.
void drop_unread_end(Sequence& sequence, std::span<const std::int32_t> end_ids);

}  // namespace samba
