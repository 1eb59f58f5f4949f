#include "samba/train/run_tokenizer.h"

#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/formats/gguf_metadata.h"

namespace samba {

RunTokenizer::RunTokenizer(const std::string& path, const ModelOpener& opener) : path_(path) {
  if (path.empty()) return;
  text_ = read_tokenizer_text(path);
  if (!std::filesystem::is_regular_file(path) || !is_gguf(path)) {
    sha256_ = tokenizer_sha256(path);
    return;
  }
  made_ = opener.tokenizer_files(path);
  if (made_.empty()) refuse_value(path + ": the GGUF file has no tokenizer that can be written as tokenizer.json");
  sha256_ = sha256_hex(made_.front().content);
}

nlohmann::ordered_json RunTokenizer::keep(const Path& folder) const {
  if (is_bytes()) return {{"kind", "bytes"}, {"vocab", kByteVocabulary}};
  for (const NamedFile& file : made_) write_file_atomically(folder / file.name, file.content);
  return keep_tokenizer(text_, made_.empty() ? Path(path_) : folder / made_.front().name, folder);
}

}  // namespace samba
