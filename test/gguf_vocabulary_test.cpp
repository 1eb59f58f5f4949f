// Tokenizers that convert writes into GGUF files.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>

#include "recorded_tokenizers.h"
#include "samba/convert/gguf_vocabulary.h"
#include "samba/core/error.h"
#include "samba/text/gguf_tokenizer.h"
#include "samba/text/sentencepiece_model.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

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

// The lines whose tokens are others than those recorded. In what sentencepiece recorded special tokens are text.
std::size_t count_different(const Tokenizer& tokenizer, const RecordedForm& recorded, bool decoded) {
  const EncodeOptions plain{.special_in_text = !recorded.sentencepiece};
  std::size_t different = 0;
  for (std::size_t line = 0; line < recorded.ids.size(); ++line) {
    different += tokenizer.encode(hard_lines()[line], plain) != *recorded.ids[line];
    if (decoded) different += tokenizer.decode(*recorded.ids[line]) != recorded.tokenizer->decode(*recorded.ids[line]);
  }
  return different;
}

TEST_CASE("a BPE of SentencePiece passes through a GGUF file: every hard line has the recorded tokens") {
  const TemporaryFolder folder;
  const RecordedForm& recorded = recorded_form("sentencepiece_bpe");
  const Index pieces = recorded.tokenizer->vocabulary_size();
  const Written there = written(folder, recorded.file, pieces + 3);
  CHECK(there.vocabulary == "tokenizer.model");
  const auto tokenizer = load_tokenizer(there.file);
  CHECK(tokenizer->vocabulary_size() == pieces + 3);
  CHECK(count_different(*tokenizer, recorded, true) == 0);
  const EncodeOptions special{.add_special_tokens = true};
  CHECK(tokenizer->encode("a b</s>c", special) == recorded.tokenizer->encode("a b</s>c", special));
}

TEST_CASE("a BPE of SentencePiece that llama.cpp would cut otherwise is left out, by name") {
  const TemporaryFolder folder;
  const SentencePieceModel good =
      read_sentencepiece_model(read_file(recorded_form("sentencepiece_bpe").file), "tokenizer.model");
  const auto refused = [&](const std::function<void(SentencePieceModel&)>& change) {
    SentencePieceModel model = good;
    change(model);
    write_file_atomically(folder / "tokenizer.model", sentencepiece_bytes(model));
    return written(folder, folder / "tokenizer.model", 4000).vocabulary;
  };
  CHECK(refused([](SentencePieceModel&) {}) == "tokenizer.model");
  const auto user_defined = [](SentencePieceModel& model, const std::string& text) {
    model.pieces.push_back({text, 0.0F, SentencePieceModel::kUserDefined});
  };
  CHECK(refused([&](SentencePieceModel& model) {
          model.space_in_front = false;
          user_defined(model, "<user>");
        }) == "tokenizer.model");
  CHECK_THAT(refused([&](SentencePieceModel& model) { user_defined(model, "<user>"); }),
             Contains("none: tokenizer.model: its piece '<user>' is user-defined"));
  CHECK_THAT(refused([&](SentencePieceModel& model) {
               model.space_in_front = false;
               user_defined(model, "\u2581\u2581\u2581\u2581\u2581\u2581\u2581\u2581\u2581");
             }),
             Contains("llama.cpp does not find it where a space is written"));
  CHECK_THAT(refused([](SentencePieceModel& model) { model.byte_fallback = false; }),
             Contains("does not fall back to bytes"));
  CHECK_THAT(refused([](SentencePieceModel& model) { model.drops_spaces = true; }),
             Contains("takes away repeated white space"));
  CHECK_THAT(refused([](SentencePieceModel& model) { model.characters_map = "map"; }),
             Contains("its normalizer changes characters"));
  CHECK_THAT(refused([](SentencePieceModel& model) { model.space_behind = true; }), Contains("white space"));
  CHECK_THAT(refused([](SentencePieceModel& model) { model.pieces.back().type = SentencePieceModel::kUnused; }),
             Contains("is unused"));
  CHECK_THAT(refused([](SentencePieceModel& model) { model.kind = SentencePieceModel::Kind::word; }),
             Contains("is neither BPE nor Unigram"));
}

// A tokenizer.json without the pieces that have a zero byte.
json without_zeros(const Path& path) {
  json file = json::parse(read_file(path));
  const auto has_zero = [](const std::string& piece) { return piece.find('\0') != std::string::npos; };
  json vocabulary = json::object(), merges = json::array();
  for (const auto& [piece, id] : file["model"]["vocab"].items()) {
    if (!has_zero(piece)) vocabulary[piece] = id;
  }
  for (const json& merge : file["model"]["merges"]) {
    if (merge.is_string() || !has_zero(merge[0].get<std::string>() + merge[1].get<std::string>())) {
      merges.push_back(merge);
    }
  }
  file["model"]["vocab"] = vocabulary;
  file["model"]["merges"] = merges;
  return file;
}

// The lines without a zero byte (of which no piece may be in a GGUF file) whose tokens are others than those recorded.
std::vector<std::size_t> different_lines(const Tokenizer& tokenizer, const RecordedForm& recorded) {
  std::vector<std::size_t> different;
  for (std::size_t line = 0; line < recorded.ids.size(); ++line) {
    const std::string& text = hard_lines()[line];
    if (!recorded.ids[line] || text.find('\0') != std::string::npos) continue;
    if (tokenizer.encode(text) != *recorded.ids[line]) different.push_back(line);
  }
  return different;
}

// The tokenizer.json of a form, through convert and back from the GGUF file.
Written written_form(const TemporaryFolder& folder, const std::string& form) {
  write_file_atomically(folder / "tokenizer.json", without_zeros(recorded_form(form).file).dump());
  return written(folder, folder / "tokenizer.json", recorded_form(form).tokenizer->vocabulary_size());
}

TEST_CASE("a tokenizer.json of BPE passes through a GGUF file: every hard line has the tokens of the package") {
  const TemporaryFolder folder;
  for (const char* form : {"gpt2", "llama3", "qwen2", "smollm2", "llama2", "gemma"}) {
    INFO(form);
    const Written there = written_form(folder, form);
    CHECK(there.vocabulary == "tokenizer.json");
    CHECK(different_lines(*load_tokenizer(there.file), recorded_form(form)).empty());
    CHECK(load_tokenizer(there.file)->encode("a b", {.add_special_tokens = true}) == *recorded_form(form).with_special);
  }
}

TEST_CASE("the space that Metaspace puts in front differs in a GGUF file where one stands, and convert says so") {
  const TemporaryFolder folder;
  const RecordedForm& recorded = recorded_form("mistral");
  const Written there = written_form(folder, "mistral");
  CHECK(there.vocabulary ==
        "tokenizer.json (from GGUF a text that begins with a space gets one more, and text behind special tokens gets "
        "one)");
  const auto tokenizer = load_tokenizer(there.file);
  const std::vector<std::size_t> different = different_lines(*tokenizer, recorded);
  CHECK(different.size() == 192);
  const auto is_named = [&](std::size_t line) {
    const std::vector<std::int32_t>& ids = *recorded.ids[line];
    return hard_lines()[line].starts_with(" ") || hard_lines()[line].starts_with("\u2581") ||
           std::any_of(ids.begin(), ids.end(), [&](std::int32_t id) { return recorded.tokenizer->is_special(id); });
  };
  CHECK(std::all_of(different.begin(), different.end(), is_named));
}

TEST_CASE("the merges of a BPE with byte fallback stand beside its scores, which alone say less") {
  const TemporaryFolder folder;
  for (const char* form : {"llama2", "gemma"}) {
    INFO(form);
    const Written there = written_form(folder, form);
    GgufMetadata metadata = read_gguf_metadata(there.file);
    const std::string typed = "humains<0x41>";  // the letters, which are no byte
    const std::vector<std::int32_t> wanted = recorded_form(form).tokenizer->encode(typed);
    CHECK(read_gguf_tokenizer(metadata, form)->encode(typed) == wanted);
    metadata.erase("tokenizer.ggml.merges");
    CHECK(read_gguf_tokenizer(metadata, form)->encode(typed) != wanted);
  }
}

TEST_CASE("what surrounds a text is held by a GGUF file, or said to be lost") {
  const TemporaryFolder folder;
  const json good = without_zeros(recorded_form("gpt2").file);
  const auto given = [&](const json& changes) {
    json file = good;
    for (const auto& [section, value] : changes.items()) file[section] = value;
    write_file_atomically(folder / "tokenizer.json", file.dump());
    return written(folder, folder / "tokenizer.json", recorded_form("gpt2").tokenizer->vocabulary_size());
  };
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const auto special = [](const char* piece) { return json{{"SpecialToken", {{"id", piece}, {"type_id", 0}}}}; };
  const auto around = [&](const std::vector<json>& single) {
    json tokens = {{"<|endoftext|>", {{"id", "<|endoftext|>"}, {"ids", {0}}, {"tokens", {"<|endoftext|>"}}}}};
    tokens["!"] = {{"id", "!"}, {"ids", {1}}, {"tokens", {"!"}}};
    return json{{"post_processor",
                 {{"type", "TemplateProcessing"}, {"single", single}, {"pair", single}, {"special_tokens", tokens}}}};
  };
  const json both = around({special("<|endoftext|>"), text, special("!")});
  CHECK(given(both).vocabulary == "tokenizer.json");
  CHECK(load_tokenizer(folder / "vocabulary.gguf")->encode("a b", {.add_special_tokens = true}) ==
        load_tokenizer(folder / "tokenizer.json")->encode("a b", {.add_special_tokens = true}));
  CHECK_THAT(given(around({special("!"), special("!"), text})).vocabulary, Contains("what it puts before a text"));
  CHECK_THAT(given(around({text, special("!"), special("!")})).vocabulary, Contains("what it puts behind a text"));
  json added = good["added_tokens"];
  added[0]["rstrip"] = true;
  CHECK(given({{"added_tokens", added}}).vocabulary ==
        "tokenizer.json (GGUF has no field for rstrip of the added token <|endoftext|>)");
  json model = good["model"];
  model["ignore_merges"] = true;
  CHECK_THAT(given({{"model", model}}).vocabulary,
             Contains("none: tokenizer.json: its ignore_merges is not that of gpt-2"));
}

TEST_CASE("a BPE with byte fallback whose white space or merging llama.cpp has not is left out, by name") {
  const TemporaryFolder folder;
  const RecordedForm& recorded = recorded_form("llama2");
  CHECK_THAT(written(folder, recorded.file, recorded.tokenizer->vocabulary_size()).vocabulary,
             Contains("has a zero byte"));
  const json file = without_zeros(recorded_form("llama2").file);
  const auto refused = [&](const char* section, const json& value) {
    json changed = file;
    changed[section] = value;
    write_file_atomically(folder / "tokenizer.json", changed.dump());
    return written(folder, folder / "tokenizer.json", 4000).vocabulary;
  };
  CHECK_THAT(refused("normalizer", {{"type", "NFKC"}}), Contains("its normalizer is NFKC"));
  CHECK_THAT(refused("normalizer", nullptr), Contains("does not mark spaces"));
  CHECK_THAT(refused("pre_tokenizer", {{"type", "Metaspace"}, {"prepend_scheme", "first"}, {"split", true}}),
             Contains("its pre-tokenizer is Metaspace"));
  json model = file["model"];
  model["ignore_merges"] = true;
  CHECK_THAT(refused("model", model), Contains("it ignores merges"));
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      bits = bits << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      text += at + i > bytes.size() ? '=' : kAlphabet[bits >> (18 - 6 * i) & 0x3FU];
    }
  }
  return text;
}

// What transformers makes of a tokenizer.model with Unigram and a map of characters.
json unigram_with_map(const SentencePieceModel& model) {
  json vocabulary = json::array(), added = json::array();
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    vocabulary.push_back(json::array({piece.text, static_cast<double>(piece.score)}));
    if (piece.type != SentencePieceModel::kControl) continue;
    added.push_back({{"id", id}, {"content", piece.text}, {"special", true}});
  }
  json steps = json::array();
  steps.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", base64(model.characters_map)}});
  steps.push_back({{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}});
  steps.push_back({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", "\u2581"}});
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", steps}}},
          {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}}},
          {"decoder", {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}}},
          {"model", {{"type", "Unigram"}, {"unk_id", model.unknown}, {"vocab", vocabulary}}}};
}

TEST_CASE("a Unigram of tokenizer.json with a map of characters has SentencePiece's tokens in a GGUF file") {
  const TemporaryFolder folder;
  const RecordedForm& recorded = recorded_form("sentencepiece_unigram");
  const SentencePieceModel model = read_sentencepiece_model(read_file(recorded.file), "tokenizer.model");
  const json file = unigram_with_map(model);
  const auto write = [&](const json& changed) {
    write_file_atomically(folder / "tokenizer.json", changed.dump());
    return written(folder, folder / "tokenizer.json", recorded.tokenizer->vocabulary_size());
  };
  const Written there = write(file);
  REQUIRE(there.vocabulary == "tokenizer.json");
  CHECK(count_different(*load_tokenizer(there.file), recorded, true) == 0);
  const auto refused = [&](const char* pointer, const json& value) {
    json changed = file;
    changed[json::json_pointer(pointer)] = value;
    return write(changed).vocabulary;
  };
  CHECK_THAT(refused("/normalizer/normalizers/0/precompiled_charsmap", "a*b"), Contains("is no base64"));
  CHECK_THAT(refused("/normalizer/normalizers/1", {{"type", "NFKC"}}), Contains("its normalizer is NFKC"));
  CHECK_THAT(refused("/normalizer", file["normalizer"]["normalizers"][2]), Contains("at the end alone"));
  CHECK_THAT(refused("/pre_tokenizer/prepend_scheme", "never"), Contains("its prepend_scheme is never"));
  CHECK_THAT(refused("/pre_tokenizer", {{"type", "Whitespace"}}), Contains("is not Metaspace"));
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
    CHECK(there.vocabulary == (scheme == "never"
                                   ? "tokenizer.json"
                                   : "tokenizer.json (from GGUF a text that begins with a space gets one more)"));
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

}  // namespace
}  // namespace samba
