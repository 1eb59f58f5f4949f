// What a model's text side is read from.
#include "fuzz/readers.h"
#include "samba/text/chat_template.h"
#include "samba/text/json_tokenizer.h"
#include "samba/text/model_text.h"
#include "samba/text/sentencepiece_tokenizer.h"

namespace samba::fuzz {

namespace {

// Texts of every kind of character, ill-formed ones among them.
void use(const Tokenizer& tokenizer) {
  for (const std::string text : {"The quick  brown\tfox's 12,345 dogs\r\n\n",
                                 "\xC3\xA9"
                                 "e\xCC\x81 \xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\x98\x80",
                                 "<s><|im_start|>\xFF\xC3 \xE2\x96\x81x</s>", "", " "}) {
    accepts([&] {
      const std::vector<std::int32_t> ids = tokenizer.encode(text, {.add_special_tokens = true});
      for (const std::int32_t id : ids) {
        expect(id >= 0 && id < tokenizer.vocabulary_size(), "a token is one of the vocabulary");
      }
      tokenizer.decode(ids);
      tokenizer.decode(ids, true);
    });
  }
  for (const std::int32_t id : {-1, 0, 1, 255, 2147483647}) {
    tokenizer.piece(id);
    tokenizer.is_special(id);
    tokenizer.decode(std::vector<std::int32_t>{id});
  }
}

}  // namespace

void read_tokenizer_json_text(Bytes input) { use(PartsTokenizer(read_tokenizer_json(text_of(input), "input"))); }

void read_sentencepiece_model(Bytes input) { use(*make_sentencepiece_tokenizer(std::string(text_of(input)), "input")); }

void read_chat_template_source(Bytes input) {
  ModelText text;
  text.tokenizer = make_byte_tokenizer();
  text.chat_template = std::string(text_of(input));
  const ChatTemplate chat = ChatTemplate::of(text);
  chat.render(std::nullopt, {{"a question", "an answer"}, {"another", std::nullopt}});
  accepts([&] { chat.begin("a system", "a question"); });
  accepts([&] { chat.next("another"); });
}

}  // namespace samba::fuzz
