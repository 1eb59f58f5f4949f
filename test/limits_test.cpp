// What a file from a stranger may hold (docs/limits.md): beyond it the file is refused, by name, before memory is taken
// for it, and nothing outside of it is read or written.
#include <catch2/catch.hpp>

#include "command.h"
#include "error_of.h"
#include "gguf_bytes.h"
#include "samba/core/json_fields.h"
#include "samba/core/json_limits.h"
#include "samba/formats/canonical_json.h"
#include "samba/formats/file_hashes.h"
#include "samba/formats/gguf_file.h"
#include "samba/formats/safetensors.h"
#include "samba/formats/stack_archive.h"
#include "samba/formats/token_shards.h"
#include "samba/formats/torch_file.h"
#include "samba/model/stack_config.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

std::string repeated(const std::string& text, std::size_t times) {
  std::string result;
  result.reserve(text.size() * times);
  for (std::size_t i = 0; i < times; ++i) result += text;
  return result;
}

// A safetensors file of this header and so many bytes of data.
std::string framed(const std::string& header, std::size_t data = 0) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data, '\1');
}

std::string refusal_of_safetensors(const std::string& file) {
  return error_of([&] { index_safetensors(std::as_bytes(std::span(file)), "file"); }).what();
}

// A zip file with the one entry a/data.pkl, as far as the reader of torch files looks at it.
std::string zip_of(const std::string& pickle) {
  const std::string name = "a/data.pkl";
  const auto number = [](std::uint64_t value, std::size_t width) {
    return std::string(reinterpret_cast<const char*>(&value), width);
  };
  const std::string local = "PK\x03\x04" + std::string(14, '\0') + number(pickle.size(), 4) + number(pickle.size(), 4) +
                            number(name.size(), 2) + number(0, 2) + name + pickle;
  const std::string entry = "PK\x01\x02" + std::string(16, '\0') + number(pickle.size(), 4) + number(pickle.size(), 4) +
                            number(name.size(), 2) + std::string(16, '\0') + name;
  return local + entry + "PK\x05\x06" + std::string(4, '\0') + number(1, 2) + number(1, 2) + number(entry.size(), 4) +
         number(local.size(), 4) + number(0, 2);
}

std::string refusal_of_pickle(const std::string& pickle) {
  const std::string file = zip_of(pickle);
  return error_of([&] { index_torch_file(std::as_bytes(std::span(file)), "file"); }).what();
}

// Runs samba with little address space: a refusal must not need much.
CommandResult in_little_memory(const std::vector<std::string>& arguments) {
#if defined(__SANITIZE_ADDRESS__)
  return samba_command(arguments);
#else
  return Command(arguments, 0, "/dev/null",
                 [] {
                   constexpr rlim_t kBytes = rlim_t{768} << 20;
                   const rlimit limit{kBytes, kBytes};
                   ::setrlimit(RLIMIT_AS, &limit);
                 })
      .finish();
#endif
}

// What reading a folder says whose hashes.json also names `name`.
std::string refusal_of_hashed_name(const std::string& name) {
  const TemporaryFolder folder;
  fs::copy(Path(SAMBA_SOURCE_DIR) / "test/huggingface/folders/llama", folder / "model");
  write_hashes(folder / "model");
  json hashes = json::parse(read_file(folder / "model/hashes.json"));
  hashes["files"][name] = hashes["files"]["config.json"];
  write_text(folder / "model/hashes.json", hashes.dump());
  return error_of([&] { check_hashes(folder / "model"); }).what();
}

}  // namespace

TEST_CASE("JSON that nests too deep, has too many values or a key twice is refused by every reader of it") {
  const std::string deep = repeated("[", 65) + repeated("]", 65);
  CHECK_THAT(error_of([&] { parse_json(deep, "text"); }).what(), Contains("text: it nests deeper than 64 levels"));
  CHECK(parse_json(repeated("[", 64) + repeated("]", 64), "text").is_array());
  const std::string deepest = repeated("[", 257) + repeated("]", 257);
  CHECK(parse_bounded(repeated("{\"a\":", 100000)).is_discarded());
  CHECK_THAT(error_of([&] { parse_json(repeated("[", 1000000), "text"); }).what(), Contains("nests deeper"));
  CHECK_THAT(error_of([&] { parse_json("[" + repeated("0,", kMostTextValues) + "0]", "text"); }).what(),
             Contains("more than 4194304 values"));
  CHECK_THAT(error_of([&] { parse_json(R"({"a": 1, "a": 1})", "text"); }).what(), Contains("\"a\" is given twice"));
  CHECK_THAT(error_of([&] { parse_json(std::string("{}\0{", 4), "text"); }).what(),
             Contains("text is not JSON: byte 2 is zero"));
  CHECK_THAT(error_of([&] { parse_json(std::string_view(deepest)); }).what(),
             Contains("nested deeper than 256 levels"));
  CHECK_THAT(error_of([&] { parse_json(std::string_view("[" + repeated("0,", 1 << 24) + "0]")); }).what(),
             Contains("more than 16777216 values"));
}

TEST_CASE("a safetensors header is refused that is too long, too deep, has too many values, axes or names") {
  const std::uint64_t long_header = kMaxSafetensorsHeader + 1;
  CHECK_THAT(refusal_of_safetensors(std::string(reinterpret_cast<const char*>(&long_header), 8)),
             Contains("at most 100000000 are read"));
  CHECK_THAT(refusal_of_safetensors(framed(repeated("{\"a\":", 100000))), Contains("nests deeper than 64"));
  CHECK_THAT(refusal_of_safetensors(framed("{\"a\":[" + repeated("0,", kMostTextValues) + "0]}")),
             Contains("more than 4194304 values"));
  const std::string axes = "[" + repeated("1,", 32) + "1]";
  CHECK_THAT(refusal_of_safetensors(framed(R"({"a":{"dtype":"U8","shape":)" + axes + R"(,"data_offsets":[0,1]}})", 1)),
             Contains("more than 32 axes"));
  // Sizes whose product, or whose bytes, no 64 bits hold.
  for (const char* shape : {"[4294967296,4294967296]", "[4611686018427387904,4]", "[18446744073709551615]"}) {
    refusal_of_safetensors(
        framed(R"({"a":{"dtype":"F32","shape":)" + std::string(shape) + R"(,"data_offsets":[0,0]}})"));
  }
}

TEST_CASE("a GGUF file is refused that has too many tensors, values, items or too long a text") {
  const auto refusal = [](const std::string& file) {
    return std::string(error_of([&] { parse_gguf(std::as_bytes(std::span(file)), "file"); }).what());
  };
  CHECK_THAT(refusal(GgufBytes().counts((1 << 18) + 1, 0).file()), Contains("at most 262144"));
  CHECK_THAT(refusal(GgufBytes().counts(0, (1 << 16) + 1).file()), Contains("at most 65536"));
  CHECK_THAT(refusal(GgufBytes().text("name", std::string((1 << 24) + 1, 'x')).file()), Contains("at most 16777216"));
  GgufBytes bytes;
  bytes.put(std::string("list"));
  bytes.put(std::uint32_t{9}).put(std::uint32_t{0}).put(std::uint64_t{(1 << 24) + 1});
  CHECK_THAT(refusal(bytes.counts(0, 1).file((1 << 24) + 1)), Contains("more than 16777216 items"));
}

TEST_CASE("a pickle is refused that has too many values, axes, or a key beyond reason") {
  CHECK_THAT(refusal_of_pickle(repeated("}", (1 << 20) + 1) + "."), Contains("more than 1048576 values"));
  CHECK_THAT(refusal_of_pickle(std::string((1 << 23) + 1, '}')), Contains("too long"));
  const std::string storage = "(X\x07" + std::string(3, '\0') + "storagectorch\nFloatStorage\nX";
  const auto tensor = [&](std::size_t key, std::size_t axes) {
    const auto length = static_cast<std::uint32_t>(key);
    return "}X\x01" + std::string(3, '\0') + "actorch._utils\n_rebuild_tensor_v2\n(" + storage +
           std::string(reinterpret_cast<const char*>(&length), 4) + std::string(key, '0') + "X\x03" +
           std::string(3, '\0') + "cpuK\x01tQK" + std::string(1, '\0') + "(" + repeated("K\x01", axes) + "t(" +
           repeated("K\x01", axes) + "ttRs.";
  };
  CHECK_THAT(refusal_of_pickle(tensor(256, 1)), Contains("too long a key"));
  CHECK_THAT(refusal_of_pickle(tensor(1, 33)), Contains("too many axes"));
  CHECK_THAT(refusal_of_pickle(tensor(1, 32)), Contains("has no data in the file"));
}

TEST_CASE("a stack has at most 65536 layers") {
  json model = {{"vocab", 4}, {"d_model", 2}, {"layers", json::array()}, {"n_heads", 1}, {"intermediate", 1}};
  for (int i = 0; i <= 65536; ++i) model["layers"].push_back("attention");
  CHECK_THAT(error_of([&] { stack_config_from_json(model, "/model"); }).what(),
             Contains("/model/layers: has 65537 layers; accepted: at most 65536"));
}

TEST_CASE("a file that claims a model larger than itself is refused without memory for it") {
  const TinyRun tiny;
  REQUIRE(tiny.train("run", {"--steps", "1"}).code == 0);
  REQUIRE(samba_command({"convert", tiny.file("run"), tiny.file("folder")}).code == 0);
  // A folder whose configuration has the largest vocabulary there is.
  const Path config_path = tiny.path() / "folder/config.json";
  json config = json::parse(read_file(config_path));
  config["state"]["config"]["vocab"] = 60000000;
  write_text(config_path, config.dump());
  for (const std::string command : {"inspect", "decode"}) {
    std::vector<std::string> arguments{command, tiny.file("folder")};
    if (command == "decode") arguments = {"decode", "--model", tiny.file("folder"), "--tokens", "1"};
    const CommandResult result = in_little_memory(arguments);
    INFO(result.err);
    CHECK((result.code == 2 || result.code == 3));
  }
  // An archive of a few tensors whose state speaks of others.
  REQUIRE(samba_command({"convert", tiny.file("run"), tiny.file("small.samba"), "--dtype", "bfloat16"}).code == 0);
  json state = StackArchiveReader(tiny.file("small.samba")).state();
  state["config"]["vocab"] = 60000000;
  state["weight_format"] = "float32";
  const std::vector<float> zeros(64);
  const std::vector<StackTensorSource> tensors{{"embed.weight", DType::float32, {2, 32}, [&](std::span<std::byte> raw) {
                                                  std::memcpy(raw.data(), zeros.data(), raw.size());
                                                }}};
  write_stack_archive(tiny.file("claims.samba"), state, tensors, {});
  const CommandResult result = in_little_memory({"decode", "--model", tiny.file("claims.samba"), "--tokens", "1"});
  INFO(result.err);
  CHECK((result.code == 2 || result.code == 3));
}

TEST_CASE("no name in a file leads out of its folder") {
  const TinyRun tiny;
  REQUIRE(tiny.train("run", {"--steps", "1"}).code == 0);
  for (const char* name : {"../outside.samba", "/etc/passwd", "checkpoints/../../outside.samba"}) {
    write_text(tiny.path() / "run/latest", std::string(name) + "\n");
    const CommandResult result = samba_command({"decode", "--model", tiny.file("run"), "--prompt", "a"});
    CHECK(result.code == 3);
    CHECK_THAT(result.err, Contains("inside the run"));
  }
  CHECK_THAT(refusal_of_hashed_name("../outside.json"), Contains("names of files in the same folder"));
}

TEST_CASE("a name in a file that is longer than the system takes is refused as damaged") {
  const std::string name(300, 'a');
  const TinyRun tiny;
  REQUIRE(tiny.train("run", {"--steps", "1"}).code == 0);
  write_text(tiny.path() / "run/latest", "checkpoints/" + name + "\n");
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"decode", "--model", tiny.file("run"), "--prompt", "a"}, {"train", "--resume", tiny.file("run")}}) {
    const CommandResult result = samba_command(command);
    CHECK(result.code == 3);
    CHECK_THAT(result.err, Contains("must hold the name of a checkpoint"));
  }
  CHECK_THAT(refusal_of_hashed_name(name + ".json"), Contains("is missing"));
  const TemporaryFolder folder;
  fs::copy(Path(SAMBA_SOURCE_DIR) / "test/huggingface/folders/llama", folder / "model");
  fs::remove(folder / "model/model.safetensors");
  write_text(folder / "model/model.safetensors.index.json",
             json{{"weight_map", {{"model.norm.weight", name + ".safetensors"}}}}.dump());
  const CommandResult result = samba_command({"inspect", (folder / "model").string()});
  CHECK(result.code == 3);
  CHECK_THAT(result.err, Contains("which is not in the folder"));
}

TEST_CASE("digests beside a model name the tensor or the file that is not as it was") {
  const TemporaryFolder folder;
  const Path model = folder / "model";
  fs::copy(Path(SAMBA_SOURCE_DIR) / "test/huggingface/folders/llama", model);
  const auto verify = [&] { return samba_command({"verify", "--model", model}); };
  CHECK_THAT(verify().out, Contains("has no digests, --write-hashes makes them"));
  const CommandResult made = samba_command({"verify", "--model", model, "--write-hashes"});
  CHECK(made.code == 0);
  CHECK_THAT(made.out, Contains("all digests of"));
  const auto damaged = [&](const std::string& file, const std::string& wanted, const auto& damage) {
    const std::string whole = read_file(model / file);
    std::string text = whole;
    damage(text);
    write_text(model / file, text);
    const CommandResult result = verify();
    INFO(result.err);
    CHECK(result.code == 3);
    CHECK_THAT(result.err, Contains(file) && Contains(wanted));
    CHECK(samba_command({"convert", model, folder / "copy"}).code == 3);
    write_text(model / file, whole);
  };
  const std::string weights = read_file(model / "model.safetensors");
  const SafetensorsIndex index = index_safetensors(std::as_bytes(std::span(weights)), "weights");
  for (const auto& [name, view] : index.tensors) {
    const auto at = static_cast<std::size_t>(static_cast<const char*>(view.data) - weights.data());
    damaged("model.safetensors", "the tensor " + name + " is damaged", [&](std::string& text) { text[at + 1] ^= 1; });
  }
  damaged("config.json", "its SHA-256 is", [](std::string& text) { text[text.find('\n')] = ' '; });
  write_text(model / "added_tokens.json", "{}");
  CHECK_THAT(verify().err, Contains("added_tokens.json was not there"));
  fs::remove(model / "added_tokens.json");
  CHECK(verify().code == 0);
  // samba's own conversions carry them.
  REQUIRE(samba_command({"convert", model, folder / "own.gguf"}).code == 0);
  CHECK(fs::exists(folder / "own.gguf.hashes.json"));
  CHECK_THAT(samba_command({"verify", "--model", folder / "own.gguf"}).out, Contains("tensors and 1 files hold"));
}

TEST_CASE("token shards and JSON lines that nest too deep are refused before anything walks over them") {
  const TemporaryFolder folder;
  const std::string deep = "{\"sha256\": \"\", \"a\": " + repeated("[", 1000000) + repeated("]", 1000000) + "}";
  fs::create_directory(folder / "shards");
  write_text(folder / "shards/index.json", deep);
  CHECK_THAT(error_of([&] { TokenShards(folder / "shards"); }).what(), Contains("nests deeper than 64 levels"));
  write_text(folder / "lines.jsonl", deep + "\n");
  const CommandResult prepared = samba_command({"prepare", folder / "lines.jsonl", "--out", folder / "out"});
  CHECK(prepared.code == 2);
  CHECK_THAT(prepared.err, Contains("lines.jsonl: line 1: it nests deeper than 64 levels"));
}

}  // namespace samba
