// The turns of a conversation as the text a model was trained on: chatml, llama-2, llama-3, mistral, gemma, phi3,
// zephyr (docs/decoding.md lists their texts).
//
// A template is one of these, recognised from the source a model carries or named by the caller; no template language
// is run. A text comes as parts: what the template writes may hold special tokens, what people and models say may not,
// so that "<|im_end|>" in a message is its letters.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "samba/text/model_text.h"

namespace samba {

struct ChatPart {
  std::string text;
  bool of_template = false;
};

struct ChatTurn {
  std::string user;
  std::optional<std::string> answer;  // absent: it is still to be given
};

class ChatTemplate {
 public:
  static const std::vector<std::string>& names();
  // Error(value) for an unknown name.
  static ChatTemplate named(const std::string& name, const ModelText& text);
  // The template of a model: the one its source is, or chatml where it names none and has chatml's tokens. Error(value,
  // unsupported): an unknown source, or none; the message says how to give a raw prompt.
  static ChatTemplate of(const ModelText& text);

  const std::string& name() const { return name_; }
  // The token that ends an answer, where it is one token of the model.
  std::optional<std::int32_t> end_token() const { return end_token_; }

  // The tokens of a new conversation up to where the answer begins. `system`: absent takes the template's own.
  // Error(value) for a system message where the template has none.
  std::vector<std::int32_t> begin(const std::optional<std::string>& system, const std::string& user) const;
  // The tokens behind an answer: its end, and the next turn up to where its answer begins.
  std::vector<std::int32_t> next(const std::string& user) const;
  // The text of a whole conversation as the template writes it.
  std::string render(const std::optional<std::string>& system, const std::vector<ChatTurn>& turns) const;

 private:
  ChatTemplate(std::string name, const ModelText& text);
  void read_source(const std::string& source);
  std::vector<ChatPart> opening(const std::optional<std::string>& system, const std::string& user) const;
  std::vector<ChatPart> following(const std::string& user) const;
  void add_user(const std::string& before, const std::string& user, std::vector<ChatPart>& parts) const;
  std::string content(const std::string& text) const;  // trimmed where the template does
  std::vector<std::int32_t> encode(const std::vector<ChatPart>& parts) const;

  std::string name_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string bos_;       // what a conversation begins with; empty: nothing
  std::string bos_each_;  // llama-2: before every turn but the first
  std::optional<std::string> default_system_;
  bool has_system_ = true;
  bool trims_ = false;
  std::string system_before_, system_behind_;  // around the system message
  bool system_in_user_ = false;                // it stands inside the first user turn
  std::string user_before_, user_behind_;      // user_behind_ leads to the answer
  std::string answer_before_, answer_behind_;  // around an answer that is given; a model writes its own
  std::string end_;                            // ends an answer
  std::string after_end_;                      // stands between an answer's end and the next turn
  std::optional<std::int32_t> end_token_;
};

}  // namespace samba
