// samba tokenize as a user runs it.
#include <catch2/catch.hpp>

#include "command.h"
#include "recorded_tokenizers.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

TEST_CASE("samba tokenize shows ids and pieces") {
  const std::string tokenizer = recorded_form("smollm2").file;
  const CommandResult result = samba_command({"tokenize", "--tokenizer", tokenizer, "Hello, world 42"});
  CHECK(result.code == 0);
  CHECK(result.out ==
        "  19556  \"Hello\"\n     28  \",\"\n    905  \"Ġworld\"\n    216  \"Ġ\"\n     36  \"4\"\n     34  \"2\"\n");
  CHECK_THAT(result.err, Contains("6 tokens of 15 bytes (byte-level BPE, 49152 pieces)"));
  CHECK(samba_command({"tokenize", "--tokenizer", tokenizer, "--progress", "never", "Hi"}).err.empty());
}

TEST_CASE("samba tokenize --json gives ids and pieces of a file, from a folder's tokenizer too") {
  const TemporaryFolder folder;
  write_text(folder / "text", "a\n<|im_end|>");
  const std::string tokenizer = Path(recorded_form("qwen2").file).parent_path().string();
  const CommandResult result =
      samba_command({"tokenize", "--model", tokenizer, "--file", (folder / "text").string(), "--json"});
  CHECK(result.code == 0);
  CHECK(result.err.empty());
  const json value = json::parse(result.out);
  CHECK(value["ids"] == json(recorded_form("qwen2").tokenizer->encode("a\n<|im_end|>")));
  CHECK(value["pieces"] == json({"a", "Ċ", "<|im_end|>"}));
  const json plain =
      json::parse(samba_command({"tokenize", "--tokenizer", tokenizer, "--plain", "--json", "<|im_end|>"}).out);
  CHECK(plain["ids"].size() > 1);
  const json around = json::parse(
      samba_command({"tokenize", "--tokenizer", recorded_form("llama3").file, "--add-special-tokens", "--json", "a"})
          .out);
  CHECK(around["pieces"] == json({"<|begin_of_text|>", "a"}));
}

TEST_CASE("a model trained on bytes has the byte vocabulary") {
  const TinyRun run;
  REQUIRE(run.train("run", {"--steps", "10"}).code == 0);
  const json value = json::parse(samba_command({"tokenize", "--model", run.file("run"), "--json", "hé"}).out);
  CHECK(value["ids"] == json({104, 195, 169}));
  CHECK(value["pieces"] == json({"h", "<0xC3>", "<0xA9>"}));
}

TEST_CASE("samba tokenize says what is missing, with exit code 2") {
  const std::string tokenizer = recorded_form("gpt2").file;
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"a"}, "give either --model PATH or --tokenizer PATH"},
      {{"--tokenizer", tokenizer}, "give either TEXT or --file FILE"},
      {{"--tokenizer", tokenizer, "--file", "x", "a"}, "give either TEXT or --file FILE"},
      {{"--tokenizer", "/nowhere/at/all", "a"}, "/nowhere/at/all"},
      {{"--tokenizer", tokenizer, "--file", "/nowhere", "--json"}, "/nowhere"},
      {{"--tokenizer", recorded_form("smollm2").file, "\x06"}, "no piece for the byte <0x06>"}};
  for (const auto& [arguments, message] : cases) {
    std::vector<std::string> all{"tokenize"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const CommandResult result = samba_command(all);
    CHECK(result.code == 2);
    CHECK(result.out.empty());
    CHECK_THAT(result.err, Contains(message));
  }
}

}  // namespace
}  // namespace samba
