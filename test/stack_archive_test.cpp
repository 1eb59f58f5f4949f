// The checkpoint of any stack: what is saved reads back and saves to the same bytes; whatever is damaged is refused by
// its class before memory is taken, and the message names the tensor; a failed save leaves the old file.
#include "samba/formats/stack_archive.h"
#include "samba/formats/samba_archive.h"

#include <zstd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <set>

#include "count_allocations.h"
#include "file_faults.h"
#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/formats/canonical_json.h"
#include "samba/formats/zstd_frame.h"
#include "temporary_folder.h"

using namespace samba;
using Json = nlohmann::json;

namespace {

constexpr std::size_t kHeaderAt = 21;

std::vector<std::byte> bytes_of(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  return {from, from + bytes};
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  return bytes_of(values.data(), values.size() * sizeof(T));
}

StackTensorSource source(const std::string& name, DType dtype, Shape shape, std::vector<std::byte> raw) {
  return {name, dtype, std::move(shape), [raw = std::move(raw)](std::span<std::byte> to) {
            REQUIRE(to.size() == raw.size());
            std::copy(raw.begin(), raw.end(), to.begin());
          }};
}

// Repeating values that zstd makes smaller.
std::vector<float> ramp(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = 0.25F * static_cast<float>(i % 4);
  return values;
}

Json training_state() {
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

Json inference_state(const std::string& format) {
  Json state = training_state();
  state["optimizer"] = nullptr;
  state["rng"] = nullptr;
  state["weight_format"] = format;
  return state;
}

std::vector<StackTensorSource> float_parameters() {
  return {source("embed.weight", DType::float32, {5, 16}, bytes_of(ramp(80))),
          source("layers.0.norm", DType::float32, {3}, bytes_of(std::vector<float>{1.0F, -0.0F, 1e-41F}))};
}

std::vector<StackTensorSource> float_moments() {
  return {source("exp_avg.embed.weight", DType::float32, {5, 16}, bytes_of(std::vector<float>(80))),
          source("exp_avg.layers.0.norm", DType::float32, {3}, bytes_of(std::vector<float>(3))),
          source("buf_initialized", DType::int32, {2}, bytes_of(std::vector<std::int32_t>{0, 1}))};
}

std::vector<StackTensorSource> packed_parameters() {
  std::vector<std::byte> packed = bytes_of(std::vector<std::int8_t>{-127, 0, 1, 64, 2, 127});
  const std::vector<std::byte> exponents = bytes_of(std::vector<std::int32_t>{-6, 120});
  packed.insert(packed.end(), exponents.begin(), exponents.end());
  return {source("proj.weight", DType::int8, {2, 3}, packed),
          source("norm.weight", DType::float32, {1}, bytes_of(std::vector<float>{1.0F}))};
}

// The class of the refusal, "" when the file can be read whole; `message` receives the text.
std::string refusal(const Path& path, std::string* message = nullptr) {
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
std::string with_header_text(const std::string& file, const std::string& header) {
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

std::string header_text(const std::string& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data() + kStackMagic.size(), 8);
  return file.substr(kHeaderAt, length);
}

struct Fixture {
  Fixture() { faults::reset(); }

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

}  // namespace

TEST_CASE_METHOD(Fixture, "what a stack archive holds reads back, and saving it again gives the same bytes") {
  for (const TensorCodec codec : {TensorCodec::none, TensorCodec::zstd}) {
    const std::string file = write(codec);
    CHECK(is_stack_archive(folder / "a.samba"));
    CHECK_FALSE(is_samba_archive(folder / "a.samba"));
    StackArchiveReader reader(folder / "a.samba");
    CHECK(reader.state() == training_state());
    CHECK_FALSE(reader.inference_only());
    CHECK(reader.file_size() == file.size());
    REQUIRE(reader.parameters().size() == 2);
    REQUIRE(reader.moments().size() == 3);
    const StackTensor& embed = reader.parameters()[0];
    CHECK(embed.name == "embed.weight");
    CHECK(embed.shape == Shape{5, 16});
    CHECK(embed.codec == codec);
    CHECK(reader.parameters()[1].codec == TensorCodec::none);  // 12 bytes that zstd does not make smaller
    CHECK(reader.moments()[2].dtype == DType::int32);
    CHECK(reader.read(reader.moments()[2]) == bytes_of(std::vector<std::int32_t>{0, 1}));  // any one, in any order
    CHECK(reader.read(embed) == bytes_of(ramp(80)));
    CHECK(embed.sha256 == sha256_hex(bytes_of(ramp(80)).data(), 320));

    std::vector<StackTensorSource> again[2];
    const auto resave = [&](std::span<const StackTensor> tensors, std::vector<StackTensorSource>& sources) {
      for (const StackTensor& t : tensors) sources.push_back(source(t.name, t.dtype, t.shape, reader.read(t)));
    };
    resave(reader.parameters(), again[0]);
    resave(reader.moments(), again[1]);
    const std::string digest = write_stack_archive(folder / "c.samba", reader.state(), again[0], again[1], codec);
    CHECK(read_file(folder / "c.samba") == file);
    CHECK(digest == sha256_hex(file));
  }
  CHECK(write(TensorCodec::zstd).size() < write(TensorCodec::none).size());
}

TEST_CASE_METHOD(Fixture, "packed weights lie in the file as codes and exponents") {
  write_stack_archive(folder / "a.samba", inference_state("int8"), packed_parameters(), {});
  StackArchiveReader reader(folder / "a.samba");
  CHECK(reader.inference_only());
  CHECK(reader.parameters()[0].raw_bytes == 6 + 8);
  const std::vector<std::byte> raw = reader.read(reader.parameters()[0]);
  CHECK(raw[0] == std::byte{0x81});
  CHECK(raw[6 + 4] == std::byte{120});

  const std::vector<StackTensorSource> half = {
      source("w", DType::bfloat16, {2, 2}, bytes_of(std::vector<std::uint16_t>{0x3F80, 0x8000, 0x0001, 0xFF7F}))};
  write_stack_archive(folder / "a.samba", inference_state("bfloat16"), half, {});
  StackArchiveReader second(folder / "a.samba");
  CHECK(second.parameters()[0].raw_bytes == 8);
}

TEST_CASE_METHOD(Fixture, "a stack archive cut short anywhere is refused, and so is one with a byte more") {
  for (const TensorCodec codec : {TensorCodec::none, TensorCodec::zstd}) {
    const std::string file = write(codec);
    const std::size_t header_end = kHeaderAt + header_text(file).size() + 32;
    std::set<std::string> classes;
    for (std::size_t bytes = 0; bytes < file.size(); ++bytes) {
      const std::string error_class = refused(file.substr(0, bytes));
      INFO(bytes << " bytes");
      REQUIRE(error_class == (bytes < 13           ? "format"
                              : bytes < 21         ? "truncated"
                              : bytes < header_end ? "header_integrity"
                                                   : "size"));
      classes.insert(error_class);
    }
    CHECK(classes.size() == 4);
    CHECK(refused(file + '\0') == "size");
  }
}

TEST_CASE_METHOD(Fixture, "one flipped bit anywhere in a stack archive is refused, and the tensor is named") {
  for (const TensorCodec codec : {TensorCodec::none, TensorCodec::zstd}) {
    const std::string file = write(codec);
    const std::size_t header_end = kHeaderAt + header_text(file).size() + 32;
    std::set<std::string> tensors;
    for (std::size_t byte = 0; byte < file.size(); ++byte) {
      std::string damaged = file;
      damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << (byte % 8)));
      std::string message;
      const std::string error_class = refused(damaged, &message);
      INFO("byte " << byte << ": " << error_class);
      if (byte < 13) {
        REQUIRE(error_class == "format");
      } else if (byte < 21) {
        REQUIRE((error_class == "header_length" || error_class == "header_integrity"));
      } else if (byte < header_end) {
        REQUIRE(error_class == "header_integrity");
      } else {
        REQUIRE_THAT(error_class, Catch::StartsWith("array_integrity:"));
        const std::string name = error_class.substr(16);
        REQUIRE_THAT(message, Catch::Contains("the tensor " + name) || Catch::Contains("stored bytes of " + name));
        tensors.insert(name);
      }
    }
    CHECK(tensors.size() == 5);
  }
}

TEST_CASE_METHOD(Fixture, "a header's entry that contradicts itself is refused before memory is taken") {
  const std::string file = write(TensorCodec::zstd);
  const auto entry = [&](const char* key, const Json& value) {
    std::string message;
    const std::string error_class = edited(
        file, [&](Json& header) { header["parameters"][0][key] = value; }, &message);
    CHECK_THAT(message, Catch::Contains("embed.weight"));
    return error_class;
  };
  CHECK(entry("sha256", std::string(64, '0')) == "array_integrity:embed.weight");
  CHECK(entry("stored_sha256", std::string(64, '0')) == "array_integrity:embed.weight");
  CHECK(entry("sha256", std::string(64, 'G')) == "tensor");
  CHECK(entry("sha256", "0") == "tensor");
  CHECK(entry("codec", "lz4") == "tensor");
  CHECK(entry("codec", "none") == "tensor");  // stored_sha256 is there
  CHECK(entry("dtype", "float64") == "tensor");
  CHECK(entry("dtype", "int32") == "tensor");  // for moments only
  CHECK(entry("extra", 1) == "tensor");
  CHECK(entry("stored_bytes", -1) == "tensor");
  CHECK(entry("stored_bytes", 8.0) == "tensor");
  CHECK(entry("stored_bytes", 320) == "tensor");  // no shorter than the raw bytes
  CHECK(entry("stored_bytes", 319) == "size");
  CHECK(entry("shape", 80) == "tensor");
  CHECK(entry("shape", {80.0}) == "tensor");
  CHECK(entry("shape", {5, 0}) == "tensor");
  CHECK(entry("shape", {-5, -16}) == "tensor");
  CHECK(entry("shape", {true}) == "tensor");
  CHECK(entry("shape", {1, 1, 1, 1, 1, 1, 1, 1, 80}) == "tensor");
  CHECK(entry("shape", {5, 15}) == "array_integrity:embed.weight");  // the frame's content size is another
  CHECK(edited(file, [](Json& header) { header["parameters"][0].erase("shape"); }) == "tensor");
  CHECK(edited(file, [](Json& header) { header["parameters"][0] = nullptr; }) == "tensor");
  CHECK(edited(file, [](Json& header) { header["moments"] = nullptr; }) == "tensor");

  // Sizes whose product or sum has no place in 64 bits, and sizes that have, but not in this file.
  for (const std::int64_t large : {std::int64_t{1} << 62, std::int64_t{1} << 40, std::int64_t{1} << 31}) {
    CHECK(entry("shape", {large}) == "tensor");
    CHECK(entry("shape", {large, large}) == "tensor");
    CHECK(entry("shape", {large, large, 4}) == "tensor");
    CHECK(entry("stored_bytes", large) == "tensor");
  }
  CHECK(entry("shape", {0xFFFFFFFFFFFFFFFFULL}) == "tensor");
  const std::string plain = write(TensorCodec::none);
  const auto moment = [&](std::uint64_t elements) {
    return edited(plain, [&](Json& header) {
      header["moments"][0]["shape"] = {elements};
      header["moments"][0]["stored_bytes"] = 4 * elements;
    });
  };
  CHECK(moment(std::uint64_t{1} << 58) == "size");
  CHECK(moment(std::uint64_t{1} << 59) == "tensor");
  CHECK(moment(81) == "size");
}

TEST_CASE_METHOD(Fixture, "reading a header takes no memory for the tensors it speaks of") {
  const std::size_t count = std::size_t{1} << 22;
  const std::vector<StackTensorSource> large = {
      source("w", DType::float32, {static_cast<Index>(count)}, bytes_of(std::vector<float>(count)))};
  write_stack_archive(folder / "a.samba", inference_state("float32"), large, {}, TensorCodec::zstd);
  CHECK(std::filesystem::file_size(folder / "a.samba") < 4096);
  const std::size_t before = allocated_bytes;
  StackArchiveReader reader(folder / "a.samba");
  CHECK(allocated_bytes - before < (std::size_t{1} << 20));
  CHECK(reader.read(reader.parameters()[0]).size() == 4 * count);
}

TEST_CASE_METHOD(Fixture, "a name twice, a key twice, and names that are paths are refused") {
  const std::string file = write(TensorCodec::none);
  const auto named = [&](const Json& name, std::string* message = nullptr) {
    return edited(
        file, [&](Json& header) { header["parameters"][1]["name"] = name; }, message);
  };
  std::string message;
  CHECK(named("embed.weight", &message) == "tensor_name");
  CHECK_THAT(message, Catch::Contains("embed.weight is there twice"));
  CHECK(edited(file, [](Json& header) { header["moments"][0]["name"] = "embed.weight"; }) == "tensor_name");
  for (const char* name : {"../embed", "/etc/passwd", "a/b", "a\\b", "..", ".hidden", "a..b", "a.", "", "a b", "a\n",
                           "caf\xC3\xA9", "con:", "~"}) {
    INFO(name);
    CHECK(named(name) == "tensor_name");
  }
  CHECK(named(std::string("a\0b", 3)) == "tensor_name");
  CHECK(named(std::string(256, 'a')) == "tensor_name");
  CHECK(named(std::string(255, 'a')).empty());
  CHECK(named(5) == "tensor");

  std::string header = header_text(file);
  header.replace(header.find("\"step\":3"), 8, "\"step\":3,\"step\":3");
  CHECK(refused(with_header_text(file, header)) == "json");
  header = header_text(file);
  header.replace(header.find("\"codec\":\"none\""), 14, "\"codec\":\"none\",\"codec\":\"none\"");
  CHECK(refused(with_header_text(file, header)) == "json");
}

TEST_CASE_METHOD(Fixture, "a header that is no JSON, or not of this schema, is refused") {
  const std::string file = write(TensorCodec::none);
  for (const char* text : {"{", "", "{\"a\":NaN}", "{} {}", "\xFF"}) {
    INFO(text);
    CHECK(refused(with_header_text(file, text)) == (*text == '\0' ? "header_length" : "json"));
  }
  CHECK(refused(with_header_text(file, "[]")) == "stream_schema");
  CHECK(edited(file, [](Json& header) { header["schema"] = "samba.stack.v2"; }) == "stream_schema");
  CHECK(edited(file, [](Json& header) { header["more"] = 1; }) == "stream_schema");
  CHECK(edited(file, [](Json& header) { header.erase("moments"); }) == "stream_schema");

  std::string long_header = file;
  const std::uint64_t length = kLongestStackHeader + 1;
  std::memcpy(long_header.data() + 13, &length, 8);
  CHECK(refused(long_header) == "header_length");
}

TEST_CASE_METHOD(Fixture, "another profile is refused with both names and the way to migrate") {
  const std::string file = write(TensorCodec::none);
  std::string message;
  CHECK(edited(
            file,
            [](Json& header) {
              header["state"] = {{"schema", kStackStateSchema}, {"profile", "samba.stack.fp32.v2"}};
            },
            &message) == "profile");
  CHECK_THAT(message, Catch::Contains("samba.stack.fp32.v2") && Catch::Contains("samba.stack.fp32.v1") &&
                          Catch::Contains("samba convert IN OUT --to safetensors"));
}

TEST_CASE_METHOD(Fixture, "a state that contradicts itself or its tensors is refused") {
  const std::string file = write(TensorCodec::none);
  const auto state = [&](const char* key, const Json& value) {
    return edited(file, [&](Json& header) { header["state"][key] = value; });
  };
  CHECK(state("schema", "samba.stack-state.v2") == "state_schema");
  CHECK(state("more", 1) == "state_schema");
  CHECK(edited(file, [](Json& header) { header["state"].erase("step"); }) == "state_schema");
  CHECK(edited(file, [](Json& header) { header["state"] = 5; }) == "state_schema");
  CHECK(state("config", nullptr) == "metadata");
  CHECK(state("numeric_mode", "quick") == "metadata");
  for (const Json& step : {Json(-1), Json(1.0), Json(true), Json("1"), Json(), Json(0xFFFFFFFFFFFFFFFFULL)}) {
    INFO(step.dump());
    CHECK(state("step", step) == "metadata");
  }
  CHECK(state("optimizer", nullptr) == "metadata");
  CHECK(state("rng", nullptr) == "metadata");
  CHECK(state("rng", 1) == "metadata");
  CHECK(state("schedule", 1) == "metadata");
  CHECK(state("weight_format", "int8") == "metadata");
  CHECK(state("numeric_mode", "fast").empty());

  write_stack_archive(folder / "a.samba", inference_state("int8"), packed_parameters(), {});
  const std::string packed = read_file(folder / "a.samba");
  CHECK(edited(packed, [](Json& header) { header["state"]["optimizer"] = Json::object(); }) == "metadata");
  CHECK(edited(packed, [](Json& header) { header["state"]["schedule"] = Json::object(); }) == "metadata");
  CHECK(edited(packed, [](Json& header) { header["parameters"][0]["shape"] = {6}; }) == "tensor");
  std::string message;
  CHECK(edited(
            packed,
            [](Json& header) {
              header["parameters"][1]["dtype"] = "bfloat16";
              header["parameters"][1]["shape"] = {2};
            },
            &message) == "metadata");
  CHECK_THAT(message, Catch::Contains("weights mix formats"));
}

TEST_CASE_METHOD(Fixture, "a parameter that is not finite is refused when saved and when read, and named") {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  for (const float value : bad) {
    const std::vector<StackTensorSource> parameters = {
        source("w", DType::float32, {2}, bytes_of(std::vector<float>{0.0F, value}))};
    CHECK_THROWS_WITH(write_stack_archive(folder / "n.samba", inference_state("float32"), parameters, {}),
                      Catch::Contains("element 1 of the parameter w is not finite"));
    CHECK_FALSE(std::filesystem::exists(folder / "n.samba"));
  }
  // The bytes of a good file replaced, digests made right: what a foreign writer could have made.
  const auto replaced = [&](const std::string& file, const std::vector<std::byte>& raw) {
    std::string changed = file;
    const std::size_t at = kHeaderAt + header_text(file).size() + 32;
    std::memcpy(changed.data() + at, raw.data(), raw.size());
    std::string message;
    CHECK(edited(
              changed, [&](Json& header) { header["parameters"][0]["sha256"] = sha256_hex(raw.data(), raw.size()); },
              &message) == "weights_finite");
    return message;
  };
  std::vector<float> values = ramp(80);
  values[7] = bad[0];
  CHECK_THAT(replaced(write(TensorCodec::none), bytes_of(values)),
             Catch::Contains("element 7 of the parameter embed.weight"));

  write_stack_archive(folder / "a.samba", inference_state("int8"), packed_parameters(), {});
  const std::string packed = read_file(folder / "a.samba");
  for (const auto& [code, exponent] : {std::pair<int, int>{127, 122}, {0, 128}, {-128, 121}, {1, 1000000}}) {
    std::vector<std::byte> raw = bytes_of(std::vector<std::int8_t>{0, 0, static_cast<std::int8_t>(code), 0, 0, 0});
    const auto exponents = bytes_of(std::vector<std::int32_t>{exponent, 0});
    raw.insert(raw.end(), exponents.begin(), exponents.end());
    INFO(code << " * 2^" << exponent);
    CHECK_THAT(replaced(packed, raw), Catch::Contains("of the parameter proj.weight is not finite"));
  }
  const std::vector<StackTensorSource> half = {
      source("w", DType::bfloat16, {2}, bytes_of(std::vector<std::uint16_t>{0x3F80, 0x7FC0}))};
  CHECK_THROWS_WITH(write_stack_archive(folder / "n.samba", inference_state("bfloat16"), half, {}),
                    Catch::Contains("element 1 of the parameter w"));
  // Moments are not looked at: the next step refuses them.
  const std::vector<StackTensorSource> moments = {
      source("exp_avg.w", DType::float32, {1}, bytes_of(std::vector<float>{bad[0]}))};
  write_stack_archive(folder / "a.samba", training_state(), float_parameters(), moments);
  CHECK(refusal(folder / "a.samba").empty());
}

TEST_CASE_METHOD(Fixture, "a zstd frame that is not exactly the tensor is refused though its digests fit") {
  write(TensorCodec::zstd);
  const std::vector<float> values = ramp(80);
  const std::vector<std::byte> raw = bytes_of(values);
  // One tensor whose stored bytes are `frame`.
  const auto with_frame = [&](const std::vector<std::byte>& frame) {
    const std::vector<StackTensorSource> one = {source("w", DType::float32, {80}, raw)};
    write_stack_archive(folder / "z.samba", inference_state("float32"), one, {}, TensorCodec::zstd);
    std::string file = read_file(folder / "z.samba");
    file.resize(kHeaderAt + header_text(file).size() + 32);
    file.append(reinterpret_cast<const char*>(frame.data()), frame.size());
    std::string message;
    const std::string error_class = edited(
        file,
        [&](Json& header) {
          header["parameters"][0]["stored_bytes"] = frame.size();
          header["parameters"][0]["stored_sha256"] = sha256_hex(frame.data(), frame.size());
        },
        &message);
    if (error_class.empty()) return std::string("accepted");
    CHECK_THAT(message, Catch::Contains("the tensor w: "));
    return message.substr(message.rfind("the zstd frame"));
  };
  CHECK(with_frame(zstd_compress(raw)) == "accepted");

  const std::vector<std::byte> shorter(raw.begin(), raw.end() - 4);
  std::vector<std::byte> longer = raw;
  longer.resize(raw.size() + 4);
  CHECK(with_frame(zstd_compress(shorter)) == "the zstd frame holds 316 bytes, the shape needs 320");
  CHECK(with_frame(zstd_compress(longer)) == "the zstd frame holds 324 bytes, the shape needs 320");

  std::vector<std::byte> two = zstd_compress(raw);
  const std::size_t one = two.size();
  two.insert(two.end(), two.begin(), two.begin() + static_cast<std::ptrdiff_t>(one));
  CHECK_THAT(with_frame(two), Catch::Contains("ends after " + std::to_string(one)));
  std::vector<std::byte> cut = zstd_compress(raw);
  cut.pop_back();
  CHECK_THAT(with_frame(cut), Catch::Contains("the zstd frame is damaged"));
  CHECK_THAT(with_frame(bytes_of(std::string("no frame at all").data(), 15)), Catch::Contains("damaged"));

  // A frame without its content size.
  std::vector<std::byte> unstated(512);
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_contentSizeFlag, 0);
  unstated.resize(ZSTD_compress2(context.get(), unstated.data(), unstated.size(), raw.data(), raw.size()));
  CHECK(with_frame(unstated) == "the zstd frame does not state its content size");

  // A frame that claims the right size and unpacks to less: its last block made empty.
  std::vector<std::byte> claims = zstd_compress(raw);
  const std::size_t header = 4 + 1 + 2;  // magic, descriptor, content size in two bytes (320 = 64 + 256)
  REQUIRE(claims[4] == std::byte{0x60});
  claims.resize(header);
  claims.insert(claims.end(), {std::byte{1}, std::byte{0}, std::byte{0}});  // a last raw block of no bytes
  CHECK_THAT(with_frame(claims), Catch::Contains("the zstd frame"));
}

TEST_CASE_METHOD(Fixture, "a tensor that the format does not hold is refused before a file is made") {
  const auto saving = [&](std::vector<StackTensorSource> parameters, const Json& state = inference_state("float32")) {
    try {
      write_stack_archive(folder / "n.samba", state, parameters, {});
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::value);
      CHECK(folder.entries() == 0);
      return std::string(error.what());
    }
    return std::string("saved");
  };
  const std::vector<std::byte> four(4);
  CHECK_THAT(saving({source("../w", DType::float32, {1}, four)}), Catch::Contains("../w"));
  CHECK_THAT(saving({source("w", DType::float64, {1}, four)}), Catch::Contains("float64"));
  CHECK_THAT(saving({source("w", DType::int32, {1}, four)}), Catch::Contains("int32"));
  CHECK_THAT(saving({source("w", DType::int8, {4}, four)}, inference_state("int8")), Catch::Contains("two dimensions"));
  CHECK_THAT(saving({source("w", DType::float32, {0}, {})}), Catch::Contains("(0,)"));
  CHECK_THAT(saving({source("w", DType::float32, {1}, four), source("w", DType::float32, {1}, four)}),
             Catch::Contains("twice"));
  CHECK_THAT(saving({source("w", DType::float32, {1}, four)}, training_state()), Catch::Contains("must be null"));
  CHECK_THAT(saving({source("w", DType::float32, {1}, four)}, inference_state("int8")),
             Catch::Contains("weight_format"));
  Json state = inference_state("float32");
  state["config"]["text"] = std::string(kLongestStackHeader, 'x');
  CHECK_THAT(saving({source("w", DType::float32, {1}, four)}, state), Catch::Contains("16777216"));
}

TEST_CASE_METHOD(Fixture, "the old stack archive stays whichever write, fsync or rename fails") {
  const std::string old = write(TensorCodec::none);
  Json state = training_state();
  state["step"] = 4;
  faults::reset();
  write_stack_archive(folder / "c.samba", state, float_parameters(), float_moments());
  const int writes = faults::write.calls.load();
  REQUIRE(writes == 4 + 5);
  CHECK(faults::fsync.calls.load() == 2);  // the file and its folder
  for (int failing = 1; failing <= writes + 2; ++failing) {
    faults::reset();
    faults::error = failing <= writes ? ENOSPC : EIO;
    if (failing <= writes) faults::write.failing = failing;
    if (failing == writes + 1) faults::fsync.failing = 1;
    if (failing == writes + 2) faults::rename.failing = 1;
    INFO("fault " << failing);
    try {
      write_stack_archive(folder / "a.samba", state, float_parameters(), float_moments());
      FAIL("was not refused");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::resource);
      CHECK_THAT(error.what(), Catch::Contains("a.samba"));
    }
    CHECK(read_file(folder / "a.samba") == old);
    CHECK(folder.entries() == 2);
  }
  faults::reset();
  faults::most_bytes = 7;  // short writes are continued
  write_stack_archive(folder / "a.samba", state, float_parameters(), float_moments());
  faults::reset();
  CHECK(read_file(folder / "a.samba") == read_file(folder / "c.samba"));
}

TEST_CASE_METHOD(Fixture, "a tensor that changes while it is saved is noticed") {
  for (const TensorCodec codec : {TensorCodec::none, TensorCodec::zstd}) {
    int reads = 0;
    const std::vector<StackTensorSource> changing = {{"w", DType::float32, {64}, [&](std::span<std::byte> raw) {
                                                        std::fill(raw.begin(), raw.end(),
                                                                  static_cast<std::byte>(++reads));
                                                      }}};
    CHECK_THROWS_WITH(write_stack_archive(folder / "b.samba", inference_state("float32"), changing, {}, codec),
                      Catch::Contains("the tensor w changed while it was saved"));
    CHECK(folder.entries() == 0);
  }
}

TEST_CASE_METHOD(Fixture, "progress of a stack archive grows and ends at the size of the file") {
  std::uint64_t last = 0;
  std::uint64_t announced = 0;
  write_stack_archive(folder / "a.samba", training_state(), float_parameters(), float_moments(), TensorCodec::zstd,
                      [&](std::uint64_t done, std::uint64_t total) {
                        CHECK(done > last);
                        last = done;
                        announced = total;
                      });
  CHECK(last == announced);
  CHECK(last == std::filesystem::file_size(folder / "a.samba"));
}
