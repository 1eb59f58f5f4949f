// Files that were cut, changed or made longer: at every border of their parts, one byte before it and one behind it;
// one byte of every part; one byte at the end. Each form of file that samba reads, small sound ones of
// test/fuzz/seeds.h.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <nlohmann/json.hpp>

#include "fuzz/readers.h"
#include "fuzz/seeds.h"
#include "samba/formats/gguf_file.h"
#include "samba/formats/safetensors.h"
#include "samba/formats/samba_archive.h"
#include "samba/formats/stack_archive.h"
#include "samba/formats/zip_directory.h"

namespace samba::fuzz {
namespace {

using Borders = std::vector<std::size_t>;
using nlohmann::json;

Bytes bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::uint64_t number_at(const std::string& file, std::size_t at) {
  std::uint64_t value = 0;
  std::memcpy(&value, file.data() + at, sizeof value);
  return value;
}

// Magic, header length, header, digest, every array.
Borders borders_of_frame(const std::string& file, std::string_view magic) {
  const std::size_t header = number_at(file, magic.size());
  Borders borders{0, magic.size(), magic.size() + 8, magic.size() + 8 + header, magic.size() + 40 + header};
  const json parsed = json::parse(file.substr(magic.size() + 8, header));
  for (const char* list : {"arrays", "parameters", "moments"}) {
    if (!parsed.contains(list)) continue;
    for (const json& entry : parsed[list]) {
      borders.push_back(borders.back() + entry.value("stored_bytes", entry.value("nbytes", std::size_t{0})));
    }
  }
  return borders;
}

// Header length, header, every tensor.
Borders borders_of_safetensors(const std::string& file) {
  Borders borders{0, 8, 8 + number_at(file, 0)};
  for (const auto& [name, tensor] : index_safetensors(bytes_of(file), "sound").tensors) {
    const auto begin = static_cast<std::size_t>(static_cast<const char*>(tensor.data) - file.data());
    borders.push_back(begin + static_cast<std::size_t>(tensor.size()) * dtype_size(tensor.dtype));
  }
  return borders;
}

// The fixed fields, the descriptions, every tensor.
Borders borders_of_gguf(const std::string& file) {
  const GgufHeader header = parse_gguf(bytes_of(file), "sound");
  Borders borders{0, 4, 8, 16, 24};
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    borders.push_back(header.offsets[i]);
    borders.push_back(header.offsets[i] + header.byte_counts[i]);
  }
  return borders;
}

Borders borders_of_zip(const std::string& file) {
  Borders borders{0, file.size()};
  for (const auto& [name, part] : read_zip_directory(bytes_of(file), "sound")) {
    const auto begin = static_cast<std::size_t>(reinterpret_cast<const char*>(part.data()) - file.data());
    borders.push_back(begin);
    borders.push_back(begin + part.size());
  }
  return borders;
}

// Where values begin and end.
Borders borders_of_json(const std::string& file) {
  Borders borders{0};
  for (std::size_t at = 0; at < file.size(); ++at) {
    if (std::string_view("{}[],:").find(file[at]) != std::string_view::npos) borders.push_back(at + 1);
  }
  return borders;
}

// Of a folder's file, which stands behind the byte that names it.
Borders borders_in_folder(const std::string& reader, const std::string& file) {
  const std::string content = file.substr(1);
  Borders borders;
  if (reader == "token_shards") {  // records of 24 bytes, ids of 2, bits
    for (std::size_t at = 0; at <= content.size(); at += content[0] == '{' ? 5 : 24) borders.push_back(at);
  } else {
    borders = content[0] == '{' ? borders_of_json(content) : borders_of_safetensors(content);
  }
  for (std::size_t& border : borders) ++border;
  return borders;
}

Borders borders_of(const std::string& reader, const std::string& file) {
  Borders borders;
  if (reader == "own_folder" || reader == "token_shards") borders = borders_in_folder(reader, file);
  if (reader == "samba_archive") borders = borders_of_frame(file, kArchiveMagic);
  if (reader == "stack_archive") borders = borders_of_frame(file, kStackMagic);
  if (reader == "block_file" || reader == "state_file" || reader == "safetensors")
    borders = borders_of_safetensors(file);
  if (reader == "gguf") borders = borders_of_gguf(file);
  if (reader == "torch") borders = borders_of_zip(file);
  if (reader == "legacy_json" || reader == "mlp_checkpoint") borders = borders_of_json(file);
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  return borders;
}

// The sound files of a reader. Those of test/golden/samba/corrupt are none for the most part.
std::vector<std::string> sound_files(const std::string& reader) {
  static const auto seeds = make_seeds();
  std::vector<std::string> sound;
  for (const std::string& file : seeds.at(reader)) {
    if (run(*find_reader(reader), bytes_of(file), Digests::as_they_are)) sound.push_back(file);
  }
  // Of those that differ in their text alone a few are enough.
  if (sound.size() > 3 && reader != "own_folder" && reader != "token_shards") sound.resize(3);
  return sound;
}

bool is_read(const std::string& reader, const std::string& file) {
  return run(*find_reader(reader), bytes_of(file), Digests::as_they_are);
}

const std::vector<std::string> kWithDigests{"samba_archive", "stack_archive",  "legacy_json", "block_file",
                                            "state_file",    "mlp_checkpoint", "token_shards"};
const std::vector<std::string> kWithout{"safetensors", "gguf", "torch", "own_folder"};

std::vector<std::string> all_forms() {
  std::vector<std::string> forms = kWithDigests;
  forms.insert(forms.end(), kWithout.begin(), kWithout.end());
  return forms;
}

}  // namespace

TEST_CASE("a file cut at a border of its parts, a byte before or a byte behind one, is refused") {
  for (const std::string& form : all_forms()) {
    const std::vector<std::string> files = sound_files(form);
    CHECK_FALSE(files.empty());
    for (const std::string& file : files) {
      const Borders borders = borders_of(form, file);
      if (form != "token_shards") CHECK(borders.size() > 4);  // some of whose files have one record
      for (const std::size_t border : borders) {
        for (const std::size_t size : {border - 1, border, border + 1}) {
          // Where the last tensor of a GGUF file is filled up, nothing is lost.
          if (form == "gguf" && size == borders.back()) continue;
          // White space at the end of a JSON text says nothing.
          if (size >= file.size() || file.find_first_not_of(" \n", size) == std::string::npos) continue;
          INFO(form << " cut at " << size << " of " << file.size());
          CHECK_FALSE(is_read(form, file.substr(0, size)));
        }
      }
    }
  }
}

TEST_CASE("a file with one changed byte in any of its parts is refused where the form has digests") {
  for (const std::string& form : kWithDigests) {
    for (const std::string& file : sound_files(form)) {
      const Borders borders = borders_of(form, file);
      for (std::size_t i = 0; i < borders.size(); ++i) {
        const std::size_t end = i + 1 < borders.size() ? borders[i + 1] : file.size();
        if (borders[i] == end) continue;
        std::string changed = file;
        const std::size_t at = borders[i] + (end - borders[i]) / 2;
        changed[at] = static_cast<char>(changed[at] ^ 1);
        INFO(form << ", byte " << at << " of " << file.size());
        CHECK_FALSE(is_read(form, changed));
      }
    }
  }
}

TEST_CASE("a file with one byte more is refused") {
  for (const std::string& form : all_forms()) {
    for (const std::string& file : sound_files(form)) {
      for (const char more : {'\0', 'x'}) {
        INFO(form);
        CHECK_FALSE(is_read(form, file + more));
      }
    }
  }
}

}  // namespace samba::fuzz
