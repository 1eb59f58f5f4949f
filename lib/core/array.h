// Dense row-major arrays on the host: an owning one, and a view of one that somebody else owns.
// Names, shapes and dtypes are checked where arrays enter a floor; kernels below take plain pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace samba {

using Index = std::int64_t;
using Shape = std::vector<Index>;

enum class DType { float32, float64, float16, bfloat16, int8, int32, int64, uint8, uint16 };

std::size_t dtype_size(DType dtype);
std::string_view dtype_name(DType dtype);  // "float32", ...

// The number of elements. Throws Error(value) when the product does not fit.
Index element_count(const Shape& shape);

std::string shape_text(const Shape& shape);  // "(2, 3)", "(5,)", "()"

// A view; the owner must outlive it.
struct ConstArray {
  DType dtype = DType::float32;
  Shape shape;
  const void* data = nullptr;

  Index size() const { return element_count(shape); }
  const float* floats() const { return static_cast<const float*>(data); }
};

// An owning array. `bytes` holds size() * dtype_size(dtype) bytes.
class Array {
 public:
  Array() = default;
  Array(DType dtype, Shape shape);  // zeros
  static Array zeros(Shape shape) { return Array(DType::float32, std::move(shape)); }
  static Array from_floats(Shape shape, std::span<const float> values);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  Index size() const { return element_count(shape_); }
  std::size_t byte_size() const { return bytes_.size(); }

  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  template <class T>
  std::span<T> values() {
    return {reinterpret_cast<T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }
  template <class T>
  std::span<const T> values() const {
    return {reinterpret_cast<const T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }
  std::span<float> floats() { return values<float>(); }
  std::span<const float> floats() const { return values<float>(); }

  ConstArray view() const { return {dtype_, shape_, bytes_.data()}; }
  operator ConstArray() const { return view(); }  // NOLINT(google-explicit-constructor): a view is always safe to read

 private:
  DType dtype_ = DType::float32;
  Shape shape_;
  std::vector<std::byte> bytes_;
};

using ArrayMap = std::map<std::string, Array>;
using ConstArrayMap = std::map<std::string, ConstArray>;

}  // namespace samba
