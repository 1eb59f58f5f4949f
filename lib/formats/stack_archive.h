// The checkpoint of any stack, samba.stack.v1 (docs/formats/stack.md): a container of one JSON state, parameters and
// moments. What the configuration in the state means is not known here; lib/train puts both together.
//
// Memory is bounded: the header and one tensor at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/files.h"
#include "samba/formats/framed_file.h"
#include "samba/formats/stack_tensor.h"

namespace samba {

inline constexpr std::string_view kStackMagic("SAMBA-STACK\x01\x0A", 13);
inline constexpr std::uint64_t kLongestStackHeader = std::uint64_t{1} << 24;
inline constexpr const char* kStackProfile = "samba.stack.fp32.v1";
inline constexpr const char* kStackStateSchema = "samba.stack-state.v1";

// A tensor to be saved: `read` gives all its raw bytes and is called twice.
struct StackTensorSource {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;
  std::function<void(std::span<std::byte> raw)> read;
};

// Tensors in the order of the file. `state` must be one that the reader accepts. Atomic and durable: on any failure the
// old file stays. Returns the SHA-256 of the file.
// Refused before a file is made (Error(value)): a state, name, dtype or shape the format does not hold, a parameter
// that is not finite, a header above 16 MiB. Error(internal): a tensor that changes while it is saved.
std::string write_stack_archive(const Path& path, const nlohmann::json& state,
                                std::span<const StackTensorSource> parameters,
                                std::span<const StackTensorSource> moments, TensorCodec codec = TensorCodec::none,
                                const FileProgress& progress = {});

// The header of that file without a codec, and its checks; `sha256`: of the parameters, then of the moments. `read` is
// not called.
std::string stack_archive_header(const Path& path, const nlohmann::json& state,
                                 std::span<const StackTensorSource> parameters,
                                 std::span<const StackTensorSource> moments, std::span<const std::string> sha256);

// True when the file starts with the magic; false for any other content, an empty file included.
bool is_stack_archive(const Path& path);

// The header is read and checked whole by the constructor; nothing is allocated for tensors then. Every refusal is
// Error(corrupt) of a class of docs/formats/stack.md, "Loading".
class StackArchiveReader {
 public:
  explicit StackArchiveReader(const Path& path);

  const nlohmann::json& state() const { return header_["state"]; }
  std::span<const StackTensor> parameters() const { return {tensors_.data(), parameter_count_}; }
  std::span<const StackTensor> moments() const { return std::span(tensors_).subspan(parameter_count_); }
  bool inference_only() const { return moments().empty(); }
  std::uint64_t file_size() const { return file_.size(); }

  // All raw bytes of one of the tensors above, verified: classes array_integrity:NAME and, for a parameter,
  // weights_finite.
  void read(const StackTensor& tensor, std::span<std::byte> raw);
  std::vector<std::byte> read(const StackTensor& tensor);

 private:
  [[noreturn]] void refuse(const std::string& error_class, const std::string& reason) const;
  void read_header();
  void check_state() const;
  void read_entries(const char* list, TensorRole role);
  void check_size() const;

  FileReader file_;
  nlohmann::json header_;
  std::vector<StackTensor> tensors_;  // parameters, then moments
  std::size_t parameter_count_ = 0;
  std::uint64_t next_offset_ = 0;
};

// Why a state is none of a samba.stack.v1 file: the class and the reason, or empty. `formats`: the dtypes of the
// parameters; `moments`: whether there are any.
struct StackStateFault {
  std::string error_class;
  std::string reason;
};
StackStateFault find_stack_state_fault(const nlohmann::json& state, std::span<const DType> formats, bool moments);

}  // namespace samba
