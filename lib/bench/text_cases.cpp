// Rows "encode/FORM/TEXT/1t": a byte-level BPE tokenizer on one core, in megabytes of text a second. Tokenizer and text
// are made here, so that every machine measures the same:
//
//   prose   made-up words as frequent as those of a language, with capitals, digits, punctuation, accents, line ends
//   fresh   the same with a new word every time: what the encoder remembers of words seen before is no help
#include <algorithm>
#include <cmath>

#include "samba/bench/shapes.h"
#include "samba/core/error.h"
#include "samba/numerics/philox.h"
#include "samba/text/bpe_trainer.h"
#include "samba/text/json_tokenizer.h"

namespace samba::bench {

namespace {

constexpr double kAim = 20.0;  // MB/s and core, that an encoder must reach at least
constexpr std::size_t kWords = 30000;
constexpr std::size_t kTrainingBytes = std::size_t{1} << 20;
const std::vector<std::string> kTexts = {"prose", "fresh"};

// Draws of one stream, one after the other.
class Draws {
 public:
  explicit Draws(std::uint32_t stream) : stream_(stream) {}
  std::size_t below(std::size_t count) {
    const auto drawn = static_cast<std::size_t>(stream_coin(1, stream_, index_++) * static_cast<float>(count));
    return std::min(drawn, count - 1);
  }

 private:
  std::uint32_t stream_;
  std::uint64_t index_ = 0;
};

std::string make_word(Draws& draws) {
  static const std::vector<std::string> kSyllables = {
      "an",  "be", "ce",     "con", "de", "er",  "for", "ing",  "is", "la",  "me", "ne",          "on",
      "pre", "ra", "\u00e9", "si",  "ta", "ter", "th",  "tion", "u",  "ver", "wo", "\u00fc\u00df"};
  std::string word;
  for (std::size_t left = 1 + draws.below(4); left > 0; --left) word += kSyllables[draws.below(kSyllables.size())];
  return word;
}

std::string make_text(const std::string& kind, std::size_t bytes) {
  Draws draws(1);
  std::vector<std::string> words;
  for (std::size_t i = 0; i < kWords; ++i) words.push_back(make_word(draws));
  // Word number r as often as 1 / (r + 2): the logarithm of the rank is uniform.
  const double ranks = std::log(static_cast<double>(kWords));
  std::string text;
  while (text.size() < bytes) {
    std::string word;
    if (kind == "fresh") {
      word = make_word(draws) + make_word(draws);
    } else {
      const double drawn = std::exp(ranks * static_cast<double>(draws.below(1U << 20)) / static_cast<double>(1U << 20));
      word = words[static_cast<std::size_t>(drawn) - 1];
    }
    const std::size_t mark = draws.below(40);
    if (mark == 0) word[0] = static_cast<char>(word[0] & ~0x20);
    if (mark == 1) word = std::to_string(draws.below(100000));
    text += word;
    text += mark == 2 ? ", " : mark == 3 ? ".\n" : mark == 4 ? "'s " : mark == 5 ? " (" : " ";
  }
  return text;
}

Row measure_encode(const Context& context, const std::string& form, const std::string& kind, Index vocabulary,
                   std::size_t bytes, const std::string& name) {
  const std::string text = make_text(kind, bytes);
  const std::string training = make_text("prose", kTrainingBytes);
  BpeTraining options;
  options.vocabulary_size = vocabulary;
  options.form = form;
  const std::string_view texts[] = {training};
  const std::string json = train_bpe(texts, options).json;
  std::size_t tokens = 0;
  // A new one each time: a tokenizer remembers the words of its last text.
  std::unique_ptr<PartsTokenizer> tokenizer;
  const std::vector<Side> sides{
      {.work = [&] { tokens = tokenizer->encode(text).size(); },
       .prepare = [&] { tokenizer = std::make_unique<PartsTokenizer>(read_tokenizer_json(json, name)); }}};
  const std::vector<Timing> timings = measure(sides, context.measuring);
  if (tokens == 0) throw Error(ErrorKind::internal, name + ": no tokens");
  Row row{.name = name, .threads = 1, .unit = "MB/s", .limit_name = "the aim"};
  row.achieved = static_cast<double>(text.size()) / 1e6 / timings[0].cpu_min;
  row.limit = kAim;
  row.timing = timings[0];
  return row;
}

}  // namespace

void add_encode(const RowSource& row, std::vector<Case>& cases) {
  const JsonFields fields = row.fields();
  const Index vocabulary = fields.integer("vocab", 8192, 512, 1 << 18);
  const auto bytes = static_cast<std::size_t>(fields.integer("kilobytes", 4000, 1, 1 << 20)) * 1000;
  for (const std::string& form : row.choices("forms", bpe_forms())) {
    for (const std::string& text : row.choices("texts", kTexts)) {
      std::string name = "encode/";
      name.append(form).append("/").append(text).append("/1t");
      cases.push_back({{name}, row.quick(), [=](const Context& context, const Wanted& wanted) {
                         std::vector<Row> rows;
                         if (wanted(name)) rows.push_back(measure_encode(context, form, text, vocabulary, bytes, name));
                         return rows;
                       }});
    }
  }
}

}  // namespace samba::bench
