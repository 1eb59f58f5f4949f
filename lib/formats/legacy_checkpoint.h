// The legacy JSON checkpoint of a Samba stack (spec 62 section 5): read only.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/files.h"
#include "samba/formats/samba_archive.h"

namespace samba {

class LegacyCheckpoint {
 public:
  static constexpr std::uint64_t kMostBytes = 268435456;

  // Reads the file; classes format, legacy_schema, legacy_integrity.
  explicit LegacyCheckpoint(const Path& path);

  const nlohmann::json& state() const { return payload_; }  // without the arrays once they were read
  std::uint64_t file_size() const { return bytes_; }

  // Decodes the four arrays, each of exactly `counts` elements; class legacy_array. Little-endian bytes.
  std::array<std::vector<std::byte>, kArchiveArrays> take_arrays(const std::array<Index, kArchiveArrays>& counts);

 private:
  std::vector<std::byte> take_array(std::size_t array, Index count);
  [[noreturn]] void refuse(const std::string& error_class, const std::string& reason) const;

  Path path_;
  std::uint64_t bytes_ = 0;
  nlohmann::json payload_;
};

}  // namespace samba
