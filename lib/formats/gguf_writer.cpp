#include "samba/formats/gguf_writer.h"

#include <algorithm>
#include <bit>

#include "samba/core/error.h"
#include "samba/formats/gguf_file.h"
#include "samba/numerics/low_bit.h"

namespace samba {

namespace {

static_assert(std::endian::native == std::endian::little);  // GGUF files are

constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kAlignment = 32;

// Types of values, by their numbers in the file.
constexpr std::uint32_t kUint8 = 0, kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9;

template <class Value>
void append(std::string& bytes, Value value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::uint64_t aligned(std::uint64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

std::uint64_t tensor_bytes(const GgufTensorSource& tensor) {
  const std::uint64_t width = tensor.format == WeightFormat::float32 ? sizeof(float) : sizeof(std::uint16_t);
  return static_cast<std::uint64_t>(element_count(tensor.shape)) * width;
}

std::string header(const GgufFields& fields, std::span<const GgufTensorSource> tensors) {
  std::string bytes = "GGUF";
  append(bytes, kVersion);
  append(bytes, static_cast<std::uint64_t>(tensors.size()));
  append(bytes, fields.size());
  bytes += fields.bytes();
  std::uint64_t offset = 0;
  for (const GgufTensorSource& tensor : tensors) {
    append(bytes, static_cast<std::uint64_t>(tensor.name.size()));
    bytes += tensor.name;
    append(bytes, static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) {
      append(bytes, static_cast<std::uint64_t>(*size));
    }
    append(bytes, gguf_type_number(tensor.format));
    append(bytes, offset);
    offset += aligned(tensor_bytes(tensor));
  }
  bytes.resize(aligned(bytes.size()), '\0');
  return bytes;
}

void write_values(AtomicFile& file, const GgufTensorSource& tensor) {
  std::vector<std::uint16_t> rounded;
  std::size_t count = 0;
  tensor.write([&](std::span<const float> values) {
    count += values.size();
    if (tensor.format == WeightFormat::float32) return file.write(values.data(), values.size_bytes());
    rounded.resize(values.size());
    std::transform(values.begin(), values.end(), rounded.begin(), [](float value) { return bfloat16_bits(value); });
    file.write(rounded.data(), rounded.size() * sizeof(std::uint16_t));
  });
  if (count != static_cast<std::size_t>(element_count(tensor.shape))) {
    throw Error(ErrorKind::internal, tensor.name + ": another number of values than its shape has");
  }
  const std::uint64_t bytes = tensor_bytes(tensor);
  file.write(std::string(aligned(bytes) - bytes, '\0'));
}

}  // namespace

template <class Value>
void GgufFields::put(Value value) {
  append(bytes_, value);
}

void GgufFields::put_text(std::string_view value) {
  put(static_cast<std::uint64_t>(value.size()));
  bytes_ += value;
}

void GgufFields::begin(std::string_view name, std::uint32_t type) {
  ++size_;
  put_text(name);
  put(type);
}

void GgufFields::begin_list(std::string_view name, std::uint32_t type, std::size_t count) {
  begin(name, kArray);
  put(type);
  put(static_cast<std::uint64_t>(count));
}

void GgufFields::text(std::string_view name, std::string_view value) {
  begin(name, kString);
  put_text(value);
}

void GgufFields::count(std::string_view name, std::uint32_t value) {
  begin(name, kUint32);
  put(value);
}

void GgufFields::number(std::string_view name, float value) {
  begin(name, kFloat32);
  put(value);
}

void GgufFields::flag(std::string_view name, bool value) {
  begin(name, kBool);
  put(static_cast<std::uint8_t>(value ? 1 : 0));
}

void GgufFields::texts(std::string_view name, std::span<const std::string> values) {
  begin_list(name, kString, values.size());
  for (const std::string& value : values) put_text(value);
}

void GgufFields::integers(std::string_view name, std::span<const std::int32_t> values) {
  begin_list(name, kInt32, values.size());
  for (const std::int32_t value : values) put(value);
}

void GgufFields::bytes(std::string_view name, std::string_view values) {
  begin_list(name, kUint8, values.size());
  bytes_ += values;
}

void GgufFields::numbers(std::string_view name, std::span<const float> values) {
  begin_list(name, kFloat32, values.size());
  for (const float value : values) put(value);
}

void write_gguf(const Path& path, const GgufFields& fields, std::span<const GgufTensorSource> tensors,
                const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  std::uint64_t total = 0, done = 0;
  for (const GgufTensorSource& tensor : tensors) total += tensor_bytes(tensor);
  AtomicFile file(path);
  file.write(header(fields, tensors));
  for (const GgufTensorSource& tensor : tensors) {
    write_values(file, tensor);
    done += tensor_bytes(tensor);
    if (progress) progress(done, total);
  }
  file.commit();
}

}  // namespace samba
