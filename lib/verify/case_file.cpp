#include "samba/verify/case_file.h"

#include <algorithm>
#include <span>

#include "samba/core/error.h"
#include "samba/core/files.h"
#include "samba/core/json_limits.h"
#include "samba/formats/safetensors.h"
#include "samba/formats/zstd_frame.h"
#include "samba/verify/schema.h"

namespace samba::verify {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& file, const std::string& what) {
  refuse_corrupt("case", file.string() + ": " + what);
}

json parse(const fs::path& file, std::string_view text) {
  std::string fault;
  json value = parse_bounded(text, fault);
  if (value.is_discarded()) refuse(file, fault);
  return value;
}

// A file of tensors may be stored packed: NAME.safetensors as one zstd frame in NAME.safetensors.zst.
fs::path packed_name(const fs::path& file) { return file.string() + ".zst"; }
bool is_packed(const fs::path& file) { return file.extension() == ".zst" && file.stem().extension() == ".safetensors"; }

SafetensorsFile read_tensors(const fs::path& file) {
  const fs::path packed = packed_name(file);
  if (fs::exists(file) || !fs::exists(packed)) return read_safetensors(file);
  const std::string frame = read_file(packed);
  std::vector<std::byte> content;
  try {
    content = zstd_content(std::as_bytes(std::span(frame)));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::value) throw;
    refuse(packed, error.what());
  }
  return parse_safetensors(content, packed);
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string extension = entry.path().extension();
    const bool read = extension == ".json" || extension == ".safetensors" || is_packed(entry.path());
    if (entry.is_regular_file() && read) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Schemas of files that belong to a set of cases and hold none.
bool is_index(const std::string& schema) { return schema == "samba.case_index/1" || schema == "samba.columns_index/1"; }

}  // namespace

const Array* TensorSet::find(const std::string& name) const {
  for (const auto& map : maps_) {
    if (const auto found = map->find(name); found != map->end()) return &found->second;
  }
  return nullptr;
}

const Array& TensorSet::at(const std::string& name) const {
  const Array* array = find(name);
  if (array == nullptr) refuse_corrupt("case", "the case names the tensor '" + name + "', which no file of it holds");
  return *array;
}

ConstArrayMap TensorSet::with_prefix(const std::string& prefix) const {
  ConstArrayMap found;
  for (const auto& map : maps_) {
    for (auto entry = map->lower_bound(prefix); entry != map->end() && entry->first.starts_with(prefix); ++entry) {
      found.emplace(entry->first.substr(prefix.size()), entry->second.view());
    }
  }
  return found;
}

ConstWeightMap TensorSet::weights() const {
  ConstArrayMap stored = with_prefix("w.");
  std::erase_if(stored, [](const auto& entry) { return entry.first.starts_with("pair."); });
  return weights_of_stored(stored);
}

std::vector<Case> CaseLoader::load(const fs::path& path) {
  if (!fs::exists(path) && !fs::exists(packed_name(path)))
    refuse_value("no such file or folder of cases: " + path.string());
  if (!fs::is_directory(path)) return load_file(path);
  std::vector<Case> cases;
  for (const fs::path& file : files_below(path)) {
    for (Case& one : load_file(file)) cases.push_back(std::move(one));
  }
  return cases;
}

std::vector<Case> CaseLoader::load_file(const fs::path& given) try {
  const fs::path file = is_packed(given) ? given.parent_path() / given.stem() : given;
  std::vector<Case> cases;
  if (file.extension() == ".safetensors") {
    SafetensorsFile content = read_tensors(file);
    const auto text = content.metadata.find("case");
    if (text == content.metadata.end() || content.metadata.size() != 1) {
      refuse(file, "the metadata of a case file has exactly one key, 'case'");
    }
    auto document = std::make_shared<const json>(parse(file, text->second));
    auto tensors = std::make_shared<const ArrayMap>(std::move(content.tensors));
    carriers_[file] = tensors;
    add_document(file, document, cases);
    for (Case& one : cases) one.tensors.add(tensors);
  } else {
    add_document(file, std::make_shared<const json>(parse(file, read_file(file))), cases);
  }
  return cases;
} catch (const json::exception& error) {
  refuse(given, std::string("a value of the wrong type: ") + error.what());
}

std::shared_ptr<const ArrayMap> CaseLoader::carrier(const fs::path& file) {
  auto& tensors = carriers_[file];
  if (!tensors) tensors = std::make_shared<const ArrayMap>(read_tensors(file).tensors);
  return tensors;
}

void CaseLoader::add_document(const fs::path& file, std::shared_ptr<const json> document, std::vector<Case>& cases) {
  if (!document->is_object() || !document->contains("schema") || !(*document)["schema"].is_string()) {
    // init.json and the like carry the schema; anything else in a folder of cases is refused rather than passed over.
    refuse(file, "no 'schema': not a file of cases");
  }
  const std::string schema = (*document)["schema"];
  if (is_index(schema)) return;
  if (schema == "samba.columns/1") {
    if (document->value("kind", "") != "weights") return add_lane(file, document, cases);
    return check_keys(*document, "schema id kind reference note needs", file.string());
  }

  const bool list = schema == "samba.case_list/1";
  const bool hashes = schema == "samba.hashes/1";
  if (!list && !hashes && schema != "samba.case/1") {
    refuse(file, "unknown schema '" + schema +
                     "'; known are samba.case/1, samba.case_list/1, samba.hashes/1 and samba.columns/1");
  }
  if (list) check_keys(*document, "schema id reference note cases", file.string());
  if (hashes) check_keys(*document, "schema suite reference cases", file.string());

  const auto add = [&](const json& body) {
    Case one;
    one.file = file;
    one.document = document;
    one.body = &body;
    one.kind = hashes ? check_hash_case(body, file.string()) : check_case(body, file.string());
    if (one.kind == "weights") return;
    one.id = body.at("id");
    if (body.contains("tensors")) one.tensors.add(carrier(file.parent_path() / body["tensors"].get<std::string>()));
    cases.push_back(std::move(one));
  };
  if (!list && !hashes) return add(*document);
  for (const json& body : (*document)["cases"]) add(body);
}

void CaseLoader::add_lane(const fs::path& file, const std::shared_ptr<const json>& document, std::vector<Case>& cases) {
  const json& lane = *document;
  check_lane(lane, file.string());
  for (std::size_t cell = 0; cell < lane["cells"].size(); ++cell) {
    TensorSet tensors;
    for (const json& list : {lane["tensors"], lane["cells"][cell]["tensors"]}) {
      for (const json& name : list) tensors.add(carrier(file.parent_path() / name.get<std::string>()));
    }
    for (const auto& [part, expected] : lane["cells"][cell]["parts"].items()) {
      Case one;
      one.id = lane["id"].get<std::string>() + "[" + lane["cells"][cell]["fixture"].get<std::string>() + "]." + part;
      one.kind = "columns";
      one.file = file;
      one.document = document;
      one.body = &lane;
      one.tensors = tensors;
      one.cell = cell;
      one.part = part;
      cases.push_back(std::move(one));
    }
  }
}

}  // namespace samba::verify
