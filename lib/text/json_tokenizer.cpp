#include "samba/text/json_tokenizer.h"

#include "samba/text/utf8.h"

namespace samba {

struct PartsTokenizer::Scratch {
  Regex::Scratch regex;
  PreTokenizer::Scratch pre_tokenizer;
  ModelScratch model;
  std::string normalized[2];
  std::vector<AddedTokenFinder::Stretch> raw_stretches;
  std::vector<AddedTokenFinder::Stretch> stretches;
};

// One text being encoded: tokens found in the text, the rest through normalizer, pre-tokenizer and model.
struct PartsTokenizer::Encoding final : PreTokenizer::Sink {
  const PartsTokenizer& owner;
  const EncodeOptions& options;
  Scratch& scratch;
  std::vector<std::int32_t>& ids;

  Encoding(const PartsTokenizer& tokenizer, const EncodeOptions& given, Scratch& memory, std::vector<std::int32_t>& out)
      : owner(tokenizer), options(given), scratch(memory), ids(out) {}

  void run(std::string_view text) {
    owner.raw_added_.split(text, options.special_in_text, scratch.raw_stretches);
    for (const auto& stretch : scratch.raw_stretches) {
      if (stretch.id >= 0) {
        ids.push_back(stretch.id);
      } else {
        stretch_of_text(text.substr(stretch.begin, stretch.end - stretch.begin), stretch.begin == 0);
      }
    }
  }

  // Bytes that are no UTF-8 go past normalizer and pre-tokenizer; what follows them continues the same stretch.
  void stretch_of_text(std::string_view text, bool at_start) {
    split_utf8(
        text, [&](std::string_view valid, bool continues) { valid_text(valid, at_start && !continues, continues); },
        [&](std::string_view bytes) { owner.parts_.model->encode_bytes(bytes, scratch.model, ids); });
  }

  void valid_text(std::string_view text, bool at_start, bool continues) {
    text = owner.parts_.normalizer.apply(text, continues, scratch.regex, scratch.normalized);
    if (owner.normalized_added_.empty()) return pieces(text, at_start, continues);
    owner.normalized_added_.split(text, options.special_in_text, scratch.stretches);
    for (const auto& stretch : scratch.stretches) {
      if (stretch.id >= 0) {
        ids.push_back(stretch.id);
      } else {
        const bool first = stretch.begin == 0;
        pieces(text.substr(stretch.begin, stretch.end - stretch.begin), at_start && first, continues && first);
      }
    }
  }

  void pieces(std::string_view text, bool at_start, bool continues) {
    owner.parts_.pre_tokenizer.run({text, at_start, continues}, scratch.regex, scratch.pre_tokenizer, *this);
  }
  void piece(std::string_view text) override { owner.parts_.model->encode(text, scratch.model, ids); }
};

PartsTokenizer::PartsTokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  special_.resize(parts_.vocabulary->size());
  const std::unique_ptr<Scratch> scratch = take_scratch();
  for (const AddedToken& token : parts_.added) {
    special_[static_cast<std::size_t>(token.id)] = token.special;
    if (token.normalized) {
      normalized_added_.add(token, parts_.normalizer.apply(token.content, false, scratch->regex, scratch->normalized));
    } else {
      raw_added_.add(token, token.content);
    }
  }
}

PartsTokenizer::~PartsTokenizer() = default;

std::unique_ptr<PartsTokenizer::Scratch> PartsTokenizer::take_scratch() const {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return std::make_unique<Scratch>();
  std::unique_ptr<Scratch> scratch = std::move(free_.back());
  free_.pop_back();
  return scratch;
}

void PartsTokenizer::give_back(std::unique_ptr<Scratch> scratch) const {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(scratch));
}

std::string PartsTokenizer::piece(std::int32_t id) const {
  return parts_.vocabulary->has(id) ? parts_.vocabulary->piece(id) : "";
}

bool PartsTokenizer::is_special(std::int32_t id) const {
  return id >= 0 && static_cast<std::size_t>(id) < special_.size() && special_[static_cast<std::size_t>(id)];
}

void PartsTokenizer::encode_to(std::string_view text, const EncodeOptions& options,
                               std::vector<std::int32_t>& ids) const {
  std::unique_ptr<Scratch> scratch = take_scratch();
  if (options.add_special_tokens) ids.insert(ids.end(), parts_.prefix.begin(), parts_.prefix.end());
  Encoding(*this, options, *scratch, ids).run(text);
  if (options.add_special_tokens) ids.insert(ids.end(), parts_.suffix.begin(), parts_.suffix.end());
  give_back(std::move(scratch));
}

void PartsTokenizer::decode_step(std::int32_t id, DecodeState& state, std::string& bytes) const {
  if (!parts_.vocabulary->has(id)) {
    state.begun = true;
    state.stripping = false;
    append_utf8(bytes, 0xFFFD);
    return;
  }
  parts_.decoder.decode(parts_.vocabulary->piece(id), state, bytes);
}

}  // namespace samba
