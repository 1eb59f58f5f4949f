// Tokenizers in the metadata of GGUF files.
#include <catch2/catch.hpp>
#include <cstring>

#include "recorded_tokenizers.h"
#include "samba/convert/gguf_vocabulary.h"
#include "samba/core/error.h"
#include "samba/formats/gguf_metadata.h"
#include "samba/text/sentencepiece_model.h"

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

// The vocabulary that convert writes of a tokenizer file into a GGUF file of a model with `rows` tokens.
struct Written {
  std::string vocabulary;  // what add_gguf_vocabulary says
  Path file;
};
Written written(const TemporaryFolder& folder, const Path& tokenizer, Index rows) {
  OpenModel model;
  model.companions = {tokenizer};
  GgufFields fields;
  Written result{add_gguf_vocabulary(fields, model, rows), folder / "vocabulary.gguf"};
  write_gguf(result.file, fields, {});
  return result;
}

TEST_CASE("a SentencePiece model passes through a GGUF file: every hard line has the recorded tokens") {
  const TemporaryFolder folder;
  const RecordedForm& recorded = recorded_form("sentencepiece_unigram");
  const Index pieces = recorded.tokenizer->vocabulary_size();
  const Written there = written(folder, recorded.file, pieces + 3);  // the embedding may have more rows
  CHECK(there.vocabulary == "tokenizer.model");
  const auto tokenizer = load_tokenizer(there.file);
  CHECK(tokenizer->vocabulary_size() == pieces + 3);
  std::size_t different = 0;
  for (std::size_t line = 0; line < recorded.ids.size(); ++line) {
    const std::string& text = hard_lines()[line];
    different += tokenizer->encode(text) != recorded.tokenizer->encode(text);
    different += tokenizer->decode(*recorded.ids[line]) != recorded.tokenizer->decode(*recorded.ids[line]);
  }
  CHECK(different == 0);
  const EncodeOptions special{.add_special_tokens = true};
  CHECK(tokenizer->encode("a b", special) == recorded.tokenizer->encode("a b", special));
}

// A Unigram whose scores float32 holds, over the space mark, letters and some words.
json small_unigram(const std::string& scheme) {
  json vocabulary = json::array({json::array({"<unk>", 0.0}), json::array({"</s>", 0.0})});
  float score = -2.0F;
  for (const char* piece :
       {"\u2581", "e", "t", "a", "th", "the", "\u2581the", "\u2581a", "12", "\u00e9", "\u4e2d", "ea"}) {
    vocabulary.push_back(json::array({piece, static_cast<double>(score -= 0.3F)}));
  }
  json added = json::array();
  for (const auto& [id, content, special] : {std::tuple(1, "</s>", true), std::tuple(14, "<user>", true)}) {
    added.push_back({{"id", id},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  }
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}, {"split", true}}},
          {"decoder", {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}, {"split", true}}},
          {"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocabulary}}}};
}

TEST_CASE("a Unigram of tokenizer.json passes through a GGUF file; what llama.cpp would cut otherwise is left out") {
  const TemporaryFolder folder;
  const auto write = [&](const json& file) {
    write_file_atomically(folder / "tokenizer.json", file.dump());
    return written(folder, folder / "tokenizer.json", 20);
  };
  for (const std::string scheme : {"always", "never"}) {
    const Written there = write(small_unigram(scheme));
    CHECK(there.vocabulary == "tokenizer.json");
    const auto given = load_tokenizer(folder / "tokenizer.json"), tokenizer = load_tokenizer(there.file);
    for (const char* text : {"the theatre", "", "a the", "eat  the", "x\u00e9t\u4e2d12", "the<user>a", "zz q"}) {
      INFO(text);
      CHECK(tokenizer->encode(text) == given->encode(text));
    }
  }
  const auto refused = [&](const char* pointer, const json& value) {
    json file = small_unigram("always");
    file[json::json_pointer(pointer)] = value;
    return write(file).vocabulary;
  };
  CHECK_THAT(refused("/model/vocab/3/1", -1.1), Contains("none: tokenizer.json: the score of \"e\" is no float32"));
  CHECK_THAT(refused("/added_tokens/1/special", false), Contains("\"<user>\" is part of the text"));
  CHECK_THAT(written(folder, recorded_form("sentencepiece_bpe").file, 4000).vocabulary, Contains("is no Unigram"));
  CHECK_THAT(refused("/model/byte_fallback", true), Contains("falls back to bytes"));
  CHECK_THAT(refused("/model/unk_id", nullptr), Contains("has no unknown token"));
  CHECK_THAT(refused("/normalizer", {{"type", "NFKC"}}), Contains("its normalizer is NFKC"));
  CHECK_THAT(refused("/pre_tokenizer/prepend_scheme", "first"), Contains("prepend_scheme is first"));
}

TEST_CASE("a file of SentencePiece is read and written field by field; one that is cut short is refused") {
  const std::string content = read_file(recorded_form("sentencepiece_unigram").file);
  const SentencePieceModel model = read_sentencepiece_model(content, "file");
  CHECK(model.kind == SentencePieceModel::Kind::unigram);
  CHECK(!model.characters_map.empty());
  const SentencePieceModel again = read_sentencepiece_model(sentencepiece_bytes(model), "file");
  CHECK(again.pieces.size() == model.pieces.size());
  CHECK(again.characters_map == model.characters_map);
  CHECK(std::tie(again.unknown, again.begin, again.end, again.padding, again.space_in_front, again.drops_spaces) ==
        std::tie(model.unknown, model.begin, model.end, model.padding, model.space_in_front, model.drops_spaces));
  for (const std::size_t length : {content.size() - 1, content.size() / 2, std::size_t{1}}) {
    CHECK_THROWS_WITH(read_sentencepiece_model(std::string_view(content).substr(0, length), "file"),
                      Contains("file: no SentencePiece model"));
  }
  CHECK_THROWS_WITH(read_sentencepiece_model("", "file"), Contains("has no pieces"));
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
