#include "samba/kernels/weight_rows.h"

#include <algorithm>
#include <utility>

#include "samba/kernels/weight.h"

namespace samba {

namespace {

constexpr std::size_t kValues = std::size_t{1} << 18;  // of a piece

}  // namespace

WeightRows::WeightRows(ConstWeight weight)
    : weight_(std::move(weight)), size_(static_cast<std::size_t>(weight_.size())), step_(size_) {
  const Shape shape = weight_.shape();
  columns_ = std::max<std::size_t>(1, shape.size() == 2 ? static_cast<std::size_t>(shape[1]) : size_);
  if (shape.size() == 2) step_ = columns_ * std::max<std::size_t>(1, kValues / columns_);
  if (!done()) fill();
}

void WeightRows::next() {
  first_ += step_;
  if (!done()) fill();
}

void WeightRows::fill() {
  const std::size_t count = std::min(step_, size_ - first_);
  if (!weight_.is_packed()) {
    values_ = {weight_.array().floats() + first_, count};
    return;
  }
  if (expanded_.size() < static_cast<Index>(count)) expanded_ = Array::zeros({static_cast<Index>(count)});
  const auto row = static_cast<Index>(first_ / columns_);
  expand(packed_rows(weight_.packed(), row, row + static_cast<Index>(count / columns_)),
         expanded_.floats().first(count));
  values_ = expanded_.floats().first(count);
}

void convert_pieces(const ConstWeight& weight, WeightFormat format, const std::string& name,
                    const std::function<void(const WeightPiece&)>& visit) {
  const Shape shape = weight.shape();
  const bool kept = weight.format() == format && !(weight.is_packed() && weight.packed().blocks != nullptr);
  for (WeightRows rows(weight); !rows.done(); rows.next()) {
    const Index first = shape.size() == 2 ? rows.first_row() : 0;
    const Shape piece = shape.size() == 2 ? Shape{rows.row_count(), shape[1]} : shape;
    const ConstArray values{DType::float32, piece, rows.values().data()};
    if (format == WeightFormat::float32) {
      visit({first, rows.values(), values});
    } else if (kept) {
      visit({first, rows.values(), packed_rows(weight.packed(), first, first + piece[0])});
    } else {
      const Weight packed = pack_one(values, format, name);
      visit({first, rows.values(), packed.view()});
    }
  }
}

}  // namespace samba
