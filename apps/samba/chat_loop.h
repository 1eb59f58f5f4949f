// samba decode --chat without a prompt: a conversation, a line of stdin a turn.
#pragma once

#include <optional>
#include <string>

#include "model_input.h"
#include "samba/generate/chat_session.h"

namespace samba::apps {

struct ChatLoop {
  Index max_tokens = 0;    // of an answer
  std::string save_state;  // written after every turn; empty: nowhere
  bool json = false;       // an object a turn
  bool rates = true;       // a last line with rates on stderr
};

// Until stdin ends. Ctrl-C ends the answer that is being given: on a terminal the next turn follows, in a pipe the
// conversation ends. Returns the exit code.
int run_chat(const LoadedModel& model, ChatSession& session, const DecodeOptions& options, const ChatLoop& loop);

}  // namespace samba::apps
