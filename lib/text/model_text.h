// The text side of a model, whatever form the model has: tokenizer, what stands before a text, the tokens that end
// one, the chat template.
//
// Where it comes from, in this order:
//   - a tokenizer named by the caller: a file, a folder or a GGUF file, and the files beside it
//   - a GGUF file: its metadata
//   - a folder: tokenizer.json or tokenizer.model, tokenizer_config.json, chat_template.jinja, generation_config.json,
//     config.json
//   - a checkpoint of a run: what the .json file beside it names (docs/formats/run_folder.md)
//   - bytes, for a model of 256 tokens
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/files.h"
#include "samba/text/tokenizer.h"

namespace samba {

struct ModelText {
  std::shared_ptr<const Tokenizer> tokenizer;  // null: the model has none, it takes ids alone
  std::vector<std::int32_t> prefix;            // what stands before every text: <s>, or nothing
  std::optional<std::int32_t> bos;             // the token of the beginning, whether texts get it or not
  std::vector<std::int32_t> end_ids;           // a generation ends with one of these; ascending
  std::optional<std::int32_t> eos;             // the one that ends a text of its own accord, as "</s>"
  std::string chat_template;                   // its source; empty: none
  std::string source;                          // file or folder of the tokenizer, "bytes", ""

  // The tokens of a prompt: prefix and text. Error(value): no tokenizer, text without tokens.
  std::vector<std::int32_t> prompt_tokens(std::string_view text) const;
  bool ends(std::int32_t id) const;
};

// `model`: a checkpoint file, a folder of weights or a GGUF file of `vocab` tokens. `tokenizer`: the caller's, or
// empty. Error(value, unsupported, corrupt) for a tokenizer that cannot be read, or that has more tokens than the
// model.
ModelText read_model_text(const Path& model, Index vocab, const Path& tokenizer = {});

// The same from a tokenizer alone.
ModelText read_tokenizer_text(const Path& tokenizer);

// What a run keeps of its tokenizer: copies the tokenizer file and its configuration into `folder` and returns the
// entry "tokenizer" of the file beside a checkpoint. Nothing is copied onto itself.
nlohmann::ordered_json keep_tokenizer(const ModelText& text, const Path& tokenizer, const Path& folder);

// The tokenizer that the .json file beside a checkpoint names; empty for bytes, or when there is no such file.
// Error(value) when it is not there, or is another one.
Path tokenizer_of_checkpoint(const Path& checkpoint);

// SHA-256 (hex) of the tokenizer's file.
std::string tokenizer_sha256(const Path& tokenizer);

}  // namespace samba
