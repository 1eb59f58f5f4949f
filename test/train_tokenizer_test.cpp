// Training a byte-level BPE: what is merged, that it depends on nothing but the text, and the command.
#include <catch2/catch.hpp>

#include "command.h"
#include "recorded_tokenizers.h"
#include "samba/core/error.h"
#include "samba/text/bpe_trainer.h"
#include "samba/text/json_tokenizer.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

TrainedBpe trained(const std::string& text, const BpeTraining& options) {
  const std::string_view view = text;
  return train_bpe({&view, 1}, options);
}

BpeTraining sized(Index size) {
  BpeTraining options;
  options.vocabulary_size = size;
  return options;
}

std::string all_lines() {
  std::string text;
  for (const std::string& line : hard_lines()) text += line + "\n";
  return text;
}

TEST_CASE("the most frequent pair is merged first, of equals the one of lower ids") {
  // Pieces: "ab" three times, "cb" three times, "abd" twice: (a,b) comes 5 times, (c,b) 3, then (ab,d) 2.
  const json file = json::parse(trained("ab ab ab cb cb cb abd abd", sized(400)).json);
  const auto merges = file["model"]["merges"].get<std::vector<std::vector<std::string>>>();
  // " ab" is a piece with its space: (a,b) 5, (Ġ,ab) 4, (c,b) 3 ...
  REQUIRE(merges.size() >= 3);
  CHECK(merges[0] == std::vector<std::string>{"a", "b"});
  CHECK(merges[1] == std::vector<std::string>{"Ġ", "ab"});
  CHECK(merges[2] == std::vector<std::string>{"c", "b"});
  const json equal = json::parse(trained("xy zw xy zw", sized(400)).json);
  CHECK(equal["model"]["merges"][0] == json({"x", "y"}));
}

TEST_CASE("ids are special tokens, bytes in the order of their characters, merges") {
  BpeTraining options = sized(300);
  options.special_tokens = {"<one>", "<two>"};
  const TrainedBpe result = trained(all_lines(), options);
  CHECK(result.vocabulary_size == 300);
  CHECK(result.merges == 300 - 258);
  // The package `tokenizers` wants every field.
  CHECK(json::parse(result.json)["decoder"] ==
        json({{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}));
  const PartsTokenizer tokenizer(read_tokenizer_json(result.json, "trained"));
  CHECK(tokenizer.vocabulary_size() == 300);
  CHECK(tokenizer.piece(0) == "<one>");
  CHECK(tokenizer.piece(1) == "<two>");
  CHECK(tokenizer.piece(2) == "!");
  CHECK(tokenizer.encode("<two>") == std::vector<std::int32_t>{1});
  CHECK(tokenizer.is_special(0));
}

TEST_CASE("any text comes back from the tokens of a trained tokenizer, of every form") {
  for (const std::string& form : bpe_forms()) {
    INFO(form);
    BpeTraining options = sized(1000);
    options.form = form;
    const PartsTokenizer tokenizer(read_tokenizer_json(trained(all_lines(), options).json, "trained"));
    std::size_t changed = 0;
    for (const std::string& line : hard_lines()) changed += tokenizer.decode(tokenizer.encode(line)) != line;
    CHECK(changed == (form == "qwen2" ? recorded_form("qwen2").decoded.size() : 0));
    CHECK(tokenizer.decode(tokenizer.encode("\xFF\xC3(")) == "\xFF\xC3(");
  }
}

TEST_CASE("the file is the same for any number of threads and any cut of the text at line ends") {
  std::string text;
  while (text.size() < (std::size_t{3} << 20)) text += all_lines();
  BpeTraining options = sized(600);
  options.form = "llama3";
  const std::string once = trained(text, options).json;
  for (const int threads : {2, 3, 7}) {
    options.threads = threads;
    CHECK(trained(text, options).json == once);
  }
  const std::size_t cut = text.find('\n', text.size() / 2) + 1;
  const std::vector<std::string_view> parts{std::string_view(text).substr(0, cut), std::string_view(text).substr(cut)};
  CHECK(train_bpe(parts, options).json == once);
}

TEST_CASE("training stops where no pair is frequent enough") {
  BpeTraining options = sized(5000);
  options.min_frequency = 3;
  const TrainedBpe result = trained("aa aa bb", options);
  CHECK(result.vocabulary_size < 260);
  CHECK(trained("", sized(5000)).vocabulary_size == 257);
}

TEST_CASE("options that do not fit together are refused") {
  CHECK_THROWS_WITH(trained("a", sized(256)), Contains("vocabulary size: must be at least 257"));
  BpeTraining options = sized(300);
  options.special_tokens = {"<a>", "<a>"};
  CHECK_THROWS_WITH(trained("a", options), Contains("\"<a>\" is given twice"));
  options.special_tokens = {"a"};
  CHECK_THROWS_WITH(trained("a", options), Contains("special token: must be"));
  options = sized(300);
  options.form = "gpt3";
  CHECK_THROWS_WITH(trained("a", options), Contains("form: must be one of gpt2, llama3, qwen2, smollm"));
  options = sized(300);
  options.min_frequency = 0;
  CHECK_THROWS_WITH(trained("a", options), Contains("min frequency"));
}

TEST_CASE("samba train-tokenizer writes a file that samba tokenize reads") {
  const TemporaryFolder folder;
  write_text(folder / "text", all_lines());
  const std::string out = (folder / "tokenizer.json").string();
  const auto train = [&](std::vector<std::string> more) {
    std::vector<std::string> all{"train-tokenizer", (folder / "text").string(), "--out", out};
    all.insert(all.end(), more.begin(), more.end());
    return samba_command(all);
  };
  const CommandResult result = train({"--vocab-size", "500", "--special", "<end>", "--special", "<pad>"});
  CHECK(result.code == 0);
  CHECK_THAT(result.out, Contains("500 pieces, 242 merges"));
  const std::string written = read_file(out);
  const CommandResult again = train({"--vocab-size", "500"});
  CHECK(again.code == 2);
  CHECK_THAT(again.err, Contains("--force replaces it"));
  CHECK(read_file(out) == written);
  const CommandResult replaced =
      train({"--vocab-size", "500", "--special", "<end>", "--special", "<pad>", "--force", "--threads", "3", "--json"});
  CHECK(replaced.code == 0);
  CHECK(json::parse(replaced.out)["vocabulary_size"] == 500);
  CHECK(read_file(out) == written);
  const json tokens = json::parse(samba_command({"tokenize", "--tokenizer", out, "--json", "the<end>"}).out);
  CHECK(tokens["ids"].back() == 0);
  CHECK(train({"--vocab-size", "9", "--force"}).code == 2);
  CHECK_THAT(train({"--form", "gpt3", "--force"}).err, Contains("gpt2"));
  CHECK(read_file(out) == written);
}

}  // namespace
}  // namespace samba
