// Parts of a file whose length is written somewhere else in it: were they changed alone, the file would be refused for
// its lengths, and what reads the part would never see the change.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace samba::fuzz {

struct Part {
  std::string content;
  std::function<std::string(const std::string& content)> file_with;  // the file with this in the place of the part
};

// One of the parts of a file for this reader; `choice` says which. Empty where it has none: the entries of a zip file
// (PyTorch), a JSON header behind its length (safetensors, archives), the texts of a GGUF file, the fields of a
// SentencePiece model.
std::optional<Part> part_of(std::string_view reader, std::string_view file, std::uint64_t choice);

// A zip file of entries as they are, in the order of their names.
std::string stored_zip(const std::map<std::string, std::string>& entries);

// Reads one field of the wire format of protocol buffers and moves `at` behind it; false at the end and at what is
// none.
struct WireField {
  std::uint64_t number = 0;
  std::size_t begin = 0;    // of the field
  std::size_t key_end = 0;  // behind its number and type
  std::size_t content = 0;  // of its content, behind the length
  std::size_t end = 0;
  bool has_length = false;
};
bool next_field(std::string_view file, std::size_t& at, WireField& field);

}  // namespace samba::fuzz
