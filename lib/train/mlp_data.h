// Rows of eight features, with or without a class, from CSV files: what the small MLP learns from and predicts.
//
// One row a line, fields separated by commas, blanks around them ignored: eight finite decimal numbers, each read as
// the nearest float32, then the class 0, 1 or 2. Empty lines are skipped; lines end with LF or CRLF. The first line of
// a file is a header when none of its fields is a number.
#pragma once

#include <string>
#include <vector>

#include "samba/blocks/mlp/small_mlp.h"
#include "samba/core/files.h"

namespace samba {

struct MlpRows {
  std::vector<float> features;        // [rows, 8]
  std::vector<std::int32_t> classes;  // [rows]; empty when the rows have none
  std::string sha256;                 // of the files' bytes, joined
  std::size_t files = 0;

  Index rows() const { return static_cast<Index>(features.size()) / kMlpFeatures; }
  bool has_classes() const { return !classes.empty(); }
  // The rows named as arrays: features (n, 8), classes int32 (n,).
  Array features_of(std::span<const std::uint64_t> rows) const;
  Array classes_of(std::span<const std::uint64_t> rows) const;
};

enum class ClassColumn { required, optional };

// All rows of the files in the order given; all of them have a class or none has. Error(value) names every line that is
// wrong (the first ten, and how many there are), what it holds and what is accepted; a file without a row is refused.
MlpRows read_mlp_rows(const std::vector<std::string>& paths, ClassColumn column);
// The same from one text in memory; `source` names it in messages.
MlpRows parse_mlp_rows(const std::string& text, const std::string& source, ClassColumn column);

}  // namespace samba
