#include "chat_loop.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "decode_output.h"
#include "output.h"
#include "samba/core/error.h"
#include "samba/core/interrupt.h"
#include "samba/generate/state_file.h"

namespace samba::apps {

namespace {

// A line of stdin; on a terminal with a mark in front. A line that ends with a backslash goes on in the next one.
std::optional<std::string> read_message(bool terminal) {
  std::string message;
  for (const char* mark = "> ";; mark = "  ") {
    if (terminal) std::fputs(mark, stderr);
    std::string line;
    if (!std::getline(std::cin, line)) return message.empty() ? std::nullopt : std::optional(message);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.ends_with('\\')) return message + line;
    line.pop_back();
    message += line + "\n";
  }
}

}  // namespace

int run_chat(const LoadedModel& model, ChatSession& session, const DecodeOptions& options, const ChatLoop& loop) {
  const bool terminal = ::isatty(STDIN_FILENO) != 0 && ::isatty(STDERR_FILENO) != 0;
  DecodeTimes times;
  std::size_t turn = 0;
  int code = 0;
  while (const std::optional<std::string> message = read_message(terminal)) {
    if (message->empty()) continue;
    Prompt prompt;
    prompt.text = *message;
    prompt.tokens = session.tokens_of(*message);
    TokenPrinter printer(options);
    DecodeHooks hooks;
    if (!loop.json) hooks.on_event = [&](const DecodeEvent& event) { printer(event); };
    hooks.interrupted = interrupt_requested;
    hooks.times = &times;
    DecodeResult result;
    {
      const InterruptGuard guard;
      result = session.answer(*message, loop.max_tokens, hooks);
      printer.end_line();
      if (loop.json) print(json_line(result_json(turn, 0, prompt, result, options)));
      if (!loop.save_state.empty() && !session.sequence().tokens.empty()) {
        save_sequence(*model.stack, session.sequence(), loop.save_state);
      }
    }
    ++turn;
    if (result.reason == FinishReason::interrupted && !terminal) {
      code = kInterruptedExitCode;
      break;
    }
  }
  if (terminal) std::fputs("\n", stderr);
  if (loop.rates && times.prompt_tokens > 0) print_rates(times);
  return code;
}

}  // namespace samba::apps
