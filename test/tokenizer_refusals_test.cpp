// What a tokenizer file asks for that is not there is refused, and the message names the field.
#include <catch2/catch.hpp>

#include "recorded_tokenizers.h"
#include "samba/core/error.h"
#include "samba/text/json_tokenizer.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

// A small byte-level BPE with the pieces a, b, ab.
json small_bpe() {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b"}}}}};
}

json small_unigram() {
  json value = small_bpe();
  value["pre_tokenizer"] = {{"type", "Metaspace"}};
  value["decoder"] = {{"type", "Metaspace"}};
  value["model"] = {
      {"type", "Unigram"}, {"unk_id", 0}, {"vocab", json::array({{"<unk>", 0.0}, {"\u2581", -1.5}, {"a", -2.0}})}};
  return value;
}

PartsTokenizer made(const json& value) { return PartsTokenizer(read_tokenizer_json(value.dump(), "tokenizer.json")); }

struct Refusal {
  std::string pointer;  // what is set
  json value;
  std::string message;
};

void check_refusals(const json& base, const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    INFO(refusal.pointer << " = " << refusal.value.dump());
    json value = base;
    value[json::json_pointer(refusal.pointer)] = refusal.value;
    CHECK_THROWS_WITH(made(value), Contains("tokenizer.json") && Contains(refusal.message));
  }
}

TEST_CASE("the small tokenizers of these tests work") {
  CHECK(made(small_bpe()).encode("abba") == std::vector<std::int32_t>{2, 1, 0});
  CHECK(made(small_unigram()).encode("a z") == std::vector<std::int32_t>{1, 2, 1, 0});
  CHECK(made(small_unigram()).decode(std::vector<std::int32_t>{1, 2, 1, 2}) == "a a");
}

TEST_CASE("a section that is not supported is refused by its name") {
  check_refusals(
      small_bpe(),
      {{"/version", "2.0", "/version"},
       {"/truncation", {{"max_length", 5}}, "/truncation: is not supported"},
       {"/padding", {{"length", 5}}, "/padding: is not supported"},
       {"/extra", 1, "extra"},
       {"/normalizer", {{"type", "Lowercase"}}, "/normalizer/type"},
       {"/normalizer", {{"type", "NFC"}, {"form", 1}}, "form"},
       {"/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Bert"}}}}}, "/normalizer/normalizers/0/type"},
       {"/normalizer", 5, "/normalizer: must be an object"},
       {"/pre_tokenizer", {{"type", "BertPreTokenizer"}}, "/pre_tokenizer/type"},
       {"/pre_tokenizer",
        {{"type", "Sequence"}, {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}},
        "/pre_tokenizer/pretokenizers/1: a step behind ByteLevel"},
       {"/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Elsewhere"}}, "/behavior"},
       {"/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "__"}}, "/replacement: must be one character"},
       {"/decoder", nullptr, "/decoder: a tokenizer without a decoder"},
       {"/decoder", {{"type", "WordPiece"}}, "/decoder/type"},
       {"/decoder",
        {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Metaspace"}}}}},
        "/decoder/decoders/1: Metaspace at this place"},
       {"/post_processor", {{"type", "BertProcessing"}}, "/post_processor/type"},
       {"/model", {{"type", "WordPiece"}}, "/model/type"},
       {"/model/dropout", 0.1, "/model/dropout"},
       {"/model/end_of_word_suffix", "</w>", "/model/end_of_word_suffix"},
       {"/model/continuing_subword_prefix", "##", "/model/continuing_subword_prefix"}});
}

TEST_CASE("a pattern is refused where the two regex libraries could read it differently") {
  const auto refused = [](const std::string& pattern, const std::string& message) {
    INFO(pattern);
    json value = small_bpe();
    value["pre_tokenizer"] = {{"type", "Sequence"},
                              {"pretokenizers",
                               {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}},
                                {{"type", "ByteLevel"}, {"use_regex", false}}}}};
    CHECK_THROWS_WITH(made(value), Contains("/pre_tokenizer/pretokenizers/0/pattern/Regex") && Contains(message));
  };
  refused("^a", "the anchor ^");
  refused("a$", "the anchor $");
  refused("\\ba", "the escape \\b");
  refused("(a)\\1", "the escape \\1");
  refused("(?<name>a)", "the group");
  refused("(?m:a)", "the group");
  refused("[a&&b]", "the intersection &&");
  refused("[[:alpha:]]", "'[' inside a class");
  refused("a{2}+", "'+' behind a count");
  refused("[a", "a class without an end");
  refused("(a", "is wrong");
  refused("a*", "can match nothing");
  refused(std::string(5000, 'a'), "a pattern of 5000 bytes");
}

TEST_CASE("pieces, ids and merges that do not fit together are refused") {
  check_refusals(small_bpe(),
                 {{"/model/vocab/ab", 1, "is given twice"},
                  {"/model/vocab/ab", -1, "/model/vocab/ab: must be an id"},
                  {"/model/vocab/ab", 1.5, "/model/vocab/ab: must be an id"},
                  {"/model/vocab/ab", 4000000000U, "/model/vocab/ab: must be an id below"},
                  {"/model/vocab", json::object(), "/model/vocab"},
                  {"/model/vocab", {{"a", 0}, {"b", 1}}, "/model/merges/0: the vocabulary has no piece \"ab\""},
                  {"/model/merges", {"a c"}, "no piece \"c\""},
                  {"/model/merges", {"ab"}, "/model/merges/0: must be two pieces"},
                  {"/model/merges", {"a b c"}, "/model/merges/0: must be two pieces"},
                  {"/model/merges", 3, "/model/merges"},
                  {"/model/unk_token", "<unk>", "/model/unk_token: the vocabulary has no piece"},
                  {"/added_tokens", {{{"id", 0}, {"content", "x"}}}, "/added_tokens/0/id: 0 is the id of \"a\""},
                  {"/added_tokens", {{{"id", 5}, {"content", "a"}}}, "but \"a\" has the id 0"},
                  {"/added_tokens", {{{"id", 3}, {"content", ""}}}, "/added_tokens/0/content"},
                  {"/added_tokens", {{{"id", 900000}, {"content", "x"}}}, "/added_tokens/0/id: must be an id below"},
                  {"/added_tokens",
                   {{{"id", 3}, {"content", "x"}}, {{"id", 3}, {"content", "x"}}},
                   "/added_tokens/1/id: is given twice"}});
  check_refusals(small_unigram(), {{"/model/vocab/2", {"\u2581", -2.0}, "/model/vocab/2: the piece"},
                                   {"/model/vocab/2", {"a"}, "/model/vocab/2: must be [piece, score]"},
                                   {"/model/unk_id", 3, "/model/unk_id"},
                                   {"/model/vocab", json::array(), "/model/vocab"}});
}

TEST_CASE("text without a token is refused where the tokenizer has no unknown token") {
  CHECK_THROWS_WITH(made(small_bpe()).encode("abc"), Contains("no piece for the byte <0x63>"));
  json unigram = small_unigram();
  unigram["model"].erase("unk_id");
  CHECK_THROWS_WITH(made(unigram).encode("z"), Contains("no piece for the character 'z'"));
}

TEST_CASE("damaged and hostile files end in a refusal") {
  const TemporaryFolder folder;
  const auto loaded = [&](const std::string& content) {
    write_file_atomically(folder / "tokenizer.json", content);
    return load_tokenizer(folder.path());
  };
  const std::string good = small_bpe().dump();
  CHECK(loaded(good)->vocabulary_size() == 3);
  for (std::size_t length = 0; length < good.size(); length += 3)
    CHECK_THROWS_AS(loaded(good.substr(0, length)), Error);
  CHECK_THROWS_WITH(loaded("{\"version\":\"1.0\",\"version\":\"1.0\"}"), Contains("twice"));
  CHECK_THROWS_WITH(loaded("{\"model\":" + std::string(400, '[')), Contains("nested deeper"));
  CHECK_THROWS_WITH(loaded(""), Contains("is empty"));
  CHECK_THROWS_WITH(loaded("no tokenizer at all"), Contains("no SentencePiece model"));
  CHECK_THROWS_WITH(loaded(std::string(1000, '\xFF')), Contains("no SentencePiece model"));
  std::string model = recorded_file("sentencepiece_bpe.tokenizer.model");
  CHECK(loaded(model)->kind() == "SentencePiece");
  CHECK_THROWS_AS(loaded(model.substr(0, model.size() / 2)), Error);
  CHECK_THROWS_WITH(load_tokenizer(folder / "missing"), Contains("missing"));
  std::filesystem::remove(folder / "tokenizer.json");
  CHECK_THROWS_WITH(load_tokenizer(folder.path()), Contains("has neither tokenizer.json nor tokenizer.model"));
}

}  // namespace
}  // namespace samba
