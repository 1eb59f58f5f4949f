// Writing GGUF files, version 3 (docs/formats/gguf.md).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/files.h"
#include "samba/numerics/packed_weight.h"

namespace samba {

// Metadata in the order in which they are added, each with the type that llama.cpp looks for.
class GgufFields {
 public:
  void text(std::string_view name, std::string_view value);
  void count(std::string_view name, std::uint32_t value);
  void number(std::string_view name, float value);
  void flag(std::string_view name, bool value);
  void texts(std::string_view name, std::span<const std::string> values);
  void integers(std::string_view name, std::span<const std::int32_t> values);
  void numbers(std::string_view name, std::span<const float> values);
  void bytes(std::string_view name, std::string_view values);  // a list of unsigned bytes

  std::uint64_t size() const { return size_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(std::string_view name, std::uint32_t type);
  void begin_list(std::string_view name, std::uint32_t type, std::size_t count);
  void put_text(std::string_view value);
  template <class Value>
  void put(Value value);

  std::uint64_t size_ = 0;
  std::string bytes_;
};

struct GgufTensorSource {
  std::string name;
  Shape shape;                                  // slowest axis first
  WeightFormat format = WeightFormat::float32;  // float32 or bfloat16
  // Hands all values in order to the function it is given, in pieces; called once, when the tensor is written.
  std::function<void(const std::function<void(std::span<const float>)>& put)> write;
};

// Atomic and durable; memory holds one piece at a time. Error(internal) for a tensor of more or fewer values than its
// shape has. `progress` may be empty: called with the bytes written so far
// and in all.
void write_gguf(const Path& path, const GgufFields& fields, std::span<const GgufTensorSource> tensors,
                const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});

}  // namespace samba
