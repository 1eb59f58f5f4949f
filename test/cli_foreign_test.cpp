// Files of other programs on the command line: shown as they are stored, run with ids where they name no vocabulary.
#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "command.h"
#include "samba/core/files.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

const Path kTests = Path(SAMBA_SOURCE_DIR) / "test";

json inspected(const Path& path) {
  const CommandResult result = samba_command({"inspect", path.string(), "--json"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  return json::parse(result.out);
}

}  // namespace

TEST_CASE("a GGUF file is shown with the types and bytes of its tensors") {
  const json shown = inspected(kTests / "gguf/llama_mixed.gguf");
  CHECK(shown["format"] == "GGUF");
  std::map<std::string, int> types;
  std::uint64_t bytes = 0;
  for (const json& tensor : shown["tensors"]) {
    ++types[tensor["dtype"]];
    bytes += tensor["stored_bytes"].get<std::uint64_t>();
  }
  CHECK(types.size() > 2);
  CHECK(types.contains(shown["weight_format"]));
  CHECK(bytes < shown["bytes"].get<std::uint64_t>());
  CHECK(bytes > shown["bytes"].get<std::uint64_t>() / 2);
}

TEST_CASE("a Hugging Face folder of halves is shown so") {
  const json shown = inspected(kTests / "huggingface/folders/llama_float16");
  CHECK(shown["weight_format"] == "float16");
  for (const json& tensor : shown["tensors"]) {
    if (tensor["name"] != "embed.weight") continue;
    CHECK(tensor["dtype"] == "float16");
    CHECK(tensor["stored_bytes"] == 2 * tensor["shape"][0].get<int>() * tensor["shape"][1].get<int>());
    return;
  }
  FAIL("no embedding");
}

TEST_CASE("a GGUF file without a vocabulary takes ids; text needs a tokenizer") {
  const std::string model = (kTests / "gguf/llama.gguf").string();
  const CommandResult ids = samba_command({"decode", "--model", model, "--tokens", "1,2,3", "--max-tokens", "4"});
  INFO(ids.err);
  CHECK(ids.code == 0);
  const CommandResult text = samba_command({"decode", "--model", model, "--prompt", "a"});
  CHECK(text.code == 2);
  CHECK_THAT(text.err, Contains("--tokenizer"));
}

TEST_CASE("a model of bytes passes through a GGUF file: text in, the same text out") {
  const TinyRun run;
  json config = tiny_config("text.txt");
  config["steps"] = 2;
  config["model"] = {{"vocab", 256}, {"d_model", 32}, {"layers", {{{"kind", "mamba1"}}, {{"kind", "mamba1"}}}}};
  run.write(config);
  REQUIRE(run.train("run").code == 0);
  const CommandResult converted = samba_command({"convert", run.file("run"), run.file("a.gguf"), "--to", "gguf"});
  INFO(converted.err);
  REQUIRE(converted.code == 0);
  const auto decoded = [&](const std::string& model) {
    const CommandResult result = samba_command({"decode", "--model", model, "--prompt", "the ", "--max-tokens", "20"});
    INFO(result.err);
    CHECK(result.code == 0);
    return result.out;
  };
  CHECK(decoded(run.file("a.gguf")) == decoded(run.file("run")));
}

TEST_CASE("inspect of a file that is no model says so") {
  const CommandResult result = samba_command({"inspect", (kTests / "cli_foreign_test.cpp").string()});
  CHECK(result.code == 3);
  CHECK_THAT(result.err, Contains("cli_foreign_test.cpp"));
}

}  // namespace samba
