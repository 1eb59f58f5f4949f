#include "samba/formats/safetensors.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <vector>

#include <unistd.h>

#include "samba/core/error.h"

namespace samba {
namespace {

std::vector<std::byte> file_of(const std::string& header, std::size_t data_bytes) {
  std::vector<std::byte> bytes(8 + header.size() + data_bytes);
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(header.size() >> (8 * i));
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

// The class of the refusal, or "accepted".
std::string refusal(const std::vector<std::byte>& bytes) {
  try {
    parse_safetensors(bytes, "test");
    return "accepted";
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::corrupt);
    CHECK(std::string(error.what()).find("test") != std::string::npos);
    return error.error_class();
  }
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

}  // namespace

TEST_CASE("a safetensors file is read with its metadata, dtypes and shapes") {
  auto bytes = file_of(R"({"__metadata__":{"case":"{}"},)" + tensor("a", "F32", "[2,1]", "[2,10]") + "," +
                           tensor("b", "U16", "[]", "[0,2]") + "}  ",
                       10);
  const float values[2] = {1.5F, -0.0F};
  std::memcpy(bytes.data() + bytes.size() - 8, values, 8);
  const SafetensorsFile file = parse_safetensors(bytes, "test");
  CHECK(file.metadata.at("case") == "{}");
  CHECK(file.tensors.at("b").dtype() == DType::uint16);
  CHECK(file.tensors.at("b").size() == 1);
  REQUIRE(file.tensors.at("a").shape() == Shape{2, 1});
  CHECK(file.tensors.at("a").floats()[0] == 1.5F);
  CHECK(std::memcmp(file.tensors.at("a").data(), values, 8) == 0);
}

TEST_CASE("a damaged safetensors file is refused with the class of its damage") {
  const std::string ok = "{" + tensor("a", "F32", "[2]", "[0,8]") + "}";
  CHECK(refusal(file_of(ok, 8)) == "accepted");
  CHECK(refusal(std::vector<std::byte>(7)) == "truncated");
  CHECK(refusal(file_of(ok, 7)) == "offsets");
  CHECK(refusal(file_of(ok, 9)) == "offsets");
  CHECK(refusal(file_of("{", 0)) == "json");
  CHECK(refusal(file_of("[]", 0)) == "header");
  CHECK(refusal(file_of("{\"a\":1}", 0)) == "tensor");

  auto cut = file_of(ok, 8);
  cut.resize(20);
  CHECK(refusal(cut) == "truncated");
  auto endless = file_of(ok, 8);
  endless[7] = std::byte{0x80};
  CHECK(refusal(endless) == "header_length");
}

TEST_CASE("contradictory tensor entries are refused") {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return refusal(file_of("{" + tensor("a", dtype, shape, offsets) + "}", 8));
  };
  CHECK(one("F32", "[2]", "[0,8]") == "accepted");
  CHECK(one("F32", "[3]", "[0,8]") == "tensor");
  CHECK(one("F64", "[2]", "[0,8]") == "tensor");
  CHECK(one("F31", "[2]", "[0,8]") == "tensor");
  CHECK(one("F32", "[-2]", "[0,8]") == "tensor");
  CHECK(one("F32", "[2.0]", "[0,8]") == "tensor");
  CHECK(one("F32", "[2]", "[8,0]") == "tensor");
  CHECK(one("F32", "[2]", "[0,18446744073709551615]") == "tensor");
  CHECK(one("F32", "[4611686018427387904,4611686018427387904]", "[0,0]") == "tensor");
  CHECK(one("F32", "[2]", "[4,12]") == "offsets");

  const auto two = [](const std::string& first, const std::string& second) {
    return refusal(file_of("{" + first + "," + second + "}", 8));
  };
  CHECK(two(tensor("a", "F32", "[1]", "[0,4]"), tensor("b", "F32", "[1]", "[4,8]")) == "accepted");
  CHECK(two(tensor("a", "F32", "[1]", "[0,4]"), tensor("b", "F32", "[1]", "[0,4]")) == "offsets");
  CHECK(two(tensor("a", "F32", "[2]", "[0,8]"), tensor("b", "F32", "[1]", "[4,8]")) == "offsets");
  CHECK(two(tensor("a", "F32", "[1]", "[0,4]"), tensor("a", "F32", "[1]", "[4,8]")) == "header");
}

TEST_CASE("a written safetensors file reads back equal, and its data begin at a multiple of 8") {
  const auto path = std::filesystem::temp_directory_path() / ("samba_safetensors_" + std::to_string(::getpid()));
  const float values[3] = {1.0F, -0.0F, 3.5F};
  const std::int32_t ids[2] = {7, -100};
  write_safetensors(path, {{"x", {DType::float32, {3, 1}, values}}, {"ids", {DType::int32, {2}, ids}}}, {{"k", "v"}});
  const SafetensorsFile file = read_safetensors(path);
  const auto size = std::filesystem::file_size(path);
  std::filesystem::remove(path);
  CHECK(size % 4 == 0);
  CHECK(file.metadata == std::map<std::string, std::string>{{"k", "v"}});
  REQUIRE(file.tensors.size() == 2);
  CHECK(file.tensors.at("x").shape() == Shape{3, 1});
  CHECK(std::memcmp(file.tensors.at("x").data(), values, sizeof(values)) == 0);
  CHECK(std::memcmp(file.tensors.at("ids").data(), ids, sizeof(ids)) == 0);
}

}  // namespace samba
