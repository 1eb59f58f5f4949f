// Parts of the reader of tokenizer.json, one function a section of the file. `fields` and pointers name the place in
// refusals. What is not supported is refused, never passed over.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "samba/text/json_tokenizer.h"

namespace samba::tokenizer_json {

inline constexpr std::size_t kMostSteps = 64;  // of a Sequence

// The "type" of an object of a section; the object has no other fields than that type's.
std::string type_of(const nlohmann::json& value, const std::string& pointer);

// A pattern {"String": ...} or {"Regex": ...}; `literal` receives the text of the former.
Regex read_pattern(const nlohmann::json& value, const std::string& pointer, std::string* literal = nullptr);
// `text` as a pattern that matches exactly it.
std::string escaped_pattern(std::string_view text);
// The members of a Sequence: an array of at most kMostSteps.
const nlohmann::json& read_sequence(const nlohmann::json& value, const std::string& name, const std::string& pointer);

// The parsed file.
TokenizerParts read_file(const nlohmann::json& value, const std::string& source);

// How a known form of byte-level BPE treats text before its model: "gpt2", "llama3", "qwen2", "smollm".
struct BpeForm {
  nlohmann::ordered_json normalizer;
  nlohmann::ordered_json pre_tokenizer;
};
BpeForm bpe_form(const std::string& name);

void read_normalizer(const nlohmann::json& value, const std::string& pointer, Normalizer& normalizer);
// Sets `bytes` when the pieces are written in the byte alphabet.
void read_pre_tokenizer(const nlohmann::json& value, const std::string& pointer, PreTokenizer& stages, bool& bytes);
void read_model(const nlohmann::json& value, const std::string& pointer, bool bytes, TokenizerParts& parts);
void read_added_tokens(const nlohmann::json& value, const std::string& pointer, TokenizerParts& parts);
void read_post_processor(const nlohmann::json& value, const std::string& pointer, TokenizerParts& parts);
void read_decoder(const nlohmann::json& value, const std::string& pointer, TokenDecoder& decoder);

}  // namespace samba::tokenizer_json
