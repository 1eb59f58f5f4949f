#include "samba/train/data.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <system_error>
#include <utility>

#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/numerics/philox.h"

namespace samba {

namespace {

namespace fs = std::filesystem;

constexpr std::uint8_t kFileSeparator = 0x0A;
constexpr std::uint64_t kDataKey = 0x53414D4241;  // "SAMBA": keeps the data's stream apart from the model's
constexpr int kFeistelRounds = 6;

// All regular files below a folder in bytewise order of their paths; symbolic links are skipped.
std::vector<Path> files_below(const Path& folder) {
  std::vector<Path> files;
  std::error_code error;
  fs::recursive_directory_iterator place(folder, error);
  if (error) refuse_value("/data/paths: cannot read the folder " + folder.string() + ": " + error.message());
  for (; place != fs::recursive_directory_iterator(); place.increment(error)) {
    if (error) refuse_value("/data/paths: cannot read the folder " + folder.string() + ": " + error.message());
    if (place->symlink_status().type() == fs::file_type::regular) files.push_back(place->path());
  }
  std::sort(files.begin(), files.end(), [](const Path& a, const Path& b) { return a.native() < b.native(); });
  return files;
}

const std::uint8_t* bytes_of(const MappedFile& file) {
  return reinterpret_cast<const std::uint8_t*>(file.bytes().data());
}

class DrawOrder final : public WindowOrder {
 public:
  DrawOrder(std::uint64_t seed, std::uint64_t count) : key_(seed ^ kDataKey), count_(count) {}
  std::string name() const override { return "draw.v1"; }
  void starts(std::uint64_t step, std::span<std::uint64_t> rows) const override {
    for (std::size_t b = 0; b < rows.size(); ++b) {
      const PhiloxWords words = philox_block(key_, 0, step * rows.size() + b);
      const std::uint64_t word = words[0] | std::uint64_t{words[1]} << 32;
      __extension__ using Wide = unsigned __int128;
      rows[b] = static_cast<std::uint64_t>(Wide{word} * count_ >> 64);
    }
  }

 private:
  std::uint64_t key_;
  std::uint64_t count_;
};

class PermuteOrder final : public WindowOrder {
 public:
  PermuteOrder(std::uint64_t seed, std::uint64_t windows, std::uint64_t length)
      : seed_(seed), windows_(windows), length_(length) {}
  std::string name() const override { return "permute.v1"; }
  void starts(std::uint64_t step, std::span<std::uint64_t> rows) const override {
    for (std::size_t b = 0; b < rows.size(); ++b) {
      const std::uint64_t place = step * rows.size() + b;
      rows[b] = permuted_index(seed_, place / windows_, place % windows_, windows_) * length_;
    }
  }

 private:
  std::uint64_t seed_;
  std::uint64_t windows_;
  std::uint64_t length_;
};

class FixedOrder final : public WindowOrder {
 public:
  FixedOrder(std::vector<std::uint64_t> starts, std::size_t rows) : starts_(std::move(starts)), rows_(rows) {}
  std::string name() const override { return "start_positions"; }
  void starts(std::uint64_t step, std::span<std::uint64_t> rows) const override {
    std::copy_n(starts_.begin() + static_cast<std::ptrdiff_t>(step * rows_), rows.size(), rows.begin());
  }

 private:
  std::vector<std::uint64_t> starts_;
  std::size_t rows_;
};

// The starts of one line of a start_positions file.
void read_line(std::string_view line, const std::string& where, Index rows, std::uint64_t starts_count,
               std::vector<std::uint64_t>& starts) {
  Index found = 0;
  const char* place = line.data();
  const char* const end = place + line.size();
  while (true) {
    while (place != end && (*place == ' ' || *place == '\t' || *place == '\r')) ++place;
    if (place == end) break;
    std::uint64_t start = 0;
    const auto [next, error] = std::from_chars(place, end, start);
    if (error != std::errc{} || (next != end && *next != ' ' && *next != '\t' && *next != '\r')) {
      refuse_value(where + ": start positions must be integers >= 0 separated by spaces, got \"" + std::string(line) +
                   "\"");
    }
    if (start >= starts_count) {
      refuse_value(where + ": the start position " + std::to_string(start) +
                   " leaves no room for a sequence; accepted: 0 to " + std::to_string(starts_count - 1));
    }
    starts.push_back(start);
    ++found;
    place = next;
  }
  if (found != rows) {
    refuse_value(where + ": must have " + std::to_string(rows) + " start positions (/batch/rows), got " +
                 std::to_string(found));
  }
}

}  // namespace

TextData::TextData(const std::vector<std::string>& paths) {
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const Path path = paths[i];
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) {
      refuse_value("/data/paths/" + std::to_string(i) + ": there is no file or folder " + path.string());
    }
    if (!fs::is_directory(status)) {
      add_file(path);
      continue;
    }
    const std::vector<Path> files = files_below(path);
    if (files.empty())
      refuse_value("/data/paths/" + std::to_string(i) + ": the folder " + path.string() + " has no regular file");
    for (const Path& file : files) add_file(file);
  }
  const bool only_separators = size_ + 1 == pieces_.size();
  if (size_ == 0 || only_separators) {
    refuse_value("/data/paths: the training text is empty: " + std::to_string(pieces_.size()) + " file(s), 0 bytes");
  }
}

void TextData::add_file(const Path& path) {
  if (!pieces_.empty()) ++size_;  // the separator
  Piece piece{path, size_, MappedFile(path)};
  size_ += piece.file.bytes().size();
  pieces_.push_back(std::move(piece));
}

void TextData::copy(std::uint64_t start, std::span<std::uint8_t> bytes) const {
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), start,
                                [](std::uint64_t position, const Piece& p) { return position < p.start; }) -
               1;
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::uint64_t inside = start + done - piece->start;
    const std::uint64_t length = piece->file.bytes().size();
    if (inside < length) {
      const auto count = std::min<std::size_t>(bytes.size() - done, static_cast<std::size_t>(length - inside));
      std::copy_n(bytes_of(piece->file) + inside, count, bytes.begin() + static_cast<std::ptrdiff_t>(done));
      done += count;
    } else {
      bytes[done++] = kFileSeparator;
      ++piece;
    }
  }
}

void TextData::for_each_run(std::uint64_t end,
                            const std::function<void(const std::uint8_t*, std::size_t)>& visit) const {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (i > 0 && piece.start - 1 < end) visit(&kFileSeparator, 1);
    if (piece.start >= end) return;
    const auto count = std::min<std::uint64_t>(piece.file.bytes().size(), end - piece.start);
    if (count > 0) visit(bytes_of(piece.file), static_cast<std::size_t>(count));
  }
}

void TextData::for_each_document(std::uint64_t begin, std::uint64_t end,
                                 const std::function<void(std::string_view part, bool whole)>& visit) const {
  for (const Piece& piece : pieces_) {
    const std::uint64_t piece_end = piece.start + piece.file.bytes().size();
    const std::uint64_t first = std::max(begin, piece.start);
    const std::uint64_t last = std::min(end, piece_end);
    if (first >= last) continue;
    const auto* data = reinterpret_cast<const char*>(piece.file.bytes().data()) + (first - piece.start);
    visit({data, static_cast<std::size_t>(last - first)}, last == piece_end);
  }
}

std::string TextData::checked_sha256(std::uint64_t bytes, Index vocab) const {
  check_tokens(vocab);
  Sha256 hash;
  for_each_run(bytes, [&](const std::uint8_t* data, std::size_t count) { hash.update(data, count); });
  return hash.finish_hex();
}

void TextData::check_tokens(Index vocab) const {
  if (vocab > 255) return;
  const auto refuse = [&](const std::string& place, int byte) {
    refuse_value("/model/vocab: the text has the token " + std::to_string(byte) + " at " + place + ", outside [0, " +
                 std::to_string(vocab) + ")");
  };
  if (pieces_.size() > 1 && kFileSeparator >= vocab) refuse("the border of two files", kFileSeparator);
  for (const Piece& piece : pieces_) {
    const std::uint8_t* data = bytes_of(piece.file);
    const std::uint8_t* end = data + piece.file.bytes().size();
    const std::uint8_t* bad = std::find_if(data, end, [&](std::uint8_t byte) { return byte >= vocab; });
    if (bad != end) refuse("byte " + std::to_string(bad - data) + " of " + piece.path.string(), *bad);
  }
}

std::unique_ptr<WindowOrder> draw_order(std::uint64_t seed, std::uint64_t starts_count) {
  return std::make_unique<DrawOrder>(seed, starts_count);
}

std::unique_ptr<WindowOrder> permute_order(std::uint64_t seed, std::uint64_t windows, std::uint64_t length) {
  return std::make_unique<PermuteOrder>(seed, windows, length);
}

std::unique_ptr<WindowOrder> start_positions_order(const Path& file, Index rows, std::uint64_t starts_count,
                                                   std::uint64_t steps) {
  const std::string content = read_file(file);
  std::vector<std::uint64_t> starts;
  std::uint64_t lines = 0;
  std::size_t place = 0;
  while (place < content.size()) {
    const std::size_t end = std::min(content.find('\n', place), content.size());
    ++lines;
    read_line(std::string_view(content).substr(place, end - place),
              "/data/start_positions: line " + std::to_string(lines) + " of " + file.string(), rows, starts_count,
              starts);
    place = end + 1;
  }
  if (lines < steps) {
    refuse_value("/data/start_positions: " + file.string() + " has " + std::to_string(lines) +
                 " lines, one a step; /steps is " + std::to_string(steps));
  }
  return std::make_unique<FixedOrder>(std::move(starts), static_cast<std::size_t>(rows));
}

std::uint64_t permuted_index(std::uint64_t seed, std::uint64_t epoch, std::uint64_t index, std::uint64_t count) {
  if (count <= 1) return 0;
  // A Feistel network permutes 2^(2h) numbers; walk its cycle until the result is one of ours.
  const int half_bits = std::max(1, (static_cast<int>(std::bit_width(count - 1)) + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  const auto stream = static_cast<std::uint32_t>(1 + epoch);
  do {
    std::uint64_t left = index >> half_bits;
    std::uint64_t right = index & mask;
    for (int round = 0; round < kFeistelRounds; ++round) {
      const std::uint64_t block = static_cast<std::uint64_t>(round) << 32 | right;
      const std::uint64_t mixed = left ^ (philox_block(seed ^ kDataKey, stream, block)[0] & mask);
      left = right;
      right = mixed;
    }
    index = left << half_bits | right;
  } while (index >= count);
  return index;
}

WindowBatch make_batch(const TextData& text, std::span<const std::uint64_t> starts, Index length) {
  WindowBatch batch{static_cast<Index>(starts.size()), length,
                    Array(DType::int32, {static_cast<Index>(starts.size()), length}),
                    Array(DType::int32, {static_cast<Index>(starts.size()), length})};
  std::vector<std::uint8_t> window(static_cast<std::size_t>(length) + 1);
  std::int32_t* inputs = batch.inputs.values<std::int32_t>().data();
  std::int32_t* targets = batch.targets.values<std::int32_t>().data();
  for (const std::uint64_t start : starts) {
    text.copy(start, window);
    inputs = std::copy(window.begin(), window.end() - 1, inputs);
    targets = std::copy(window.begin() + 1, window.end(), targets);
  }
  return batch;
}

}  // namespace samba
