// The tokenizer of a run or of token shards: opened from wherever it lies, kept beside what is made with it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "samba/core/files.h"
#include "samba/text/model_text.h"
#include "samba/train/initial_model.h"

namespace samba {

class RunTokenizer {
 public:
  RunTokenizer() = default;  // bytes
  // A file, a folder or a GGUF file; empty: bytes. Error(value, unsupported, corrupt).
  RunTokenizer(const std::string& path, const ModelOpener& opener);

  bool is_bytes() const { return text_.tokenizer == nullptr; }
  const ModelText& text() const { return text_; }  // without a tokenizer for bytes
  const Tokenizer& tokenizer() const { return is_bytes() ? byte_tokenizer() : *text_.tokenizer; }
  const std::string& path() const { return path_; }
  const std::string& sha256() const { return sha256_; }  // of its file, made of the metadata for GGUF; empty for bytes
  Index vocabulary_size() const { return tokenizer().vocabulary_size(); }

  // Copies its files into `folder`; the entry "tokenizer" of the file beside a checkpoint.
  nlohmann::ordered_json keep(const Path& folder) const;

 private:
  std::string path_;
  ModelText text_;
  std::vector<NamedFile> made_;  // of a GGUF file
  std::string sha256_;
};

}  // namespace samba
