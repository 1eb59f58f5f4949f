// Compares what two programs, machines or runs left behind: two models, two metrics files, two run folders. Tells at
// which step and in which tensor they part.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/files.h"

namespace samba::verify {

struct FileComparison {
  std::string what;                // "models", "metrics", "runs"
  std::vector<std::string> lines;  // what was compared, and every kind of difference, the earliest first
  std::string first;               // where they part; empty when they are equal
  Index compared = 0;              // tensors, or numbers of metrics
  Index different = 0;
  std::size_t shown = 0;  // differences of its own among the lines

  bool equal() const { return first.empty(); }
  void differ(const std::string& line);
  void add(const FileComparison& part);
};

// Models in any of their forms, .jsonl files, run folders; both of one kind (Error(value)).
FileComparison compare_paths(const Path& a, const Path& b);

// Memory holds one tensor of each, those of mapped files in pages that are given back.
FileComparison compare_models(const Path& a, const Path& b);
FileComparison compare_metrics(const Path& a, const Path& b);
FileComparison compare_runs(const Path& a, const Path& b);

// The fields of a metrics line that say what a step computed, the most telling first; times are left out.
std::vector<std::string> computed_fields(const nlohmann::json& line);

nlohmann::json comparison_json(const FileComparison& comparison);

}  // namespace samba::verify
