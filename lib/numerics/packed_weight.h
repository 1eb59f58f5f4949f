// Weight matrices stored as bfloat16 or int8 (spec 50 part A) or as rows of blocks, and weights that may be stored so.
//
// A stored weight is expanded to float32 exactly; a model built from packed weights has the bits of the float32 model
// built from the expanded ones. Only matrices (rank 2) are packed; rows are the first axis, the output features.
// Rows of blocks are what GGUF files hold (block_weight.h): they are read where they lie, never copied on a host.
//
//   WeightMap small = pack(weights, WeightFormat::bfloat16);   // owns what it packed and copies of the others
//   BlockModule block(executor, "transformer", options, small);
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "samba/core/array.h"

namespace samba {

enum class WeightFormat { float32, bfloat16, int8, float16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k };

std::string_view weight_format_name(WeightFormat format);  // "float32", "bfloat16", "int8", "float16", "q4_1", ...
// Of a format that weights can be packed to. Error(value): "unknown format '<f>'; one of float32, bfloat16, int8".
WeightFormat parse_weight_format(const std::string& name);
std::size_t stored_bytes(WeightFormat format, Index rows, Index columns);

// A view of a packed matrix; the owner must outlive it. bfloat16: `bits` [rows, columns]. int8: `codes`
// [rows, columns] and `exponents` [rows]; row = codes * 2^exponent. The other formats, and bfloat16 with `blocks`: rows
// of blocks.
struct ConstPackedWeight {
  WeightFormat format = WeightFormat::bfloat16;
  Index rows = 0;
  Index columns = 0;
  const std::uint16_t* bits = nullptr;
  const std::int8_t* codes = nullptr;
  const std::int32_t* exponents = nullptr;

  const std::byte* blocks = nullptr;  // the first row of the file's matrix
  Index first_row = 0;                // row i of the view is row first_row + i of the matrix
  // 0, or the rows of a head whose halves are interleaved in the file, which is how the llama family stores q and k:
  // row s * (head / 2) + j of a head, s 0 or 1, lies at 2 * j + s.
  Index interleaved_head = 0;
  std::shared_ptr<const void> owner;  // of the blocks; null: the caller keeps them

  Shape shape() const { return {rows, columns}; }
  std::size_t row_bytes() const;                 // of rows of blocks
  const std::byte* block_row(Index row) const {  // where row `row` of the view lies
    Index at = first_row + row;
    if (interleaved_head != 0) {
      const Index in_head = at % interleaved_head, half = interleaved_head / 2;
      at += 2 * (in_head % half) + in_head / half - in_head;
    }
    return blocks + static_cast<std::size_t>(at) * row_bytes();
  }

  // Views of the arrays of a container. A wrong type is Error(type), a wrong shape Error(value): "bits must be a 2-D
  // uint16 array", "codes must be a 2-D int8 array", "exponents must be int32 of shape (rows,)".
  static ConstPackedWeight of_bits(const ConstArray& bits);
  static ConstPackedWeight of_codes(const ConstArray& codes, const ConstArray& exponents);
  // Rows of blocks. `columns` must be a multiple of the block's values (Error(value)).
  static ConstPackedWeight of_blocks(WeightFormat format, Index rows, Index columns, const std::byte* blocks,
                                     std::shared_ptr<const void> owner = nullptr);
};

// An owning packed matrix.
class PackedWeight {
 public:
  explicit PackedWeight(Array bits);
  PackedWeight(Array codes, Array exponents);
  // A copy; blocks with an owner are shared.
  explicit PackedWeight(const ConstPackedWeight& view);

  WeightFormat format() const { return format_; }
  Index rows() const { return has_rows_of_blocks() ? blocks_.rows : values_.shape()[0]; }
  Index columns() const { return has_rows_of_blocks() ? blocks_.columns : values_.shape()[1]; }
  Shape shape() const { return {rows(), columns()}; }
  std::size_t byte_size() const;

  const Array& bits() const { return values_; }          // of bfloat16
  const Array& codes() const { return values_; }         // of int8
  const Array& exponents() const { return exponents_; }  // of int8

  ConstPackedWeight view() const;
  operator ConstPackedWeight() const { return view(); }  // NOLINT(google-explicit-constructor)

 private:
  bool has_rows_of_blocks() const { return blocks_.blocks != nullptr; }

  WeightFormat format_;
  Array values_;
  Array exponents_;
  ConstPackedWeight blocks_;
};

// A weight as a block takes it: a float32 array, or a packed matrix. A view. (An array of another dtype can be held:
// the block refuses it by name.)
class ConstWeight {
 public:
  ConstWeight() = default;
  ConstWeight(ConstArray array) : array_(std::move(array)) {}          // NOLINT(google-explicit-constructor)
  ConstWeight(const Array& array) : array_(array.view()) {}            // NOLINT(google-explicit-constructor)
  ConstWeight(const ConstPackedWeight& packed) : packed_(packed) {}    // NOLINT(google-explicit-constructor)
  ConstWeight(const PackedWeight& packed) : packed_(packed.view()) {}  // NOLINT(google-explicit-constructor)

  bool is_packed() const { return packed_.has_value(); }
  WeightFormat format() const { return packed_ ? packed_->format : WeightFormat::float32; }
  Shape shape() const { return packed_ ? packed_->shape() : array_.shape; }
  Index size() const { return element_count(shape()); }
  const ConstArray& array() const;          // of a weight that is not packed
  const ConstPackedWeight& packed() const;  // of one that is

 private:
  ConstArray array_;
  std::optional<ConstPackedWeight> packed_;
};

// The owning counterpart.
class Weight {
 public:
  Weight() = default;
  Weight(Array array) : array_(std::move(array)) {}            // NOLINT(google-explicit-constructor)
  Weight(PackedWeight packed) : packed_(std::move(packed)) {}  // NOLINT(google-explicit-constructor)

  bool is_packed() const { return packed_.has_value(); }
  WeightFormat format() const { return view().format(); }
  Shape shape() const { return view().shape(); }
  const Array& array() const;
  const PackedWeight& packed() const;

  ConstWeight view() const { return packed_ ? ConstWeight(*packed_) : ConstWeight(array_); }
  operator ConstWeight() const { return view(); }  // NOLINT(google-explicit-constructor)

 private:
  Array array_;
  std::optional<PackedWeight> packed_;
};

using WeightMap = std::map<std::string, Weight>;

// Weights by public name. Any map of arrays or weights becomes one.
class ConstWeightMap : public std::map<std::string, ConstWeight> {
 public:
  using std::map<std::string, ConstWeight>::map;
  ConstWeightMap() = default;
  ConstWeightMap(const ConstArrayMap& arrays);  // NOLINT(google-explicit-constructor)
  ConstWeightMap(const ArrayMap& arrays);       // NOLINT(google-explicit-constructor)
  ConstWeightMap(const WeightMap& weights);     // NOLINT(google-explicit-constructor)
};

// The one packed format of a set, float32 when nothing is packed. Error(value) "weights mix formats" for two; rows of
// blocks may have several formats: it is the one of the most values.
WeightFormat weight_format(const ConstWeightMap& weights);

// One matrix in a format: packed, or float32 (a copy, expanded when it was packed). Refuses, by `name`: another rank
// ("must be 2-D to pack"), another dtype ("pack takes float32"), an empty matrix.
Weight pack_one(const ConstWeight& weight, WeightFormat format, const std::string& name = "weight");
// Every tensor of rank 2; the others are copied as they are.
WeightMap pack(const ConstWeightMap& weights, WeightFormat format);

// The float32 values.
void expand(const ConstPackedWeight& packed, std::span<float> values);
Array expand(const ConstWeight& weight);  // a copy when it is not packed
ArrayMap expand(const ConstWeightMap& weights);

// How files name the parts of a packed weight: `<name>.bits`, or `<name>.codes` and `<name>.exponents`, in place of
// `<name>`. Both directions give views. Reading refuses (Error(value), naming the weight) one of codes and exponents
// without the other, a name that is stored twice, and parts of the wrong type or shape.
ConstArrayMap stored_arrays(const ConstWeightMap& weights);
ConstWeightMap weights_of_stored(const ConstArrayMap& stored);

}  // namespace samba
