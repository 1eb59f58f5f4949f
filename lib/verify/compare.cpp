#include "samba/verify/compare.h"

#include <cstdio>
#include <cstdlib>

#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/numerics/float32.h"

namespace samba::verify {
namespace {

std::string coordinates(Index flat, const Shape& shape) {
  std::vector<Index> position(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    position[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return shape_text(position);
}

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

Difference float_difference(const std::string& name, ConstArray got, ConstArray want, Index first, Index different) {
  Difference found;
  const float a = got.floats()[first];
  const float b = want.floats()[first];
  found.name = name;
  found.index = first;
  found.got = static_cast<double>(a);
  found.want = static_cast<double>(b);
  found.got_bits = to_bits(a);
  found.want_bits = to_bits(b);
  found.ulp = std::abs(static_cast<std::int64_t>(order_key(a)) - static_cast<std::int64_t>(order_key(b)));
  found.different = different;
  found.of = got.size();
  found.detail = "at " + std::to_string(first) + " " + coordinates(first, got.shape) + ": got " + number(found.got) +
                 " (" + bits_text(a) + "), want " + number(found.want) + " (" + bits_text(b) + "), " +
                 std::to_string(found.ulp) + " ulp; " + std::to_string(different) + " of " + std::to_string(found.of) +
                 " values differ";
  return found;
}

std::int64_t integer_at(ConstArray array, Index i) {
  switch (array.dtype) {
    case DType::int64:
      return static_cast<const std::int64_t*>(array.data)[i];
    case DType::int32:
      return static_cast<const std::int32_t*>(array.data)[i];
    case DType::uint16:
      return static_cast<const std::uint16_t*>(array.data)[i];
    case DType::int8:
      return static_cast<const std::int8_t*>(array.data)[i];
    case DType::uint8:
      return static_cast<const std::uint8_t*>(array.data)[i];
    default:
      throw Error(ErrorKind::internal, "cases hold no arrays of " + std::string(dtype_name(array.dtype)));
  }
}

}  // namespace

std::string bits_text(float value) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%08x", to_bits(value));
  return text;
}

float float_from_bits_text(const std::string& text) {
  char* end = nullptr;
  const unsigned long bits = std::strtoul(text.c_str(), &end, 16);
  if (text.size() != 10 || end != text.c_str() + 10) refuse_corrupt("case", "not the bits of a float32: " + text);
  return from_bits(static_cast<std::uint32_t>(bits));
}

std::string sha256_of(ConstArray array) {
  return sha256_hex(array.data, static_cast<std::size_t>(array.size()) * dtype_size(array.dtype));
}

std::optional<Difference> first_difference(const std::string& name, ConstArray got, ConstArray want) {
  Difference found;
  found.name = name;
  if (got.dtype != want.dtype || got.shape != want.shape) {
    found.detail = "got " + std::string(dtype_name(got.dtype)) + " " + shape_text(got.shape) + ", want " +
                   std::string(dtype_name(want.dtype)) + " " + shape_text(want.shape);
    return found;
  }
  const Index size = got.size();
  Index first = -1;
  Index different = 0;
  for (Index i = 0; i < size; ++i) {
    bool equal = false;
    if (got.dtype == DType::float32) {
      const float a = got.floats()[i];
      const float b = want.floats()[i];
      equal = to_bits(a) == to_bits(b) || (is_nan(a) && is_nan(b));
    } else {
      equal = integer_at(got, i) == integer_at(want, i);
    }
    if (equal) continue;
    if (different++ == 0) first = i;
  }
  if (different == 0) return std::nullopt;
  if (got.dtype == DType::float32) return float_difference(name, got, want, first, different);
  found.index = first;
  found.got = static_cast<double>(integer_at(got, first));
  found.want = static_cast<double>(integer_at(want, first));
  found.different = different;
  found.of = size;
  found.detail = "at " + std::to_string(first) + " " + coordinates(first, got.shape) + ": got " +
                 std::to_string(integer_at(got, first)) + ", want " + std::to_string(integer_at(want, first)) + "; " +
                 std::to_string(different) + " of " + std::to_string(size) + " values differ";
  return found;
}

void Checker::add(Difference difference) { differences_.push_back(std::move(difference)); }

Checker::Checker(bool digests) {
  if (digests) digest_.emplace();
}

std::string Checker::digest() { return digest_ ? digest_->finish_hex() : ""; }

void Checker::add_to_digest(const std::string& name, ConstArray got) {
  digest_->update(name + " " + std::string(dtype_name(got.dtype)) + " " + shape_text(got.shape) + "\n");
  const auto count = static_cast<std::size_t>(got.size());
  if (got.dtype != DType::float32) return digest_->update(got.data, count * dtype_size(got.dtype));
  std::vector<float> values(got.floats(), got.floats() + count);
  for (float& value : values) value = is_nan(value) ? kQuietNan : value;
  digest_->update(values.data(), count * sizeof(float));
}

void Checker::array(const std::string& name, ConstArray got, ConstArray want) {
  ++compared_;
  if (digest_) add_to_digest(name, got);
  auto difference = first_difference(name, got, want);
  if (!difference) return;
  if (differences_.empty() && got.dtype == DType::float32 && difference->index) {
    const auto count = static_cast<std::size_t>(got.size());
    difference->got_values = std::make_shared<Array>(Array::from_floats(got.shape, {got.floats(), count}));
  }
  add(std::move(*difference));
}

void Checker::sha256(const std::string& name, ConstArray got, const std::string& want) {
  text(name + " (SHA-256)", sha256_of(std::move(got)), want);
}

void Checker::bits(const std::string& name, float got, const nlohmann::json& want) {
  if (want.is_null()) return;
  const float expected = float_from_bits_text(want.get<std::string>());
  array(name, {DType::float32, {1}, &got}, {DType::float32, {1}, &expected});
}

void Checker::text(const std::string& name, const std::string& got, const std::string& want) {
  if (digest_) digest_->update(name + " = " + got + "\n");
  holds(name, got == want, "got " + got + ", want " + want);
}

void Checker::integer(const std::string& name, std::int64_t got, std::int64_t want) {
  text(name, std::to_string(got), std::to_string(want));
}

void Checker::holds(const std::string& name, bool truth, const std::string& otherwise) {
  ++compared_;
  if (truth) return;
  Difference difference;
  difference.name = name;
  difference.detail = otherwise;
  add(std::move(difference));
}

}  // namespace samba::verify
