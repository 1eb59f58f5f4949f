#include "samba/convert/tensor_files.h"

#include <array>
#include <set>
#include <utility>

#include "samba/convert/foreign_config.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/formats/safetensors.h"
#include "samba/formats/torch_file.h"

namespace samba {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// In the order in which they are looked for.
constexpr std::array kFiles = {"model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json",
                               "pytorch_model.bin"};

bool is_index(const std::string& name) { return name.ends_with(".index.json"); }

void add_file(const Path& folder, const std::string& name, TensorFiles& result) {
  const Path path = folder / name;
  const auto file = std::make_shared<const MappedFile>(path);
  const bool safetensors = name.ends_with(".safetensors");
  const ConstArrayMap tensors = safetensors ? index_safetensors(file->bytes(), path.string()).tensors
                                            : index_torch_file(file->bytes(), path.string());
  for (const auto& [tensor, view] : tensors) {
    const auto [place, added] = result.tensors.emplace(tensor, FileTensor{name, view, file});
    if (!added) {
      refuse_corrupt("index", path.string() + ": the tensor '" + tensor + "' is in " + place->second.file + " too");
    }
  }
  result.bytes += file->bytes().size();
}

// weight_map of an index: tensor -> file.
std::map<std::string, std::string> read_index(const Path& path, bool safetensors) {
  const std::string source = path.string();
  const json index = read_foreign_json(path);
  const auto found = index.is_object() ? index.find("weight_map") : index.end();
  if (found == index.end() || !found->is_object() || found->empty()) {
    refuse_corrupt("index", source + ": there is no weight_map");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : found->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    const bool plain = !name.empty() && name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos &&
                       name.ends_with(safetensors ? ".safetensors" : ".bin");
    if (!plain) {
      refuse_corrupt("index", source + ": the tensor '" + tensor + "' is in " + shown(file) +
                                  "; the name of a file of this folder is needed, one that ends with " +
                                  (safetensors ? ".safetensors" : ".bin"));
    }
    files.emplace(tensor, name);
  }
  return files;
}

TensorFiles open_indexed(const Path& folder, const Path& path) {
  const bool safetensors = path.filename() == kFiles[0];
  const auto listed = read_index(path, safetensors);
  std::set<std::string> names;
  for (const auto& [tensor, file] : listed) names.insert(file);
  TensorFiles result;
  for (const std::string& name : names) {
    std::error_code error;  // of a name that the system does not take
    if (!fs::exists(folder / name, error)) {
      refuse_corrupt("index", path.string() + " names the file " + name + ", which is not in the folder");
    }
    add_file(folder, name, result);
  }
  for (const auto& [tensor, file] : listed) {
    const auto found = result.tensors.find(tensor);
    if (found == result.tensors.end() || found->second.file != file) {
      refuse_corrupt("index", path.string() + ": the tensor '" + tensor + "' is not in " + file);
    }
  }
  for (const auto& [tensor, place] : result.tensors) {
    if (!listed.contains(tensor)) {
      refuse_corrupt("index", path.string() + " does not list the tensor '" + tensor + "' of " + place.file);
    }
  }
  result.bytes += fs::file_size(path);
  return result;
}

}  // namespace

bool has_tensor_files(const Path& folder) {
  for (const char* name : kFiles) {
    if (fs::exists(folder / name)) return true;
  }
  return false;
}

TensorFiles open_tensor_files(const Path& folder) {
  for (const char* name : kFiles) {
    if (!fs::exists(folder / name)) continue;
    if (is_index(name)) return open_indexed(folder, folder / name);
    TensorFiles result;
    add_file(folder, name, result);
    return result;
  }
  refuse_value(folder.string() + " has no model.safetensors");
}

}  // namespace samba
