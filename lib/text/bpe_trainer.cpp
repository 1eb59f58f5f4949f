#include "samba/text/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <unordered_map>

#include "samba/core/error.h"
#include "samba/core/thread_team.h"
#include "samba/text/byte_alphabet.h"
#include "samba/text/tokenizer_json.h"
#include "samba/text/utf8.h"

namespace samba {

namespace {

using Json = nlohmann::ordered_json;
using tokenizer_json::bpe_form;
using tokenizer_json::BpeForm;
using PieceCounts = std::unordered_map<std::string, std::int64_t>;

constexpr std::size_t kBatchBytes = std::size_t{1} << 20;  // of lines, counted by one thread at a time
constexpr Index kReportEvery = 256;                        // merges

// ---- counting pieces ----

class PieceCounter final : PreTokenizer::Sink {
 public:
  PieceCounter(const Normalizer& normalizer, const PreTokenizer& pre_tokenizer)
      : normalizer_(normalizer), pre_tokenizer_(pre_tokenizer) {}

  // Bytes that are no UTF-8 are pieces of their own, as in encoding.
  void line(std::string_view text) {
    split_utf8(
        text,
        [&](std::string_view valid, bool continues) {
          const std::string_view normalized = normalizer_.apply(valid, continues, regex_, normalized_);
          pre_tokenizer_.run({normalized, !continues, continues}, regex_, scratch_, *this);
        },
        [&](std::string_view bytes) { piece(bytes); });
  }
  PieceCounts& counts() { return counts_; }

 private:
  void piece(std::string_view text) override { ++counts_[std::string(text)]; }

  const Normalizer& normalizer_;
  const PreTokenizer& pre_tokenizer_;
  Regex::Scratch regex_;
  PreTokenizer::Scratch scratch_;
  std::string normalized_[2];
  PieceCounts counts_;
};

// Whole lines of about kBatchBytes, wherever a text has line ends.
std::vector<std::string_view> batches_of(std::span<const std::string_view> texts) {
  std::vector<std::string_view> batches;
  for (std::string_view text : texts) {
    while (!text.empty()) {
      const std::size_t end = text.find('\n', std::min(kBatchBytes, text.size()) - 1);
      const std::size_t length = end == std::string_view::npos ? text.size() : end + 1;
      batches.push_back(text.substr(0, length));
      text.remove_prefix(length);
    }
  }
  return batches;
}

PieceCounts count_pieces(std::span<const std::string_view> texts, const BpeForm& form, int threads) {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  bool bytes = false;
  tokenizer_json::read_normalizer(form.normalizer, "/normalizer", normalizer);
  tokenizer_json::read_pre_tokenizer(form.pre_tokenizer, "/pre_tokenizer", pre_tokenizer, bytes);
  const std::vector<std::string_view> batches = batches_of(texts);
  const int members = static_cast<int>(std::clamp<std::size_t>(batches.size(), 1, static_cast<std::size_t>(threads)));
  std::vector<PieceCounts> counts(static_cast<std::size_t>(members));
  std::atomic<std::size_t> next{0};
  ThreadTeam team(members);
  team.run(members, [&](int member) {
    PieceCounter counter(normalizer, pre_tokenizer);
    for (std::size_t batch = next++; batch < batches.size(); batch = next++) {
      std::string_view rest = batches[batch];
      while (!rest.empty()) {
        const std::size_t end = rest.find('\n');
        const std::size_t length = end == std::string_view::npos ? rest.size() : end + 1;
        counter.line(rest.substr(0, length));
        rest.remove_prefix(length);
      }
    }
    counts[static_cast<std::size_t>(member)] = std::move(counter.counts());
  });
  for (std::size_t member = 1; member < counts.size(); ++member) {
    for (const auto& [piece, count] : counts[member]) counts[0][piece] += count;
  }
  return std::move(counts[0]);
}

// ---- merging ----

using Pair = std::pair<std::int32_t, std::int32_t>;

struct PairHash {
  std::size_t operator()(const Pair& pair) const {
    const std::uint64_t both = static_cast<std::uint64_t>(static_cast<std::uint32_t>(pair.first)) << 32 |
                               static_cast<std::uint32_t>(pair.second);
    return static_cast<std::size_t>((both * 0x9E3779B97F4A7C15U) >> 16);
  }
};

class Merger {
 public:
  // Pieces and how often they come; the ids of bytes.
  Merger(const std::vector<std::pair<std::string, std::int64_t>>& pieces,
         const std::array<std::int32_t, 256>& byte_ids) {
    for (const auto& [text, count] : pieces) {
      std::vector<std::int32_t> symbols;
      for (const char c : text) symbols.push_back(byte_ids[static_cast<unsigned char>(c)]);
      const auto word = static_cast<std::uint32_t>(words_.size());
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) change({symbols[i], symbols[i + 1]}, count, word);
      words_.push_back({std::move(symbols), count});
    }
    queue_changed();
  }

  // The most frequent pair, the one of lower ids among equals; false when none is as frequent as `least`.
  bool best(std::int64_t least, Pair& pair) {
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), below);
      const Entry top = queue_.back();
      queue_.pop_back();
      const auto found = pairs_.find(top.pair);
      const std::int64_t count = found == pairs_.end() ? 0 : found->second.count;
      if (count != top.count) continue;  // the pair changed since and was queued again
      if (count < std::max<std::int64_t>(least, 1)) return false;
      pair = top.pair;
      return true;
    }
    return false;
  }

  void merge(const Pair& pair, std::int32_t merged) {
    std::vector<std::uint32_t> words = std::move(pairs_.at(pair).words);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    for (const std::uint32_t word : words) merge_word(word, pair, merged);
    pairs_.erase(pair);
    queue_changed();
  }

 private:
  struct Word {
    std::vector<std::int32_t> symbols;
    std::int64_t count;
  };
  struct Occurrences {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // where it was once; some hold it no more
    bool changed = false;
  };
  struct Entry {
    std::int64_t count;
    Pair pair;
  };
  static bool below(const Entry& a, const Entry& b) { return a.count != b.count ? a.count < b.count : a.pair > b.pair; }

  void change(const Pair& pair, std::int64_t count, std::uint32_t word) {
    Occurrences& occurrences = pairs_[pair];
    occurrences.count += count;
    if (count > 0 && (occurrences.words.empty() || occurrences.words.back() != word)) occurrences.words.push_back(word);
    if (!std::exchange(occurrences.changed, true)) changed_.push_back(pair);
  }

  void queue_changed() {
    for (const Pair& pair : changed_) {
      const auto found = pairs_.find(pair);
      if (found == pairs_.end()) continue;
      found->second.changed = false;
      if (found->second.count <= 0) {
        pairs_.erase(found);
        continue;
      }
      queue_.push_back({found->second.count, pair});
      std::push_heap(queue_.begin(), queue_.end(), below);
    }
    changed_.clear();
  }

  void merge_word(std::uint32_t index, const Pair& pair, std::int32_t merged) {
    Word& word = words_[index];
    std::vector<std::int32_t>& symbols = word.symbols;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      const bool here = i + 1 < symbols.size() && symbols[i] == pair.first && symbols[i + 1] == pair.second;
      if (!here) {
        symbols[kept++] = symbols[i];
        continue;
      }
      if (kept > 0) {
        change({symbols[kept - 1], pair.first}, -word.count, index);
        change({symbols[kept - 1], merged}, word.count, index);
      }
      if (i + 2 < symbols.size()) {
        change({pair.second, symbols[i + 2]}, -word.count, index);
        change({merged, symbols[i + 2]}, word.count, index);
      }
      symbols[kept++] = merged;
      ++i;
    }
    symbols.resize(kept);
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, Occurrences, PairHash> pairs_;
  std::vector<Pair> changed_;
  std::vector<Entry> queue_;
};

void check_options(const BpeTraining& options) {
  if (std::find(bpe_forms().begin(), bpe_forms().end(), options.form) == bpe_forms().end()) {
    std::string accepted;
    for (const std::string& form : bpe_forms()) accepted += (accepted.empty() ? "" : ", ") + form;
    refuse_value("form: must be one of " + accepted + ", got " + options.form);
  }
  const auto least = static_cast<Index>(256 + options.special_tokens.size());
  if (options.vocabulary_size < least || options.vocabulary_size > Vocabulary::kMostIds) {
    refuse_value("vocabulary size: must be at least " + std::to_string(least) +
                 " (256 bytes and the special tokens), got " + std::to_string(options.vocabulary_size));
  }
  if (options.min_frequency < 1) refuse_value("min frequency: must be at least 1");
  for (const std::string& token : options.special_tokens) {
    if (token.size() < 2 || valid_utf8_prefix(token) != token.size()) {
      refuse_value("special token: must be UTF-8 of two bytes or more, got \"" + token + "\"");
    }
  }
}

std::string file_text(const BpeForm& form, const BpeTraining& options, const std::vector<std::string>& pieces,
                      const std::vector<std::pair<std::string, std::string>>& merges) {
  Json added = Json::array();
  for (std::size_t id = 0; id < options.special_tokens.size(); ++id) {
    added.push_back(Json{{"id", id},
                         {"content", options.special_tokens[id]},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", true}});
  }
  Json vocabulary = Json::object();
  auto& entries = vocabulary.get_ref<Json::object_t&>();  // a list: pieces differ, none is looked up
  for (std::size_t id = 0; id < pieces.size(); ++id) entries.emplace_back(pieces[id], id);
  Json pairs = Json::array();
  for (const auto& [left, right] : merges) pairs.push_back(Json::array({left, right}));
  Json decoder{{"type", "ByteLevel"}};
  for (const char* name : {"add_prefix_space", "trim_offsets", "use_regex"})
    decoder[name] = true;  // unused, but wanted
  const Json file{{"version", "1.0"},
                  {"truncation", nullptr},
                  {"padding", nullptr},
                  {"added_tokens", std::move(added)},
                  {"normalizer", form.normalizer},
                  {"pre_tokenizer", form.pre_tokenizer},
                  {"post_processor", nullptr},
                  {"decoder", std::move(decoder)},
                  {"model", Json{{"type", "BPE"},
                                 {"dropout", nullptr},
                                 {"unk_token", nullptr},
                                 {"continuing_subword_prefix", nullptr},
                                 {"end_of_word_suffix", nullptr},
                                 {"fuse_unk", false},
                                 {"byte_fallback", false},
                                 {"ignore_merges", false},
                                 {"vocab", std::move(vocabulary)},
                                 {"merges", std::move(pairs)}}}};
  return file.dump() + "\n";
}

}  // namespace

const std::vector<std::string>& bpe_forms() {
  static const std::vector<std::string> forms{"gpt2", "llama3", "qwen2", "smollm"};
  return forms;
}

TrainedBpe train_bpe(std::span<const std::string_view> texts, const BpeTraining& options,
                     const std::function<void(Index, Index)>& progress) {
  check_options(options);
  const BpeForm form = bpe_form(options.form);
  const PieceCounts counts = count_pieces(texts, form, std::max(options.threads, 1));
  std::vector<std::pair<std::string, std::int64_t>> sorted(counts.begin(), counts.end());
  std::sort(sorted.begin(), sorted.end());

  std::vector<std::string> pieces;
  std::unordered_map<std::string, std::int32_t> ids;
  const auto add = [&](const std::string& piece) {
    const auto [place, added] = ids.emplace(piece, static_cast<std::int32_t>(pieces.size()));
    if (added) pieces.push_back(piece);
    return std::pair(place->second, added);
  };
  for (const std::string& token : options.special_tokens) {
    if (!add(token).second) refuse_value("special token: \"" + token + "\" is given twice");
  }
  std::vector<std::pair<char32_t, std::size_t>> alphabet;
  for (std::size_t byte = 0; byte < 256; ++byte) alphabet.emplace_back(byte_alphabet()[byte], byte);
  std::sort(alphabet.begin(), alphabet.end());
  std::array<std::int32_t, 256> byte_ids{};
  for (const auto& [character, byte] : alphabet) {
    std::string text;
    append_utf8(text, character);
    byte_ids[byte] = add(text).first;
  }

  Merger merger(sorted, byte_ids);
  std::vector<std::pair<std::string, std::string>> merges;
  const auto first = static_cast<Index>(pieces.size());
  for (Pair pair;
       static_cast<Index>(pieces.size()) < options.vocabulary_size && merger.best(options.min_frequency, pair);) {
    merges.emplace_back(pieces[static_cast<std::size_t>(pair.first)], pieces[static_cast<std::size_t>(pair.second)]);
    merger.merge(pair, add(merges.back().first + merges.back().second).first);
    const Index done = static_cast<Index>(pieces.size()) - first;
    if (progress && done % kReportEvery == 0) progress(done, options.vocabulary_size - first);
  }
  return {file_text(form, options, pieces, merges), static_cast<Index>(pieces.size()),
          static_cast<Index>(merges.size()), static_cast<Index>(sorted.size())};
}

}  // namespace samba
