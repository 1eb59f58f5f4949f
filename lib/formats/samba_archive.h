// The streamed archive of a Samba stack (spec 62 sections 1 to 4): a container of one JSON state and four arrays. What
// the state means is not known here; lib/train/checkpoint.h puts both together.
//
// Memory is bounded: the header and one piece of an array at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "samba/core/array.h"
#include "samba/core/files.h"
#include "samba/core/sha256.h"
#include "samba/formats/framed_file.h"

namespace samba {

inline constexpr std::string_view kArchiveMagic("MOJOLEARN-SAMBA\x02\x0A", 17);
inline constexpr std::uint64_t kLongestArchiveHeader = 1048576;

enum ArchiveArray : std::size_t { kParameters, kExpAvg, kExpAvgSq, kBufferInitialized, kArchiveArrays };

std::string_view archive_array_name(std::size_t array);   // "parameters", ...
std::string_view archive_array_dtype(std::size_t array);  // "<f4", "<i4"

// Moves `bytes` bytes at byte `first` of an array: out of the caller's storage, or into it.
using PieceReader = std::function<void(std::uint64_t first, void* to, std::size_t bytes)>;
using PieceWriter = std::function<void(std::uint64_t first, const void* from, std::size_t bytes)>;

// `counts`: elements of the four arrays; all are read twice, to hash and to write. Atomic and durable. Returns the
// SHA-256 of the file. Refused: a header above 1 MiB (Error(value)); an array that changes meanwhile (Error(internal)).
std::string write_samba_archive(const Path& path, const nlohmann::json& state,
                                const std::array<Index, kArchiveArrays>& counts,
                                const std::array<PieceReader, kArchiveArrays>& sources,
                                const FileProgress& progress = {});

// The header of that file, `sha256`: of the four arrays.
std::string samba_archive_header(const Path& path, const nlohmann::json& state,
                                 const std::array<Index, kArchiveArrays>& counts, std::span<const std::string> sha256);

// True when the file starts with the magic; false for any other content, an empty file included.
bool is_samba_archive(const Path& path);

class SambaArchiveReader {
 public:
  // Reads and checks the header: classes truncated, header_length, header_integrity, json, stream_schema.
  explicit SambaArchiveReader(const Path& path);

  const nlohmann::json& state() const { return header_["state"]; }
  const nlohmann::json& array_entries() const { return header_["arrays"]; }
  std::uint64_t file_size() const { return file_.size(); }
  // After check_arrays: where an array begins in the file.
  std::uint64_t array_offset(std::size_t array) const;

  // Classes array_descriptor and size: the entries must be exactly those of arrays of these counts.
  void check_arrays(const std::array<Index, kArchiveArrays>& counts);
  // After check_arrays. Class array_integrity:NAME. An empty destination: the array is verified and dropped. What a
  // destination received is worth nothing when this throws.
  void read_arrays(const std::array<PieceWriter, kArchiveArrays>& destinations, const FileProgress& progress = {});
  // The same in steps, in place of read_arrays: the next bytes of the parameters, as many calls as it takes; then the
  // verification of all arrays, without which nothing that was read is worth anything.
  void read_parameters(void* to, std::size_t bytes);
  void finish_arrays(const FileProgress& progress = {});

 private:
  [[noreturn]] void refuse(const std::string& error_class, const std::string& reason) const;

  void verify(std::size_t array, const std::string& digest) const;
  void read_array(std::size_t array, const PieceWriter& destination, const FileProgress& progress);

  FileReader file_;
  Sha256 parameters_hash_;  // of what read_parameters has read
  nlohmann::json header_;
  std::array<Index, kArchiveArrays> counts_{};
  std::uint64_t data_ = 0;  // where the arrays begin
};

}  // namespace samba
