// The model of a tokenizer.json and its added tokens.
#include <algorithm>

#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/text/bpe_model.h"
#include "samba/text/tokenizer_json.h"
#include "samba/text/unigram_model.h"

namespace samba::tokenizer_json {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kLongestPiece = 64 * 1024;
constexpr std::uint64_t kWidestGap = 65536;  // ids above the number of pieces: room for reserved ones

std::string at(const std::string& pointer, std::size_t index) { return pointer + "/" + std::to_string(index); }

void check_piece(const std::string& piece, const std::string& pointer) {
  if (piece.size() > kLongestPiece) {
    refuse_value(pointer + ": a piece of " + std::to_string(piece.size()) + " bytes; accepted: at most " +
                 std::to_string(kLongestPiece));
  }
}

// An id that makes no table larger than the file warrants.
std::int32_t checked_id(const Json& id, std::uint64_t pieces, const std::string& pointer) {
  const std::uint64_t limit = std::min<std::uint64_t>(pieces + kWidestGap, Vocabulary::kMostIds);
  if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= limit) {
    refuse_value(pointer + ": must be an id below " + std::to_string(limit) + ", got " + shown(id));
  }
  return id.get<std::int32_t>();
}

std::optional<std::int32_t> piece_id(const JsonFields& fields, const std::string& name, const Vocabulary& vocabulary) {
  if (!fields.has(name)) return std::nullopt;
  const std::string piece = fields.text(name, "");
  const auto id = vocabulary.id_of(piece);
  if (!id) refuse_value(fields.pointer_to(name) + ": the vocabulary has no piece " + shown(Json(piece)));
  return id;
}

void read_pieces(const JsonFields& fields, Vocabulary& vocabulary) {
  const Json& pieces = fields.required("vocab");
  if (!pieces.is_object() || pieces.empty()) fields.refuse("vocab", "an object of pieces and their ids");
  for (const auto& [piece, id] : pieces.items()) {
    const std::string pointer = fields.pointer_to("vocab") + "/" + piece.substr(0, 64);
    check_piece(piece, pointer);
    if (!vocabulary.add(piece, checked_id(id, pieces.size(), pointer))) {
      refuse_value(pointer + ": the id " + shown(id) + " is given twice");
    }
  }
}

std::pair<std::string, std::string> read_merge(const Json& merge, const std::string& pointer) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (merge.is_string()) {
    const std::string text = merge.get<std::string>();
    const std::size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  refuse_value(pointer + ": must be two pieces, got " + shown(merge));
}

void read_merges(const JsonFields& fields, const Vocabulary& vocabulary, BpeModel& model) {
  const Json& merges = fields.required("merges");
  if (!merges.is_array() || merges.size() > Vocabulary::kMostIds) fields.refuse("merges", "a list of pairs of pieces");
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const auto [left, right] = read_merge(merges[i], at(fields.pointer_to("merges"), i));
    const auto left_id = vocabulary.id_of(left);
    const auto right_id = vocabulary.id_of(right);
    const auto merged_id = vocabulary.id_of(left + right);
    if (!left_id || !right_id || !merged_id) {
      refuse_value(at(fields.pointer_to("merges"), i) + ": the vocabulary has no piece " +
                   shown(Json(!left_id    ? left
                              : !right_id ? right
                                          : left + right)));
    }
    model.add_merge(*left_id, *right_id, *merged_id);
  }
}

void read_bpe(const Json& value, const std::string& pointer, bool bytes, TokenizerParts& parts) {
  const JsonFields fields(value, pointer,
                          {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                           "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (fields.has("dropout") && fields.number("dropout", 0.0) != 0.0) fields.refuse("dropout", "null");
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (fields.has(name) && !fields.text(name, "").empty()) fields.refuse(name, "null or \"\"");
  }
  read_pieces(fields, *parts.vocabulary);
  BpeModel::Options options;
  options.bytes = bytes;
  options.byte_fallback = !bytes && fields.boolean("byte_fallback", false);
  options.fuse_unknown = fields.boolean("fuse_unk", false);
  options.ignore_merges = fields.boolean("ignore_merges", false);
  options.unknown = piece_id(fields, "unk_token", *parts.vocabulary);
  auto model = std::make_unique<BpeModel>(*parts.vocabulary, options);
  read_merges(fields, *parts.vocabulary, *model);
  parts.model = std::move(model);
}

void read_unigram(const Json& value, const std::string& pointer, bool bytes, TokenizerParts& parts) {
  const JsonFields fields(value, pointer, {"type", "unk_id", "vocab", "byte_fallback"});
  if (bytes) refuse_unsupported(pointer + ": Unigram behind a ByteLevel pre-tokenizer is not supported");
  const Json& pieces = fields.required("vocab");
  if (!pieces.is_array() || pieces.empty() || pieces.size() > Vocabulary::kMostIds) {
    fields.refuse("vocab", "a list of [piece, score]");
  }
  std::vector<double> scores;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::string place = at(fields.pointer_to("vocab"), i);
    const Json& entry = pieces[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      refuse_value(place + ": must be [piece, score], got " + shown(entry));
    }
    check_piece(entry[0].get<std::string>(), place);
    if (!parts.vocabulary->add(entry[0].get<std::string>(), static_cast<std::int32_t>(i))) {
      refuse_value(place + ": the piece " + shown(entry[0]) + " is given twice");
    }
    scores.push_back(entry[1].get<double>());
  }
  std::optional<std::int32_t> unknown;
  if (fields.has("unk_id")) {
    unknown = static_cast<std::int32_t>(
        fields.integer("unk_id", std::nullopt, 0, static_cast<std::int64_t>(pieces.size()) - 1));
  }
  parts.model = std::make_unique<UnigramModel>(*parts.vocabulary, std::move(scores), unknown,
                                               fields.boolean("byte_fallback", false));
}

}  // namespace

void read_model(const Json& value, const std::string& pointer, bool bytes, TokenizerParts& parts) {
  if (!value.is_object()) refuse_value(pointer + ": must be an object, got " + shown(value));
  // Old files give no type: merges make it BPE.
  const std::string type = value.contains("type") ? type_of(value, pointer) : value.contains("merges") ? "BPE" : "";
  if (type == "BPE") {
    read_bpe(value, pointer, bytes, parts);
  } else if (type == "Unigram") {
    read_unigram(value, pointer, bytes, parts);
  } else {
    refuse_choice(pointer + "/type", value.value("type", Json()), {"BPE", "Unigram"});
  }
}

void read_added_tokens(const Json& value, const std::string& pointer, TokenizerParts& parts) {
  if (value.is_null()) return;
  if (!value.is_array()) refuse_value(pointer + ": must be a list, got " + shown(value));
  std::vector<bool> seen;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const JsonFields fields(value[i], at(pointer, i),
                            {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.content = fields.text("content", "");
    check_piece(token.content, fields.pointer_to("content"));
    if (token.content.empty()) fields.refuse("content", "a text that is not empty");
    token.id = checked_id(fields.required("id"), parts.vocabulary->size() + value.size(), fields.pointer_to("id"));
    const auto known = parts.vocabulary->id_of(token.content);
    if (known && *known != token.id) {
      refuse_value(fields.pointer_to("id") + ": " + std::to_string(token.id) + ", but " + shown(Json(token.content)) +
                   " has the id " + std::to_string(*known));
    }
    if (!known && !parts.vocabulary->add(token.content, token.id)) {
      refuse_value(fields.pointer_to("id") + ": " + std::to_string(token.id) + " is the id of " +
                   shown(Json(parts.vocabulary->piece(token.id))));
    }
    token.special = fields.boolean("special", false);
    token.single_word = fields.boolean("single_word", false);
    token.lstrip = fields.boolean("lstrip", false);
    token.rstrip = fields.boolean("rstrip", false);
    token.normalized = fields.boolean("normalized", !token.special);
    seen.resize(parts.vocabulary->size());
    if (seen[static_cast<std::size_t>(token.id)]) refuse_value(fields.pointer_to("id") + ": is given twice");
    seen[static_cast<std::size_t>(token.id)] = true;
    parts.added.push_back(std::move(token));
  }
}

}  // namespace samba::tokenizer_json
