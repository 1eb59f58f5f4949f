// Recorded cases, as the files of test/golden hold them: single cases and lists of cases ("samba.case/1",
// "samba.case_list/1"), hash suites ("samba.hashes/1") and lanes of published columns ("samba.columns/1").
//
// A file of tensors may be stored packed, NAME.safetensors as one zstd frame in NAME.safetensors.zst; it is named
// without that ending all the same.
//
// A file is checked when it is loaded: unknown schema, unknown kind and unknown keys are Error(corrupt, "case", ...),
// so that a typing error never becomes an untested case.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "samba/core/array.h"
#include "samba/numerics/packed_weight.h"

namespace samba::verify {

using nlohmann::json;

// The tensors a case may name: those of its own file, and of the carriers it names. Earlier ones win.
class TensorSet {
 public:
  void add(std::shared_ptr<const ArrayMap> tensors) { maps_.push_back(std::move(tensors)); }
  const Array* find(const std::string& name) const;
  // Throws Error(corrupt) when no file of the case holds it.
  const Array& at(const std::string& name) const;
  // All tensors with this prefix, by the name that follows it.
  ConstArrayMap with_prefix(const std::string& prefix) const;
  // The weights "w.<name>" by name, packed ones of their parts; "w.pair.*" is no weight.
  ConstWeightMap weights() const;

 private:
  std::vector<std::shared_ptr<const ArrayMap>> maps_;
};

struct Case {
  std::string id;    // "core/gemm_NN_k1"; of a column: "columns/LANE[FIXTURE].PART"
  std::string kind;  // of a block of a hash suite: "hash_block"; of a column: "columns"
  std::filesystem::path file;
  std::shared_ptr<const json> document;  // the whole file
  const json* body = nullptr;            // the case in it; of a column: the lane
  TensorSet tensors;
  std::size_t cell = 0;  // of a column: index into body->cells
  std::string part;

  std::filesystem::path folder() const { return file.parent_path(); }
};

class CaseLoader {
 public:
  // The cases of a file, or of all files below a folder in bytewise path order. Files without cases (carriers of
  // weights, indices, texts, checkpoints) give none. Throws Error(value) when `path` does not exist.
  std::vector<Case> load(const std::filesystem::path& path);

 private:
  std::vector<Case> load_file(const std::filesystem::path& given);
  void add_document(const std::filesystem::path& file, std::shared_ptr<const json> document, std::vector<Case>& cases);
  void add_lane(const std::filesystem::path& file, const std::shared_ptr<const json>& document,
                std::vector<Case>& cases);
  std::shared_ptr<const ArrayMap> carrier(const std::filesystem::path& file);

  std::map<std::filesystem::path, std::shared_ptr<const ArrayMap>> carriers_;
};

}  // namespace samba::verify
