// What the checkpoint files samba archive and samba.stack.v1 have in common: magic, header length (u64, little-endian),
// header (JSON), SHA-256 of the header, then the data (spec 62, docs/formats/stack.md).
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "samba/core/files.h"
#include "samba/core/sha256.h"

namespace samba {

// Called while a large file is read or written, with bytes done and bytes in all.
using FileProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

// The bytes of a framed file that are neither magic, header nor data.
inline constexpr std::uint64_t kFrameBytes = sizeof(std::uint64_t) + sizeof(Sha256Digest);

// Throws; never returns.
using FrameRefusal = std::function<void(const std::string& error_class, const std::string& reason)>;

// The header behind the magic, which was read. Nothing is allocated for a length that is above `longest` or the file's
// size. Refused with the classes "truncated", "header_length", "header_integrity", "json".
nlohmann::json read_framed_header(FileReader& file, std::uint64_t longest, const FrameRefusal& refuse);

// Writes a framed file atomically and hashes all of it.
class FramedFileWriter {
 public:
  // Magic, header and its digest. data_bytes: of what put() will be given, for the progress.
  FramedFileWriter(const Path& path, std::string_view magic, const std::string& header, std::uint64_t data_bytes,
                   const FileProgress& progress);

  void put(const void* data, std::size_t bytes);
  std::string commit();  // makes the file durable; the SHA-256 of the whole

 private:
  AtomicFile file_;
  Sha256 whole_;
  std::uint64_t done_ = 0;
  std::uint64_t total_;
  const FileProgress& progress_;
};

}  // namespace samba
