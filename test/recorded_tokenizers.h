// The tokenizers and tokens recorded in test/tokenizers (README.md there).
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "samba/core/files.h"
#include "samba/core/sha256.h"
#include "samba/formats/zstd_frame.h"
#include "samba/text/tokenizer.h"
#include "temporary_folder.h"

namespace samba {

inline const std::vector<std::string>& recorded_forms() {
  static const std::vector<std::string> forms{"gpt2",
                                              "gpt2_prefix_space",
                                              "llama3",
                                              "qwen2",
                                              "llama2",
                                              "gemma",
                                              "mistral",
                                              "unigram",
                                              "smollm2",
                                              "claude",
                                              "sentencepiece_bpe",
                                              "sentencepiece_unigram"};
  return forms;
}

// The content of FILE.zst, checked against index.json.
inline std::string recorded_file(const std::string& name) {
  static const Path folder = Path(SAMBA_SOURCE_DIR) / "test/tokenizers";
  static const nlohmann::json index = nlohmann::json::parse(read_file(folder / "index.json"));
  const nlohmann::json& entry = index.at("files").at(name);
  const std::string packed = read_file(folder / (name + ".zst"));
  std::string content(entry.at("bytes").get<std::size_t>(), '\0');
  zstd_decompress(std::as_bytes(std::span(packed)), std::as_writable_bytes(std::span(content)));
  if (sha256_hex(content.data(), content.size()) != entry.at("sha256")) throw std::runtime_error(name + " is damaged");
  return content;
}

inline const std::vector<std::string>& hard_lines() {
  static const auto lines = nlohmann::json::parse(recorded_file("lines.json")).get<std::vector<std::string>>();
  return lines;
}

struct RecordedForm {
  std::string file;  // of the tokenizer, in a folder of its own
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::optional<std::vector<std::int32_t>>> ids;  // of every hard line; none where a piece is missing
  std::map<std::size_t, std::string> decoded;                 // where decoding gives another text than the line
  std::optional<std::vector<std::int32_t>> with_special;      // of "a b"
  bool sentencepiece = false;
};

inline const RecordedForm& recorded_form(const std::string& form) {
  static const TemporaryFolder folder;
  static std::map<std::string, RecordedForm> forms;
  const auto known = forms.find(form);
  if (known != forms.end()) return known->second;
  RecordedForm result;
  result.sentencepiece = form.starts_with("sentencepiece");
  const std::string name = result.sentencepiece ? "tokenizer.model" : "tokenizer.json";
  std::filesystem::create_directories(folder / form);
  const Path file = folder / form / name;
  write_file_atomically(file, recorded_file(form + "." + name));
  result.file = file.string();
  result.tokenizer = load_tokenizer(file);
  const nlohmann::json recorded = nlohmann::json::parse(recorded_file(form + ".recorded.json"));
  for (const nlohmann::json& ids : recorded.at("ids")) {
    result.ids.emplace_back();
    if (!ids.is_null()) result.ids.back() = ids.get<std::vector<std::int32_t>>();
  }
  for (const auto& [line, text] : recorded.at("decoded").items()) result.decoded[std::stoul(line)] = text;
  if (!recorded.at("with_special").is_null()) {
    result.with_special = recorded.at("with_special").get<std::vector<std::int32_t>>();
  }
  return forms.emplace(form, std::move(result)).first->second;
}

}  // namespace samba
