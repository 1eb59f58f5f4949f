// The text a run learns from, and which windows of it a step reads.
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

// Starts of the windows of a step. Every start is a function of (seed, step, row): a resumed run needs no history.
class WindowOrder {
 public:
  virtual ~WindowOrder() = default;
  virtual std::string name() const = 0;
  // `step` is 0-based. Fills one start a row.
  virtual void starts(std::uint64_t step, std::span<std::uint64_t> rows) const = 0;
};

// draw.v1: windows drawn with replacement from all `starts_count` starts. Row b of step s has the high 64 bits of
// w * starts_count, w = words 0 (low) and 1 (high) of block s*B + b of the philox stream (seed XOR 0x53414D4241, 0).
std::unique_ptr<WindowOrder> draw_order(std::uint64_t seed, std::uint64_t starts_count);

// permute.v1: the text cut into windows of `length` tokens, each once an epoch, in an order of its own every epoch (a
// keyed Feistel permutation, docs/formats/data_order.md).
std::unique_ptr<WindowOrder> permute_order(std::uint64_t seed, std::uint64_t windows, std::uint64_t length);

// start_positions: from a text file, one line a step, one start a row. Error(value) names the line.
std::unique_ptr<WindowOrder> start_positions_order(const Path& file, Index rows, std::uint64_t starts_count,
                                                   std::uint64_t steps);

// The place of `index` in the permutation `epoch` of 0 .. count-1.
std::uint64_t permuted_index(std::uint64_t seed, std::uint64_t epoch, std::uint64_t index, std::uint64_t count);

// Tokens of one step, row-major (rows, length): inputs are bytes p .. p+L-1, targets p+1 .. p+L.
struct WindowBatch {
  Index rows = 0;
  Index length = 0;
  Array inputs;
  Array targets;
};

WindowBatch make_batch(const TextData& text, std::span<const std::uint64_t> starts, Index length);

}  // namespace samba
