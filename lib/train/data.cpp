#include "samba/train/data.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "samba/core/error.h"
#include "samba/core/sha256.h"

namespace samba {

namespace {

namespace fs = std::filesystem;

constexpr std::uint8_t kFileSeparator = 0x0A;

const std::uint8_t* bytes_of(const MappedFile& file) {
  return reinterpret_cast<const std::uint8_t*>(file.bytes().data());
}

}  // namespace

std::vector<Path> files_below(const Path& folder) {
  std::vector<Path> files;
  std::error_code error;
  fs::recursive_directory_iterator place;
  do {
    place = fs::recursive_directory_iterator(folder, error);
  } while (error == std::errc::interrupted);
  while (!error && place != fs::recursive_directory_iterator()) {
    if (place->symlink_status().type() == fs::file_type::regular) files.push_back(place->path());
    place.increment(error);  // of a folder below that cannot be read it makes the end
  }
  if (error) throw_file_error("read the folder", folder, error.value());
  std::sort(files.begin(), files.end(), [](const Path& a, const Path& b) { return a.native() < b.native(); });
  return files;
}

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

}  // namespace samba
