// A damaged or contradictory stack archive is refused by its class before memory is taken, and the message names the
// tensor.
#include <zstd.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "count_allocations.h"
#include "samba/formats/zstd_frame.h"
#include "stack_archive_fixture.h"

namespace samba {

TEST_CASE_METHOD(StackArchiveFixture, "a stack archive cut short anywhere is refused, and so is one with a byte more") {
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

TEST_CASE_METHOD(StackArchiveFixture,
                 "one flipped bit anywhere in a stack archive is refused, and the tensor is named") {
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

TEST_CASE_METHOD(StackArchiveFixture, "a header's entry that contradicts itself is refused before memory is taken") {
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

TEST_CASE_METHOD(StackArchiveFixture, "reading a header takes no memory for the tensors it speaks of") {
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

TEST_CASE_METHOD(StackArchiveFixture, "a name twice, a key twice, and names that are paths are refused") {
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

TEST_CASE_METHOD(StackArchiveFixture, "a header that is no JSON, or not of this schema, is refused") {
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

TEST_CASE_METHOD(StackArchiveFixture, "another profile is refused with both names and the way to migrate") {
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

TEST_CASE_METHOD(StackArchiveFixture, "a state that contradicts itself or its tensors is refused") {
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

TEST_CASE_METHOD(StackArchiveFixture, "a parameter that is not finite is refused when saved and when read, and named") {
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

TEST_CASE_METHOD(StackArchiveFixture, "a zstd frame that is not exactly the tensor is refused though its digests fit") {
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

}  // namespace samba
