#include "samba/formats/legacy_checkpoint.h"

#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/formats/canonical_json.h"

namespace samba {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kLegacySchema = "mojolearn.samba-stack-json-checkpoint.v1";

int hex_digit(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

}  // namespace

void LegacyCheckpoint::refuse(const std::string& error_class, const std::string& reason) const {
  refuse_corrupt(error_class, path_.string() + " is damaged or no Samba checkpoint (" + error_class + "): " + reason);
}

LegacyCheckpoint::LegacyCheckpoint(const Path& path) : path_(path) {
  Json file;
  {
    bytes_ = FileReader(path).size();
    if (bytes_ > kMostBytes) {
      refuse("format", "a JSON checkpoint has at most " + std::to_string(kMostBytes) + " bytes, this file has " +
                           std::to_string(bytes_));
    }
    const std::string text = read_file(path);
    try {
      file = parse_json(text);
    } catch (const Error& error) {
      refuse("format", std::string("neither the magic of a streamed archive nor a JSON checkpoint; ") + error.what());
    }
  }
  if (!file.is_object() || file.size() != 3 || !file.contains("schema") || !file.contains("payload") ||
      !file.contains("payload_sha256")) {
    refuse("legacy_schema", "the file must be an object with exactly the keys schema, payload and payload_sha256");
  }
  if (file["schema"] != kLegacySchema) {
    refuse("legacy_schema", "the schema must be \"" + std::string(kLegacySchema) + "\"");
  }
  payload_ = std::move(file["payload"]);
  if (file["payload_sha256"] != sha256_hex(canonical_json(payload_))) {
    refuse("legacy_integrity", "the SHA-256 of the payload differs");
  }
}

std::array<std::vector<std::byte>, kArchiveArrays> LegacyCheckpoint::take_arrays(
    const std::array<Index, kArchiveArrays>& counts) {
  std::array<std::vector<std::byte>, kArchiveArrays> arrays;
  for (std::size_t array = 0; array < kArchiveArrays; ++array) arrays[array] = take_array(array, counts[array]);
  return arrays;
}

std::vector<std::byte> LegacyCheckpoint::take_array(std::size_t array, Index count) {
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
  const Json& digits = entry["hex"];
  const std::size_t bytes = 4 * static_cast<std::size_t>(count);
  if (!digits.is_string() || digits.get_ref<const std::string&>().size() != 2 * bytes) {
    refuse("legacy_array", "hex of " + name + " must have " + std::to_string(2 * bytes) + " digits");
  }
  const auto& text = digits.get_ref<const std::string&>();
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    const int high = hex_digit(text[2 * i]);
    const int low = hex_digit(text[2 * i + 1]);
    if (high < 0 || low < 0) refuse("legacy_array", "hex of " + name + " has a character that is no hex digit");
    data[i] = static_cast<std::byte>(16 * high + low);
  }
  return data;
}

}  // namespace samba
