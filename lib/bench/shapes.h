// What is measured: configs/bench/*.json, read by name and checked.
//
//   {"models": {"llama_28m": {"repeat": 8, "config": {"vocab": 4096, "d_model": 512, "layers": [{...}]}}},
//    "rows": [{"kind": "gemm", "layouts": ["nt"], "m": [1, 512], "n": [768], "k": [768]},
//             {"kind": "prefill", "model": "llama_28m", "length": 512, "quick": true}]}
//
// `repeat` repeats the layers that `config` lists. A model may be named by the rows of every file read with it.
// configs/bench/schema.json describes the fields.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "samba/bench/bench_case.h"
#include "samba/core/files.h"
#include "samba/core/json_fields.h"
#include "samba/model/stack_config.h"

namespace samba::bench {

using Models = std::map<std::string, StackConfig>;

// One row of a file, as the functions that make cases of it see it.
struct RowSource {
  std::string kind;
  const nlohmann::json& json;
  std::string pointer;  // "models.json: /rows/3"
  const Models& models;
  const std::vector<int>& threads;

  // The fields; keys that the row's kind does not know are refused.
  JsonFields fields() const;
  bool quick() const;
  // A list of positive integers.
  std::vector<Index> sizes(const std::string& name) const;
  // A list of some of `accepted`; absent: all of them.
  std::vector<std::string> choices(const std::string& name, const std::vector<std::string>& accepted) const;
  const StackConfig& model(const std::string& name = "model") const;
};

struct ShapesFile {
  std::string name;  // for messages
  std::string text;
};

// The files of the program itself: configs/bench as it was built.
std::vector<ShapesFile> built_in_shapes();
// FILE, or all of FOLDER/*.json but schema.json, in the order of their names.
std::vector<ShapesFile> read_shapes(const std::vector<Path>& paths);

// The kinds of rows, in the order in which they are described.
std::vector<std::string> row_kinds();
// The keys of a row of this kind, those of every row included.
std::vector<std::string> row_fields(const std::string& kind);

// The cases of all files. Refusals are Error(value) with the file and the JSON pointer.
std::vector<Case> cases_of(const std::vector<ShapesFile>& files, const std::vector<int>& threads);

// ---- one function a kind: appends the cases of a row ----
void add_gemm(const RowSource& row, std::vector<Case>& cases);      // gemm_cases.cpp
void add_packed(const RowSource& row, std::vector<Case>& cases);    // packed_cases.cpp
void add_fixed15(const RowSource& row, std::vector<Case>& cases);   // packed_cases.cpp
void add_prefill(const RowSource& row, std::vector<Case>& cases);   // model_cases.cpp
void add_decode(const RowSource& row, std::vector<Case>& cases);    // model_cases.cpp
void add_training(const RowSource& row, std::vector<Case>& cases);  // model_cases.cpp
void add_identity(const RowSource& row, std::vector<Case>& cases);  // model_cases.cpp
void add_block(const RowSource& row, std::vector<Case>& cases);     // block_cases.cpp
void add_growth(const RowSource& row, std::vector<Case>& cases);    // growth_cases.cpp
void add_start(const RowSource& row, std::vector<Case>& cases);     // process_cases.cpp
void add_memory(const RowSource& row, std::vector<Case>& cases);    // process_cases.cpp
void add_encode(const RowSource& row, std::vector<Case>& cases);    // text_cases.cpp

}  // namespace samba::bench
