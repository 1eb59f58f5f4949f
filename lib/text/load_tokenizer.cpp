#include <filesystem>

#include "samba/core/error.h"
#include "samba/text/gguf_tokenizer.h"
#include "samba/text/json_tokenizer.h"
#include "samba/text/sentencepiece_tokenizer.h"
#include "samba/text/tokenizer.h"

namespace samba {

namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const Path& given) {
  namespace fs = std::filesystem;
  Path path = given;
  if (fs::is_directory(given)) {
    path = given / "tokenizer.json";
    if (!fs::exists(path)) path = given / "tokenizer.model";
    if (!fs::is_regular_file(path)) {
      refuse_value(given.string() + ": the folder has neither tokenizer.json nor tokenizer.model");
    }
  }
  if (is_gguf(path)) {
    return read_gguf_tokenizer(read_gguf_metadata(path), path.string());
  }
  const std::string content = read_file(path, kMostBytes);
  const std::size_t start = content.find_first_not_of(" \t\r\n");
  if (start == std::string::npos)
    refuse_value(path.string() + ": the file is empty; accepted: tokenizer.json, tokenizer.model, GGUF");
  if (content[start] == '{') {
    return std::make_unique<PartsTokenizer>(read_tokenizer_json(content, path.string()));
  }
  return make_sentencepiece_tokenizer(content, path.string());
}

}  // namespace samba
