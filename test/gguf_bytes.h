// GGUF files made by hand, value by value, also such as no writer would make.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace samba {

class GgufBytes {
 public:
  GgufBytes& text(const std::string& name, const std::string& value) {
    begin(name, 8);
    return put(value);
  }
  GgufBytes& count(const std::string& name, std::uint32_t value) {
    begin(name, 4);
    return put(value);
  }
  GgufBytes& number(const std::string& name, float value) {
    begin(name, 6);
    return put(value);
  }
  // The dimensions as the file has them, fastest first.
  GgufBytes& tensor(const std::string& name, const std::vector<std::uint64_t>& dimensions, std::uint32_t type,
                    std::uint64_t offset) {
    GgufBytes info;
    info.put(name).put(static_cast<std::uint32_t>(dimensions.size()));
    for (const std::uint64_t size : dimensions) info.put(size);
    info.put(type).put(offset);
    infos_ += info.fields_;
    ++tensors_;
    return *this;
  }
  GgufBytes& counts(std::uint64_t tensors, std::uint64_t values) {
    tensors_ = tensors;
    values_ = values;
    return *this;
  }
  GgufBytes& version(std::uint32_t version) {
    version_ = version;
    return *this;
  }
  // `data` bytes of tensors behind the header.
  std::string file(std::size_t data = 0, std::size_t alignment = 32) const {
    GgufBytes head;
    head.put(version_).put(tensors_).put(values_);
    std::string bytes = "GGUF" + head.fields_ + fields_ + infos_;
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment, '\0');
    for (std::size_t i = 0; i < data; ++i) bytes.push_back(static_cast<char>(i * 37 % 101));
    return bytes;
  }

  template <class Value>
  GgufBytes& put(Value value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    fields_.append(raw, sizeof value);
    return *this;
  }
  GgufBytes& put(const std::string& value) {
    put(static_cast<std::uint64_t>(value.size()));
    fields_ += value;
    return *this;
  }

 private:
  void begin(const std::string& name, std::uint32_t type) {
    put(name).put(type);
    ++values_;
  }

  std::uint32_t version_ = 3;
  std::uint64_t tensors_ = 0, values_ = 0;
  std::string fields_, infos_;
};

}  // namespace samba
