#include "samba/text/chat_template.h"

#include <algorithm>

#include "samba/core/error.h"

namespace samba {

namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n\v\f";

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(kWhiteSpace);
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(kWhiteSpace) - first + 1);
}

std::string trimmed_end(const std::string& text) {
  const std::size_t last = text.find_last_not_of(kWhiteSpace);
  return last == std::string::npos ? "" : text.substr(0, last + 1);
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// Which of the templates a source is; empty for none of them.
std::string name_of_source(std::string_view source) {
  if (has(source, "<|im_start|>") && has(source, "<|im_end|>")) return "chatml";
  if (has(source, "<|start_header_id|>") && has(source, "<|eot_id|>")) return "llama-3";
  if (has(source, "<start_of_turn>") && has(source, "<end_of_turn>")) return "gemma";
  if (has(source, "<|user|>") && has(source, "<|end|>")) return "phi3";
  // A role becomes its tag in one of two ways: "<|user|>" or '<|' + role + '|>'.
  if (has(source, "<|user|>") && has(source, "eos_token")) return "zephyr";
  if (has(source, "[INST]") && has(source, "<<SYS>>")) return "llama-2";
  if (has(source, "[INST]")) return "mistral";
  return "";
}

// A literal of a template's source, its escapes read.
std::string unescaped(std::string_view literal) {
  std::string text;
  for (std::size_t i = 0; i < literal.size(); ++i) {
    if (literal[i] != '\\' || i + 1 == literal.size()) {
      text += literal[i];
      continue;
    }
    const char next = literal[++i];
    text += next == 'n' ? '\n' : next == 't' ? '\t' : next;
  }
  return text;
}

// The system message that a chatml source writes where none is given: the literal text between "<|im_start|>system" and
// "<|im_end|>".
std::optional<std::string> chatml_system(std::string_view source) {
  for (const std::string_view line_end : {"\\n", "\n"}) {
    const std::string begin = "<|im_start|>system" + std::string(line_end);
    for (std::size_t at = source.find(begin); at != std::string_view::npos; at = source.find(begin, at + 1)) {
      const std::size_t first = at + begin.size();
      const std::size_t end = source.find("<|im_end|>", first);
      if (end == std::string_view::npos) break;
      const std::string_view literal = source.substr(first, end - first);
      // An expression between the two is no literal.
      if (literal.empty() || literal.find_first_of("'\"{}") != std::string_view::npos) continue;
      return unescaped(literal);
    }
  }
  return std::nullopt;
}

}  // namespace

const std::vector<std::string>& ChatTemplate::names() {
  static const std::vector<std::string> all{"chatml", "llama-2", "llama-3", "mistral", "gemma", "phi3", "zephyr"};
  return all;
}

ChatTemplate ChatTemplate::named(const std::string& name, const ModelText& text) {
  if (std::find(names().begin(), names().end(), name) == names().end()) {
    refuse_value("--chat-template: must be one of " + listed(names()) + ", got " + name);
  }
  ChatTemplate chat(name, text);
  if (name_of_source(text.chat_template) == name) chat.read_source(text.chat_template);
  return chat;
}

ChatTemplate ChatTemplate::of(const ModelText& text) {
  const std::string advice = "choose one with --chat-template (" + listed(names()) +
                             "), or give the model's own format as a raw prompt: --prompt TEXT without --chat";
  if (!text.chat_template.empty()) {
    const std::string name = name_of_source(text.chat_template);
    if (name.empty()) {
      std::string start = text.chat_template.substr(0, 60);
      std::replace(start.begin(), start.end(), '\n', ' ');
      refuse_unsupported("the model's chat template is none that samba knows (it begins: " + start + "); " + advice);
    }
    ChatTemplate chat(name, text);
    chat.read_source(text.chat_template);
    return chat;
  }
  const auto has_special = [&](std::string_view piece) {
    const auto id = text.tokenizer == nullptr ? std::nullopt : text.tokenizer->id_of(piece);
    return id && text.tokenizer->is_special(*id);
  };
  if (has_special("<|im_start|>") && has_special("<|im_end|>")) return ChatTemplate("chatml", text);
  refuse_value("the model names no chat template; " + advice);
}

ChatTemplate::ChatTemplate(std::string name, const ModelText& text) : name_(std::move(name)) {
  if (text.tokenizer == nullptr) refuse_value("the model has no tokenizer, a chat needs one; give --tokenizer PATH");
  tokenizer_ = text.tokenizer;
  const auto piece_or = [&](const std::optional<std::int32_t>& id, const char* otherwise) {
    return id ? tokenizer_->piece(*id) : std::string(otherwise);
  };
  const std::string bos = piece_or(text.bos, "");
  const std::string eos = piece_or(text.eos, "</s>");
  bos_ = text.prefix.empty() ? "" : bos;
  if (name_ == "chatml") {
    system_before_ = "<|im_start|>system\n";
    system_behind_ = "<|im_end|>\n";
    user_before_ = "<|im_start|>user\n";
    user_behind_ = "<|im_end|>\n<|im_start|>assistant\n";
    end_ = "<|im_end|>";
    after_end_ = "\n";
  } else if (name_ == "llama-2") {
    bos_ = bos_each_ = bos;
    trims_ = true;
    system_in_user_ = true;
    system_before_ = "<<SYS>>\n";
    system_behind_ = "\n<</SYS>>\n\n";
    user_before_ = "[INST] ";
    user_behind_ = " [/INST]";
    answer_before_ = answer_behind_ = " ";
    end_ = eos;
  } else if (name_ == "llama-3") {
    bos_ = bos;
    trims_ = true;
    system_before_ = "<|start_header_id|>system<|end_header_id|>\n\n";
    system_behind_ = "<|eot_id|>";
    user_before_ = "<|start_header_id|>user<|end_header_id|>\n\n";
    user_behind_ = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n";
    end_ = "<|eot_id|>";
  } else if (name_ == "mistral") {
    bos_ = bos;
    system_in_user_ = true;
    system_behind_ = "\n\n";
    user_before_ = "[INST] ";
    user_behind_ = " [/INST]";
    end_ = eos;
  } else if (name_ == "gemma") {
    bos_ = bos;
    trims_ = true;
    has_system_ = false;
    user_before_ = "<start_of_turn>user\n";
    user_behind_ = "<end_of_turn>\n<start_of_turn>model\n";
    end_ = "<end_of_turn>";
    after_end_ = "\n";
  } else {  // phi3, zephyr: the same but for what ends a turn
    end_ = name_ == "phi3" ? "<|end|>" : eos;
    system_before_ = "<|system|>\n";
    system_behind_ = end_ + "\n";
    user_before_ = "<|user|>\n";
    user_behind_ = end_ + "\n<|assistant|>\n";
    after_end_ = "\n";
  }
  const auto id = tokenizer_->id_of(end_);
  if (id && tokenizer_->encode(end_) == std::vector<std::int32_t>{*id}) end_token_ = id;
}

// Where models of one family differ.
void ChatTemplate::read_source(const std::string& source) {
  if (!has(source, "bos_token") && name_ != "llama-2") {
    const bool literal = has(source, "<|begin_of_text|>") || has(source, "<bos>") || has(source, "'<s>'");
    if (!literal) bos_.clear();
  } else if (const auto id = bos_.empty() ? std::nullopt : tokenizer_->id_of(bos_); !id) {
    bos_.clear();
  }
  if (name_ == "chatml") {
    default_system_ = chatml_system(source);
    trims_ = has(source, "| trim");
  } else if (name_ == "mistral") {
    if (!has(source, " [/INST]")) user_behind_ = "[/INST]";
    if (has(source, "eos_token + ' '") || has(source, "eos_token+ ' '")) after_end_ = " ";
    if (!has(source, "'[INST] '") && !has(source, "[INST] ")) user_before_ = "[INST]";
    trims_ = has(source, "| trim") || has(source, ".strip()");
  } else if (name_ == "llama-3" && has(source, "Cutting Knowledge Date")) {
    system_before_ += "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
    default_system_ = "";
  }
}

std::string ChatTemplate::content(const std::string& text) const { return trims_ ? trimmed(text) : text; }

void ChatTemplate::add_user(const std::string& before, const std::string& user, std::vector<ChatPart>& parts) const {
  parts.push_back({before, true});
  parts.push_back({content(user), false});
  parts.push_back({user_behind_, true});
}

std::vector<ChatPart> ChatTemplate::opening(const std::optional<std::string>& system, const std::string& user) const {
  if (system && !has_system_) {
    refuse_value("--system: the template " + name_ + " has no system message; write it into the first message");
  }
  const std::optional<std::string>& given = system ? system : default_system_;
  std::vector<ChatPart> parts{{bos_, true}};
  if (given && system_in_user_) {
    // These templates trim the two messages together: the borders between them stay.
    const std::string last = trims_ ? trimmed_end(user) : user;
    parts.push_back({user_before_ + system_before_, true});
    parts.push_back({*given, false});
    parts.push_back({system_behind_, true});
    parts.push_back({last, false});
    parts.push_back({user_behind_, true});
    return parts;
  }
  if (given) {
    parts.push_back({system_before_, true});
    parts.push_back({content(*given), false});
    parts.push_back({system_behind_, true});
  }
  add_user(user_before_, user, parts);
  return parts;
}

std::vector<ChatPart> ChatTemplate::following(const std::string& user) const {
  std::vector<ChatPart> parts;
  add_user(end_ + after_end_ + bos_each_ + user_before_, user, parts);
  return parts;
}

// The whole text at once where no message holds a special token, as tokens may join at the borders of the parts; else
// the template's parts with their tokens and the messages by their letters.
std::vector<std::int32_t> ChatTemplate::encode(const std::vector<ChatPart>& parts) const {
  const bool plain = std::all_of(parts.begin(), parts.end(), [&](const ChatPart& part) {
    return part.of_template || tokenizer_->encode(part.text) == tokenizer_->encode(part.text, {false, false});
  });
  std::vector<std::int32_t> ids;
  if (plain) {
    std::string all;
    for (const ChatPart& part : parts) all += part.text;
    tokenizer_->encode_to(all, {}, ids);
    return ids;
  }
  for (const ChatPart& part : parts) tokenizer_->encode_to(part.text, {false, part.of_template}, ids);
  return ids;
}

std::vector<std::int32_t> ChatTemplate::begin(const std::optional<std::string>& system, const std::string& user) const {
  return encode(opening(system, user));
}

std::vector<std::int32_t> ChatTemplate::next(const std::string& user) const { return encode(following(user)); }

std::string ChatTemplate::render(const std::optional<std::string>& system, const std::vector<ChatTurn>& turns) const {
  std::string text;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    for (const ChatPart& part : i == 0 ? opening(system, turns[i].user) : following(turns[i].user)) text += part.text;
    if (turns[i].answer) text += answer_before_ + content(*turns[i].answer) + answer_behind_;
  }
  return text;
}

}  // namespace samba
