#include "samba/formats/gguf_metadata.h"

#include <bit>
#include <cstring>

#include "samba/core/error.h"
#include "samba/core/mapped_file.h"

namespace samba {

namespace {

static_assert(std::endian::native == std::endian::little);  // GGUF files are

constexpr char kMagic[4] = {'G', 'G', 'U', 'F'};
constexpr std::uint64_t kMostTensors = std::uint64_t{1} << 32;

// Types of values, by their numbers in the file.
enum Type : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::string source) : rest_(bytes), source_(std::move(source)) {}

  GgufMetadata read() {
    char magic[4] = {};
    copy(magic, sizeof magic);
    if (std::memcmp(magic, kMagic, sizeof kMagic) != 0) refuse_corrupt("format", source_ + ": no GGUF file");
    const auto version = take<std::uint32_t>();
    if (version != 2 && version != 3) {
      refuse_corrupt("version", source_ + ": GGUF version " + std::to_string(version) + "; accepted: 2, 3");
    }
    const auto tensors = take<std::uint64_t>();
    const auto values = take<std::uint64_t>();
    if (tensors > kMostTensors || values > rest_.size()) fail("counts beyond the file's size");
    GgufMetadata metadata;
    for (std::uint64_t i = 0; i < values; ++i) {
      const std::string name = text();
      const auto type = take<std::uint32_t>();
      if (!metadata.emplace(name, type == kArray ? array(name) : scalar(type, name)).second) {
        fail("the name " + name + " is given twice");
      }
    }
    return metadata;
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { refuse_corrupt("format", source_ + ": " + reason); }

  void copy(void* target, std::size_t count) {
    if (count > rest_.size()) refuse_corrupt("truncated", source_ + ": the file ends within its metadata");
    std::memcpy(target, rest_.data(), count);
    rest_ = rest_.subspan(count);
  }
  template <class Value>
  Value take() {
    Value value{};
    copy(&value, sizeof value);
    return value;
  }
  std::string text() {
    const auto length = take<std::uint64_t>();
    if (length > rest_.size()) refuse_corrupt("truncated", source_ + ": the file ends within its metadata");
    std::string value(static_cast<std::size_t>(length), '\0');
    copy(value.data(), value.size());
    return value;
  }

  std::int64_t integer(std::uint32_t type, const std::string& name) {
    switch (type) {
      case kUint8:
      case kBool:
        return take<std::uint8_t>();
      case kInt8:
        return take<std::int8_t>();
      case kUint16:
        return take<std::uint16_t>();
      case kInt16:
        return take<std::int16_t>();
      case kUint32:
        return take<std::uint32_t>();
      case kInt32:
        return take<std::int32_t>();
      case kInt64:
        return take<std::int64_t>();
      case kUint64: {
        const auto value = take<std::uint64_t>();
        if (value > static_cast<std::uint64_t>(INT64_MAX)) fail(name + ": the integer is too large");
        return static_cast<std::int64_t>(value);
      }
      default:
        fail(name + ": values of type " + std::to_string(type) + " are unknown here");
    }
  }

  GgufValue scalar(std::uint32_t type, const std::string& name) {
    GgufValue value;
    if (type == kString) {
      value.kind = GgufValue::Kind::text;
      value.text = text();
    } else if (type == kFloat32 || type == kFloat64) {
      value.kind = GgufValue::Kind::number;
      value.number = type == kFloat32 ? static_cast<double>(take<float>()) : take<double>();
    } else {
      value.integer = integer(type, name);
    }
    return value;
  }

  GgufValue array(const std::string& name) {
    const auto type = take<std::uint32_t>();
    const auto count = take<std::uint64_t>();
    if (count > rest_.size()) fail(name + ": an array longer than the file");
    GgufValue value;
    if (type == kString) {
      value.kind = GgufValue::Kind::texts;
      for (std::uint64_t i = 0; i < count; ++i) value.texts.push_back(text());
    } else if (type == kFloat32 || type == kFloat64) {
      value.kind = GgufValue::Kind::numbers;
      for (std::uint64_t i = 0; i < count; ++i) value.numbers.push_back(scalar(type, name).number);
    } else {
      value.kind = GgufValue::Kind::integers;
      for (std::uint64_t i = 0; i < count; ++i) value.integers.push_back(integer(type, name));
    }
    return value;
  }

  std::span<const std::byte> rest_;
  std::string source_;
};

}  // namespace

bool is_gguf(const Path& path) {
  FileReader file(path);
  char magic[4] = {};
  return file.read(magic, sizeof magic) == sizeof magic && std::memcmp(magic, kMagic, sizeof kMagic) == 0;
}

GgufMetadata read_gguf_metadata(const Path& path) {
  const MappedFile file(path);
  return Reader(file.bytes(), path.string()).read();
}

}  // namespace samba
