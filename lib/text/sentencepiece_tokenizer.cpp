#include "samba/text/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <exception>

#include "samba/core/error.h"
#include "samba/text/added_tokens.h"
#include "samba/text/utf8.h"

namespace samba {

namespace {

constexpr std::string_view kSpace = "\u2581";
constexpr std::size_t kMostPieces = std::size_t{1} << 24;

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& content, const std::string& source) {
    load(content, source);
    const int size = processor_.GetPieceSize();
    if (size <= 0 || static_cast<std::size_t>(size) > kMostPieces) {
      refuse_value(source + ": " + std::to_string(size) + " pieces; accepted: 1 to " + std::to_string(kMostPieces));
    }
    for (int id = 0; id < size; ++id) {
      if (!processor_.IsControl(id)) continue;
      AddedToken token;
      token.id = id;
      token.content = processor_.IdToPiece(id);
      token.special = true;
      special_.add(token, token.content);
    }
    // What the library takes away at the start of a decoded text shows in what it makes of a single piece.
    drops_first_space_ = drops_first_space(size);
  }

  std::string kind() const override { return "SentencePiece"; }
  Index vocabulary_size() const override { return processor_.GetPieceSize(); }
  std::string piece(std::int32_t id) const override { return has(id) ? processor_.IdToPiece(id) : std::string(); }
  std::optional<std::int32_t> id_of(std::string_view piece) const override {
    const int id = processor_.PieceToId(std::string(piece));
    if (!has(id) || processor_.IdToPiece(id) != piece) return std::nullopt;
    return id;
  }
  bool is_special(std::int32_t id) const override { return has(id) && processor_.IsControl(id); }

  void encode_to(std::string_view text, const EncodeOptions& options, std::vector<std::int32_t>& ids) const override {
    if (options.add_special_tokens && processor_.bos_id() >= 0) ids.push_back(processor_.bos_id());
    std::vector<AddedTokenFinder::Stretch> stretches;
    special_.split(text, options.special_in_text, stretches);
    for (const auto& stretch : stretches) {
      if (stretch.id >= 0) {
        ids.push_back(stretch.id);
      } else {
        encode_text(text.substr(stretch.begin, stretch.end - stretch.begin), ids);
      }
    }
  }

  void decode_step(std::int32_t id, DecodeState& state, std::string& bytes) const override {
    if (!has(id)) {
      state.begun = true;
      return append_utf8(bytes, 0xFFFD);
    }
    if (processor_.IsControl(id)) return;
    if (processor_.IsByte(id)) {
      state.begun = true;
      const std::string name = processor_.IdToPiece(id);
      bytes += static_cast<char>(std::stoi(name.substr(3, 2), nullptr, 16));
      return;
    }
    if (processor_.IsUnknown(id)) {
      state.begun = true;
      bytes += " \u2047 ";  // what SentencePiece shows for it
      return;
    }
    const std::string piece = processor_.IdToPiece(id);
    std::string_view rest = piece;
    if (!state.begun && drops_first_space_ && rest.starts_with(kSpace)) {
      rest.remove_prefix(kSpace.size());
      state.begun = !removes_spaces_;
    }
    for (; !rest.empty(); state.begun = true) {
      const bool space = rest.starts_with(kSpace);
      const std::size_t length = space ? kSpace.size() : 1;
      bytes += space ? std::string_view(" ") : rest.substr(0, 1);
      rest.remove_prefix(length);
    }
  }

 private:
  // The library reports most faults as a status, and throws where a piece is empty.
  void load(const std::string& content, const std::string& source) {
    std::string fault;
    try {
      const auto status = processor_.LoadFromSerializedProto(content);
      if (!status.ok()) fault = status.ToString();
    } catch (const std::exception& error) {
      fault = error.what();
    }
    if (!fault.empty()) refuse_corrupt("format", source + ": no SentencePiece model: " + fault);
  }

  bool has(std::int32_t id) const { return id >= 0 && id < processor_.GetPieceSize(); }

  // True when a first piece that begins with a space loses it; sets removes_spaces_ when the next one does too.
  bool drops_first_space(int size) {
    for (int id = 0; id < size; ++id) {
      if (processor_.IsControl(id) || processor_.IsUnknown(id) || processor_.IsByte(id)) continue;
      const std::string text = processor_.IdToPiece(id);
      if (!text.starts_with(kSpace) || text.find(kSpace, 1) != std::string::npos || text.size() == kSpace.size())
        continue;
      std::string shown;
      if (!processor_.Decode(std::vector<int>{id}, &shown).ok() || shown.starts_with(' ')) return false;
      const int space = processor_.PieceToId(std::string(kSpace));
      if (!processor_.IsUnknown(space)) {
        std::string twice;
        removes_spaces_ = processor_.Decode(std::vector<int>{space, id}, &twice).ok() && !twice.starts_with(' ');
      }
      return true;
    }
    return false;
  }

  // Of bytes that are no UTF-8 the library makes U+FFFD.
  void encode_text(std::string_view text, std::vector<std::int32_t>& ids) const {
    std::vector<int> tokens;
    const auto status = processor_.Encode(absl::string_view(text.data(), text.size()), &tokens);
    if (!status.ok()) refuse_value("the text cannot be encoded: " + status.ToString());
    ids.insert(ids.end(), tokens.begin(), tokens.end());
  }

  sentencepiece::SentencePieceProcessor processor_;
  AddedTokenFinder special_;
  bool drops_first_space_ = false;
  bool removes_spaces_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& content, const std::string& source) {
  return std::make_unique<SentencePieceTokenizer>(content, source);
}

}  // namespace samba
