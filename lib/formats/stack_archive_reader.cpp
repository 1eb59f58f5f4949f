#include <algorithm>
#include <array>
#include <bit>
#include <set>

#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/formats/canonical_json.h"
#include "samba/formats/framed_file.h"
#include "samba/formats/stack_archive.h"
#include "samba/formats/zstd_frame.h"

namespace samba {

static_assert(std::endian::native == std::endian::little, "files are little-endian and copied as they are");

namespace {

using Json = nlohmann::json;

constexpr const char* kSchema = "samba.stack.v1";

}  // namespace

void StackArchiveReader::refuse(const std::string& error_class, const std::string& reason) const {
  refuse_corrupt(error_class, file_.path().string() + " cannot be loaded (" + error_class + "): " + reason);
}

StackArchiveReader::StackArchiveReader(const Path& path) : file_(path) {
  read_header();
  check_state();
  read_entries("parameters", TensorRole::parameter);
  parameter_count_ = tensors_.size();
  read_entries("moments", TensorRole::moment);
  check_size();
  std::vector<DType> formats;
  for (const StackTensor& tensor : parameters()) formats.push_back(tensor.dtype);
  const StackStateFault fault = find_stack_state_fault(state(), formats, !moments().empty());
  if (!fault.error_class.empty()) refuse(fault.error_class, fault.reason);
}

void StackArchiveReader::read_header() {
  std::array<char, kStackMagic.size()> magic{};
  if (file_.read(magic.data(), magic.size()) != magic.size() ||
      std::string_view(magic.data(), magic.size()) != kStackMagic) {
    refuse("format", "it does not start with the magic of a samba.stack.v1 file");
  }
  header_ = read_framed_header(file_, kLongestStackHeader,
                               [this](const auto& error_class, const auto& reason) { refuse(error_class, reason); });
  if (!header_.is_object() || header_.size() != 4 || !header_.contains("moments") || !header_.contains("parameters") ||
      !header_.contains("schema") || !header_.contains("state")) {
    refuse("stream_schema", "the header must have exactly the keys moments, parameters, schema, state");
  }
  if (header_["schema"] != kSchema) {
    refuse("stream_schema", std::string("the header's schema must be \"") + kSchema + "\"");
  }
  next_offset_ = file_.position();
}

// What the state says of itself comes before its tensors: another profile may have other ones.
void StackArchiveReader::check_state() const {
  const StackStateFault fault = find_stack_state_fault(state(), {}, false);
  if (fault.error_class == "state_schema" || fault.error_class == "profile") refuse(fault.error_class, fault.reason);
}

void StackArchiveReader::read_entries(const char* list, TensorRole role) {
  const Json& entries = header_[list];
  if (!entries.is_array()) refuse("tensor", std::string(list) + " must be a list");
  std::set<std::string> names;
  for (const StackTensor& tensor : tensors_) names.insert(tensor.name);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Json& entry = entries[i];
    std::string who = "entry " + std::to_string(i) + " of " + list;
    if (entry.is_object() && entry.contains("name") && entry["name"].is_string()) {
      const auto& name = entry["name"].get_ref<const std::string&>();
      try {
        check_stack_tensor_name(name);
      } catch (const Error& error) {
        refuse("tensor_name", who + ": " + error.what());
      }
      if (!names.insert(name).second) refuse("tensor_name", "the tensor " + name + " is there twice");
      who = "the tensor " + name;
    }
    try {
      tensors_.push_back(stack_tensor_from_json(entry, role));
    } catch (const Error& error) {
      refuse("tensor", who + " " + error.what());
    }
    StackTensor& tensor = tensors_.back();
    tensor.offset = next_offset_;
    if (tensor.stored_bytes > file_.size() - std::min(file_.size(), next_offset_)) {
      refuse("size", "the tensor " + tensor.name + " ends at byte " + std::to_string(next_offset_) + " + " +
                         std::to_string(tensor.stored_bytes) + ", the file has " + std::to_string(file_.size()));
    }
    next_offset_ += tensor.stored_bytes;
  }
}

void StackArchiveReader::check_size() const {
  if (file_.size() != next_offset_) {
    refuse("size",
           "it has " + std::to_string(file_.size()) + " bytes, its header says " + std::to_string(next_offset_));
  }
}

void StackArchiveReader::read(const StackTensor& tensor, std::span<std::byte> raw) {
  const std::string error_class = "array_integrity:" + tensor.name;
  if (raw.size() != tensor.raw_bytes) {
    throw Error(ErrorKind::internal, "the tensor " + tensor.name + " needs " + std::to_string(tensor.raw_bytes) +
                                         " bytes, got room for " + std::to_string(raw.size()));
  }
  file_.seek(tensor.offset);
  if (tensor.codec == TensorCodec::none) {
    if (file_.read(raw.data(), raw.size()) != raw.size()) {
      refuse("size", "it became shorter while the tensor " + tensor.name + " was read");
    }
  } else {
    std::vector<std::byte> frame(static_cast<std::size_t>(tensor.stored_bytes));
    if (file_.read(frame.data(), frame.size()) != frame.size()) {
      refuse("size", "it became shorter while the tensor " + tensor.name + " was read");
    }
    if (sha256_hex(frame.data(), frame.size()) != tensor.stored_sha256) {
      refuse(error_class, "the SHA-256 of the stored bytes of " + tensor.name + " differs");
    }
    try {
      zstd_decompress(frame, raw);
    } catch (const Error& error) {
      refuse(error_class, "the tensor " + tensor.name + ": " + error.what());
    }
  }
  if (sha256_hex(raw.data(), raw.size()) != tensor.sha256) {
    refuse(error_class, "the SHA-256 of the tensor " + tensor.name + " differs");
  }
  if (tensor.role != TensorRole::parameter) return;
  if (const auto found = first_non_finite(tensor.dtype, tensor.shape, raw)) {
    refuse("weights_finite",
           "element " + std::to_string(*found) + " of the parameter " + tensor.name + " is not finite");
  }
}

std::vector<std::byte> StackArchiveReader::read(const StackTensor& tensor) {
  std::vector<std::byte> raw(static_cast<std::size_t>(tensor.raw_bytes));
  read(tensor, raw);
  return raw;
}

}  // namespace samba
