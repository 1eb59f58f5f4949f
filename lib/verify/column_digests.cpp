// The published digests: 16 hex digits of a SHA-256 or an FNV-1a over a recipe of arrays
// (test/golden/columns/README.md section 4).
#include <limits>

#include "samba/core/sha256.h"
#include "samba/verify/column_lane.h"
#include "samba/verify/hash_results.h"
#include "samba/verify/schema.h"
#include "samba/verify/slices.h"

namespace samba::verify {
namespace {

Array converted(const Array& array, const std::string& dtype) {
  if (dtype_name(array.dtype()) == dtype) return copy_of(array);
  if (array.dtype() != DType::float32 || dtype != "float64") {
    refuse_corrupt("case", "a digest converts " + std::string(dtype_name(array.dtype())) + " to " + dtype);
  }
  Array wide(DType::float64, array.shape());
  std::copy(array.floats().begin(), array.floats().end(), wide.values<double>().begin());
  return wide;
}

Array constant(const json& values, const std::string& dtype) {
  const Shape shape = {static_cast<Index>(values.size())};
  if (dtype == "float64") {
    Array array(DType::float64, shape);
    for (std::size_t i = 0; i < values.size(); ++i) array.values<double>()[i] = number_of(values[i]);
    return array;
  }
  Array array(dtype == "int32" ? DType::int32 : DType::int64, shape);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == "int32") {
      array.values<std::int32_t>()[i] = values[i].get<std::int32_t>();
    } else {
      array.values<std::int64_t>()[i] = values[i].get<std::int64_t>();
    }
  }
  return array;
}

// An array of a recipe: a result's name, or {"array"}, {"concat"}, {"const"}, {"fill"}.
Array array_of(Lane& lane, const json& recipe) {
  if (recipe.is_string()) return copy_of(lane.value(recipe));
  check_keys(recipe, "array? concat? const? fill? positions? dtype? shape?", "digest");
  Array array;
  if (recipe.contains("const")) return constant(recipe["const"], recipe.at("dtype"));
  if (recipe.contains("fill")) return filled(recipe);
  if (recipe.contains("concat")) {
    std::vector<Array> parts;
    for (const json& name : recipe["concat"]) {
      const Array& part = lane.value(name);
      parts.push_back(reshaped(part, {part.size()}));
    }
    array = join(parts, 0);
  } else {
    array = copy_of(lane.value(recipe.at("array")));
  }
  if (recipe.contains("positions")) {
    array = slice(array, 1, recipe["positions"].at(0).get<Index>(), recipe["positions"].at(1).get<Index>());
  }
  if (recipe.contains("dtype")) array = converted(array, recipe["dtype"]);
  return recipe.contains("shape") ? reshaped(array, recipe["shape"].get<Shape>()) : array;
}

std::string shape_word(const Shape& shape) { return shape.empty() ? "(1,)" : shape_text(shape); }

std::string dtype_code(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "<f4";
    case DType::float64:
      return "<f8";
    case DType::int8:
      return "|i1";
    case DType::int32:
      return "<i4";
    case DType::int64:
      return "<i8";
    case DType::uint8:
      return "|u1";
    case DType::uint16:
      return "<u2";
    default:
      throw Error(ErrorKind::internal, "a digest over " + std::string(dtype_name(dtype)));
  }
}

std::string short_digest(Sha256& hash) { return hash.finish_hex().substr(0, 16); }

std::string digest_of_arrays(const std::vector<Array>& arrays) {
  Sha256 hash;
  for (const Array& array : arrays) {
    hash.update(dtype_name(array.dtype()));
    hash.update(shape_word(array.shape()));
    hash.update(array.data(), array.byte_size());
  }
  return short_digest(hash);
}

std::string fnv_of(const std::vector<Array>& arrays) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const Array& array : arrays) {
    const auto* bytes = static_cast<const std::uint8_t*>(array.data());
    for (std::size_t i = 0; i < array.byte_size(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3U;
  }
  char text[20];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

std::vector<Array> arrays_of(Lane& lane, const json& recipes) {
  std::vector<Array> arrays;
  for (const json& recipe : recipes) arrays.push_back(array_of(lane, recipe));
  return arrays;
}

std::string digest_of_parts(Lane& lane, const json& recipe) {
  std::map<std::string, std::string> digests;  // ascending by the bytes of the keys
  for (const auto& [key, part] : recipe.at("parts").items()) {
    check_keys(part, "h? fnv?", "digest");
    digests[key] =
        part.contains("h") ? digest_of_arrays(arrays_of(lane, part["h"])) : fnv_of(arrays_of(lane, part.at("fnv")));
    const json& sub = member_or_empty(lane.expected(), "sub");
    if (sub.contains(key)) lane.run().check.text("sub-digest " + key, digests[key], sub[key]);
  }
  for (const auto& [key, digest] : member_or_empty(recipe, "given").items()) digests[key] = digest;
  std::string text;
  for (const auto& [key, digest] : digests) text += (text.empty() ? "" : "|") + key + "=" + digest;
  Array bytes(DType::uint8, {static_cast<Index>(text.size())});
  std::memcpy(bytes.data(), text.data(), text.size());
  std::vector<Array> one;
  one.push_back(std::move(bytes));
  return digest_of_arrays(one);
}

// Row i of each array in turn; a row of a 1-D array counts as (1,).
void update_rows(Sha256& hash, const std::vector<Array>& arrays) {
  for (Index row = 0; row < arrays[0].shape()[0]; ++row) {
    for (const Array& array : arrays) {
      const Shape shape(array.shape().begin() + 1, array.shape().end());
      const std::size_t bytes = array.byte_size() / static_cast<std::size_t>(array.shape()[0]);
      hash.update(dtype_code(array.dtype()));
      hash.update(shape_word(shape));
      hash.update(static_cast<const std::byte*>(array.data()) + static_cast<std::size_t>(row) * bytes, bytes);
    }
  }
}

std::string digest_of_stream(Lane& lane, const json& items) {
  Sha256 hash;
  for (const json& item : items) {
    if (item.contains("text")) {
      hash.update(item["text"].get<std::string>());
    } else if (item.contains("cell_text")) {
      hash.update(lane.expected().at("texts").at(item["cell_text"].get<std::string>()).get<std::string>());
    } else if (item.contains("rows")) {
      update_rows(hash, arrays_of(lane, item["rows"]));
    } else {
      const Array array = array_of(lane, item);
      hash.update(dtype_code(array.dtype()));
      hash.update(shape_word(array.shape()));
      hash.update(array.data(), array.byte_size());
    }
  }
  return short_digest(hash);
}

std::string digest_of(Lane& lane, const json& recipe) {
  const std::string form = recipe.at("form");
  if (form == "arrays") return digest_of_arrays(arrays_of(lane, recipe.at("arrays")));
  if (form == "parts") return digest_of_parts(lane, recipe);
  if (form == "stream") return digest_of_stream(lane, recipe.at("items"));
  if (form != "file") refuse_corrupt("case", "unknown form of a digest: " + form);
  const Array& file = lane.value(recipe.at("array"));
  return sha256_hex(file.data(), file.byte_size()).substr(0, 16);
}

}  // namespace

void check_digests(Lane& lane, const json& recipe) {
  for (const auto& [name, expected] : lane.expected().at("results").items()) {
    check_digest(lane.run().check, name, lane.value(name), expected);
  }
  lane.run().check.text("published digest", digest_of(lane, recipe), lane.expected().at("digest"));
}

}  // namespace samba::verify
