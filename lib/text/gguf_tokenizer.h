// The tokenizer in the metadata of a GGUF file.
//
// tokenizer.ggml.model "gpt2" (byte-level BPE; tokenizer.ggml.pre gpt-2, llama-bpe, qwen2, smollm), "llama"
// (SentencePiece's BPE with scores) or "t5" (SentencePiece's Unigram). Error(value, unsupported): the message names the
// field.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "samba/formats/gguf_metadata.h"
#include "samba/text/tokenizer.h"

namespace samba {

std::unique_ptr<Tokenizer> read_gguf_tokenizer(const GgufMetadata& metadata, const std::string& source);

// As the tokenizer.json it corresponds to; not for "t5".
nlohmann::json gguf_tokenizer_json(const GgufMetadata& metadata, const std::string& source);

// The files of a folder that say the same.
struct TokenizerFile {
  std::string name;
  std::string content;
};
std::string gguf_tokenizer_name(const GgufMetadata& metadata);  // tokenizer.json or tokenizer.model
TokenizerFile gguf_tokenizer_file(const GgufMetadata& metadata, const std::string& source);
// tokenizer_config.json (the template of a chat in it) and generation_config.json (the tokens that begin and end a
// text).
std::vector<TokenizerFile> gguf_side_files(const GgufMetadata& metadata);

}  // namespace samba
