#include "samba/formats/stack_archive.h"

#include <array>
#include <set>

#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/formats/canonical_json.h"
#include "samba/formats/framed_file.h"
#include "samba/formats/zstd_frame.h"

namespace samba {

namespace {

using Json = nlohmann::json;
using Bytes = std::vector<std::byte>;

constexpr const char* kSchema = "samba.stack.v1";

// What of a tensor goes into the file: `stored` views `raw` or `frame`.
struct StoredBytes {
  Bytes raw, frame;
  std::span<const std::byte> stored;
};

// What the header says of a tensor but for its bytes. Error(value) for one that the format does not hold.
StackTensor described(const StackTensorSource& source, TensorRole role) {
  StackTensor tensor;
  tensor.role = role;
  tensor.name = source.name;
  tensor.dtype = source.dtype;
  tensor.shape = source.shape;
  tensor.raw_bytes = check_stack_tensor(source.name, source.dtype, source.shape, role);
  return tensor;
}

void load(const StackTensorSource& source, StackTensor& tensor, TensorCodec codec, StoredBytes& bytes) {
  bytes.raw.resize(static_cast<std::size_t>(tensor.raw_bytes));
  source.read(bytes.raw);
  tensor.sha256 = sha256_hex(bytes.raw.data(), bytes.raw.size());
  tensor.codec = TensorCodec::none;
  tensor.stored_sha256.clear();
  bytes.stored = bytes.raw;
  if (codec == TensorCodec::zstd) {
    bytes.frame = zstd_compress(bytes.raw);
    if (bytes.frame.size() < bytes.raw.size()) {
      bytes.stored = bytes.frame;
      tensor.codec = codec;
      tensor.stored_sha256 = sha256_hex(bytes.frame.data(), bytes.frame.size());
    }
  }
  tensor.stored_bytes = bytes.stored.size();
}

class Writer {
 public:
  Writer(const Path& path, TensorCodec codec) : path_(path), codec_(codec) {}

  // The first pass: entries of the header. Memory goes back before the next tensor.
  Json describe(std::span<const StackTensorSource> sources, TensorRole role) {
    Json entries = Json::array();
    for (const StackTensorSource& source : sources) {
      StackTensor tensor;
      try {
        tensor = described(source, role);
      } catch (const Error& error) {
        refuse_value("cannot save " + path_.string() + ": the tensor " + source.name + ": " + error.what());
      }
      if (!names_.insert(source.name).second) {
        refuse_value("cannot save " + path_.string() + ": the tensor " + source.name + " is given twice");
      }
      StoredBytes bytes;
      load(source, tensor, codec_, bytes);
      if (role == TensorRole::parameter) {
        if (const auto found = first_non_finite(source.dtype, source.shape, bytes.raw)) {
          refuse_value("cannot save " + path_.string() + ": element " + std::to_string(*found) + " of the parameter " +
                       source.name + " is not finite");
        }
      }
      total_ += tensor.stored_bytes;
      entries.push_back(stack_tensor_to_json(tensor));
      tensors_.push_back(std::move(tensor));
    }
    return entries;
  }

  // The second pass. `sources` in the order of the first.
  std::string write(const std::string& header, std::span<const StackTensorSource> parameters,
                    std::span<const StackTensorSource> moments, const FileProgress& progress) {
    FramedFileWriter file(path_, kStackMagic, header, total_, progress);
    std::size_t next = 0;
    for (const auto sources : {parameters, moments}) {
      for (const StackTensorSource& source : sources) {
        StackTensor tensor = tensors_[next];
        StoredBytes bytes;
        load(source, tensor, codec_, bytes);
        if (stack_tensor_to_json(tensor) != stack_tensor_to_json(tensors_[next])) {
          throw Error(ErrorKind::internal,
                      "the tensor " + source.name + " changed while it was saved to " + path_.string());
        }
        file.put(bytes.stored.data(), bytes.stored.size());
        ++next;
      }
    }
    return file.commit();
  }

 private:
  const Path& path_;
  TensorCodec codec_;
  std::set<std::string> names_;
  std::vector<StackTensor> tensors_;
  std::uint64_t total_ = 0;
};

}  // namespace

namespace {

void check_state(const Path& path, const Json& state, std::span<const StackTensorSource> parameters, bool moments) {
  std::vector<DType> formats;
  for (const StackTensorSource& source : parameters) formats.push_back(source.dtype);
  const StackStateFault fault = find_stack_state_fault(state, formats, moments);
  if (!fault.error_class.empty()) refuse_value("cannot save " + path.string() + ": " + fault.reason);
}

std::string header_text(const Path& path, const Json& state, Json parameters, Json moments) {
  const Json header = {
      {"schema", kSchema}, {"state", state}, {"parameters", std::move(parameters)}, {"moments", std::move(moments)}};
  std::string text = canonical_json(header);
  if (text.size() > kLongestStackHeader) {
    refuse_value("the header of " + path.string() + " would have " + std::to_string(text.size()) +
                 " bytes, a checkpoint holds at most " + std::to_string(kLongestStackHeader));
  }
  return text;
}

}  // namespace

std::string stack_archive_header(const Path& path, const Json& state, std::span<const StackTensorSource> parameters,
                                 std::span<const StackTensorSource> moments, std::span<const std::string> sha256) {
  check_state(path, state, parameters, !moments.empty());
  std::size_t next = 0;
  const auto entries = [&](std::span<const StackTensorSource> sources, TensorRole role) {
    Json list = Json::array();
    for (const StackTensorSource& source : sources) {
      StackTensor tensor = described(source, role);
      tensor.stored_bytes = tensor.raw_bytes;
      tensor.sha256 = sha256[next++];
      list.push_back(stack_tensor_to_json(tensor));
    }
    return list;
  };
  Json first = entries(parameters, TensorRole::parameter);
  return header_text(path, state, std::move(first), entries(moments, TensorRole::moment));
}

std::string write_stack_archive(const Path& path, const Json& state, std::span<const StackTensorSource> parameters,
                                std::span<const StackTensorSource> moments, TensorCodec codec,
                                const FileProgress& progress) {
  check_state(path, state, parameters, !moments.empty());
  Writer writer(path, codec);
  Json first = writer.describe(parameters, TensorRole::parameter);
  const std::string text = header_text(path, state, std::move(first), writer.describe(moments, TensorRole::moment));
  return writer.write(text, parameters, moments, progress);
}

bool is_stack_archive(const Path& path) {
  FileReader file(path);
  std::array<char, kStackMagic.size()> start{};
  return file.read(start.data(), start.size()) == start.size() &&
         std::string_view(start.data(), start.size()) == kStackMagic;
}

}  // namespace samba
