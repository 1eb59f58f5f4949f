// Tokenizers in the metadata of GGUF files.
#include <catch2/catch.hpp>
#include <cstring>

#include "recorded_tokenizers.h"
#include "samba/core/error.h"
#include "samba/formats/gguf_metadata.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

// Writes metadata as GGUF version 3 has it.
class GgufText {
 public:
  void text(const std::string& name, const std::string& value) {
    begin(name, 8);
    put(value);
  }
  void number(const std::string& name, std::uint32_t value) {
    begin(name, 4);
    put(value);
  }
  void flag(const std::string& name, bool value) {
    begin(name, 7);
    put(static_cast<std::uint8_t>(value));
  }
  void texts(const std::string& name, const std::vector<std::string>& values) {
    array(name, 8, values.size());
    for (const std::string& value : values) put(value);
  }
  void integers(const std::string& name, const std::vector<std::int32_t>& values) {
    array(name, 5, values.size());
    for (const std::int32_t value : values) put(value);
  }
  void floats(const std::string& name, const std::vector<float>& values) {
    array(name, 6, values.size());
    for (const float value : values) put(value);
  }
  std::string file(std::uint32_t version = 3) const {
    GgufText head;
    head.put(version);
    head.put(std::uint64_t{0});
    head.put(count_);
    return "GGUF" + head.bytes_ + bytes_;
  }

 private:
  template <class Value>
  void put(Value value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes_.append(raw, sizeof value);
  }
  void put(const std::string& value) {
    put(static_cast<std::uint64_t>(value.size()));
    bytes_ += value;
  }
  void begin(const std::string& name, std::uint32_t type) {
    put(name);
    put(type);
    ++count_;
  }
  void array(const std::string& name, std::uint32_t type, std::uint64_t count) {
    begin(name, 9);
    put(type);
    put(count);
  }

  std::string bytes_;
  std::uint64_t count_ = 0;
};

// The metadata that a model with the tokenizer.json `file` of byte-level BPE has.
GgufText byte_level_gguf(const json& file, const std::string& pre) {
  const json& vocabulary = file["model"]["vocab"];
  std::vector<std::string> pieces(vocabulary.size());
  for (const auto& [piece, id] : vocabulary.items()) pieces[id.get<std::size_t>()] = piece;
  std::vector<std::int32_t> types(pieces.size(), 1);
  for (const json& token : file["added_tokens"]) types[token["id"].get<std::size_t>()] = 3;
  std::vector<std::string> merges;
  for (const json& merge : file["model"]["merges"]) {
    merges.push_back(merge.is_string() ? merge.get<std::string>()
                                       : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  GgufText gguf;
  gguf.text("general.architecture", "llama");
  gguf.text("tokenizer.ggml.model", "gpt2");
  gguf.text("tokenizer.ggml.pre", pre);
  gguf.texts("tokenizer.ggml.tokens", pieces);
  gguf.integers("tokenizer.ggml.token_type", types);
  gguf.texts("tokenizer.ggml.merges", merges);
  gguf.number("tokenizer.ggml.bos_token_id", 0);
  gguf.flag("tokenizer.ggml.add_bos_token", pre == "llama-bpe");
  return gguf;
}

// A small SentencePiece BPE: a, b and the space piece, merged in the order of their scores.
GgufText scored_gguf() {
  GgufText gguf;
  gguf.text("tokenizer.ggml.model", "llama");
  gguf.texts("tokenizer.ggml.tokens",
             {"<unk>", "<s>", "</s>", "<0x63>", "\u2581", "a", "b", "ab", "\u2581a", "\u2581ab", "<user>"});
  gguf.integers("tokenizer.ggml.token_type", {2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 4});
  gguf.floats("tokenizer.ggml.scores", {0, 0, 0, 0, -9, -8, -7, -1, -2, -3, 0});
  gguf.number("tokenizer.ggml.bos_token_id", 1);
  gguf.number("tokenizer.ggml.unknown_token_id", 0);
  return gguf;
}

std::unique_ptr<Tokenizer> loaded(const std::string& content) {
  static const TemporaryFolder folder;
  write_file_atomically(folder / "model.gguf", content);
  return load_tokenizer(folder / "model.gguf");
}

TEST_CASE("a byte-level BPE in a GGUF file gives the recorded tokens of its model") {
  for (const auto& [form, pre] : std::vector<std::pair<std::string, std::string>>{
           {"smollm2", "smollm"}, {"gpt2", "gpt-2"}, {"llama3", "llama-bpe"}, {"qwen2", "qwen2"}}) {
    INFO(form);
    const RecordedForm& recorded = recorded_form(form);
    const auto tokenizer = loaded(byte_level_gguf(json::parse(recorded_file(form + ".tokenizer.json")), pre).file());
    std::size_t different = 0;
    for (std::size_t line = 0; line < recorded.ids.size(); ++line) {
      if (!recorded.ids[line]) continue;
      different += tokenizer->encode(hard_lines()[line]) != *recorded.ids[line];
      different += tokenizer->decode(*recorded.ids[line]) != recorded.tokenizer->decode(*recorded.ids[line]);
    }
    CHECK(different == 0);
    EncodeOptions options;
    options.add_special_tokens = true;
    CHECK(tokenizer->encode("a b", options) == *recorded.with_special);
    CHECK(tokenizer->is_special(0));
  }
}

TEST_CASE("a SentencePiece BPE in a GGUF file merges by score") {
  const auto tokenizer = loaded(scored_gguf().file());
  CHECK(tokenizer->encode("ab") == std::vector<std::int32_t>{9});
  CHECK(tokenizer->encode("b a") == std::vector<std::int32_t>{4, 6, 8});
  CHECK(tokenizer->encode("c<user></s>z") == std::vector<std::int32_t>{4, 3, 10, 2, 4, 0});
  CHECK(tokenizer->decode(tokenizer->encode("ab c a")) == "ab c a");
  EncodeOptions options;
  options.add_special_tokens = true;
  CHECK(tokenizer->encode("ab", options) == std::vector<std::int32_t>{1, 9});
}

TEST_CASE("merges beside the scores come before them") {
  GgufText gguf = scored_gguf();
  gguf.texts("tokenizer.ggml.merges", {"\u2581 a", "a b", "\u2581a b"});  // by score "a b" would be the first
  CHECK(loaded(gguf.file())->encode("ab b") == std::vector<std::int32_t>{9, 4, 6});
  CHECK(loaded(scored_gguf().file())->encode("ab b") == std::vector<std::int32_t>{9, 4, 6});
  GgufText few = scored_gguf();
  few.texts("tokenizer.ggml.merges", {"a b"});
  CHECK(loaded(few.file())->encode("ab") == std::vector<std::int32_t>{4, 7});
  GgufText none = scored_gguf();
  none.texts("tokenizer.ggml.merges", {});
  CHECK(loaded(none.file())->encode("ab") == std::vector<std::int32_t>{9});
  GgufText wrong = scored_gguf();
  wrong.texts("tokenizer.ggml.merges", {"a a"});
  CHECK_THROWS_WITH(loaded(wrong.file()), Contains("/model/merges/0: the vocabulary has no piece \"aa\""));
}

TEST_CASE("the metadata of a GGUF file is read strictly") {
  const std::string good = scored_gguf().file();
  CHECK(loaded(good)->vocabulary_size() == 11);
  CHECK(loaded(scored_gguf().file(2))->vocabulary_size() == 11);
  for (std::size_t length = 4; length < good.size(); length += 5)
    CHECK_THROWS_AS(loaded(good.substr(0, length)), Error);
  CHECK_THROWS_WITH(loaded(scored_gguf().file(1)), Contains("GGUF version 1; accepted: 2, 3"));
  GgufText twice = scored_gguf();
  twice.text("tokenizer.ggml.model", "llama");
  CHECK_THROWS_WITH(loaded(twice.file()), Contains("tokenizer.ggml.model is given twice"));
  std::string huge = good;
  const std::uint64_t claimed = std::uint64_t{1} << 60;
  std::memcpy(huge.data() + 16, &claimed, sizeof claimed);
  CHECK_THROWS_WITH(loaded(huge), Contains("1152921504606846976 values of metadata; accepted: at most 65536"));
}

TEST_CASE("a GGUF tokenizer that is not supported is refused by its field") {
  const auto with = [](const std::string& model, const std::string& pre) {
    GgufText gguf;
    gguf.text("tokenizer.ggml.model", model);
    if (!pre.empty()) gguf.text("tokenizer.ggml.pre", pre);
    gguf.texts("tokenizer.ggml.tokens", {"a", "b"});
    return gguf;
  };
  CHECK_THROWS_WITH(loaded(with("bert", "").file()), Contains("tokenizer.ggml.model: must be one of gpt2, llama, t5"));
  CHECK_THROWS_WITH(loaded(with("t5", "").file()), Contains("tokenizer.ggml.scores: is missing"));
  CHECK_THROWS_WITH(loaded(with("gpt2", "").file()), Contains("tokenizer.ggml.pre: is missing"));
  CHECK_THROWS_WITH(loaded(with("gpt2", "falcon").file()), Contains("tokenizer.ggml.pre: must be one of"));
  CHECK_THROWS_WITH(loaded(with("gpt2", "gpt-2").file()), Contains("tokenizer.ggml.merges: is missing"));
  CHECK_THROWS_WITH(loaded(with("llama", "").file()), Contains("tokenizer.ggml.scores: is missing"));
  CHECK_THROWS_WITH(loaded(GgufText().file()), Contains("tokenizer.ggml.tokens: is missing"));
  GgufText types = with("gpt2", "gpt-2");
  types.integers("tokenizer.ggml.token_type", {1});
  CHECK_THROWS_WITH(loaded(types.file()), Contains("tokenizer.ggml.token_type: must have one number a token"));
}

}  // namespace
}  // namespace samba
