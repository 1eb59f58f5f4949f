#include "samba/numerics/packed_weight.h"

#include <algorithm>
#include <array>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/numerics/block_weight.h"
#include "samba/numerics/low_bit.h"

namespace samba {

namespace {

constexpr std::array kFormats = {WeightFormat::float32, WeightFormat::bfloat16, WeightFormat::int8};

[[noreturn]] void refuse_part(const std::string& rule, const ConstArray& got, bool wrong_type) {
  const std::string message =
      rule + ", got " + std::string(dtype_name(got.dtype)) + " of shape " + shape_text(got.shape);
  if (wrong_type) refuse_type(message);
  refuse_value(message);
}

void check_matrix(const std::string& rule, DType dtype, const ConstArray& array) {
  if (array.dtype != dtype || array.shape.size() != 2) refuse_part(rule, array, array.dtype != dtype);
}

template <class T>
Array copy_array(DType dtype, Shape shape, const T* values) {
  Array copy(dtype, std::move(shape));
  std::copy_n(values, copy.size(), copy.values<T>().data());
  return copy;
}

Array copy_array(const ConstArray& array) {
  Array copy(array.dtype, array.shape);
  if (copy.byte_size() > 0) std::memcpy(copy.data(), array.data, copy.byte_size());
  return copy;
}

// The rows of the view in its order, in memory of their own.
ConstPackedWeight copy_blocks(const ConstPackedWeight& view) {
  const std::size_t bytes = view.row_bytes();
  const std::shared_ptr<std::byte[]> rows(new std::byte[static_cast<std::size_t>(view.rows) * bytes]);
  for (Index i = 0; i < view.rows; ++i) {
    std::memcpy(rows.get() + static_cast<std::size_t>(i) * bytes, view.block_row(i), bytes);
  }
  return ConstPackedWeight::of_blocks(view.format, view.rows, view.columns, rows.get(), rows);
}

PackedWeight pack_bfloat16(Index rows, Index columns, const float* values) {
  Array bits(DType::uint16, {rows, columns});
  std::transform(values, values + rows * columns, bits.values<std::uint16_t>().begin(),
                 [](float x) { return bfloat16_bits(x); });
  return PackedWeight(std::move(bits));
}

PackedWeight pack_int8(Index rows, Index columns, const float* values) {
  Array codes(DType::int8, {rows, columns});
  Array exponents(DType::int32, {rows});
  std::int8_t* code = codes.values<std::int8_t>().data();
  for (Index row = 0; row < rows; ++row, values += columns, code += columns) {
    std::uint32_t largest = 0;
    for (Index j = 0; j < columns; ++j) {
      if (!is_nan(values[j])) largest = std::max(largest, to_bits(flush(values[j])) & ~kSignBit);
    }
    const std::int32_t exponent = int8_exponent(largest);
    const float inverse = power_of_two(-exponent);
    for (Index j = 0; j < columns; ++j) code[j] = int8_code(values[j], inverse);
    exponents.values<std::int32_t>()[static_cast<std::size_t>(row)] = exponent;
  }
  return PackedWeight(std::move(codes), std::move(exponents));
}

bool take_suffix(const std::string& name, std::string_view suffix, std::string& base) {
  if (!name.ends_with(suffix) || name.size() == suffix.size()) return false;
  base = name.substr(0, name.size() - suffix.size());
  return true;
}

// What a part of the weight `name` is refused for, with its name.
template <class Make>
ConstPackedWeight named(const std::string& name, Make&& make) {
  try {
    return make();
  } catch (const Error& error) {
    throw Error(error.kind(), name + ": " + error.what());
  }
}

}  // namespace

std::string_view weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::float32:
      return "float32";
    case WeightFormat::bfloat16:
      return "bfloat16";
    case WeightFormat::int8:
      return "int8";
    case WeightFormat::float16:
      return "float16";
    case WeightFormat::q8_0:
      return "q8_0";
    case WeightFormat::q4_0:
      return "q4_0";
    case WeightFormat::q4_1:
      return "q4_1";
    case WeightFormat::q5_0:
      return "q5_0";
    case WeightFormat::q5_1:
      return "q5_1";
    case WeightFormat::q4_k:
      return "q4_k";
    case WeightFormat::q5_k:
      return "q5_k";
    case WeightFormat::q6_k:
      return "q6_k";
  }
  throw Error(ErrorKind::internal, "unknown weight format");
}

WeightFormat parse_weight_format(const std::string& name) {
  for (const WeightFormat format : kFormats) {
    if (name == weight_format_name(format)) return format;
  }
  refuse_value("unknown format '" + name + "'; one of float32, bfloat16, int8");
}

std::size_t stored_bytes(WeightFormat format, Index rows, Index columns) {
  const auto cells = static_cast<std::size_t>(rows * columns);
  switch (format) {
    case WeightFormat::float32:
      return cells * sizeof(float);
    case WeightFormat::bfloat16:
      return cells * sizeof(std::uint16_t);
    case WeightFormat::int8:
      return cells + static_cast<std::size_t>(rows) * sizeof(std::int32_t);
    default:
      return static_cast<std::size_t>(rows) * block_row_bytes(format, columns);
  }
}

std::size_t ConstPackedWeight::row_bytes() const { return block_row_bytes(format, columns); }

ConstPackedWeight ConstPackedWeight::of_bits(const ConstArray& bits) {
  check_matrix("bits must be a 2-D uint16 array", DType::uint16, bits);
  ConstPackedWeight view;
  view.format = WeightFormat::bfloat16;
  view.rows = bits.shape[0];
  view.columns = bits.shape[1];
  view.bits = static_cast<const std::uint16_t*>(bits.data);
  return view;
}

ConstPackedWeight ConstPackedWeight::of_codes(const ConstArray& codes, const ConstArray& exponents) {
  check_matrix("codes must be a 2-D int8 array", DType::int8, codes);
  if (exponents.dtype != DType::int32 || exponents.shape != Shape{codes.shape[0]}) {
    refuse_part("exponents must be int32 of shape (rows,)", exponents, exponents.dtype != DType::int32);
  }
  ConstPackedWeight view;
  view.format = WeightFormat::int8;
  view.rows = codes.shape[0];
  view.columns = codes.shape[1];
  view.codes = static_cast<const std::int8_t*>(codes.data);
  view.exponents = static_cast<const std::int32_t*>(exponents.data);
  return view;
}

ConstPackedWeight ConstPackedWeight::of_blocks(WeightFormat format, Index rows, Index columns, const std::byte* blocks,
                                               std::shared_ptr<const void> owner) {
  const Index values = block_layout(format).values;
  if (columns % values != 0) {
    refuse_value("a row of " + std::string(weight_format_name(format)) + " must be a multiple of " +
                 std::to_string(values) + " values, got " + std::to_string(columns));
  }
  ConstPackedWeight view;
  view.format = format;
  view.rows = rows;
  view.columns = columns;
  view.blocks = blocks;
  view.owner = std::move(owner);
  return view;
}

PackedWeight::PackedWeight(Array bits) : format_(WeightFormat::bfloat16), values_(std::move(bits)) { view(); }

PackedWeight::PackedWeight(Array codes, Array exponents)
    : format_(WeightFormat::int8), values_(std::move(codes)), exponents_(std::move(exponents)) {
  view();
}

PackedWeight::PackedWeight(const ConstPackedWeight& view) : format_(view.format) {
  if (view.blocks != nullptr) {
    blocks_ = view.owner != nullptr ? view : copy_blocks(view);
  } else if (format_ == WeightFormat::bfloat16) {
    values_ = copy_array(DType::uint16, view.shape(), view.bits);
  } else {
    values_ = copy_array(DType::int8, view.shape(), view.codes);
    exponents_ = copy_array(DType::int32, {view.rows}, view.exponents);
  }
}

std::size_t PackedWeight::byte_size() const {
  if (has_rows_of_blocks()) return static_cast<std::size_t>(blocks_.rows) * blocks_.row_bytes();
  return values_.byte_size() + exponents_.byte_size();
}

ConstPackedWeight PackedWeight::view() const {
  if (has_rows_of_blocks()) return blocks_;
  if (format_ == WeightFormat::bfloat16) return ConstPackedWeight::of_bits(values_);
  return ConstPackedWeight::of_codes(values_, exponents_);
}

const ConstArray& ConstWeight::array() const {
  if (packed_) throw Error(ErrorKind::internal, "the array of a packed weight");
  return array_;
}

const ConstPackedWeight& ConstWeight::packed() const {
  if (!packed_) throw Error(ErrorKind::internal, "the packed form of a weight that is not packed");
  return *packed_;
}

const Array& Weight::array() const {
  if (packed_) throw Error(ErrorKind::internal, "the array of a packed weight");
  return array_;
}

const PackedWeight& Weight::packed() const {
  if (!packed_) throw Error(ErrorKind::internal, "the packed form of a weight that is not packed");
  return *packed_;
}

ConstWeightMap::ConstWeightMap(const ConstArrayMap& arrays) : map(arrays.begin(), arrays.end()) {}
ConstWeightMap::ConstWeightMap(const ArrayMap& arrays) : map(arrays.begin(), arrays.end()) {}
ConstWeightMap::ConstWeightMap(const WeightMap& weights) : map(weights.begin(), weights.end()) {}

WeightFormat weight_format(const ConstWeightMap& weights) {
  const auto refuse_mixture = [](const std::string& first, WeightFormat found, const std::string& name,
                                 WeightFormat other) {
    refuse_value("weights mix formats: " + first + " is " + std::string(weight_format_name(found)) + ", " + name +
                 " is " + std::string(weight_format_name(other)) + "; a model uses one packed format");
  };
  WeightFormat found = WeightFormat::float32;
  std::string first;
  std::map<WeightFormat, Index> of_blocks;  // their values
  for (const auto& [name, weight] : weights) {
    if (!weight.is_packed()) continue;
    const bool blocks = weight.packed().blocks != nullptr;
    const bool same_kind = first.empty() || blocks == !of_blocks.empty();
    if (!same_kind || (!first.empty() && !blocks && weight.format() != found)) {
      refuse_mixture(first, found, name, weight.format());
    }
    if (blocks) of_blocks[weight.format()] += weight.size();
    if (!first.empty()) continue;
    found = weight.format();
    first = name;
  }
  if (of_blocks.empty()) return found;
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  return std::max_element(of_blocks.begin(), of_blocks.end(), fewer)->first;
}

Weight pack_one(const ConstWeight& weight, WeightFormat format, const std::string& name) {
  const FloatScope float_scope;
  if (weight.is_packed()) {
    if (weight.format() == format && weight.packed().blocks == nullptr) return PackedWeight(weight.packed());
    Array values = expand(weight.packed());
    if (format == WeightFormat::float32) return values;
    return pack_one(values, format, name);
  }
  const ConstArray& values = weight.array();
  if (values.dtype != DType::float32) {
    refuse_type(name + " has dtype " + std::string(dtype_name(values.dtype)) + "; pack takes float32");
  }
  if (values.shape.size() != 2) refuse_value(name + " must be 2-D to pack, got shape " + shape_text(values.shape));
  if (values.size() == 0) refuse_value(name + " must not be empty to pack, got shape " + shape_text(values.shape));
  switch (format) {
    case WeightFormat::float32:
      return copy_array(values);
    case WeightFormat::bfloat16:
      return pack_bfloat16(values.shape[0], values.shape[1], values.floats());
    case WeightFormat::int8:
      return pack_int8(values.shape[0], values.shape[1], values.floats());
    default:
      refuse_value("weights cannot be packed to " + std::string(weight_format_name(format)) +
                   "; one of float32, bfloat16, int8");
  }
}

WeightMap pack(const ConstWeightMap& weights, WeightFormat format) {
  WeightMap packed;
  for (const auto& [name, weight] : weights) {
    const bool matrix = weight.is_packed() || (weight.shape().size() == 2 && format != WeightFormat::float32);
    packed.emplace(name, matrix ? pack_one(weight, format, name) : Weight(copy_array(weight.array())));
  }
  return packed;
}

void expand(const ConstPackedWeight& packed, std::span<float> values) {
  const FloatScope float_scope;
  const Index cells = packed.rows * packed.columns;
  if (values.size() != static_cast<std::size_t>(cells))
    throw Error(ErrorKind::internal, "expand: a span of another size");
  if (packed.blocks != nullptr) {
    for (Index row = 0; row < packed.rows; ++row) {
      expand_block_row(packed.format, packed.block_row(row), packed.columns, values.data() + row * packed.columns);
    }
    return;
  }
  if (packed.format == WeightFormat::bfloat16) {
    std::transform(packed.bits, packed.bits + cells, values.begin(), expand_bfloat16);
    return;
  }
  for (Index row = 0; row < packed.rows; ++row) {
    const float scale = power_of_two(packed.exponents[row]);
    const std::int8_t* codes = packed.codes + row * packed.columns;
    std::transform(codes, codes + packed.columns, values.begin() + row * packed.columns,
                   [scale](std::int8_t code) { return expand_int8(code, scale); });
  }
}

Array expand(const ConstWeight& weight) {
  if (!weight.is_packed()) return copy_array(weight.array());
  Array values = Array::zeros(weight.shape());
  expand(weight.packed(), values.floats());
  return values;
}

ArrayMap expand(const ConstWeightMap& weights) {
  ArrayMap expanded;
  for (const auto& [name, weight] : weights) expanded.emplace(name, expand(weight));
  return expanded;
}

ConstArrayMap stored_arrays(const ConstWeightMap& weights) {
  ConstArrayMap stored;
  for (const auto& [name, weight] : weights) {
    if (!weight.is_packed()) {
      stored.emplace(name, weight.array());
      continue;
    }
    const ConstPackedWeight& packed = weight.packed();
    if (packed.blocks != nullptr) {
      throw Error(ErrorKind::internal, name + ": rows of blocks are not stored under names of their own");
    }
    if (packed.format == WeightFormat::bfloat16) {
      stored.emplace(name + ".bits", ConstArray{DType::uint16, packed.shape(), packed.bits});
    } else {
      stored.emplace(name + ".codes", ConstArray{DType::int8, packed.shape(), packed.codes});
      stored.emplace(name + ".exponents", ConstArray{DType::int32, {packed.rows}, packed.exponents});
    }
  }
  return stored;
}

ConstWeightMap weights_of_stored(const ConstArrayMap& stored) {
  ConstWeightMap weights;
  const auto add = [&](const std::string& name, const ConstWeight& weight) {
    if (!weights.emplace(name, weight).second) refuse_value(name + " is stored twice, in two formats");
  };
  std::string base;
  for (const auto& [name, array] : stored) {
    if (take_suffix(name, ".bits", base)) {
      add(base, named(base, [&a = array] { return ConstPackedWeight::of_bits(a); }));
    } else if (take_suffix(name, ".codes", base)) {
      const auto exponents = stored.find(base + ".exponents");
      if (exponents == stored.end()) refuse_value(base + " has codes but no exponents");
      add(base, named(base, [&a = array, &e = exponents->second] { return ConstPackedWeight::of_codes(a, e); }));
    } else if (take_suffix(name, ".exponents", base)) {
      if (!stored.contains(base + ".codes")) refuse_value(base + " has exponents but no codes");
    } else {
      add(name, array);
    }
  }
  return weights;
}

}  // namespace samba
