#include "samba/generate/chat_session.h"

#include <algorithm>
#include <utility>

#include "samba/core/error.h"

namespace samba {

namespace {

// A sequence without the token that ended the last answer, for as long as a turn is tried. In between the sequence
// keeps it: a state that is saved has logits only where all of its tokens were read.
class WithoutEnd {
 public:
  WithoutEnd(Sequence& sequence, std::span<const std::int32_t> end_ids)
      : sequence_(sequence), end_(sequence.tokens.empty() ? -1 : sequence.tokens.back()) {
    const std::size_t before = sequence.tokens.size();
    drop_unread_end(sequence, end_ids);
    dropped_ = sequence.tokens.size() < before;
  }
  WithoutEnd(const WithoutEnd&) = delete;
  WithoutEnd& operator=(const WithoutEnd&) = delete;
  ~WithoutEnd() {
    if (dropped_) sequence_.tokens.push_back(end_);  // into the room it had
  }
  void replace(Sequence sequence) {
    dropped_ = false;
    sequence_ = std::move(sequence);
  }

 private:
  Sequence& sequence_;
  std::int32_t end_;
  bool dropped_ = false;
};

}  // namespace

void drop_unread_end(Sequence& sequence, std::span<const std::int32_t> end_ids) {
  if (sequence.tokens.empty() || sequence.read() == sequence.tokens.size()) return;
  if (std::find(end_ids.begin(), end_ids.end(), sequence.tokens.back()) == end_ids.end()) return;
  sequence.tokens.pop_back();
}

ChatSession::ChatSession(SambaStack& stack, ChatTemplate chat, std::optional<std::string> system, DecodeOptions options)
    : stack_(stack), chat_(std::move(chat)), system_(std::move(system)), options_(std::move(options)) {
  options_.samples = 1;
  options_.keep_sequences = true;
  if (const auto end = chat_.end_token()) options_.end_ids.push_back(*end);
  static_cast<void>(chat_.begin(system_, ""));  // refuses a system message that the template has no place for
}

void ChatSession::resume(Sequence sequence) { sequence_ = std::move(sequence); }

std::vector<std::int32_t> ChatSession::tokens_of(const std::string& user) const {
  return sequence_.tokens.empty() ? chat_.begin(system_, user) : chat_.next(user);
}

DecodeResult ChatSession::answer(const std::string& user, Index max_tokens, const DecodeHooks& hooks) {
  WithoutEnd before_turn(sequence_, options_.end_ids);
  DecodeRequest request;
  request.prompt = tokens_of(user);
  if (!sequence_.tokens.empty()) request.from = &sequence_;
  const auto before = static_cast<Index>(sequence_.tokens.size() + request.prompt.size());
  const Index limit = position_limit(stack_.config());
  if (before > limit) {
    refuse_value("the conversation needs " + std::to_string(before) + " positions with this turn, the model has " +
                 std::to_string(limit) + "; start a new one");
  }
  request.max_tokens = std::min(max_tokens, limit - before + 1);
  DecodeResult result = std::move(decode(stack_, {&request, 1}, options_, hooks)[0]);
  if (result.sequence) before_turn.replace(std::move(*result.sequence));
  result.sequence.reset();
  return result;
}

}  // namespace samba
