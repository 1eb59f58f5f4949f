// Tokenizers against what the packages `tokenizers` and `sentencepiece` recorded, and the properties they promise.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <thread>

#include "recorded_tokenizers.h"
#include "samba/core/error.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;

std::string shown_line(std::size_t line) {
  return std::to_string(line) + ": " + nlohmann::json(hard_lines()[line]).dump();
}

// SentencePiece itself does not look for "<s>" in the text.
EncodeOptions recorded_options(const RecordedForm& form) {
  EncodeOptions options;
  options.special_in_text = !form.sentencepiece;
  return options;
}

TEST_CASE("every form gives the recorded tokens of 3,000 lines of hard text") {
  REQUIRE(hard_lines().size() == 3000);
  for (const std::string& name : recorded_forms()) {
    INFO(name);
    const RecordedForm& form = recorded_form(name);
    REQUIRE(form.ids.size() == hard_lines().size());
    std::size_t different = 0;
    std::string first;
    for (std::size_t line = 0; line < form.ids.size(); ++line) {
      if (!form.ids[line]) {
        CHECK_THROWS_WITH(form.tokenizer->encode(hard_lines()[line]), Contains("no piece for the byte <0x"));
        continue;
      }
      const std::vector<std::int32_t> ids = form.tokenizer->encode(hard_lines()[line], recorded_options(form));
      if (ids != *form.ids[line] && different++ == 0) {
        first = shown_line(line) + "\n got " + nlohmann::json(ids).dump() + "\nwant " +
                nlohmann::json(*form.ids[line]).dump();
      }
    }
    INFO(first);
    CHECK(different == 0);
  }
}

TEST_CASE("every form decodes to the recorded text") {
  for (const std::string& name : recorded_forms()) {
    INFO(name);
    const RecordedForm& form = recorded_form(name);
    std::size_t different = 0;
    std::string first;
    for (std::size_t line = 0; line < form.ids.size(); ++line) {
      if (!form.ids[line]) continue;
      const auto changed = form.decoded.find(line);
      const std::string& wanted = changed == form.decoded.end() ? hard_lines()[line] : changed->second;
      const std::string text = form.tokenizer->decode(*form.ids[line]);
      if (text != wanted && different++ == 0) {
        first = shown_line(line) + "\n got " +
                nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\nwant " +
                nlohmann::json(wanted).dump();
      }
    }
    INFO(first);
    CHECK(different == 0);
  }
}

TEST_CASE("a text comes back from its tokens where no normalizer changes it") {
  const auto changed_lines = [](const std::string& name) { return recorded_form(name).decoded.size(); };
  for (const char* name : {"gpt2", "llama3", "smollm2"}) CHECK(changed_lines(name) == 0);
  for (const char* name : {"qwen2", "llama2", "gemma", "mistral", "sentencepiece_bpe"}) {
    INFO(name);
    CHECK(changed_lines(name) < 300);
  }
}

TEST_CASE("special tokens around the text are added only when they are asked for") {
  EncodeOptions options;
  options.add_special_tokens = true;
  for (const std::string& name : recorded_forms()) {
    INFO(name);
    const RecordedForm& form = recorded_form(name);
    if (form.with_special) CHECK(form.tokenizer->encode("a b", options) == *form.with_special);
  }
  CHECK(recorded_form("llama3").with_special->size() == recorded_form("llama3").tokenizer->encode("a b").size() + 1);
  CHECK(recorded_form("sentencepiece_bpe").tokenizer->encode("a b", options).front() == 1);
}

TEST_CASE("special tokens in the text are single tokens, and text when the caller says so") {
  const Tokenizer& tokenizer = *recorded_form("smollm2").tokenizer;
  CHECK(tokenizer.encode("<|im_start|>user<|im_end|>").front() == 1);
  CHECK(tokenizer.encode("<|im_start|>user<|im_end|>").back() == 2);
  EncodeOptions plain;
  plain.special_in_text = false;
  const std::vector<std::int32_t> ids = tokenizer.encode("<|im_end|>", plain);
  CHECK(std::find(ids.begin(), ids.end(), 2) == ids.end());
  CHECK(tokenizer.decode(ids) == "<|im_end|>");
  CHECK(tokenizer.is_special(2));
  CHECK_FALSE(tokenizer.is_special(300));
  CHECK(tokenizer.decode(tokenizer.encode("a<|im_end|>b"), true) == "ab");
  CHECK(recorded_form("sentencepiece_bpe").tokenizer->encode("</s>") == std::vector<std::int32_t>{2});
}

TEST_CASE("pieces and ids name each other") {
  for (const std::string& name : recorded_forms()) {
    INFO(name);
    const Tokenizer& tokenizer = *recorded_form(name).tokenizer;
    for (std::int32_t id = 0; id < tokenizer.vocabulary_size(); id += 7) {
      CHECK(tokenizer.id_of(tokenizer.piece(id)) == id);
    }
    CHECK(tokenizer.piece(-1).empty());
    CHECK(tokenizer.piece(static_cast<std::int32_t>(tokenizer.vocabulary_size())).empty());
    CHECK_FALSE(tokenizer.id_of("no such piece"));
  }
}

TEST_CASE("token by token, only whole characters are given out, and together they are the text") {
  for (const std::string& name : recorded_forms()) {
    INFO(name);
    const RecordedForm& form = recorded_form(name);
    for (std::size_t line = 0; line < form.ids.size(); line += 3) {
      if (!form.ids[line]) continue;
      DecodeStream stream(*form.tokenizer);
      std::string text;
      for (const std::int32_t id : *form.ids[line]) {
        const std::string part = stream.push(id);
        Utf8Stream whole;
        if (whole.push(part) != part || !whole.finish().empty()) FAIL_CHECK(shown_line(line));
        text += part;
      }
      text += stream.finish();
      Utf8Stream replacing;
      const std::string bytes = form.tokenizer->decode(*form.ids[line]);
      std::string wanted = replacing.push(bytes);
      wanted += replacing.finish();
      if (text != wanted) FAIL_CHECK(shown_line(line));
    }
  }
}

TEST_CASE("decoding of the first tokens is a prefix of decoding them all, at every split") {
  for (const std::string& name : recorded_forms()) {
    INFO(name);
    const RecordedForm& form = recorded_form(name);
    for (std::size_t line = 0; line < form.ids.size(); line += 17) {
      if (!form.ids[line]) continue;
      const std::span<const std::int32_t> ids(*form.ids[line]);
      const std::string whole = form.tokenizer->decode(ids);
      for (std::size_t split = 0; split <= ids.size(); ++split) {
        DecodeState state;
        std::string text;
        for (const std::int32_t id : ids.first(split)) form.tokenizer->decode_step(id, state, text);
        if (text != form.tokenizer->decode(ids.first(split)) || !whole.starts_with(text)) FAIL_CHECK(shown_line(line));
        for (const std::int32_t id : ids.subspan(split)) form.tokenizer->decode_step(id, state, text);
        if (text != whole) FAIL_CHECK(shown_line(line));
      }
    }
  }
}

TEST_CASE("bytes that are no UTF-8 come back where the vocabulary has a token for every byte") {
  std::mt19937 draw(3);
  for (const char* name : {"gpt2", "llama3", "llama2", "gemma", "mistral"}) {
    INFO(name);
    const Tokenizer& tokenizer = *recorded_form(name).tokenizer;
    for (int i = 0; i < 300; ++i) {
      std::string text = "x";
      for (int k = 0; k < 24; ++k) {
        if (draw() % 3 == 0) {
          text += static_cast<char>(draw() & 0xFF);
        } else {
          text += static_cast<char>('a' + draw() % 26);
          if (draw() % 4 == 0) text += " ";
        }
      }
      const std::string back = tokenizer.decode(tokenizer.encode(text));
      if (back != text) FAIL_CHECK(nlohmann::json(tokenizer.encode(text)).dump());
    }
  }
  CHECK(
      recorded_form("unigram").tokenizer->decode(recorded_form("unigram").tokenizer->encode("a\xFF")).starts_with("a"));
}

TEST_CASE("a tokenizer used by several threads gives each the same tokens") {
  const RecordedForm& form = recorded_form("qwen2");
  std::vector<int> different(3);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < different.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t line = t; line < form.ids.size(); line += 2) {
        different[t] += form.tokenizer->encode(hard_lines()[line]) != *form.ids[line];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(different == std::vector<int>(3));
}

TEST_CASE("a long text gives the tokens of the same text in a fresh tokenizer, cached or not") {
  std::string text;
  for (const std::string& line : hard_lines()) text += line;
  for (const char* name : {"gpt2", "llama2"}) {
    const RecordedForm& form = recorded_form(name);
    const auto ids = form.tokenizer->encode(text);
    CHECK(load_tokenizer(form.file)->encode(text) == ids);
    CHECK(form.tokenizer->encode(text) == ids);
  }
  CHECK(recorded_form("gpt2").tokenizer->decode(recorded_form("gpt2").tokenizer->encode(text)) == text);
}

TEST_CASE("the byte vocabulary is a tokenizer like the others") {
  const std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer();
  CHECK(tokenizer->kind() == "bytes");
  CHECK(tokenizer->vocabulary_size() == 256);
  CHECK(tokenizer->encode("h\xC3\xA9") == std::vector<std::int32_t>{0x68, 0xC3, 0xA9});
  CHECK(tokenizer->piece('h') == "h");
  CHECK(tokenizer->piece(0xC3) == "<0xC3>");
  CHECK(tokenizer->id_of("<0xC3>") == 0xC3);
  DecodeStream stream(*tokenizer);
  CHECK(stream.push(0xC3).empty());
  CHECK(stream.push(0xA9) == "é");
  CHECK(stream.push(0xC3).empty());
  CHECK(stream.finish() == "\uFFFD");
}

}  // namespace
}  // namespace samba
