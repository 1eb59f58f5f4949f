#include "samba/formats/file_hashes.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/core/mapped_file.h"
#include "samba/core/sha256.h"
#include "samba/formats/gguf_file.h"
#include "samba/formats/safetensors.h"
#include "samba/formats/torch_file.h"

namespace samba {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Bytes = std::span<const std::byte>;

constexpr const char* kFormat = "samba.hashes.v1";
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 26;

bool is_weights(const std::string& name) {
  return name.ends_with(".safetensors") || name.ends_with(".bin") || name.ends_with(".gguf");
}

bool is_listed(const std::string& name) {
  if (name == kHashesFile || name.starts_with('.')) return false;
  return is_weights(name) || name.ends_with(".json") || name.ends_with(".model") || name.ends_with(".txt") ||
         name.ends_with(".jinja");
}

// The digests of one file: of each tensor, and of the bytes that are in none.
struct FileHashes {
  std::uint64_t bytes = 0;
  std::string rest;
  std::map<std::string, std::string> tensors;
};

std::map<std::string, Bytes> tensors_of(const Path& path, Bytes bytes) {
  std::map<std::string, Bytes> tensors;
  const std::string name = path.filename().string();
  if (name.ends_with(".gguf")) {
    const GgufHeader header = parse_gguf(bytes, path.string());
    for (std::size_t i = 0; i < header.tensors.size(); ++i) {
      tensors.emplace(header.tensors[i].name, bytes.subspan(header.offsets[i], header.byte_counts[i]));
    }
    return tensors;
  }
  const ConstArrayMap views = name.ends_with(".safetensors") ? index_safetensors(bytes, path.string()).tensors
                                                             : index_torch_file(bytes, path.string());
  for (const auto& [tensor, view] : views) {
    tensors.emplace(tensor, Bytes(static_cast<const std::byte*>(view.data),
                                  static_cast<std::size_t>(view.size()) * dtype_size(view.dtype)));
  }
  return tensors;
}

std::string digest_of(const MappedFile& file, Bytes bytes) {
  const std::string digest = sha256_hex(bytes.data(), bytes.size());
  file.drop(bytes);
  return digest;
}

FileHashes hashes_of(const Path& path) {
  const MappedFile file(path);
  FileHashes hashes;
  hashes.bytes = file.bytes().size();
  std::map<std::string, Bytes> tensors;
  if (is_weights(path.filename().string())) tensors = tensors_of(path, file.bytes());
  std::vector<Bytes> covered;
  for (const auto& [name, bytes] : tensors) {
    hashes.tensors.emplace(name, digest_of(file, bytes));
    if (!bytes.empty()) covered.push_back(bytes);
  }
  std::sort(covered.begin(), covered.end(), [](Bytes a, Bytes b) { return a.data() < b.data(); });
  Sha256 rest;
  const std::byte* at = file.bytes().data();
  for (const Bytes part : covered) {  // those of a PyTorch file may overlap
    if (part.data() > at) rest.update(at, static_cast<std::size_t>(part.data() - at));
    at = std::max(at, part.data() + part.size());
  }
  const std::byte* const end = file.bytes().data() + file.bytes().size();
  if (end > at) rest.update(at, static_cast<std::size_t>(end - at));
  hashes.rest = rest.finish_hex();
  return hashes;
}

// The files that digests speak of: of a folder those that lie in it, of a file that alone.
std::vector<std::string> files_of(const Path& model) {
  if (!fs::is_directory(model)) return {model.filename().string()};
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(model)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && is_listed(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Path folder_of(const Path& model) { return fs::is_directory(model) ? model : model.parent_path(); }

[[noreturn]] void refuse(const Path& model, const Path& hashes, const std::string& what) {
  refuse_corrupt("hashes", what + "; " + hashes.string() +
                               " says otherwise. If the change was meant: samba verify --model " + model.string() +
                               " --write-hashes");
}

void compare(const Path& model, const Path& hashes, const Path& file, const FileHashes& found,
             const FileHashes& wanted) {
  const auto fail = [&](const std::string& what) { refuse(model, hashes, file.string() + ": " + what); };
  std::size_t damaged = 0;
  std::string first;
  for (const auto& [name, digest] : wanted.tensors) {
    const auto here = found.tensors.find(name);
    if (here == found.tensors.end()) fail("the tensor " + name + " is missing");
    if (here->second == digest) continue;
    if (++damaged == 1) first = name;
  }
  if (damaged > 0) {
    fail("the tensor " + first + " is damaged: its SHA-256 is " + found.tensors.at(first) +
         (damaged > 1 ? " (and " + std::to_string(damaged - 1) + " tensors more)" : ""));
  }
  for (const auto& [name, digest] : found.tensors) {
    if (!wanted.tensors.contains(name)) fail("the tensor " + name + " was not there");
  }
  if (found.bytes != wanted.bytes)
    fail("it has " + std::to_string(found.bytes) + " bytes, not " + std::to_string(wanted.bytes));
  if (found.rest != wanted.rest) {
    fail(wanted.tensors.empty() ? "its SHA-256 is " + found.rest
                                : "the SHA-256 of what is no tensor (its header) is " + found.rest);
  }
}

FileHashes from_json(const json& value, const std::string& pointer) {
  const JsonFields fields(value, pointer, {"bytes", "sha256", "tensors"});
  FileHashes hashes;
  fields.required("bytes");
  hashes.bytes = fields.unsigned_integer("bytes", 0);
  fields.required("sha256");
  hashes.rest = fields.text("sha256", "");
  if (!fields.has("tensors")) return hashes;
  const json& tensors = fields.get("tensors");
  if (!tensors.is_object()) fields.refuse("tensors", "an object of names and digests");
  for (const auto& [name, digest] : tensors.items()) {
    if (!digest.is_string()) fields.refuse("tensors", "an object of names and digests");
    hashes.tensors.emplace(name, digest.get<std::string>());
  }
  return hashes;
}

std::map<std::string, FileHashes> read_hashes(const Path& path) {
  std::map<std::string, FileHashes> files;
  try {
    const json document = parse_json(read_file(path, kMostBytes), path.string());
    const JsonFields fields(document, path.string(), {"format", "files"});
    fields.required("format");
    fields.choice("format", "", {kFormat});
    const json& listed = fields.required("files");
    if (!listed.is_object()) fields.refuse("files", "an object of file names");
    for (const auto& [name, value] : listed.items()) {
      if (name.empty() || name == "." || name == ".." ||
          name.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
        fields.refuse("files", "names of files in the same folder");
      }
      files.emplace(name, from_json(value, fields.pointer_to("files") + "/" + name));
    }
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::resource) throw;
    refuse_corrupt("hashes", error.what());
  }
  return files;
}

}  // namespace

Path hashes_path(const Path& model) {
  if (fs::is_directory(model)) return model / kHashesFile;
  Path path = model;
  path += std::string(".") + kHashesFile;
  return path;
}

Path write_hashes(const Path& model) {
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const std::string& name : files_of(model)) {
    const FileHashes hashes = hashes_of(folder_of(model) / name);
    files[name] = {{"bytes", hashes.bytes}, {"sha256", hashes.rest}};
    if (!hashes.tensors.empty()) files[name]["tensors"] = hashes.tensors;
  }
  const Path path = hashes_path(model);
  write_file_atomically(path, nlohmann::ordered_json{{"format", kFormat}, {"files", files}}.dump(1) + "\n");
  return path;
}

HashesChecked check_hashes(const Path& model, HashedFiles which) {
  HashesChecked checked;
  const Path path = hashes_path(model);
  if (!fs::exists(path)) return checked;
  checked.present = true;
  const std::map<std::string, FileHashes> wanted = read_hashes(path);
  const auto counts = [&](const std::string& name) { return which == HashedFiles::all || is_weights(name); };
  for (const auto& [name, hashes] : wanted) {
    if (!counts(name)) continue;
    const Path file = folder_of(model) / name;
    std::error_code error;  // of a name that the system does not take
    if (!fs::exists(file, error)) refuse(model, path, file.string() + " is missing");
    compare(model, path, file, hashes_of(file), hashes);
    ++checked.files;
    checked.tensors += hashes.tensors.size();
    checked.bytes += hashes.bytes;
  }
  for (const std::string& name : files_of(model)) {
    if (counts(name) && !wanted.contains(name))
      refuse(model, path, (folder_of(model) / name).string() + " was not there");
  }
  return checked;
}

}  // namespace samba
