#include "fuzz/repair.h"

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>

#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/formats/canonical_json.h"

namespace samba::fuzz {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kDigits = 64;
const std::string kZeros(kDigits, '0');

// The value of a key of an object, or null.
Json value_of(const Json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto found = object.find(key);
  return found == object.end() ? Json() : *found;
}

// Puts the digest of the next array's bytes where the header text has the old one.
void repair_entry(const Json& entry, std::string_view data, std::uint64_t& offset, std::string& header) {
  const bool packed = value_of(entry, "codec") == "zstd";
  Json count = value_of(entry, "stored_bytes");
  if (count.is_null()) count = value_of(entry, "nbytes");
  const Json old = value_of(entry, packed ? "stored_sha256" : "sha256");
  if (!count.is_number_unsigned() || !old.is_string() || old.get_ref<const std::string&>().size() != kDigits) return;
  const auto bytes = count.get<std::uint64_t>();
  if (offset > data.size() || bytes > data.size() - offset) return;
  const std::size_t at = header.find(old.get_ref<const std::string&>());
  if (at == std::string::npos) return;
  header.replace(at, kDigits, sha256_hex(data.substr(offset, bytes)));
  offset += bytes;
}

}  // namespace

std::optional<std::string> repaired_frame(std::string file, std::string_view magic) {
  std::uint64_t length = 0;
  const std::size_t start = magic.size() + sizeof length;
  if (file.size() < start || !file.starts_with(magic)) return std::nullopt;
  std::memcpy(&length, file.data() + magic.size(), sizeof length);
  if (length > file.size() - start || file.size() - start - length < sizeof(Sha256Digest)) return std::nullopt;
  std::string header = file.substr(start, length);
  const Json json = Json::parse(header, nullptr, false);
  const std::string_view data = std::string_view(file).substr(start + length + sizeof(Sha256Digest));
  std::uint64_t offset = 0;
  for (const char* list : {"arrays", "parameters", "moments"}) {
    for (const Json& entry : value_of(json, list)) repair_entry(entry, data, offset, header);
  }
  Sha256 hash;
  hash.update(header);
  const Sha256Digest digest = hash.finish();
  file.replace(start, length, header);
  std::memcpy(file.data() + start + length, digest.data(), digest.size());
  return file;
}

std::optional<std::string> repaired_seal(std::string file) {
  constexpr std::string_view kField = R"("sha256":")";
  const std::size_t field = file.find(kField);
  if (field == std::string::npos || file.size() - field - kField.size() < kDigits) return std::nullopt;
  file.replace(field + kField.size(), kDigits, kZeros);
  file.replace(field + kField.size(), kDigits, sha256_hex(file));
  return file;
}

std::optional<std::string> repaired_payload(std::string_view file, bool short_escapes) {
  try {
    Json json = parse_json(file, {.lone_surrogates = short_escapes});
    if (!json.is_object() || !json.contains("payload")) return std::nullopt;
    const ControlEscapes escapes = short_escapes ? ControlEscapes::short_forms : ControlEscapes::hexadecimal;
    json["payload_sha256"] = sha256_hex(canonical_json(json["payload"], escapes));
    return canonical_json(json, escapes) + "\n";
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace samba::fuzz
