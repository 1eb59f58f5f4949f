#include "samba/formats/gguf_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>

#include "samba/core/error.h"
#include "samba/numerics/block_weight.h"

namespace samba {

namespace {

static_assert(std::endian::native == std::endian::little);  // GGUF files are

constexpr char kMagic[4] = {'G', 'G', 'U', 'F'};
constexpr std::uint64_t kMostTensors = std::uint64_t{1} << 18;
constexpr std::uint64_t kMostMetadata = std::uint64_t{1} << 16;  // values with a name
constexpr std::uint64_t kMostItems = std::uint64_t{1} << 24;     // of all lists together
constexpr std::uint64_t kLongestText = std::uint64_t{1} << 24;   // bytes
constexpr std::size_t kLongestName = 64;  // of a tensor, with the zero behind it in llama.cpp's memory
constexpr std::uint64_t kAlignment = 32;  // unless general.alignment says otherwise
constexpr std::uint64_t kMostAlignment = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 40;
constexpr std::size_t kSmallestTensor = 8 + 4 + 8 + 4 + 8;  // bytes that describe one

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

struct TensorType {
  WeightFormat format;
  std::uint32_t number;
  std::string_view name;
};
constexpr std::array kTypes = {
    TensorType{WeightFormat::float32, 0, "F32"},   TensorType{WeightFormat::float16, 1, "F16"},
    TensorType{WeightFormat::q4_0, 2, "Q4_0"},     TensorType{WeightFormat::q4_1, 3, "Q4_1"},
    TensorType{WeightFormat::q5_0, 6, "Q5_0"},     TensorType{WeightFormat::q5_1, 7, "Q5_1"},
    TensorType{WeightFormat::q8_0, 8, "Q8_0"},     TensorType{WeightFormat::q4_k, 12, "Q4_K"},
    TensorType{WeightFormat::q5_k, 13, "Q5_K"},    TensorType{WeightFormat::q6_k, 14, "Q6_K"},
    TensorType{WeightFormat::bfloat16, 30, "BF16"}};

const TensorType& type_of(WeightFormat format) {
  for (const TensorType& type : kTypes) {
    if (type.format == format) return type;
  }
  throw Error(ErrorKind::internal, "no GGUF type holds " + std::string(weight_format_name(format)));
}

class Reader {
 public:
  Reader(std::span<const std::byte> file, std::string source) : file_(file), rest_(file), source_(std::move(source)) {}

  GgufHeader read() {
    char magic[4] = {};
    copy(magic, sizeof magic);
    if (std::memcmp(magic, kMagic, sizeof kMagic) != 0) refuse_corrupt("format", source_ + ": no GGUF file");
    GgufHeader header;
    header.version = take<std::uint32_t>();
    if (header.version != 2 && header.version != 3) {
      const bool swapped = header.version == 0x03000000U || header.version == 0x02000000U;
      refuse_corrupt("version", source_ + ": " +
                                    (swapped ? "a big-endian GGUF file; little-endian ones are read"
                                             : "GGUF version " + std::to_string(header.version) + "; accepted: 2, 3"));
    }
    const auto tensors = take<std::uint64_t>();
    const auto values = take<std::uint64_t>();
    if (tensors > kMostTensors) {
      fail(std::to_string(tensors) + " tensors; accepted: at most " + std::to_string(kMostTensors));
    }
    if (values > kMostMetadata) {
      fail(std::to_string(values) + " values of metadata; accepted: at most " + std::to_string(kMostMetadata));
    }
    for (std::uint64_t i = 0; i < values; ++i) {
      const std::string name = text();
      const auto type = take<std::uint32_t>();
      if (!header.metadata.emplace(name, type == kArray ? array(name) : scalar(type, name)).second) {
        fail("the name " + name + " is given twice");
      }
    }
    if (tensors > rest_.size() / kSmallestTensor) refuse_corrupt("truncated", ends_early());
    for (std::uint64_t i = 0; i < tensors; ++i) read_tensor(header);
    place_tensors(header);
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { refuse_corrupt("format", source_ + ": " + reason); }
  [[noreturn]] void fail_tensor(const std::string& name, const std::string& reason) const {
    refuse_corrupt("tensor", source_ + ": tensor " + name + ": " + reason);
  }
  std::string ends_early() const { return source_ + ": the file ends within its header"; }

  void copy(void* target, std::size_t count) {
    if (count > rest_.size()) refuse_corrupt("truncated", ends_early());
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
    if (length > rest_.size()) refuse_corrupt("truncated", ends_early());
    if (length > kLongestText) {
      fail("a text of " + std::to_string(length) + " bytes; accepted: at most " + std::to_string(kLongestText));
    }
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
    if (count > kMostItems - items_) {
      fail(name + ": the arrays have more than " + std::to_string(kMostItems) + " items together");
    }
    items_ += count;
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

  void read_tensor(GgufHeader& header) {
    GgufTensor tensor;
    tensor.name = text();
    if (tensor.name.empty() || tensor.name.size() > kLongestName) {
      fail("a tensor's name of " + std::to_string(tensor.name.size()) + " bytes; accepted: 1 to 64");
    }
    const auto rank = take<std::uint32_t>();
    if (rank < 1 || rank > 4) fail_tensor(tensor.name, "has " + std::to_string(rank) + " dimensions; accepted: 1 to 4");
    std::uint64_t elements = 1;
    for (std::uint32_t i = 0; i < rank; ++i) {
      const auto size = take<std::uint64_t>();
      if (size < 1) fail_tensor(tensor.name, "is empty");
      if (size > kMostElements / elements) fail_tensor(tensor.name, "its dimensions are too large");
      elements *= size;
      tensor.shape.insert(tensor.shape.begin(), static_cast<Index>(size));
    }
    const auto number = take<std::uint32_t>();
    const auto type =
        std::find_if(kTypes.begin(), kTypes.end(), [&](const TensorType& t) { return t.number == number; });
    if (type == kTypes.end()) {
      std::string accepted;
      for (const TensorType& known : kTypes) accepted += (accepted.empty() ? "" : ", ") + std::string(known.name);
      refuse_unsupported(source_ + ": tensor " + tensor.name + " has the type number " + std::to_string(number) +
                         "; accepted: " + accepted);
    }
    tensor.format = type->format;
    std::uint64_t bytes = elements * sizeof(float);
    if (tensor.format != WeightFormat::float32) {
      const BlockLayout layout = block_layout(tensor.format);
      if (tensor.shape.back() % layout.values != 0) {
        fail_tensor(tensor.name, "rows of " + std::to_string(tensor.shape.back()) + " values are no multiple of the " +
                                     std::to_string(layout.values) + " of a block of " + std::string(type->name));
      }
      bytes = elements / static_cast<std::uint64_t>(layout.values) * layout.bytes;
    }
    header.offsets.push_back(take<std::uint64_t>());
    header.byte_counts.push_back(bytes);
    header.tensors.push_back(std::move(tensor));
  }

  std::uint64_t alignment(const GgufMetadata& metadata) const {
    const auto given = metadata.find("general.alignment");
    if (given == metadata.end()) return kAlignment;
    const std::int64_t value = given->second.kind == GgufValue::Kind::integer ? given->second.integer : 0;
    if (value < 1 || static_cast<std::uint64_t>(value) > kMostAlignment ||
        !std::has_single_bit(static_cast<std::uint64_t>(value))) {
      fail("general.alignment must be a power of two up to " + std::to_string(kMostAlignment));
    }
    return static_cast<std::uint64_t>(value);
  }

  // A file ends with its last tensor, or where that is filled up to the alignment.
  void check_end(const GgufHeader& header, const std::vector<std::size_t>& order, std::uint64_t unit) const {
    if (order.empty()) return;
    const std::uint64_t end = header.offsets[order.back()] + header.byte_counts[order.back()];
    const std::uint64_t left = file_.size() - end;
    if (left == 0 || left == (unit - end % unit) % unit) return;
    refuse_corrupt("offsets", source_ + ": " + std::to_string(left) + " bytes behind the last tensor, " +
                                  header.tensors[order.back()].name);
  }

  // Offsets of the file out of those behind the header, and their checks.
  void place_tensors(GgufHeader& header) const {
    const std::uint64_t unit = alignment(header.metadata);
    const std::uint64_t start = (file_.size() - rest_.size() + unit - 1) / unit * unit;
    std::vector<std::size_t> order(header.tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (const std::size_t i : order) {
      const std::uint64_t offset = header.offsets[i], bytes = header.byte_counts[i];
      const std::string& name = header.tensors[i].name;
      if (offset % unit != 0) {
        refuse_corrupt("offsets", source_ + ": tensor " + name + ": the offset " + std::to_string(offset) +
                                      " is no multiple of the alignment " + std::to_string(unit));
      }
      if (start > file_.size() || offset > file_.size() - start || bytes > file_.size() - start - offset) {
        refuse_corrupt("truncated", source_ + ": tensor " + name + " ends beyond the file: " + std::to_string(bytes) +
                                        " bytes at offset " + std::to_string(offset) + " of the tensors' " +
                                        std::to_string(start > file_.size() ? 0 : file_.size() - start));
      }
      header.offsets[i] = start + offset;
    }
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return header.offsets[a] < header.offsets[b]; });
    for (std::size_t i = 1; i < order.size(); ++i) {
      const std::size_t before = order[i - 1], after = order[i];
      if (header.offsets[before] + header.byte_counts[before] > header.offsets[after]) {
        refuse_corrupt("offsets", source_ + ": the tensors " + header.tensors[before].name + " and " +
                                      header.tensors[after].name + " overlap");
      }
    }
    check_end(header, order, unit);
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return header.tensors[a].name < header.tensors[b].name; });
    for (std::size_t i = 1; i < order.size(); ++i) {
      const std::string& name = header.tensors[order[i]].name;
      if (name == header.tensors[order[i - 1]].name) fail_tensor(name, "is given twice");
    }
  }

  std::span<const std::byte> file_;
  std::span<const std::byte> rest_;
  std::string source_;
  std::uint64_t items_ = 0;  // of the lists so far
};

}  // namespace

std::string_view gguf_type_name(WeightFormat format) { return type_of(format).name; }
std::uint32_t gguf_type_number(WeightFormat format) { return type_of(format).number; }

GgufHeader parse_gguf(std::span<const std::byte> file, const std::string& source) {
  return Reader(file, source).read();
}

GgufFile::GgufFile(const Path& path) : path_(path), file_(path) {
  GgufHeader header = parse_gguf(file_.bytes(), path.string());
  version_ = header.version;
  metadata_ = std::move(header.metadata);
  tensors_ = std::move(header.tensors);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].bytes = file_.bytes().subspan(header.offsets[i], header.byte_counts[i]);
    by_name_.emplace(tensors_[i].name, i);
  }
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

bool is_gguf(const Path& path) {
  FileReader file(path);
  char magic[4] = {};
  return file.read(magic, sizeof magic) == sizeof magic && std::memcmp(magic, kMagic, sizeof kMagic) == 0;
}

GgufMetadata read_gguf_metadata(const Path& path) {
  const MappedFile file(path);
  return parse_gguf(file.bytes(), path.string()).metadata;
}

bool has_vocabulary(const GgufMetadata& metadata) {
  const auto model = metadata.find("tokenizer.ggml.model");
  return model != metadata.end() && !(model->second.kind == GgufValue::Kind::text && model->second.text == "no_vocab");
}

}  // namespace samba
