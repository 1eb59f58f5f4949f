#include "samba/verify/runner.h"

#include <cmath>
#include <limits>

namespace samba::verify {
namespace {

std::string refusal_text(const json& expected) {
  std::string text = "a refusal of kind '" + expected.at("kind").get<std::string>() + "'";
  if (expected.contains("class")) text += " and class '" + expected["class"].get<std::string>() + "'";
  return text + " that names " + expected.at("names").dump();
}

void set_element(Array& array, Index index, double value) {
  const auto at = static_cast<std::size_t>(index);
  if (array.dtype() == DType::float32) {
    array.floats()[at] = static_cast<float>(value);
  } else {
    throw Error(ErrorKind::internal, "'set' of a tensor of " + std::string(dtype_name(array.dtype())));
  }
}

// The wrong dtypes of refusal cases. Their values never matter: the array must be refused for its dtype.
Array converted(const Array& array, const std::string& dtype) {
  for (const DType type : {DType::float64, DType::float16, DType::bfloat16, DType::int32, DType::int64}) {
    if (dtype_name(type) != dtype) continue;
    Array result(type, array.shape());
    if (type == DType::float64) {
      const auto from = array.floats();
      std::copy(from.begin(), from.end(), result.values<double>().begin());
    }
    return result;
  }
  refuse_corrupt("case", "a tensor reference with the dtype '" + dtype + "'");
}

}  // namespace

Layout layout_of(const std::string& name) {
  if (name == "NN") return Layout::nn;
  if (name == "NT") return Layout::nt;
  if (name == "TN") return Layout::tn;
  refuse_corrupt("case", "unknown layout '" + name + "'; known are NN, NT, TN");
}

double number_of(const json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  refuse_corrupt("case", "not a number: " + value.dump());
}

const json& member_or_empty(const json& object, const char* name) {
  static const json empty = json::object();
  const auto found = object.find(name);
  return found == object.end() ? empty : *found;
}

std::string_view kind_word(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::value:
      return "value";
    case ErrorKind::type:
      return "type";
    case ErrorKind::unsupported:
      return "unsupported";
    case ErrorKind::corrupt:
      return "corrupt";
    case ErrorKind::resource:
      return "resource";
    case ErrorKind::check:
      return "check";
    case ErrorKind::internal:
      break;
  }
  return "internal";
}

void check_refusal(Checker& check, const std::string& where, const json& expected, const Error& error) {
  const std::string message = error.what();
  const std::string got = "got '" + std::string(kind_word(error.kind())) + "'" +
                          (error.error_class().empty() ? "" : " (" + error.error_class() + ")") + ": " + message;
  check.holds(where, kind_word(error.kind()) == expected.at("kind").get<std::string>(),
              got + "; want " + refusal_text(expected));
  if (expected.contains("class")) {
    check.holds(where, error.error_class() == expected["class"].get<std::string>(),
                got + "; want " + refusal_text(expected));
  }
  for (const json& name : expected.at("names")) {
    const std::string word = name.is_string() ? name.get<std::string>() : name.dump();
    check.holds(where, message.find(word) != std::string::npos, "the message lacks '" + word + "': " + message);
  }
}

void miss_refusal(Checker& check, const std::string& where, const json& expected) {
  check.holds(where, false, "accepted; want " + refusal_text(expected));
}

Array copy_of(ConstArray array) {
  Array copy(array.dtype, array.shape);
  if (copy.byte_size() > 0) std::memcpy(copy.data(), array.data, copy.byte_size());
  return copy;
}

Array filled(const json& reference) {
  Array array = Array::zeros(reference.at("shape").get<Shape>());
  const auto value = static_cast<float>(number_of(reference.at("fill")));
  for (float& element : array.floats()) element = value;
  return array;
}

Array edited(Array array, const json& reference) {
  if (reference.contains("set")) {
    for (const json& element : reference["set"]) {
      const Index index = element.at(0).get<Index>();
      if (index < 0 || index >= array.size()) refuse_corrupt("case", "'set' beyond the tensor: " + element.dump());
      set_element(array, index, number_of(element.at(1)));
    }
  }
  if (reference.contains("dtype")) return converted(array, reference["dtype"].get<std::string>());
  return array;
}

Array resolve_tensor_in(const json& reference, const TensorSet& tensors) {
  return resolve_tensor(reference, [&](const std::string& name) { return tensors.at(name).view(); });
}

}  // namespace samba::verify
