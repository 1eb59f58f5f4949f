// Small stack archives (samba.stack.v1), and what a reader says of one.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>

#include "file_faults.h"
#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/formats/canonical_json.h"
#include "samba/formats/samba_archive.h"
#include "samba/formats/stack_archive.h"
#include "temporary_folder.h"

namespace samba {

using Json = nlohmann::json;

inline constexpr std::size_t kHeaderAt = 21;

inline std::vector<std::byte> bytes_of(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  return {from, from + bytes};
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  return bytes_of(values.data(), values.size() * sizeof(T));
}

inline StackTensorSource source(const std::string& name, DType dtype, Shape shape, std::vector<std::byte> raw) {
  return {name, dtype, std::move(shape), [raw = std::move(raw)](std::span<std::byte> to) {
            REQUIRE(to.size() == raw.size());
            std::copy(raw.begin(), raw.end(), to.begin());
          }};
}

// Repeating values that zstd makes smaller.
inline std::vector<float> ramp(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = 0.25F * static_cast<float>(i % 4);
  return values;
}

inline Json training_state() {
  return {{"schema", kStackStateSchema},
          {"profile", kStackProfile},
          {"numeric_mode", "identical"},
          {"config", {{"vocab", 5}}},
          {"step", 3},
          {"optimizer", {{"kind", "adamw"}}},
          {"schedule", nullptr},
          {"rng", {{"seed", 0xFFFFFFFFFFFFFFFFULL}, {"counter", 4}}},
          {"weight_format", "float32"}};
}

inline Json inference_state(const std::string& format) {
  Json state = training_state();
  state["optimizer"] = nullptr;
  state["rng"] = nullptr;
  state["weight_format"] = format;
  return state;
}

inline std::vector<StackTensorSource> float_parameters() {
  return {source("embed.weight", DType::float32, {5, 16}, bytes_of(ramp(80))),
          source("layers.0.norm", DType::float32, {3}, bytes_of(std::vector<float>{1.0F, -0.0F, 1e-41F}))};
}

inline std::vector<StackTensorSource> float_moments() {
  return {source("exp_avg.embed.weight", DType::float32, {5, 16}, bytes_of(std::vector<float>(80))),
          source("exp_avg.layers.0.norm", DType::float32, {3}, bytes_of(std::vector<float>(3))),
          source("buf_initialized", DType::int32, {2}, bytes_of(std::vector<std::int32_t>{0, 1}))};
}

inline std::vector<StackTensorSource> packed_parameters() {
  std::vector<std::byte> packed = bytes_of(std::vector<std::int8_t>{-127, 0, 1, 64, 2, 127});
  const std::vector<std::byte> exponents = bytes_of(std::vector<std::int32_t>{-6, 120});
  packed.insert(packed.end(), exponents.begin(), exponents.end());
  return {source("proj.weight", DType::int8, {2, 3}, packed),
          source("norm.weight", DType::float32, {1}, bytes_of(std::vector<float>{1.0F}))};
}

// The class of the refusal, "" when the file can be read whole; `message` receives the text.
inline std::string refusal(const Path& path, std::string* message = nullptr) {
  try {
    StackArchiveReader reader(path);
    for (const StackTensor& tensor : reader.parameters()) reader.read(tensor);
    for (const StackTensor& tensor : reader.moments()) reader.read(tensor);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::corrupt);
    CHECK_THAT(error.what(), Catch::Contains(path.string()) && Catch::Contains(error.error_class()));
    if (message != nullptr) *message = error.what();
    return error.error_class();
  }
  return "";
}

// The file with another header, whose length and digest fit.
inline std::string with_header_text(const std::string& file, const std::string& header) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data() + kStackMagic.size(), 8);
  const std::string tensors = file.substr(kHeaderAt + length + 32);
  length = header.size();
  Sha256 hash;
  hash.update(header);
  const Sha256Digest digest = hash.finish();
  return std::string(kStackMagic) + std::string(reinterpret_cast<const char*>(&length), 8) + header +
         std::string(reinterpret_cast<const char*>(digest.data()), 32) + tensors;
}

inline std::string header_text(const std::string& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data() + kStackMagic.size(), 8);
  return file.substr(kHeaderAt, length);
}

struct StackArchiveFixture {
  StackArchiveFixture() { faults::reset(); }

  std::string write(TensorCodec codec) {
    write_stack_archive(folder / "a.samba", training_state(), float_parameters(), float_moments(), codec);
    return read_file(folder / "a.samba");
  }
  std::string refused(const std::string& content, std::string* message = nullptr) {
    std::ofstream(folder / "b.samba", std::ios::binary) << content;  // thousands of these: not made durable
    return refusal(folder / "b.samba", message);
  }
  // The class when one header entry is edited.
  std::string edited(const std::string& file, const std::function<void(Json&)>& edit, std::string* message = nullptr) {
    Json header = parse_json(header_text(file));
    edit(header);
    return refused(with_header_text(file, canonical_json(header)), message);
  }

  TemporaryFolder folder;
};

}  // namespace samba
