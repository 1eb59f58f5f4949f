#include "fuzz/parts.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <span>
#include <vector>

#include "samba/core/error.h"
#include "samba/formats/zip_directory.h"

namespace samba::fuzz {

namespace {

std::string little_endian(std::uint64_t value, std::size_t width) {
  std::string raw;
  for (std::size_t i = 0; i < width; ++i) raw += static_cast<char>((value >> (8 * i)) & 0xFFU);
  return raw;
}

std::uint64_t number_at(std::string_view file, std::size_t at) {
  std::uint64_t value = 0;
  std::memcpy(&value, file.data() + at, sizeof value);
  return value;
}

std::string varint(std::uint64_t value) {
  std::string raw;
  for (; value >= 0x80U; value >>= 7) raw += static_cast<char>((value & 0x7FU) | 0x80U);
  return raw + static_cast<char>(value);
}

// The part between two places, with the length in front of it written by `length`.
Part between(std::string_view file, std::size_t length_at, std::size_t begin, std::size_t end,
             std::function<std::string(std::uint64_t)> length) {
  return {std::string(file.substr(begin, end - begin)),
          [before = std::string(file.substr(0, length_at)), behind = std::string(file.substr(end)),
           length = std::move(length)](const std::string& content) {
            return before + length(content.size()) + content + behind;
          }};
}

Part behind_number(std::string_view file, std::size_t length_at, std::uint64_t length) {
  const std::size_t begin = length_at + sizeof(std::uint64_t);
  return between(file, length_at, begin, begin + length, [](std::uint64_t size) { return little_endian(size, 8); });
}

// A number of 8 bytes that is the length of the text behind it.
std::optional<std::uint64_t> text_length(std::string_view file, std::size_t at) {
  if (file.size() < 9 || at > file.size() - 9) return std::nullopt;
  const std::uint64_t length = number_at(file, at);
  if (length == 0 || length > file.size() - at - 8) return std::nullopt;
  return length;
}

std::optional<Part> json_header(std::string_view file) {
  for (std::size_t at = 0; at < 64; ++at) {
    const auto length = text_length(file, at);
    if (length && file[at + 8] == '{') return behind_number(file, at, *length);
  }
  return std::nullopt;
}

std::optional<Part> gguf_text(std::string_view file, std::uint64_t choice) {
  constexpr std::uint64_t kLongest = 4096;
  std::vector<std::size_t> places;
  for (std::size_t at = 24; at < file.size(); ++at) {
    const auto length = text_length(file, at);
    if (!length || *length > kLongest) continue;
    const std::string_view text = file.substr(at + 8, *length);
    const auto printable = [](char c) { return std::isprint(static_cast<unsigned char>(c)) != 0; };
    if (!std::all_of(text.begin(), text.end(), printable)) continue;
    places.push_back(at);
    at += 7 + text.size();
  }
  if (places.empty()) return std::nullopt;
  const std::size_t at = places[choice % places.size()];
  return behind_number(file, at, number_at(file, at));
}

std::optional<Part> zip_entry(std::string_view file, std::uint64_t choice) {
  std::map<std::string, std::string> entries;
  try {
    for (const auto& [name, data] : read_zip_directory(std::as_bytes(std::span(file)), "input")) {
      entries[name] = {reinterpret_cast<const char*>(data.data()), data.size()};
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  if (entries.empty()) return std::nullopt;
  auto chosen = std::next(entries.begin(), static_cast<std::ptrdiff_t>(choice / 4 % entries.size()));
  if (choice % 4 != 0) {  // most of what there is to read is in the pickle
    chosen =
        std::find_if(entries.begin(), entries.end(), [](const auto& entry) { return entry.first.ends_with(".pkl"); });
    if (chosen == entries.end()) chosen = entries.begin();
  }
  return Part{chosen->second, [entries, name = chosen->first](const std::string& content) {
                auto changed = entries;
                changed[name] = content;
                return stored_zip(changed);
              }};
}

// A field with a length: one of the file's own or, for most choices, one of a message in it; or the file's last fields.
std::optional<Part> wire_field(std::string_view file, std::uint64_t choice) {
  std::vector<WireField> fields;
  std::size_t at = 0;
  for (WireField field; next_field(file, at, field);) {
    if (field.has_length) fields.push_back(field);
  }
  if (fields.empty()) return std::nullopt;
  // Every other time one that is no piece: there are few of them, and many pieces.
  std::vector<WireField> others;
  std::copy_if(fields.begin(), fields.end(), std::back_inserter(others),
               [](const auto& field) { return field.number != 1; });
  const auto& from = choice % 2 == 0 && !others.empty() ? others : fields;
  const WireField field = from[choice / 4 % from.size()];
  Part whole = between(file, field.key_end, field.content, field.end, varint);
  if (choice / 2 % 2 == 0) return whole;
  std::vector<WireField> inner;
  at = 0;
  for (WireField one; next_field(whole.content, at, one);) {
    if (one.has_length) inner.push_back(one);
  }
  if (inner.empty()) return whole;
  const WireField one = inner[choice / 4 / from.size() % inner.size()];
  Part part = between(whole.content, one.key_end, one.content, one.end, varint);
  return Part{part.content, [outer = whole.file_with, own = part.file_with](const std::string& content) {
                return outer(own(content));
              }};
}

}  // namespace

bool next_field(std::string_view file, std::size_t& at, WireField& field) {
  field = {0, at, 0, 0, 0, false};
  const auto number = [&] {
    std::uint64_t value = 0;
    for (unsigned shift = 0; at < file.size() && shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(file[at++]);
      value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
      if ((byte & 0x80U) == 0) break;
    }
    return value;
  };
  if (at >= file.size()) return false;
  const std::uint64_t key = number();
  field.number = key >> 3;
  field.key_end = field.content = at;
  std::uint64_t size = 0;
  switch (key & 7U) {
    case 0:
      number();
      break;
    case 1:
      size = 8;
      break;
    case 2:
      field.has_length = true;
      size = number();
      field.content = at;
      break;
    case 5:
      size = 4;
      break;
    default:
      return false;
  }
  if (size > file.size() - at) return false;
  at += size;
  field.end = at;
  return true;
}

std::string stored_zip(const std::map<std::string, std::string>& entries) {
  std::string file, directory;
  for (const auto& [name, content] : entries) {
    const std::string sizes = std::string(4, '\0') + little_endian(content.size(), 4) +
                              little_endian(content.size(), 4) + little_endian(name.size(), 2) + std::string(2, '\0');
    const std::string common = little_endian(20, 2) + std::string(8, '\0') + sizes;  // as they are, no time, no sum
    directory +=
        "PK\1\2" + little_endian(20, 2) + common + std::string(10, '\0') + little_endian(file.size(), 4) + name;
    file += "PK\3\4" + common + name + content;
  }
  const std::size_t begin = file.size();
  file += directory;
  return file + "PK\5\6" + std::string(4, '\0') + little_endian(entries.size(), 2) + little_endian(entries.size(), 2) +
         little_endian(directory.size(), 4) + little_endian(begin, 4) + std::string(2, '\0');
}

std::optional<Part> part_of(std::string_view reader, std::string_view file, std::uint64_t choice) {
  if (reader == "tokenizer_model") return wire_field(file, choice);
  if (file.starts_with("PK\3\4")) return zip_entry(file, choice);
  if (file.starts_with("GGUF")) return gguf_text(file, choice);
  return json_header(file);
}

}  // namespace samba::fuzz
