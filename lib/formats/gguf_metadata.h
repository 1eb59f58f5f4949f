// The metadata of a GGUF file (versions 2 and 3): names and values in front of the tensors.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "samba/core/files.h"

namespace samba {

// One value. Which member holds it follows from the file's type: text; integers and booleans as `integer`; floats as
// `number`; arrays of text as `texts`, of integers and booleans as `integers`, of floats as `numbers`.
struct GgufValue {
  enum class Kind { text, integer, number, texts, integers, numbers };
  Kind kind = Kind::integer;
  std::string text;
  std::int64_t integer = 0;
  double number = 0.0;
  std::vector<std::string> texts;
  std::vector<std::int64_t> integers;
  std::vector<double> numbers;
};

using GgufMetadata = std::map<std::string, GgufValue>;

// True when the file begins as GGUF files do.
bool is_gguf(const Path& path);

// Error(corrupt): as gguf_file.h, whose checks of the tensors are made too.
// Nothing is allocated by what the file claims beyond its own size.
GgufMetadata read_gguf_metadata(const Path& path);

// Whether the file names a vocabulary: one without has no tokenizer.ggml.model, or "no_vocab" there.
bool has_vocabulary(const GgufMetadata& metadata);

}  // namespace samba
