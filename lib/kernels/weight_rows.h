// A weight some rows at a time, so that a large one is neither expanded nor packed whole.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "samba/core/array.h"
#include "samba/numerics/packed_weight.h"

namespace samba {

// The float32 values, in order: of a matrix some rows at a time, of any other weight (they are small) all at once.
//
//   for (WeightRows rows(weight); !rows.done(); rows.next()) use(rows.first(), rows.values());
class WeightRows {
 public:
  explicit WeightRows(ConstWeight weight);
  bool done() const { return first_ >= size_; }
  void next();
  std::size_t first() const { return first_; }               // the place of the first of values()
  std::span<const float> values() const { return values_; }  // expanded
  Index first_row() const { return static_cast<Index>(first_ / columns_); }
  Index row_count() const { return static_cast<Index>(values_.size() / columns_); }

 private:
  void fill();

  ConstWeight weight_;
  std::size_t size_;
  std::size_t columns_ = 1;
  std::size_t step_ = 0;
  std::size_t first_ = 0;
  Array expanded_;
  std::span<const float> values_;
};

// A piece of a weight on its way into a format: rows [first_row, ..) of a matrix, or all of any other weight.
struct WeightPiece {
  Index first_row = 0;
  std::span<const float> values;  // as they were, expanded
  ConstWeight weight;             // in the format
};

// Hands on every piece in order. `format` is float32, bfloat16 or int8, and float32 for all but matrices; a weight that
// has it keeps its bits. Refusals of pack_one.
void convert_pieces(const ConstWeight& weight, WeightFormat format, const std::string& name,
                    const std::function<void(const WeightPiece&)>& visit);

}  // namespace samba
