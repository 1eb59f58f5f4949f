// The safetensors format: 8 bytes little-endian header length, a JSON header, the data. Offsets count from the end of
// the header; tensors are dense, row-major, little-endian.
//
// Reading checks everything before a byte is used: header length, duplicate names, dtype and shape against the byte
// range, ranges inside the file, no overlap, no byte left over. Whatever is wrong is Error(corrupt, class, message)
// with the classes "truncated", "header_length", "json", "header", "tensor", "offsets".
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

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

// Where the tensors of a file lie: everything is checked as above, nothing is copied. The data of the views need not be
// aligned.
struct SafetensorsIndex {
  std::map<std::string, std::string> metadata;
  ConstArrayMap tensors;
};
SafetensorsIndex index_safetensors(std::span<const std::byte> bytes, const std::string& source);

// The dtype as the header writes it: "F32", "BF16".
const char* safetensors_dtype(DType dtype);

// A tensor to be written whose bytes come in pieces: `write` hands all of them, in order, to the function it is given.
struct SafetensorsSource {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;
  std::function<void(const std::function<void(std::span<const std::byte>)>& put)> write;
};

// As write_safetensors, in the order given. `done` is told the bytes written so far. Error(internal) when a tensor has
// more or fewer bytes than its shape.
void write_safetensors_streamed(const std::filesystem::path& path, std::span<const SafetensorsSource> tensors,
                                const std::map<std::string, std::string>& metadata = {},
                                const std::function<void(std::uint64_t done)>& done = {});

// Tensors in the order of their names; the header is padded with spaces to a multiple of 8.
std::string safetensors_header(const ConstArrayMap& tensors, const std::map<std::string, std::string>& metadata);

// Writes `path` atomically: a temporary file beside it, made durable, then renamed.
void write_safetensors(const std::filesystem::path& path, const ConstArrayMap& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace samba
