// The text a run learns from.
//
// Files and folders become one stream of bytes: a folder gives all regular files below it in bytewise order of their
// paths, symbolic links are skipped, and one 0x0A stands between two files. Files are memory-mapped. Tokens are bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/mapped_file.h"

namespace samba {

// All regular files below a folder in bytewise order of their paths; symbolic links are skipped.
std::vector<Path> files_below(const Path& folder);

class TextData {
 public:
  // Error(value): a missing or unreadable path, a folder without files, no byte at all.
  explicit TextData(const std::vector<std::string>& paths);

  std::uint64_t size() const { return size_; }
  std::size_t files() const { return pieces_.size(); }
  void copy(std::uint64_t start, std::span<std::uint8_t> bytes) const;
  // Calls `visit` with the runs of bytes that make up [0, end).
  void for_each_run(std::uint64_t end, const std::function<void(const std::uint8_t*, std::size_t)>& visit) const;

  // Calls `visit` with the part of every file that lies in [begin, end) of the stream; `whole`: the file ends in there.
  void for_each_document(std::uint64_t begin, std::uint64_t end,
                         const std::function<void(std::string_view part, bool whole)>& visit) const;

  // SHA-256 (hex) of the first `bytes` bytes. Error(value) when one of them is no token of the vocabulary; the message
  // names file, position and byte.
  std::string checked_sha256(std::uint64_t bytes, Index vocab) const;
  void check_tokens(Index vocab) const;

 private:
  struct Piece {
    Path path;
    std::uint64_t start;  // of its first byte in the stream
    MappedFile file;
  };

  void add_file(const Path& path);

  std::vector<Piece> pieces_;
  std::uint64_t size_ = 0;
};

}  // namespace samba
