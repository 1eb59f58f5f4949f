// The legacy JSON checkpoint of a Samba stack (spec 62 section 5): read only.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/files.h"
#include "samba/core/mapped_file.h"
#include "samba/formats/samba_archive.h"

namespace samba {

// The file stays mapped: what is in memory is the state without the arrays' digits.
class LegacyCheckpoint {
 public:
  static constexpr std::uint64_t kMostBytes = 268435456;

  // Reads the file; classes format, legacy_schema, legacy_integrity.
  explicit LegacyCheckpoint(const Path& path);

  const nlohmann::json& state() const { return payload_; }  // without the arrays once they were found
  std::uint64_t file_size() const { return file_.bytes().size(); }

  // Finds the four arrays, each of exactly `counts` elements, and checks all their digits; class legacy_array.
  void find_arrays(const std::array<Index, kArchiveArrays>& counts);
  // The bytes of a found array from `first` on, little-endian.
  void read(std::size_t array, std::uint64_t first, std::span<std::byte> to) const;

 private:
  struct Digits {
    std::optional<std::size_t> lifted;  // the place in lifted_, or
    std::string own;
  };
  std::string_view text() const;
  nlohmann::json parse();
  std::string payload_sha256() const;
  std::string_view digits_of(std::size_t array) const;
  Digits find_array(std::size_t array, Index count);
  [[noreturn]] void refuse(const std::string& error_class, const std::string& reason) const;

  Path path_;
  MappedFile file_;
  std::vector<std::string_view> lifted_;  // long texts of hex digits in the file
  std::array<Digits, kArchiveArrays> arrays_;
  nlohmann::json payload_;
};

}  // namespace samba
