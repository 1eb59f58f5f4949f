#include "samba/formats/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "samba/core/error.h"
#include "samba/core/files.h"
#include "samba/core/json_limits.h"
#include "samba/core/mapped_file.h"

namespace samba {
namespace {

using nlohmann::json;

struct DTypeWord {
  DType dtype;
  const char* word;
};

constexpr DTypeWord kDTypeWords[] = {{DType::float32, "F32"},   {DType::float64, "F64"}, {DType::float16, "F16"},
                                     {DType::bfloat16, "BF16"}, {DType::int8, "I8"},     {DType::int32, "I32"},
                                     {DType::int64, "I64"},     {DType::uint8, "U8"},    {DType::uint16, "U16"}};

const DTypeWord* find_word(const std::string& word) {
  const auto* found = std::find_if(std::begin(kDTypeWords), std::end(kDTypeWords),
                                   [&](const DTypeWord& entry) { return word == entry.word; });
  return found == std::end(kDTypeWords) ? nullptr : found;
}

const char* word_of(DType dtype) {
  for (const DTypeWord& entry : kDTypeWords) {
    if (entry.dtype == dtype) return entry.word;
  }
  throw Error(ErrorKind::internal, "a dtype without a safetensors word");
}

json parse_header(std::string_view text, const std::string& source) {
  std::string fault;
  json header = parse_bounded(text, fault);
  if (header.is_discarded()) {
    const bool json_at_all = !fault.starts_with("it is not JSON");
    refuse_corrupt(json_at_all ? "header" : "json", source + ": the safetensors header: " + fault);
  }
  if (!header.is_object()) refuse_corrupt("header", source + ": the safetensors header is not a JSON object");
  return header;
}

constexpr std::size_t kMostAxes = 32;

struct Range {
  std::uint64_t begin = 0, end = 0;
  std::string name;
};

class TensorEntry {
 public:
  TensorEntry(const std::string& source, const std::string& name, const json& entry)
      : where_(source + ": tensor '" + name + "'") {
    if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
        !entry.contains("data_offsets")) {
      refuse("needs exactly the keys dtype, shape and data_offsets");
    }
    read_dtype(entry["dtype"]);
    read_shape(entry["shape"]);
    read_range(entry["data_offsets"]);
    range_.name = name;
  }

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Range& range() const { return range_; }

 private:
  [[noreturn]] void refuse(const std::string& what) const { refuse_corrupt("tensor", where_ + " " + what); }

  void read_dtype(const json& value) {
    const DTypeWord* word = value.is_string() ? find_word(value.get<std::string>()) : nullptr;
    if (word == nullptr) {
      refuse("has the dtype " + value.dump() + "; accepted are F32, F64, F16, BF16, I8, I32, I64, U8, U16");
    }
    dtype_ = word->dtype;
  }

  void read_shape(const json& value) {
    if (!value.is_array()) refuse("has a shape that is not a list");
    if (value.size() > kMostAxes) refuse("has more than " + std::to_string(kMostAxes) + " axes");
    for (const json& size : value) {
      if (!size.is_number_unsigned() || size.get<std::uint64_t>() > (std::uint64_t{1} << 62)) {
        refuse("has the shape " + value.dump() + "; sizes are integers from 0 to 2^62");
      }
      shape_.push_back(size.get<Index>());
    }
    try {
      elements_ = static_cast<std::uint64_t>(element_count(shape_));
    } catch (const Error& error) {
      refuse("has a shape that cannot be: " + std::string(error.what()));
    }
  }

  void read_range(const json& value) {
    if (!value.is_array() || value.size() != 2 || !value[0].is_number_unsigned() || !value[1].is_number_unsigned()) {
      refuse("has data_offsets that are not two integers from 0 on");
    }
    range_.begin = value[0].get<std::uint64_t>();
    range_.end = value[1].get<std::uint64_t>();
    const std::uint64_t width = dtype_size(dtype_);
    if (range_.end < range_.begin || (range_.end - range_.begin) % width != 0 ||
        (range_.end - range_.begin) / width != elements_) {
      refuse("has the byte range " + value.dump() + ", but its shape " + shape_text(shape_) + " of " +
             std::string(dtype_name(dtype_)) + " has " + std::to_string(elements_) + " elements");
    }
  }

  std::string where_;
  DType dtype_ = DType::float32;
  Shape shape_;
  std::uint64_t elements_ = 0;
  Range range_;
};

// The ranges must lie end to end and cover the data exactly: no gap, no overlap, nothing left.
void check_cover(std::vector<Range> ranges, std::uint64_t data_bytes, const std::string& source) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t next = 0;
  for (const Range& range : ranges) {
    if (range.end > data_bytes) {
      refuse_corrupt("offsets", source + ": tensor '" + range.name + "' ends at byte " + std::to_string(range.end) +
                                    " of the data, which has " + std::to_string(data_bytes));
    }
    if (range.begin != next) {
      refuse_corrupt("offsets", source + ": tensor '" + range.name + "' begins at byte " + std::to_string(range.begin) +
                                    " of the data, expected " + std::to_string(next) +
                                    (range.begin < next ? " (overlap)" : " (gap)"));
    }
    next = range.end;
  }
  if (next != data_bytes) {
    refuse_corrupt("offsets", source + ": " + std::to_string(data_bytes - next) + " bytes after the last tensor");
  }
}

std::map<std::string, std::string> read_metadata(const json& value, const std::string& source) {
  std::map<std::string, std::string> metadata;
  if (!value.is_object()) refuse_corrupt("header", source + ": __metadata__ is not an object");
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) refuse_corrupt("header", source + ": __metadata__ '" + key + "' is not a string");
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

// The header's text with spaces behind it, so that the data is aligned to 8 bytes.
std::string padded(const json& header) {
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

// The length and the header behind it.
std::string framed(const std::string& header) {
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(header.size() >> (8 * i));
  return text + header;
}

}  // namespace

const char* safetensors_dtype(DType dtype) { return word_of(dtype); }

SafetensorsIndex index_safetensors(std::span<const std::byte> bytes, const std::string& source) {
  if (bytes.size() < 8) refuse_corrupt("truncated", source + ": too short for a safetensors file");
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 0;) length = (length << 8) | std::to_integer<std::uint64_t>(bytes[i]);
  if (length > kMaxSafetensorsHeader) {
    refuse_corrupt("header_length", source + ": the safetensors header claims " + std::to_string(length) +
                                        " bytes; at most " + std::to_string(kMaxSafetensorsHeader) + " are read");
  }
  if (bytes.size() - 8 < length) {
    refuse_corrupt("truncated", source + ": the file ends inside the safetensors header");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, length);
  const json header = parse_header(text, source);
  const std::span<const std::byte> data = bytes.subspan(8 + length);

  SafetensorsIndex index;
  std::vector<TensorEntry> entries;
  std::vector<Range> ranges;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      index.metadata = read_metadata(entry, source);
      continue;
    }
    entries.emplace_back(source, name, entry);
    ranges.push_back(entries.back().range());
  }
  check_cover(ranges, data.size(), source);
  for (const TensorEntry& entry : entries) {
    index.tensors.emplace(entry.range().name,
                          ConstArray{entry.dtype(), entry.shape(), data.data() + entry.range().begin});
  }
  return index;
}

SafetensorsFile parse_safetensors(std::span<const std::byte> bytes, const std::string& source) {
  SafetensorsIndex index = index_safetensors(bytes, source);
  SafetensorsFile file;
  file.metadata = std::move(index.metadata);
  for (const auto& [name, view] : index.tensors) {
    Array array(view.dtype, view.shape);
    if (array.byte_size() > 0) std::memcpy(array.data(), view.data, array.byte_size());
    file.tensors.emplace(name, std::move(array));
  }
  return file;
}

SafetensorsFile read_safetensors(const std::filesystem::path& path) {
  const MappedFile file(path);
  return parse_safetensors(file.bytes(), path.string());
}

void write_safetensors_streamed(const std::filesystem::path& path, std::span<const SafetensorsSource> tensors,
                                const std::map<std::string, std::string>& metadata,
                                const std::function<void(std::uint64_t done)>& done) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const SafetensorsSource& tensor : tensors) {
    const std::uint64_t end =
        offset + static_cast<std::uint64_t>(element_count(tensor.shape)) * dtype_size(tensor.dtype);
    if (header.contains(tensor.name) || tensor.name == "__metadata__") {
      throw Error(ErrorKind::internal, "the tensor " + tensor.name + " is written twice");
    }
    header[tensor.name] = {{"dtype", word_of(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  AtomicFile file(path);
  file.write(framed(padded(header)));
  std::uint64_t written = 0;
  for (const SafetensorsSource& tensor : tensors) {
    const std::uint64_t begin = header[tensor.name]["data_offsets"][0].get<std::uint64_t>();
    tensor.write([&](std::span<const std::byte> piece) {
      file.write(piece.data(), piece.size());
      written += piece.size();
      if (done) done(written);
    });
    if (written != header[tensor.name]["data_offsets"][1].get<std::uint64_t>()) {
      throw Error(ErrorKind::internal, "the tensor " + tensor.name + " has " + std::to_string(written - begin) +
                                           " bytes, which its shape does not");
    }
  }
  file.commit();
}

std::string safetensors_header(const ConstArrayMap& tensors, const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const auto& [name, array] : tensors) {
    if (name == "__metadata__") refuse_value("a tensor cannot be named __metadata__");
    const std::uint64_t end = offset + static_cast<std::uint64_t>(array.size()) * dtype_size(array.dtype);
    header[name] = {{"dtype", word_of(array.dtype)}, {"shape", array.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  return padded(header);
}

void write_safetensors(const std::filesystem::path& path, const ConstArrayMap& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string header = safetensors_header(tensors, metadata);
  AtomicFile file(path);
  file.write(framed(header));
  for (const auto& [name, array] : tensors) {
    file.write(array.data, static_cast<std::size_t>(array.size()) * dtype_size(array.dtype));
  }
  file.commit();
}

}  // namespace samba
