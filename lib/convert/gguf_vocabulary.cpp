#include "samba/convert/gguf_vocabulary.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>

#include "samba/convert/gguf_around.h"
#include "samba/convert/gguf_pieces.h"
#include "samba/convert/gguf_spaces.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/text/gguf_tokenizer.h"
#include "samba/text/tokenizer_json.h"

namespace samba {

namespace {

using Json = nlohmann::json;
using Kind = GgufValue::Kind;

// tokenizer.ggml.token_type
constexpr std::int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

constexpr std::string_view kPrefix = "tokenizer.";

// What a GGUF file says of its tokenizer, each value with the type llama.cpp gives it.
void copy_vocabulary(GgufFields& fields, const GgufMetadata& metadata) {
  for (const auto& [name, value] : metadata) {
    if (!name.starts_with(kPrefix)) continue;
    switch (value.kind) {
      case Kind::text:
        fields.text(name, value.text);
        break;
      case Kind::integer:
        if (name.ends_with("_id")) {
          fields.count(name, static_cast<std::uint32_t>(value.integer));
        } else {
          fields.flag(name, value.integer != 0);
        }
        break;
      case Kind::number:
        fields.number(name, static_cast<float>(value.number));
        break;
      case Kind::texts:
        fields.texts(name, value.texts);
        break;
      case Kind::integers:
        if (name == kGgufCharactersMap) {
          fields.bytes(name, std::string(value.integers.begin(), value.integers.end()));
          break;
        }
        fields.integers(name, std::vector<std::int32_t>(value.integers.begin(), value.integers.end()));
        break;
      case Kind::numbers:
        fields.numbers(name, std::vector<float>(value.numbers.begin(), value.numbers.end()));
        break;
    }
  }
}

// The files beside the tokenizer.
struct Beside {
  Json tokenizer_config = Json::object();
  Json generation_config = Json::object();
  std::string chat_template;

  // Of "bos_token": what generation_config.json says, else the piece that tokenizer_config.json names.
  std::optional<std::uint32_t> id_of(const std::string& name, std::size_t tokens,
                                     const std::map<std::string, std::uint32_t>& ids) const {
    Json given = generation_config.value(name + "_id", Json());
    if (given.is_array() && !given.empty()) given = given.back();  // of several the one that ends a turn
    if (given.is_number_unsigned() && given.get<std::uint64_t>() < tokens) return given.get<std::uint32_t>();
    const Json value = tokenizer_config.value(name, Json());  // a text, or an object with its content
    const auto found = ids.find(value.is_string()   ? value.get<std::string>()
                                : value.is_object() ? value.value("content", "")
                                                    : "");
    if (found == ids.end()) return std::nullopt;
    return found->second;
  }
  void add_chat_template(GgufFields& fields) const {
    std::string chat = chat_template;
    if (chat.empty() && tokenizer_config.value("chat_template", Json()).is_string()) {
      chat = tokenizer_config["chat_template"].get<std::string>();
    }
    if (!chat.empty()) fields.text("tokenizer.chat_template", chat);
  }
};

// A tokenizer.model.
std::string add_sentencepiece(GgufFields& fields, const Path& path, const Beside& beside, std::size_t rows) {
  const SentencePieceModel model = read_sentencepiece_model(read_file(path), path.string());
  const bool bpe = model.kind == SentencePieceModel::Kind::bpe;
  if (!bpe && model.kind != SentencePieceModel::Kind::unigram) return "its model is neither BPE nor Unigram";
  const std::string why = bpe ? add_bpe_fields(fields, model, rows) : add_unigram_fields(fields, model, rows, false);
  if (!why.empty()) return why;
  std::map<std::string, std::uint32_t> ids;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    ids.emplace(model.pieces[id].text, static_cast<std::uint32_t>(id));
  }
  const auto add_id = [&](const char* key, const char* name, std::int64_t own) {
    auto id = beside.id_of(name, model.pieces.size(), ids);
    if (!id && own >= 0) id = static_cast<std::uint32_t>(own);
    if (id) fields.count(key, *id);
  };
  add_id("tokenizer.ggml.bos_token_id", "bos_token", model.begin);
  add_id("tokenizer.ggml.eos_token_id", "eos_token", model.end);
  add_id("tokenizer.ggml.padding_token_id", "pad_token", model.padding);
  const Json begins = beside.tokenizer_config.value("add_bos_token", Json());
  fields.flag("tokenizer.ggml.add_bos_token", begins.is_boolean() ? begins.get<bool>() : model.begin >= 0);
  beside.add_chat_template(fields);
  return "";
}

class JsonVocabulary {
 public:
  JsonVocabulary(const Path& path, const Beside& beside, Index size)
      : source_(path.string()), file_(parse_json(read_file(path), path.string())), beside_(beside) {
    tokens_.resize(static_cast<std::size_t>(size));
    types_.assign(tokens_.size(), kUnused);
    for (std::size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = "[PAD" + std::to_string(i) + "]";
  }

  // Empty, or why GGUF cannot hold it.
  std::string add(GgufFields& fields) {
    if (!file_.is_object() || !file_.value("model", Json()).is_object()) return "it has no model";
    const Json& model = file_["model"];
    if (model.value("type", "BPE") == "Unigram") return add_unigram(fields, model);
    if (model.value("type", "BPE") != "BPE")
      return "its model is " + model.value("type", "") + "; BPE and Unigram can be held";
    if (!model.value("vocab", Json()).is_object()) return "its model has no vocab";
    if (const std::string why = take_tokens(model["vocab"]); !why.empty()) return why;
    const bool scored = model.value("byte_fallback", false);
    std::string pre;
    bool space_in_front = false;
    if (scored) {
      if (std::string why = bpe_spaces(file_, space_in_front, remark_); !why.empty()) return why;
      if (model.value("ignore_merges", false)) return "it ignores merges, which llama.cpp's BPE with scores does not";
      mark_bytes(model);
      if (std::count(types_.begin(), types_.end(), kByte) != 256) return "it has no piece for every byte";
    }
    if (!scored) {
      pre = pre_name();
      if (pre.empty()) return "its pre-tokenizer is none of those of gpt-2, llama-bpe, qwen2, smollm";
      if (model.value("ignore_merges", false) != (pre == "llama-bpe")) {
        return "its ignore_merges is not that of " + pre + ", which llama.cpp goes by";
      }
    }
    fields.text("tokenizer.ggml.model", scored ? "llama" : "gpt2");
    fields.text("tokenizer.ggml.pre", scored ? "default" : pre);
    fields.texts("tokenizer.ggml.tokens", tokens_);
    if (scored) {
      fields.numbers("tokenizer.ggml.scores", scores(model));
      fields.flag("tokenizer.ggml.add_space_prefix", space_in_front);
    }
    fields.integers("tokenizer.ggml.token_type", types_);
    if (std::vector<std::string> pairs = merges(model); !scored || !pairs.empty()) {
      fields.texts("tokenizer.ggml.merges", pairs);
    }
    add_special(fields, model);
    return "";
  }
  // Of a tokenizer that was added: where llama.cpp does otherwise; mostly empty.
  const std::string& remarks() const { return remark_; }

 private:
  // The pieces' scores are float32 there, and white space is treated in one of two ways.
  std::string add_unigram(GgufFields& fields, const Json& model) {
    SentencePieceModel pieces;
    std::string why = unigram_spaces(file_, pieces, remark_);
    if (why.empty()) why = unigram_pieces(model, pieces);
    if (why.empty()) why = add_unigram_fields(fields, pieces, tokens_.size(), ends().add_eos);
    if (why.empty()) add_special(fields, model);
    return why;
  }

  std::string unigram_pieces(const Json& model, SentencePieceModel& pieces) {
    if (model.value("byte_fallback", false)) return "it falls back to bytes, which llama.cpp's Unigram does not";
    const Json unknown = model.value("unk_id", Json());
    for (const Json& entry : model.value("vocab", Json::array())) {
      const double score = entry.at(1).get<double>();
      const auto stored = static_cast<float>(score);
      if (static_cast<double>(stored) != score) return "the score of " + entry.at(0).dump() + " is no float32";
      pieces.pieces.push_back({entry.at(0).get<std::string>(), stored, kNormal});
    }
    if (!unknown.is_number_unsigned() || unknown.get<std::size_t>() >= pieces.pieces.size()) {
      return "it has no unknown token";
    }
    pieces.unknown = unknown.get<std::int64_t>();
    pieces.pieces[unknown.get<std::size_t>()].type = kUnknown;
    for (const Json& added : file_.value("added_tokens", Json::array())) {
      const auto id = added.at("id").get<std::size_t>();
      if (id > pieces.pieces.size()) return "the added token " + added.at("content").dump() + " leaves a gap";
      if (id == pieces.pieces.size()) pieces.pieces.push_back({});
      if (pieces.pieces[id].type == kUnknown) continue;
      if (!added.value("special", false)) {
        return "the added token " + added.at("content").dump() + " is part of the text, with white space of its own";
      }
      pieces.pieces[id] = {added.at("content").get<std::string>(), pieces.pieces[id].score, kControl};
    }
    for (std::size_t id = 0; id < pieces.pieces.size(); ++id) {
      ids_.emplace(pieces.pieces[id].text, static_cast<std::uint32_t>(id));
    }
    return "";
  }

  std::string take_tokens(const Json& vocab) {
    const auto take = [&](const std::string& piece, const Json& id, std::int32_t type) {
      if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= tokens_.size()) return false;
      tokens_[id.get<std::size_t>()] = piece;
      types_[id.get<std::size_t>()] = type;
      return true;
    };
    for (const auto& [piece, id] : vocab.items()) {
      if (std::string why = why_no_token(piece); !why.empty()) return why;
      if (!take(piece, id, kNormal)) return "the piece " + Json(piece).dump() + " has no row in the embedding";
    }
    for (const Json& added : file_.value("added_tokens", Json::array())) {
      const std::string content = added.value("content", "");
      if (!take(content, added.value("id", Json()), added.value("special", false) ? kControl : kUserDefined)) {
        return "the added token " + Json(content).dump() + " has no row in the embedding";
      }
    }
    for (std::size_t i = 0; i < tokens_.size(); ++i) ids_.emplace(tokens_[i], static_cast<std::uint32_t>(i));
    return "";
  }

  // Without what changes nothing: the offsets that are reported, and names that are null.
  static Json bare(Json value) {
    if (value.is_object()) {
      value.erase("trim_offsets");
      value.erase("add_prefix_space");
      if (value.value("type", "") == "ByteLevel" && !value.contains("use_regex")) value["use_regex"] = true;
    }
    for (auto& part : value) {
      if (part.is_structured()) part = bare(part);
    }
    return value;
  }

  std::string pre_name() const {
    constexpr std::array<std::pair<const char*, const char*>, 4> kForms = {
        {{"gpt2", "gpt-2"}, {"llama3", "llama-bpe"}, {"qwen2", "qwen2"}, {"smollm", "smollm"}}};
    for (const auto& [form, name] : kForms) {
      const tokenizer_json::BpeForm sections = tokenizer_json::bpe_form(form);
      if (bare(file_.value("pre_tokenizer", Json())) == bare(Json(sections.pre_tokenizer)) &&
          bare(file_.value("normalizer", Json())) == bare(Json(sections.normalizer))) {
        return name;
      }
    }
    return "";
  }

  static std::pair<std::string, std::string> merge_of(const Json& merge) {
    if (merge.is_array() && merge.size() == 2) return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    const std::string text = merge.get<std::string>();
    const std::size_t space = text.find(' ', 1);
    return {text.substr(0, space), space == std::string::npos ? "" : text.substr(space + 1)};
  }

  // Also beside scores, which alone do not say which of the pairs that make a piece may merge. A piece with a space in
  // it cannot be written so; where spaces are marked, none occurs in a text.
  static std::vector<std::string> merges(const Json& model) {
    std::vector<std::string> result;
    for (const Json& merge : model.value("merges", Json::array())) {
      const auto [left, right] = merge_of(merge);
      if ((left + right).find(' ') == std::string::npos) result.push_back(left + " " + right);
    }
    return result;
  }

  void mark_bytes(const Json& model) {
    constexpr char kHex[] = "0123456789ABCDEF";
    for (int byte = 0; byte < 256; ++byte) {
      const auto found = ids_.find(std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">");
      if (found != ids_.end()) types_[found->second] = kByte;
    }
    const std::string unknown =
        model.value("unk_token", Json()).is_string() ? model["unk_token"].get<std::string>() : "";
    if (const auto found = ids_.find(unknown); found != ids_.end()) types_[found->second] = kUnknown;
  }

  // A merge goes before another when the score of what it makes is higher.
  std::vector<float> scores(const Json& model) const {
    std::vector<float> result(tokens_.size(), 0.0F);
    float rank = 0.0F;
    for (const Json& merge : model.value("merges", Json::array())) {
      const auto [left, right] = merge_of(merge);
      rank -= 1.0F;
      const auto found = ids_.find(left + right);
      if (found != ids_.end() && result[found->second] == 0.0F) result[found->second] = rank;
    }
    for (float& score : result) {
      if (score == 0.0F) score = rank - 1.0F;
    }
    return result;
  }

  // The tokens that begin and end a text; those that are put around it come before those that are only named.
  struct Ends {
    std::optional<std::uint32_t> bos, eos;
    bool add_bos = false, add_eos = false;
    std::string remark;
  };
  Ends ends() const {
    const AroundText around = around_text(file_);
    const auto only = [&](const std::vector<std::string>& pieces) -> std::optional<std::uint32_t> {
      const auto found = pieces.size() == 1 ? ids_.find(pieces.front()) : ids_.end();
      return found == ids_.end() ? std::nullopt : std::optional(found->second);
    };
    const auto first = only(around.before), last = only(around.after);
    Ends result{first, beside_.id_of("eos_token", tokens_.size(), ids_), first.has_value(), false, ""};
    if (!result.bos) result.bos = beside_.id_of("bos_token", tokens_.size(), ids_);
    if (!result.eos) result.eos = last;
    result.add_eos = last && last == result.eos;
    if (!around.before.empty() && !result.add_bos) result.remark = "GGUF cannot say what it puts before a text";
    if (!around.after.empty() && !result.add_eos) result.remark = "GGUF cannot say what it puts behind a text";
    return result;
  }

  void add_special(GgufFields& fields, const Json& model) {
    const Ends ids = ends();
    if (ids.bos) fields.count("tokenizer.ggml.bos_token_id", *ids.bos);
    if (ids.eos) fields.count("tokenizer.ggml.eos_token_id", *ids.eos);
    if (const auto id = beside_.id_of("pad_token", tokens_.size(), ids_)) {
      fields.count("tokenizer.ggml.padding_token_id", *id);
    }
    if (model.value("unk_token", Json()).is_string()) {  // of BPE
      const auto found = ids_.find(model["unk_token"].get<std::string>());
      if (found != ids_.end()) fields.count("tokenizer.ggml.unknown_token_id", found->second);
    }
    fields.flag("tokenizer.ggml.add_bos_token", ids.add_bos);
    // Of Unigram it stands already: there llama.cpp would add one.
    if (ids.add_eos && model.value("type", "BPE") != "Unigram") fields.flag("tokenizer.ggml.add_eos_token", true);
    remark(ids.remark);
    remark(added_token_remark(file_));
    beside_.add_chat_template(fields);
  }

  void remark(const std::string& text) {
    if (!text.empty()) remark_ += (remark_.empty() ? "" : "; ") + text;
  }

  std::string source_;
  std::string remark_;
  Json file_;
  Beside beside_;
  std::vector<std::string> tokens_;
  std::vector<std::int32_t> types_;
  std::map<std::string, std::uint32_t> ids_;
};

}  // namespace

std::vector<MadeFile> tokenizer_files_of_gguf(std::shared_ptr<const GgufFile> file) {
  if (!has_vocabulary(file->metadata())) return {};
  std::vector<MadeFile> files = {{gguf_tokenizer_name(file->metadata()), [file] {
                                    return gguf_tokenizer_file(file->metadata(), file->path().string()).content;
                                  }}};
  for (TokenizerFile& side : gguf_side_files(file->metadata())) {
    files.push_back({side.name, [content = std::move(side.content)] { return content; }});
  }
  return files;
}

std::string add_gguf_vocabulary(GgufFields& fields, const OpenModel& model, Index vocab) {
  if (model.form == ModelForm::gguf_file) {
    const GgufMetadata metadata = read_gguf_metadata(model.path);
    if (has_vocabulary(metadata)) {
      copy_vocabulary(fields, metadata);
      return "the metadata of " + model.path.filename().string();
    }
  }
  Beside beside;
  std::optional<Path> tokenizer;
  for (const Path& path : model.companions) {
    const std::string name = path.filename().string();
    if (name == "tokenizer.json" || (name == "tokenizer.model" && !tokenizer)) tokenizer = path;
    if (name == "tokenizer_config.json") beside.tokenizer_config = parse_json(read_file(path), path.string());
    if (name == "generation_config.json") beside.generation_config = parse_json(read_file(path), path.string());
    if (name == "chat_template.jinja") beside.chat_template = read_file(path);
  }
  std::string remark;
  std::string why = "the model has neither tokenizer.json nor tokenizer.model";
  if (tokenizer) {
    try {
      if (tokenizer->filename() == "tokenizer.json") {
        JsonVocabulary vocabulary(*tokenizer, beside, vocab);
        why = vocabulary.add(fields);
        remark = vocabulary.remarks();
      } else {
        why = add_sentencepiece(fields, *tokenizer, beside, static_cast<std::size_t>(vocab));
      }
    } catch (const Json::exception& error) {
      refuse_value(tokenizer->string() + ": no tokenizer.json that can be read: " + error.what());
    }
    if (why.empty()) return tokenizer->filename().string() + (remark.empty() ? "" : " (" + remark + ")");
    why = tokenizer->filename().string() + ": " + why;
  }
  fields.text("tokenizer.ggml.model", "no_vocab");
  return "none: " + why;
}

}  // namespace samba
