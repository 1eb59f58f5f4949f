// A GGUF file (versions 2 and 3, little-endian) mapped for reading: metadata, and tensors where they lie.
// docs/formats/gguf.md describes the format as far as it is read and written here.
//
// Everything is checked before a byte of a tensor is used: counts, names, dimensions whose product overflows, types,
// alignment, ranges beyond the file, ranges that overlap, names given twice. Error(corrupt) with the classes
// "truncated", "format", "version", "tensor", "offsets"; Error(unsupported) for a tensor type that is none of
// float32, float16, bfloat16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K. The message names the tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/mapped_file.h"
#include "samba/formats/gguf_metadata.h"
#include "samba/numerics/packed_weight.h"

namespace samba {

struct GgufTensor {
  std::string name;
  Shape shape;  // the slowest axis first, as everywhere in samba: the file's dimensions reversed
  WeightFormat format = WeightFormat::float32;
  std::span<const std::byte> bytes;  // in the mapped file
};

// The name of a format as GGUF writes it: "F32", "BF16", "Q4_K".
std::string_view gguf_type_name(WeightFormat format);
// Its number in the file. Error(internal) for int8.
std::uint32_t gguf_type_number(WeightFormat format);

// What stands in front of the tensors' bytes, read from the front of a file of `file_bytes` bytes.
struct GgufHeader {
  std::uint32_t version = 0;
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;     // without bytes
  std::vector<std::uint64_t> offsets;  // of their bytes in the file
  std::vector<std::uint64_t> byte_counts;
};
GgufHeader parse_gguf(std::span<const std::byte> file, const std::string& source);

class GgufFile {
 public:
  explicit GgufFile(const Path& path);

  const Path& path() const { return path_; }
  std::uint64_t size() const { return file_.bytes().size(); }
  std::uint32_t version() const { return version_; }
  const GgufMetadata& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the order of the file
  const GgufTensor* find(std::string_view name) const;
  const MappedFile& file() const { return file_; }

 private:
  Path path_;
  MappedFile file_;
  std::uint32_t version_ = 0;
  GgufMetadata metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

}  // namespace samba
