// What normalizer and pre-tokenizer of a tokenizer.json do to white space and characters, as far as GGUF has fields for
// it. Each function returns nothing, or why GGUF (that is, llama.cpp) cannot hold it; `remark` receives where a text
// read from GGUF has other tokens all the same.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "samba/text/sentencepiece_model.h"

namespace samba {

// Of a Unigram: space_in_front, drops_spaces and characters_map of `model`. The forms are those that transformers makes
// of a tokenizer.model: a precompiled map of characters, repeated spaces taken away or kept, Metaspace.
std::string unigram_spaces(const nlohmann::json& file, SentencePieceModel& model, std::string& remark);

// Of a BPE with byte fallback: whether a space is put in front of a text.
std::string bpe_spaces(const nlohmann::json& file, bool& space_in_front, std::string& remark);

}  // namespace samba
