// A tokenizer.model of SentencePiece, by its own library.
#pragma once

#include <memory>
#include <string>

#include "samba/text/tokenizer.h"

namespace samba {

// `content` is the file's. Error(corrupt): it is no model.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& content, const std::string& source);

}  // namespace samba
