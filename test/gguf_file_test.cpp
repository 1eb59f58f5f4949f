// GGUF files (docs/formats/gguf.md): what is read, and that a damaged or hostile one is refused in one line before a
// byte of a tensor is used.
#include "samba/formats/gguf_file.h"

#include <catch2/catch.hpp>

#include "gguf_bytes.h"
#include "samba/core/error.h"
#include "samba/formats/gguf_writer.h"
#include "temporary_folder.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;

GgufHeader parsed(const std::string& bytes) { return parse_gguf(std::as_bytes(std::span(bytes)), "model.gguf"); }

// The class of the refusal; its message must be one line that names the file and holds `part`.
std::string refused(const std::string& bytes, const std::string& part) {
  try {
    parsed(bytes);
  } catch (const Error& error) {
    const std::string message = error.what();
    CHECK_THAT(message, Catch::StartsWith("model.gguf: "));
    CHECK_THAT(message, Contains(part));
    CHECK(message.find('\n') == std::string::npos);
    return error.kind() == ErrorKind::corrupt ? error.error_class() : "unsupported";
  }
  return "accepted";
}

GgufBytes two_tensors() {
  GgufBytes file;
  file.text("general.architecture", "llama").count("llama.block_count", 2);
  file.tensor("a", {32, 2}, 8, 0).tensor("b", {3}, 0, 96);
  return file;
}
constexpr std::size_t kTwo = 108;  // bytes of their tensors

}  // namespace

TEST_CASE("a GGUF file is read where it lies") {
  TemporaryFolder folder;
  write_file_atomically(folder / "a.gguf", two_tensors().file(kTwo));
  const GgufFile file(folder / "a.gguf");
  CHECK(file.version() == 3);
  CHECK(file.metadata().at("llama.block_count").integer == 2);
  REQUIRE(file.tensors().size() == 2);
  const GgufTensor& a = file.tensors()[0];
  CHECK(a.shape == Shape{2, 32});
  CHECK(a.format == WeightFormat::q8_0);
  CHECK(a.bytes.size() == 68);
  CHECK(a.bytes.data() == file.file().bytes().data() + file.size() - kTwo);
  CHECK(file.find("b")->bytes.size() == 12);
  CHECK(file.find("c") == nullptr);
  CHECK(parsed(two_tensors().version(2).file(kTwo)).version == 2);
}

TEST_CASE("a file that ends early is refused at every length") {
  const std::string whole = two_tensors().file(kTwo);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    INFO(length);
    CHECK(refused(whole.substr(0, length), "") != "accepted");
  }
  CHECK(refused(whole.substr(0, whole.size() - 1), "tensor b ends beyond the file") == "truncated");
  CHECK(refused(whole.substr(0, 40), "the file ends within its header") == "truncated");
}

TEST_CASE("another file, version or byte order is refused") {
  CHECK(refused("GGML" + std::string(60, '\0'), "no GGUF file") == "format");
  CHECK(refused(two_tensors().version(1).file(kTwo), "GGUF version 1; accepted: 2, 3") == "version");
  CHECK(refused(two_tensors().version(0x03000000).file(kTwo), "big-endian") == "version");
}

TEST_CASE("counts, lengths and dimensions beyond the file are refused before anything is allocated") {
  const std::uint64_t huge = std::uint64_t{1} << 60;
  CHECK(refused(GgufBytes().counts(huge, 0).file(64), "accepted: at most 262144") == "format");
  CHECK(refused(GgufBytes().counts(0, huge).file(64), "accepted: at most 65536") == "format");
  CHECK(refused(GgufBytes().counts(1 << 16, 0).file(64), "ends within its header") == "truncated");
  GgufBytes name;
  name.put(huge);
  CHECK(refused(name.counts(0, 1).file(64), "ends within its header") == "truncated");
  GgufBytes list;
  list.put(std::string("tokens")).put(std::uint32_t{9}).put(std::uint32_t{8}).put(huge);
  CHECK(refused(list.counts(0, 1).file(64), "an array longer than the file") == "format");
  const std::uint64_t half = std::uint64_t{1} << 32;
  CHECK(refused(GgufBytes().tensor("t", {half, half, half}, 0, 0).file(64), "tensor t: its dimensions") == "tensor");
  CHECK(refused(GgufBytes().tensor("t", {huge}, 0, 0).file(64), "tensor t: its dimensions") == "tensor");
  CHECK(refused(GgufBytes().tensor("t", {4, 0}, 0, 0).file(64), "tensor t: is empty") == "tensor");
  CHECK(refused(GgufBytes().tensor("t", {}, 0, 0).file(64), "tensor t: has 0 dimensions") == "tensor");
  CHECK(refused(GgufBytes().tensor("t", {1, 1, 1, 1, 1}, 0, 0).file(64), "has 5 dimensions") == "tensor");
  CHECK(refused(GgufBytes().tensor("t", {16}, 0, huge).file(64), "tensor t ends beyond the file") == "truncated");
  CHECK(refused(GgufBytes().tensor("t", {16}, 0, ~std::uint64_t{31}).file(64), "ends beyond the file") == "truncated");
}

TEST_CASE("tensors that overlap, lie askew or bear a name twice are refused by name") {
  GgufBytes overlap;
  overlap.tensor("a", {32}, 0, 0).tensor("b", {32}, 0, 96);
  CHECK(refused(overlap.file(256), "the tensors a and b overlap") == "offsets");
  CHECK(refused(GgufBytes().tensor("a", {4}, 0, 8).file(64), "tensor a: the offset 8 is no multiple") == "offsets");
  GgufBytes twice;
  twice.tensor("a", {4}, 0, 0).tensor("a", {4}, 0, 32);
  CHECK(refused(twice.file(64), "tensor a: is given twice") == "tensor");
  CHECK(refused(GgufBytes().count("x", 1).count("x", 2).file(), "the name x is given twice") == "format");
  CHECK(refused(GgufBytes().tensor("", {4}, 0, 0).file(64), "name of 0 bytes") == "format");
  CHECK(refused(GgufBytes().tensor(std::string(65, 'n'), {4}, 0, 0).file(64), "name of 65 bytes") == "format");
}

TEST_CASE("types that are not known and rows that are no whole blocks are refused by name") {
  CHECK(refused(GgufBytes().tensor("t", {256}, 10, 0).file(256), "tensor t has the type number 10; accepted: F32") ==
        "unsupported");
  CHECK(refused(GgufBytes().tensor("t", {33, 2}, 2, 0).file(256), "rows of 33 values are no multiple of the 32") ==
        "tensor");
  CHECK(refused(GgufBytes().tensor("t", {128, 4}, 12, 0).file(512), "the 256 of a block of Q4_K") == "tensor");
}

TEST_CASE("the alignment may be chosen") {
  const auto with = [](std::uint32_t alignment) {
    return GgufBytes().count("general.alignment", alignment).tensor("a", {4}, 0, 0).tensor("b", {4}, 0, alignment);
  };
  CHECK(parsed(with(64).file(80, 64)).offsets[1] % 64 == 0);
  CHECK(refused(with(48).file(80, 48), "general.alignment must be a power of two") == "format");
  CHECK(refused(with(0).file(80), "general.alignment must be a power of two") == "format");
}

TEST_CASE("what is written is read back") {
  TemporaryFolder folder;
  GgufFields fields;
  fields.text("general.architecture", "llama");
  fields.count("n", 7);
  fields.number("x", 0.5F);
  fields.flag("yes", true);
  fields.texts("names", std::vector<std::string>{"a", ""});
  fields.integers("types", std::vector<std::int32_t>{-1, 2});
  fields.numbers("scores", std::vector<float>{-2.5F});
  const std::vector<float> values{1.0F, -2.0F, 0.1F, 3.0F, 4.0F, 5.0F};
  const auto halves = [&](const auto& put) {
    put(std::span(values).first(2));
    put(std::span(values).subspan(2));
  };
  const GgufTensorSource tensors[] = {{"a", {2, 3}, WeightFormat::float32, [&](const auto& put) { put(values); }},
                                      {"b", {6}, WeightFormat::bfloat16, halves}};
  write_gguf(folder / "a.gguf", fields, tensors);
  const GgufFile file(folder / "a.gguf");
  CHECK(file.metadata().at("n").integer == 7);
  CHECK(file.metadata().at("x").number == 0.5);
  CHECK(file.metadata().at("yes").integer == 1);
  CHECK(file.metadata().at("names").texts == std::vector<std::string>{"a", ""});
  CHECK(file.metadata().at("types").integers == std::vector<std::int64_t>{-1, 2});
  CHECK(file.metadata().at("scores").numbers == std::vector<double>{-2.5});
  CHECK(file.find("a")->shape == Shape{2, 3});
  CHECK(std::memcmp(file.find("a")->bytes.data(), values.data(), 24) == 0);
  CHECK(file.find("b")->format == WeightFormat::bfloat16);
  CHECK(file.find("b")->bytes.size() == 12);
  CHECK(folder.entries() == 1);
}

}  // namespace samba
