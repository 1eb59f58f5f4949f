// Reads TensorBoard's event files, for tests: with no code of the writer but its checksum, whose values are tested.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "samba/formats/event_file.h"

namespace samba {

struct ReadEvent {
  double wall_time = 0.0;
  std::int64_t step = 0;
  std::string file_version;
  std::uint64_t session = 0;
  std::map<std::string, float> scalars;
  std::map<std::string, std::string> texts;
};

namespace event_reader {

template <class Integer>
Integer little_endian(std::string_view& bytes) {
  if (bytes.size() < sizeof(Integer)) throw std::runtime_error("the file is cut");
  Integer value = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    value |= static_cast<Integer>(static_cast<Integer>(static_cast<unsigned char>(bytes[i])) << (8 * i));
  }
  bytes.remove_prefix(sizeof(Integer));
  return value;
}

inline std::uint64_t variable(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (unsigned shift = 0;; shift += 7) {
    const auto byte = little_endian<std::uint8_t>(bytes);
    value |= std::uint64_t{byte & 0x7FU} << shift;
    if ((byte & 0x80U) == 0) return value;
  }
}

// Calls visit(field, number, content) for every field of a message.
template <class Visit>
void for_each_field(std::string_view bytes, const Visit& visit) {
  while (!bytes.empty()) {
    const std::uint64_t key = variable(bytes);
    std::uint64_t number = 0;
    std::string_view content;
    switch (key & 7U) {
      case 0:
        number = variable(bytes);
        break;
      case 1:
        number = little_endian<std::uint64_t>(bytes);
        break;
      case 2: {
        const std::uint64_t length = variable(bytes);
        if (length > bytes.size()) throw std::runtime_error("a field is cut");
        content = bytes.substr(0, length);
        bytes.remove_prefix(length);
        break;
      }
      case 5:
        number = little_endian<std::uint32_t>(bytes);
        break;
      default:
        throw std::runtime_error("a field of an unknown kind");
    }
    visit(key >> 3U, number, content);
  }
}

inline void read_value(std::string_view bytes, ReadEvent& event) {
  std::string tag, text, plugin;
  float scalar = 0.0F;
  for_each_field(bytes, [&](std::uint64_t field, std::uint64_t number, std::string_view content) {
    if (field == 1) tag = content;
    if (field == 2) scalar = std::bit_cast<float>(static_cast<std::uint32_t>(number));
    if (field == 8) {
      for_each_field(content, [&](std::uint64_t part, std::uint64_t, std::string_view bytes_of_part) {
        if (part == 8) text = bytes_of_part;
      });
    }
    if (field == 9) {
      for_each_field(content, [&](std::uint64_t, std::uint64_t, std::string_view data) {
        for_each_field(data, [&](std::uint64_t, std::uint64_t, std::string_view name) { plugin = name; });
      });
    }
  });
  if (plugin == "scalars") event.scalars[tag] = scalar;
  if (plugin == "text") event.texts[tag] = text;
}

inline ReadEvent read_event(std::string_view bytes) {
  ReadEvent event;
  for_each_field(bytes, [&](std::uint64_t field, std::uint64_t number, std::string_view content) {
    if (field == 1) event.wall_time = std::bit_cast<double>(number);
    if (field == 2) event.step = static_cast<std::int64_t>(number);
    if (field == 3) event.file_version = content;
    if (field == 5) {
      for_each_field(content, [&](std::uint64_t, std::uint64_t, std::string_view value) { read_value(value, event); });
    }
    if (field == 7) {
      for_each_field(content, [&](std::uint64_t, std::uint64_t status, std::string_view) { event.session = status; });
    }
  });
  return event;
}

}  // namespace event_reader

// Throws std::runtime_error at a checksum that is wrong and where the file is cut.
inline std::vector<ReadEvent> read_events(std::string_view bytes) {
  using event_reader::little_endian;
  std::vector<ReadEvent> events;
  while (!bytes.empty()) {
    const std::string_view head = bytes.substr(0, 8);
    const auto length = little_endian<std::uint64_t>(bytes);
    if (little_endian<std::uint32_t>(bytes) != masked_crc32c(head)) throw std::runtime_error("checksum of a length");
    if (length > bytes.size()) throw std::runtime_error("a record is cut");
    const std::string_view content = bytes.substr(0, length);
    bytes.remove_prefix(length);
    if (little_endian<std::uint32_t>(bytes) != masked_crc32c(content)) throw std::runtime_error("checksum of a record");
    events.push_back(event_reader::read_event(content));
  }
  return events;
}

}  // namespace samba
