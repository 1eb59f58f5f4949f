#include "samba/formats/legacy_checkpoint.h"

#include <algorithm>
#include <charconv>

#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/formats/canonical_json.h"

namespace samba {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kLegacySchema = "mojolearn.samba-stack-json-checkpoint.v1";

constexpr std::size_t kLongDigits = 4096;  // shorter texts are parsed like any other
constexpr std::size_t kPiece = std::size_t{1} << 20;
// Stands for a long text of digits while the rest is parsed: the mark, its number, ';'.
constexpr std::string_view kMark = "samba-digits-";

int hex_digit(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

std::string mark_of(std::size_t number) { return std::string(kMark) + std::to_string(number) + ";"; }

// The number behind a mark at the start of `text`, and what follows it; none where something else follows.
std::optional<std::size_t> marked_number(std::string_view text, std::size_t most, std::string_view& rest) {
  std::size_t number = 0;
  text.remove_prefix(kMark.size());
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto length = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || number >= most || length == text.size() || text[length] != ';') return std::nullopt;
  rest = text.substr(length + 1);
  return number;
}

// The end of the text that begins behind the quote at `at`, or the size; `digits`: nothing but hex digits is in it.
// `passed` takes what was looked at, piece by piece.
template <class Passed>
std::size_t end_of_text(std::string_view json, std::size_t at, bool& digits, Passed&& passed) {
  digits = true;
  for (std::size_t piece = at; at < json.size() && json[at] != '"'; ++at) {
    if (json[at] == '\\') {
      ++at;  // the character that is escaped
      digits = false;
    } else {
      digits = digits && hex_digit(json[at]) >= 0;
    }
    if (at - piece < kPiece) continue;
    passed(json.substr(piece, at - piece));
    piece = at;
  }
  return std::min(at, json.size());
}

bool is_key(std::string_view json, std::size_t behind) {
  const std::size_t next = json.find_first_not_of(" \t\r\n", behind);
  return next != std::string_view::npos && json[next] == ':';
}

// `json` with marks in place of long texts of digits, which go to `lifted`.
template <class Passed>
std::string lift_digits(std::string_view json, std::vector<std::string_view>& lifted, Passed&& passed) {
  std::string rest;
  std::size_t done = 0;
  for (std::size_t quote = json.find('"'); quote != std::string_view::npos; quote = json.find('"', done)) {
    bool digits = false;
    const std::size_t end = end_of_text(json, quote + 1, digits, passed);
    if (end == json.size()) break;
    if (digits && end - quote > kLongDigits && !is_key(json, end + 1)) {
      rest.append(json.substr(done, quote + 1 - done)).append(mark_of(lifted.size())).append(1, '"');
      lifted.push_back(json.substr(quote + 1, end - quote - 1));
    } else {
      rest.append(json.substr(done, end + 1 - done));
    }
    done = end + 1;
  }
  return rest.append(json.substr(done));
}

// Where the text has a mark of its own nothing can stand for another.
std::size_t count_marks(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(kMark); at != std::string_view::npos; at = text.find(kMark, at + 1)) ++count;
  return count;
}

}  // namespace

void LegacyCheckpoint::refuse(const std::string& error_class, const std::string& reason) const {
  refuse_corrupt(error_class, path_.string() + " is damaged or no Samba checkpoint (" + error_class + "): " + reason);
}

std::string_view LegacyCheckpoint::text() const {
  return {reinterpret_cast<const char*>(file_.bytes().data()), file_.bytes().size()};
}

nlohmann::json LegacyCheckpoint::parse() {
  const auto drop = [this](std::string_view part) { file_.drop(std::as_bytes(std::span(part))); };
  std::string rest = lift_digits(text(), lifted_, drop);
  file_.drop(file_.bytes());
  if (count_marks(rest) != lifted_.size()) {
    lifted_.clear();
    rest = text();
  }
  try {
    try {
      return parse_json(rest);
    } catch (const Error&) {
      if (!lifted_.empty()) parse_json(text());  // says at which byte of the file
      throw;
    }
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::resource) throw;
    refuse("format", std::string("neither the magic of a streamed archive nor a JSON checkpoint; ") + error.what());
  }
}

// Of the canonical text of the payload, digits from where they lie.
std::string LegacyCheckpoint::payload_sha256() const {
  const std::string canonical = canonical_json(payload_);
  std::string_view rest = canonical;
  Sha256 hash;
  while (!lifted_.empty()) {
    const std::size_t at = rest.find(kMark);
    if (at == std::string_view::npos) break;
    std::string_view behind;
    const auto number = marked_number(rest.substr(at), lifted_.size(), behind);
    if (!number) {
      hash.update(rest.substr(0, at + kMark.size()));
      rest.remove_prefix(at + kMark.size());
      continue;
    }
    hash.update(rest.substr(0, at));
    for (std::string_view digits = lifted_[*number]; !digits.empty();) {
      const std::string_view piece = digits.substr(0, kPiece);
      hash.update(piece);
      file_.drop(std::as_bytes(std::span(piece)));
      digits.remove_prefix(piece.size());
    }
    rest = behind;
  }
  hash.update(rest);
  return hash.finish_hex();
}

LegacyCheckpoint::LegacyCheckpoint(const Path& path) : path_(path) {
  const std::uint64_t bytes = FileReader(path).size();
  if (bytes > kMostBytes) {
    refuse("format", "a JSON checkpoint has at most " + std::to_string(kMostBytes) + " bytes, this file has " +
                         std::to_string(bytes));
  }
  file_ = MappedFile(path);
  Json file = parse();
  if (!file.is_object() || file.size() != 3 || !file.contains("schema") || !file.contains("payload") ||
      !file.contains("payload_sha256")) {
    refuse("legacy_schema", "the file must be an object with exactly the keys schema, payload and payload_sha256");
  }
  if (file["schema"] != kLegacySchema) {
    refuse("legacy_schema", "the schema must be \"" + std::string(kLegacySchema) + "\"");
  }
  payload_ = std::move(file["payload"]);
  if (file["payload_sha256"] != payload_sha256()) refuse("legacy_integrity", "the SHA-256 of the payload differs");
}

void LegacyCheckpoint::find_arrays(const std::array<Index, kArchiveArrays>& counts) {
  for (std::size_t array = 0; array < kArchiveArrays; ++array) arrays_[array] = find_array(array, counts[array]);
}

LegacyCheckpoint::Digits LegacyCheckpoint::find_array(std::size_t array, Index count) {
  const std::string name(archive_array_name(array));
  Json entry;
  if (payload_.contains(name)) {
    entry = std::move(payload_[name]);
    payload_.erase(name);
  }
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("hex") ||
      !entry.contains("shape")) {
    refuse("legacy_array", name + " must be an object with exactly the keys dtype, hex and shape");
  }
  if (entry["dtype"] != archive_array_dtype(array)) {
    refuse("legacy_array", "dtype of " + name + " must be \"" + std::string(archive_array_dtype(array)) + "\"");
  }
  if (!is_integer(entry["shape"].is_array() && entry["shape"].size() == 1 ? entry["shape"][0] : Json()) ||
      entry["shape"][0] != count) {
    refuse("legacy_array", "shape of " + name + " must be [" + std::to_string(count) + "]");
  }
  Digits digits;
  if (entry["hex"].is_string()) digits.own = entry["hex"].get<std::string>();
  std::string_view rest;
  if (!lifted_.empty() && digits.own.starts_with(kMark))
    digits.lifted = marked_number(digits.own, lifted_.size(), rest);
  const std::string_view all = digits.lifted ? lifted_[*digits.lifted] : std::string_view(digits.own);
  const std::size_t wanted = 8 * static_cast<std::size_t>(count);
  if (!entry["hex"].is_string() || all.size() != wanted) {
    refuse("legacy_array", "hex of " + name + " must have " + std::to_string(wanted) + " digits");
  }
  // What was lifted has nothing but digits.
  if (!digits.lifted && std::any_of(all.begin(), all.end(), [](char digit) { return hex_digit(digit) < 0; })) {
    refuse("legacy_array", "hex of " + name + " has a character that is no hex digit");
  }
  return digits;
}

std::string_view LegacyCheckpoint::digits_of(std::size_t array) const {
  const Digits& digits = arrays_[array];
  return digits.lifted ? lifted_[*digits.lifted] : std::string_view(digits.own);
}

void LegacyCheckpoint::read(std::size_t array, std::uint64_t first, std::span<std::byte> to) const {
  const std::string_view digits = digits_of(array).substr(static_cast<std::size_t>(2 * first), 2 * to.size());
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = static_cast<std::byte>(16 * hex_digit(digits[2 * i]) + hex_digit(digits[2 * i + 1]));
  }
  if (arrays_[array].lifted) file_.drop(std::as_bytes(std::span(digits)));
}

}  // namespace samba
