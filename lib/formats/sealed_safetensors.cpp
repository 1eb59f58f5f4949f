#include "samba/formats/sealed_safetensors.h"

#include <string_view>

#include "samba/core/error.h"
#include "samba/core/files.h"
#include "samba/core/mapped_file.h"
#include "samba/core/sha256.h"

namespace samba {

namespace {

// As the header spells the field. In a value of another field the quotes would be escaped.
constexpr std::string_view kField = R"("sha256":")";
constexpr std::size_t kDigits = 64;
const std::string kZeros(kDigits, '0');

}  // namespace

void write_sealed_safetensors(const std::filesystem::path& path, const std::string& format,
                              const ConstArrayMap& tensors, std::map<std::string, std::string> metadata) {
  metadata["format"] = format;
  metadata["sha256"] = kZeros;
  if (metadata.rbegin()->first != "sha256") {
    throw Error(ErrorKind::internal, "a metadata field behind sha256: " + metadata.rbegin()->first);
  }
  std::string header = safetensors_header(tensors, metadata);
  std::string length(8, '\0');
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  const auto each_tensor = [&](const auto& take) {
    for (const auto& [name, array] : tensors) {
      take(array.data, static_cast<std::size_t>(array.size()) * dtype_size(array.dtype));
    }
  };
  Sha256 hash;
  hash.update(length);
  hash.update(header);
  each_tensor([&](const void* data, std::size_t bytes) { hash.update(data, bytes); });
  header.replace(header.find(kField) + kField.size(), kDigits, hash.finish_hex());

  AtomicFile file(path);
  file.write(length);
  file.write(header);
  each_tensor([&](const void* data, std::size_t bytes) { file.write(data, bytes); });
  file.commit();
}

SafetensorsFile read_sealed_safetensors(const std::filesystem::path& path, const std::string& format) {
  const MappedFile mapped(path);
  SafetensorsFile file = parse_safetensors(mapped.bytes(), path.string());
  const auto named = file.metadata.find("format");
  if (named == file.metadata.end() || named->second != format) {
    refuse_corrupt("format", path.string() + " is no " + format + " file: " +
                                 (named == file.metadata.end() ? std::string("its metadata has no format")
                                                               : "its format is '" + named->second + "'"));
  }
  const std::string_view all(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
  const std::string given = file.metadata["sha256"];
  const std::size_t field = all.find(kField);
  if (given.size() != kDigits || field == std::string_view::npos ||
      all.substr(field + kField.size(), kDigits) != given) {
    refuse_corrupt("checksum", path.string() + " has no readable checksum");
  }
  Sha256 hash;
  hash.update(all.substr(0, field + kField.size()));
  hash.update(kZeros);
  hash.update(all.substr(field + kField.size() + kDigits));
  const std::string found = hash.finish_hex();
  if (found != given) {
    refuse_corrupt("checksum", path.string() + " is damaged: its SHA-256 is " + found + ", it says " + given);
  }
  file.metadata.erase("format");
  file.metadata.erase("sha256");
  return file;
}

}  // namespace samba
