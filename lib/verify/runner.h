// Inside lib/verify: what the runners of the kinds of cases share.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "samba/core/error.h"
#include "samba/kernels/executor.h"
#include "samba/verify/case_file.h"
#include "samba/verify/compare.h"
#include "samba/verify/trace.h"
#include "samba/verify/verify.h"

namespace samba::verify {

struct RunContext {
  const Case& test;
  Executor& executor;
  Checker& check;
  const VerifyOptions& options;
  Trace* trace = nullptr;  // where what is computed on the way is noted; null: nowhere

  const json& body() const { return *test.body; }
  const Array& tensor(const std::string& name) const { return test.tensors.at(name); }
  Index dim(const char* name) const { return body().at("dims").at(name).get<Index>(); }
  void begin_call(const std::string& what) const {
    if (trace != nullptr) trace->begin_call(what);
  }
  void note(const std::string& name, ConstArray values) const {
    if (trace != nullptr) trace->note(name, std::move(values));
  }
  // Compares with a tensor of the case.
  void expect(const std::string& name, ConstArray got) const { check.array(name, std::move(got), tensor(name)); }
  // The same for a tensor that the case may lack.
  void expect_if_there(const std::string& name, ConstArray got) const {
    if (const Array* want = test.tensors.find(name)) check.array(name, std::move(got), *want);
  }
};

using KindRunner = void (*)(RunContext&);

// One runner a kind; null for a kind that samba does not have.
KindRunner find_runner(const std::string& kind);

// Floats on the executor.
class DeviceFloats {
 public:
  DeviceFloats(Executor& executor, Index count) : floats_(executor.memory(), count) {}
  DeviceFloats(Executor& executor, ConstArray host) : DeviceFloats(executor, host.size()) {
    if (host.dtype != DType::float32) throw Error(ErrorKind::internal, "DeviceFloats of another dtype");
    if (host.size() > 0) floats_.upload(host.floats());
  }
  operator float*() { return floats_.data(); }
  Array array(Shape shape) const {
    Array host = Array::zeros(std::move(shape));
    if (host.byte_size() > 0) floats_.download(host.floats().data());
    return host;
  }

 private:
  DeviceArray<float> floats_;
};

class DeviceInts {
 public:
  DeviceInts(Executor& executor, ConstArray host) : ints_(executor.memory(), host.size()) {
    if (host.dtype != DType::int32) throw Error(ErrorKind::internal, "DeviceInts of another dtype");
    ints_.upload(static_cast<const std::int32_t*>(host.data));
  }
  operator const std::int32_t*() const { return ints_.data(); }

 private:
  DeviceArray<std::int32_t> ints_;
};

Layout layout_of(const std::string& name);  // "NN", "NT", "TN"

// A number of a case: a JSON number, or "inf", "-inf", "nan".
double number_of(const json& value);

// The member of an object, or an empty object when it has none of this name. What it gives outlives a loop over it.
const json& member_or_empty(const json& object, const char* name);

// "value", "type", "unsupported", "corrupt"
std::string_view kind_word(ErrorKind kind);

// Compares a refusal with `expected` {kind, names, class?}.
void check_refusal(Checker& check, const std::string& where, const json& expected, const Error& error);
// Says that a refusal was expected and did not come.
void miss_refusal(Checker& check, const std::string& where, const json& expected);

// Runs `call` and compares how it ends with `expected`, a refusal.
template <class Call>
void expect_refusal(Checker& check, const std::string& where, const json& expected, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    check_refusal(check, where, expected, error);
    return;
  }
  miss_refusal(check, where, expected);
}

// A tensor reference: a name, or {"shape", "fill"} or {"like"}, each with "set" and "dtype". `find` gives the array of
// a name.
template <class Find>
Array resolve_tensor(const json& reference, Find&& find);
Array resolve_tensor_in(const json& reference, const TensorSet& tensors);

Array filled(const json& reference);               // of {"shape", "fill"}
Array edited(Array array, const json& reference);  // applies "set" and "dtype"
Array copy_of(ConstArray array);

template <class Find>
Array resolve_tensor(const json& reference, Find&& find) {
  if (reference.is_string()) return copy_of(find(reference.get<std::string>()));
  if (reference.contains("like")) return edited(copy_of(find(reference["like"].get<std::string>())), reference);
  return edited(filled(reference), reference);
}

}  // namespace samba::verify
