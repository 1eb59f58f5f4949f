#include "fuzz/repair.h"

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>

#include "samba/core/error.h"
#include "samba/core/json_limits.h"
#include "samba/core/sha256.h"
#include "samba/formats/canonical_json.h"
#include "samba/formats/token_shards.h"

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

std::optional<std::string> repaired_shard_index(std::string_view index, std::string_view file,
                                                std::string_view content) {
  if (!parse_bounded(index).is_object()) return std::nullopt;
  auto fields = nlohmann::ordered_json::parse(index);
  fields.erase("sha256");
  // "train-00001.tokens"
  const std::size_t dash = file.find('-'), point = file.find('.');
  if (file != kShardsIndex && dash != std::string_view::npos && point != std::string_view::npos) {
    const std::string set(file.substr(0, dash)), extension(file.substr(point + 1));
    const std::size_t number = std::stoul(std::string(file.substr(dash + 1, point - dash - 1)));
    fields.at("sets").at(set).at("shards").at(number).at("sha256").at(extension) = sha256_hex(content);
  }
  return sealed_index(std::move(fields));
}

std::optional<std::string> repaired_progress(std::string_view progress, std::string_view settings_of) {
  Json fields = parse_bounded(progress);
  if (!fields.is_object()) return std::nullopt;
  fields["settings"] = Json::parse(settings_of)["settings"];
  return fields.dump();
}

}  // namespace samba::fuzz
