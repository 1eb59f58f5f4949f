#include "samba/train/documents.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/core/json_limits.h"
#include "samba/train/data.h"

namespace samba {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kReadBytes = std::size_t{1} << 18;
constexpr std::size_t kMostBuffered = std::size_t{64} << 20;  // of a whole file that is read once
constexpr std::size_t kLongestLine = std::size_t{1} << 30;

// Where the first piece of `text` ends, of which more than one piece is left: behind its last line break, else before
// the character that the limit would cut.
std::size_t piece_end(std::string_view text) {
  const std::size_t limit = DocumentReader::kPieceBytes;
  const std::size_t newline = text.substr(0, limit).rfind('\n');
  if (newline != std::string_view::npos) return newline + 1;
  std::size_t end = limit;
  while (end > limit - 4 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return end > limit - 4 ? end : limit;
}

bool is_json_lines(const Path& path) {
  const Path extension = unpacked_name(path).extension();
  return extension == ".jsonl" || extension == ".ndjson";
}

}  // namespace

std::vector<Path> document_files(const std::vector<std::string>& paths) {
  std::vector<Path> files;
  for (const std::string& path : paths) {
    const fs::file_status status = fs::status(path);
    if (!fs::exists(status)) refuse_value("there is no file or folder " + path);
    if (!fs::is_directory(status)) {
      files.emplace_back(path);
      continue;
    }
    const std::vector<Path> below = files_below(path);
    if (below.empty()) refuse_value("the folder " + path + " has no regular file");
    files.insert(files.end(), below.begin(), below.end());
  }
  return files;
}

DocumentReader::DocumentReader(std::vector<Path> files, DocumentOptions options, DocumentPlace from,
                               DocumentFilter wanted)
    : files_(std::move(files)),
      options_(std::move(options)),
      place_{from.file, 0},
      skip_(from.unit),
      wanted_(std::move(wanted)) {
  for (std::uint64_t i = 0; i < from.file && i < files_.size(); ++i) bytes_before_ += fs::file_size(files_[i]);
}

DocumentReader::~DocumentReader() = default;

void DocumentReader::open_file() {
  source_ = open_byte_source(files_[place_.file]);
  json_ = is_json_lines(files_[place_.file]);
  buffer_.clear();
  at_ = 0;
  file_ended_ = false;
}

void DocumentReader::close_file() {
  bytes_before_ += source_->file_size();
  source_.reset();
  place_ = {place_.file + 1, 0};
  skip_ = 0;
}

bool DocumentReader::read_more() {
  if (file_ended_) return false;
  if (at_ > 0) {
    buffer_.erase(0, at_);
    at_ = 0;
  }
  const std::size_t had = buffer_.size();
  buffer_.resize(had + kReadBytes);
  const std::size_t got = source_->read(buffer_.data() + had, kReadBytes);
  buffer_.resize(had + got);
  file_ended_ = got < kReadBytes;
  return got > 0;
}

std::optional<std::string_view> DocumentReader::line() {
  std::size_t searched = at_;
  while (true) {
    const std::size_t end = buffer_.find('\n', searched);
    if (end != std::string::npos) {
      const std::string_view found(buffer_.data() + at_, end - at_);
      at_ = end + 1;
      return found;
    }
    const std::size_t pending = buffer_.size() - at_;
    if (pending > kLongestLine) {
      refuse_value(files_[place_.file].string() + ": line " + std::to_string(place_.unit + 1) + " is longer than " +
                   std::to_string(kLongestLine) + " bytes");
    }
    if (!read_more()) break;
    searched = at_ + pending;
  }
  if (at_ == buffer_.size()) return std::nullopt;
  const std::string_view rest(buffer_.data() + at_, buffer_.size() - at_);
  at_ = buffer_.size();
  return rest;
}

void DocumentReader::emit(std::string text, bool counts, bool last) {
  DocumentPiece piece;
  piece.text = std::move(text);
  piece.counts = counts;
  piece.last = last;
  piece.digest = digest_;
  piece.bytes = document_bytes_;
  if (last) piece.behind = place_;
  ready_.push_back(std::move(piece));
}

void DocumentReader::emit_document(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  digest_ = hash.finish();
  document_bytes_ = text.size();
  if (!wanted_(digest_)) return;
  while (text.size() > kPieceBytes) {
    const std::size_t end = piece_end(text);
    emit(std::string(text.substr(0, end)), true, false);
    text.remove_prefix(end);
  }
  emit(std::string(text), true, true);
}

void DocumentReader::next_line() {
  std::optional<std::string_view> text = line();
  if (!text) return close_file();
  ++place_.unit;
  if (place_.unit <= skip_) return;
  if (!text->empty() && text->back() == '\r') text->remove_suffix(1);
  if (json_) return next_json(*text);
  if (!text->empty()) emit_document(*text);
}

void DocumentReader::next_paragraph() {
  std::string paragraph;
  bool ended = false;
  while (true) {
    std::optional<std::string_view> text = line();
    ended = !text;
    if (ended) break;
    if (!text->empty() && text->back() == '\r') text->remove_suffix(1);
    const bool blank = text->find_first_not_of(" \t") == std::string_view::npos;
    if (blank && paragraph.empty()) continue;
    if (blank) break;
    if (!paragraph.empty()) paragraph += '\n';
    paragraph += *text;
    if (paragraph.size() > kLongestLine) {
      refuse_value(files_[place_.file].string() + ": paragraph " + std::to_string(place_.unit + 1) +
                   " is longer than " + std::to_string(kLongestLine) + " bytes");
    }
  }
  if (!paragraph.empty()) {
    ++place_.unit;
    if (place_.unit > skip_) emit_document(paragraph);
  }
  if (ended) close_file();
}

void DocumentReader::next_json(std::string_view text) {
  if (text.find_first_not_of(" \t") == std::string_view::npos) return;
  const std::string where = files_[place_.file].string() + ": line " + std::to_string(place_.unit);
  std::string fault;
  const nlohmann::json object = parse_bounded(text, fault);
  if (object.is_discarded()) refuse_value(where + ": " + fault);
  if (!object.is_object()) refuse_value(where + ": must be a JSON object, got " + shown(object));
  const auto field = [&](const std::string& name) -> std::string {
    const nlohmann::json& value = object.at(name);
    if (!value.is_string()) refuse_value(where + ": the field \"" + name + "\" must be a text, got " + shown(value));
    return value.get<std::string>();
  };
  const bool plain = object.contains(options_.text_field);
  const bool pair = object.contains(options_.prompt_field) && object.contains(options_.completion_field);
  if (plain == pair) {
    refuse_value(where + ": must have the field \"" + options_.text_field + "\", or \"" + options_.prompt_field +
                 "\" and \"" + options_.completion_field + "\"" + (plain ? ", not all of them" : "") + "; got " +
                 shown(object));
  }
  if (plain) {
    const std::string content = field(options_.text_field);
    if (!content.empty()) emit_document(content);
    return;
  }
  std::string prompt = field(options_.prompt_field), completion = field(options_.completion_field);
  if (completion.empty()) {
    refuse_value(where + ": the field \"" + options_.completion_field + "\" is empty: nothing would be learned");
  }
  Sha256 hash;
  hash.update(prompt);
  hash.update("\0", 1);
  hash.update(completion);
  digest_ = hash.finish();
  document_bytes_ = prompt.size() + completion.size();
  if (!wanted_(digest_)) return;
  if (!prompt.empty()) emit(std::move(prompt), false, false);
  emit(std::move(completion), true, true);
}

// The digest of the whole file comes first: a long one is read twice.
void DocumentReader::begin_whole_file() {
  while (buffer_.size() < kMostBuffered && read_more()) {
  }
  Sha256 hash;
  hash.update(buffer_);
  document_bytes_ = buffer_.size();
  const bool again = !file_ended_;
  std::string piece(kReadBytes, '\0');
  while (again) {
    const std::size_t got = source_->read(piece.data(), piece.size());
    hash.update(piece.data(), got);
    document_bytes_ += got;
    if (got < piece.size()) break;
  }
  digest_ = hash.finish();
  if (again) {
    source_ = open_byte_source(files_[place_.file]);
    buffer_.clear();
    file_ended_ = false;
  }
}

void DocumentReader::next_of_file() {
  if (place_.unit == 0) {
    begin_whole_file();
    if (document_bytes_ == 0 || !wanted_(digest_)) return close_file();
  }
  while (buffer_.size() - at_ <= kPieceBytes && read_more()) {
  }
  const std::string_view rest(buffer_.data() + at_, buffer_.size() - at_);
  const bool last = rest.size() <= kPieceBytes;
  const std::size_t end = last ? rest.size() : piece_end(rest);
  std::string text(rest.substr(0, end));
  at_ += end;
  ++place_.unit;
  const bool skipped = place_.unit <= skip_;
  if (last) close_file();
  if (skipped) return;
  emit(std::move(text), true, last);
  ready_.back().behind = place_;
}

std::optional<DocumentPiece> DocumentReader::next() {
  while (ready_.empty()) {
    if (place_.file >= files_.size()) return std::nullopt;
    if (source_ == nullptr) open_file();
    if (json_ || options_.unit == DocumentUnit::line) {
      next_line();
    } else if (options_.unit == DocumentUnit::paragraph) {
      next_paragraph();
    } else {
      next_of_file();
    }
  }
  DocumentPiece piece = std::move(ready_.front());
  ready_.pop_front();
  return piece;
}

}  // namespace samba
