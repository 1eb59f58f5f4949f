// The pieces of a SentencePiece model as GGUF metadata: tokens, scores, types and the treatment of white space, all but
// the ids of special tokens.
#pragma once

#include <cstddef>
#include <string>

#include "samba/formats/gguf_writer.h"
#include "samba/text/sentencepiece_model.h"

namespace samba {

inline constexpr const char* kGgufCharactersMap = "tokenizer.ggml.precompiled_charsmap";

// Nothing, or why llama.cpp cannot read a piece.
std::string why_no_token(const std::string& piece);

// As "t5", Unigram. Returns nothing, or why GGUF (that is, llama.cpp) cannot hold the model; then `fields` are what
// they were. `rows`: of the embedding; those beyond the pieces are named unused. `ends_text`: a text gets the end
// token.
std::string add_unigram_fields(GgufFields& fields, const SentencePieceModel& model, std::size_t rows, bool ends_text);

// As "llama", BPE whose pairs merge by the score of what they make.
std::string add_bpe_fields(GgufFields& fields, const SentencePieceModel& model, std::size_t rows);

}  // namespace samba
