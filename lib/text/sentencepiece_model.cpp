// The file is a message in the wire format of protocol buffers: fields, each a number with a type and a value, some of
// them messages again. The numbers below are those of sentencepiece_model.proto.
#include "samba/text/sentencepiece_model.h"

#include <algorithm>
#include <cstring>

#include "samba/core/error.h"

namespace samba {

namespace {

namespace model_field {
constexpr std::uint32_t kPieces = 1, kTrainer = 2, kNormalizer = 3;
}
namespace piece_field {
constexpr std::uint32_t kText = 1, kScore = 2, kType = 3;
}
namespace trainer_field {
constexpr std::uint32_t kKind = 3, kSpaceBehind = 24, kByteFallback = 35;
constexpr std::uint32_t kBegin = 46, kEnd = 47, kPadding = 48;  // pieces by their texts
}  // namespace trainer_field
namespace normalizer_field {
constexpr std::uint32_t kMap = 2, kSpaceInFront = 3, kDropsSpaces = 4, kMarksSpaces = 5;
}

constexpr std::uint32_t kVarint = 0, kEightBytes = 1, kLength = 2, kFourBytes = 5;  // types on the wire

class WireReader {
 public:
  WireReader(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  struct Field {
    std::uint32_t number = 0;
    std::uint64_t value = 0;  // of a number; the bits of a float
    std::string_view bytes;   // of a text or a message
    std::int64_t integer() const { return static_cast<std::int64_t>(value); }
    float floating() const {
      const auto bits = static_cast<std::uint32_t>(value);
      float result;
      std::memcpy(&result, &bits, sizeof result);
      return result;
    }
  };

  bool next(Field& field) {
    if (bytes_.empty()) return false;
    const std::uint64_t key = varint();
    field = {static_cast<std::uint32_t>(key >> 3), 0, {}};
    switch (key & 7U) {
      case kVarint:
        field.value = varint();
        break;
      case kEightBytes:
        field.value = fixed(8);
        break;
      case kFourBytes:
        field.value = fixed(4);
        break;
      case kLength: {
        const std::uint64_t length = varint();
        if (length > bytes_.size()) refuse();
        field.bytes = bytes_.substr(0, length);
        bytes_.remove_prefix(length);
        break;
      }
      default:
        refuse();
    }
    return true;
  }

 private:
  [[noreturn]] void refuse() const { refuse_corrupt("format", source_ + ": no SentencePiece model"); }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (bytes_.empty()) refuse();
      const auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
      if (byte < 0x80U) return value;
    }
    refuse();
  }
  std::uint64_t fixed(std::size_t width) {
    if (bytes_.size() < width) refuse();
    std::uint64_t value = 0;
    std::memcpy(&value, bytes_.data(), width);
    bytes_.remove_prefix(width);
    return value;
  }

  std::string_view bytes_;
  const std::string& source_;
};

class WireWriter {
 public:
  void number(std::uint32_t field, std::int64_t value) {
    varint(field << 3 | kVarint);
    varint(static_cast<std::uint64_t>(value));
  }
  void floating(std::uint32_t field, float value) {
    varint(field << 3 | kFourBytes);
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes_.append(raw, sizeof raw);
  }
  void text(std::uint32_t field, std::string_view value) {
    varint(field << 3 | kLength);
    varint(value.size());
    bytes_ += value;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80U; value >>= 7) bytes_ += static_cast<char>((value & 0x7FU) | 0x80U);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

SentencePieceModel::Piece read_piece(std::string_view bytes, const std::string& source) {
  SentencePieceModel::Piece piece;
  WireReader reader(bytes, source);
  for (WireReader::Field field; reader.next(field);) {
    if (field.number == piece_field::kText) piece.text = field.bytes;
    if (field.number == piece_field::kScore) piece.score = field.floating();
    if (field.number == piece_field::kType) piece.type = static_cast<std::int32_t>(field.value);
  }
  return piece;
}

// The pieces that begin and end a text and fill it up.
struct SpecialPieces {
  std::string_view begin = "<s>", end = "</s>", padding = "<pad>";
};

void read_trainer(std::string_view bytes, const std::string& source, SentencePieceModel& model,
                  SpecialPieces& special) {
  WireReader reader(bytes, source);
  for (WireReader::Field field; reader.next(field);) {
    if (field.number == trainer_field::kKind) {
      model.kind = static_cast<SentencePieceModel::Kind>(static_cast<std::int32_t>(field.value));
    }
    if (field.number == trainer_field::kSpaceBehind) model.space_behind = field.value != 0;
    if (field.number == trainer_field::kByteFallback) model.byte_fallback = field.value != 0;
    if (field.number == trainer_field::kBegin) special.begin = field.bytes;
    if (field.number == trainer_field::kEnd) special.end = field.bytes;
    if (field.number == trainer_field::kPadding) special.padding = field.bytes;
  }
}

void read_normalizer(std::string_view bytes, const std::string& source, SentencePieceModel& model) {
  WireReader reader(bytes, source);
  for (WireReader::Field field; reader.next(field);) {
    if (field.number == normalizer_field::kMap) model.characters_map = field.bytes;
    if (field.number == normalizer_field::kSpaceInFront) model.space_in_front = field.value != 0;
    if (field.number == normalizer_field::kDropsSpaces) model.drops_spaces = field.value != 0;
    if (field.number == normalizer_field::kMarksSpaces) model.marks_spaces = field.value != 0;
  }
}

}  // namespace

SentencePieceModel read_sentencepiece_model(std::string_view content, const std::string& source) {
  SentencePieceModel model;
  SpecialPieces special;
  WireReader reader(content, source);
  for (WireReader::Field field; reader.next(field);) {
    if (field.number == model_field::kPieces) model.pieces.push_back(read_piece(field.bytes, source));
    if (field.number == model_field::kTrainer) read_trainer(field.bytes, source, model, special);
    if (field.number == model_field::kNormalizer) read_normalizer(field.bytes, source, model);
  }
  if (model.pieces.empty()) refuse_corrupt("format", source + ": no SentencePiece model: it has no pieces");
  const auto id_of = [&](std::int32_t type, std::string_view text) -> std::int64_t {
    for (std::size_t id = 0; id < model.pieces.size(); ++id) {
      if (model.pieces[id].type == type && (text.empty() || model.pieces[id].text == text)) {
        return static_cast<std::int64_t>(id);
      }
    }
    return -1;
  };
  const auto control = [&](std::string_view text) {
    return text.empty() ? -1 : id_of(SentencePieceModel::kControl, text);
  };
  model.unknown = id_of(SentencePieceModel::kUnknown, "");
  model.begin = control(special.begin);
  model.end = control(special.end);
  model.padding = control(special.padding);
  return model;
}

std::string sentencepiece_bytes(const SentencePieceModel& model) {
  WireWriter file;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    WireWriter message;
    message.text(piece_field::kText, piece.text);
    message.floating(piece_field::kScore, piece.score);
    if (piece.type != SentencePieceModel::kNormal) message.number(piece_field::kType, piece.type);
    file.text(model_field::kPieces, message.bytes());
  }
  WireWriter trainer;
  trainer.number(trainer_field::kKind, static_cast<std::int32_t>(model.kind));
  trainer.number(trainer_field::kSpaceBehind, model.space_behind ? 1 : 0);
  trainer.number(trainer_field::kByteFallback, model.byte_fallback ? 1 : 0);
  const auto text_of = [&](std::int64_t id) {
    return id < 0 ? std::string_view() : std::string_view(model.pieces[static_cast<std::size_t>(id)].text);
  };
  trainer.text(trainer_field::kBegin, text_of(model.begin));
  trainer.text(trainer_field::kEnd, text_of(model.end));
  trainer.text(trainer_field::kPadding, text_of(model.padding));
  file.text(model_field::kTrainer, trainer.bytes());
  WireWriter normalizer;
  normalizer.text(normalizer_field::kMap, model.characters_map);
  normalizer.number(normalizer_field::kSpaceInFront, model.space_in_front ? 1 : 0);
  normalizer.number(normalizer_field::kDropsSpaces, model.drops_spaces ? 1 : 0);
  normalizer.number(normalizer_field::kMarksSpaces, model.marks_spaces ? 1 : 0);
  file.text(model_field::kNormalizer, normalizer.bytes());
  return file.bytes();
}

SentencePieceModel sentencepiece_of_gguf(const GgufMetadata& metadata, const std::string& source) {
  using Kind = GgufValue::Kind;
  const auto find = [&](const char* name, Kind kind) -> const GgufValue* {
    const auto found = metadata.find(std::string("tokenizer.ggml.") + name);
    if (found == metadata.end()) return nullptr;
    if (found->second.kind != kind) refuse_value(source + ": tokenizer.ggml." + name + ": has another type");
    return &found->second;
  };
  const auto required = [&](const char* name, Kind kind, std::size_t count) -> const GgufValue& {
    const GgufValue* const value = find(name, kind);
    if (value == nullptr) refuse_value(source + ": tokenizer.ggml." + name + ": is missing");
    if (count != 0 && std::max(value->integers.size(), value->numbers.size()) != count) {
      refuse_value(source + ": tokenizer.ggml." + name + ": must have one number a token");
    }
    return *value;
  };
  const auto flag = [&](const char* name) {
    const GgufValue* const value = find(name, Kind::integer);
    return value != nullptr && value->integer != 0;
  };
  SentencePieceModel model;
  const std::vector<std::string>& tokens = required("tokens", Kind::texts, 0).texts;
  if (tokens.empty()) refuse_value(source + ": tokenizer.ggml.tokens: is empty");
  const std::vector<double>& scores = required("scores", Kind::numbers, tokens.size()).numbers;
  const std::vector<std::int64_t>& types = required("token_type", Kind::integers, tokens.size()).integers;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (types[i] < SentencePieceModel::kNormal || types[i] > SentencePieceModel::kByte) {
      refuse_value(source + ": tokenizer.ggml.token_type: token " + std::to_string(i) + " has the type " +
                   std::to_string(types[i]) + "; accepted: 1 to 6");
    }
    model.pieces.push_back({tokens[i], static_cast<float>(scores[i]), static_cast<std::int32_t>(types[i])});
  }
  // What llama.cpp takes where the keys are absent.
  const auto id = [&](const char* name, std::int64_t fallback) {
    const GgufValue* const value = find(name, Kind::integer);
    const std::int64_t given = value == nullptr ? fallback : value->integer;
    return given >= 0 && static_cast<std::size_t>(given) < tokens.size() ? given : -1;
  };
  model.unknown = id("unknown_token_id", 2);
  model.begin = id("bos_token_id", -1);
  model.end = id("eos_token_id", 1);
  model.padding = id("padding_token_id", -1);
  if (model.unknown < 0 || types[static_cast<std::size_t>(model.unknown)] != SentencePieceModel::kUnknown) {
    refuse_value(source + ": tokenizer.ggml.unknown_token_id: names no token of the type unknown");
  }
  model.space_in_front = flag("add_space_prefix");
  model.drops_spaces = flag("remove_extra_whitespaces");
  if (const GgufValue* const map = find("precompiled_charsmap", Kind::integers)) {
    for (const std::int64_t byte : map->integers) model.characters_map += static_cast<char>(byte);
  }
  return model;
}

}  // namespace samba
