// The safetensors format: 8 bytes little-endian header length, a JSON header, the data. Offsets count from the end of
// the header; tensors are dense, row-major, little-endian.
//
// Reading checks everything before a byte is used: header length, duplicate names, dtype and shape against the byte
// range, ranges inside the file, no overlap, no byte left over. Whatever is wrong is Error(corrupt, class, message)
// with the classes "truncated", "header_length", "json", "header", "tensor", "offsets".
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "samba/core/array.h"

namespace samba {

struct SafetensorsFile {
  std::map<std::string, std::string> metadata;  // the header's "__metadata__"
  ArrayMap tensors;
};

// The longest header that is read: 100 MB, the limit of the format's own library.
inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

// Throws Error(corrupt) for a damaged file and the errors of samba/core/files.h for one that cannot be read.
SafetensorsFile read_safetensors(const std::filesystem::path& path);

// The same from bytes in memory; `source` names them in messages.
SafetensorsFile parse_safetensors(std::span<const std::byte> bytes, const std::string& source);

// Tensors in the order of their names; the header is padded with spaces to a multiple of 8.
std::string safetensors_header(const ConstArrayMap& tensors, const std::map<std::string, std::string>& metadata);

// Writes `path` atomically: a temporary file beside it, made durable, then renamed.
void write_safetensors(const std::filesystem::path& path, const ConstArrayMap& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace samba
