// The tokenizer in the metadata of a GGUF file.
#pragma once

#include <nlohmann/json.hpp>

#include "samba/formats/gguf_metadata.h"
#include "samba/text/json_tokenizer.h"

namespace samba {

// tokenizer.ggml.model "gpt2" (byte-level BPE; tokenizer.ggml.pre gpt-2, llama-bpe, qwen2, smollm) or "llama"
// (SentencePiece's BPE with scores). Error(value, unsupported): the message names the field.
// As the tokenizer.json it corresponds to.
nlohmann::json gguf_tokenizer_json(const GgufMetadata& metadata, const std::string& source);
TokenizerParts read_gguf_tokenizer(const GgufMetadata& metadata, const std::string& source);

}  // namespace samba
