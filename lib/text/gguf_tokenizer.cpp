#include "samba/text/gguf_tokenizer.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "samba/core/error.h"
#include "samba/text/json_tokenizer.h"
#include "samba/text/sentencepiece_model.h"
#include "samba/text/sentencepiece_tokenizer.h"
#include "samba/text/tokenizer_json.h"
#include "samba/text/utf8.h"

namespace samba {

namespace {

using Json = nlohmann::json;
using Kind = GgufValue::Kind;

// tokenizer.ggml.token_type
constexpr std::int64_t kUnknown = 2;
constexpr std::int64_t kControl = 3;
constexpr std::int64_t kUserDefined = 4;
constexpr std::int64_t kByte = 6;

constexpr std::size_t kLongestScoredPiece = 1024;  // bytes; every cut of it is looked up

// The tokenizer's fields in the form of a tokenizer.json, so that one reader checks them.
class Translation {
 public:
  Translation(const GgufMetadata& metadata, const std::string& source)
      : metadata_(metadata), source_(source), pieces_(required("tokens", Kind::texts).texts) {
    for (std::size_t id = 0; id < pieces_.size(); ++id) {
      if (valid_utf8_prefix(pieces_[id]) != pieces_[id].size())
        refuse("tokens", "piece " + std::to_string(id) + " is no UTF-8");
    }
    types_.assign(pieces_.size(), 1);
    if (const GgufValue* const types = find("token_type", Kind::integers)) types_ = types->integers;
    if (types_.size() != pieces_.size()) refuse("token_type", "must have one number a token");
  }

  Json run() {
    const std::string model = required("model", Kind::text).text;
    Json file{{"version", "1.0"}, {"added_tokens", added_tokens(model)}};
    if (model == "gpt2") {
      byte_level(file);
    } else if (model == "llama") {
      scored(file);
    } else {
      refuse_unsupported(source_ + ": tokenizer.ggml.model: must be one of gpt2, llama, t5, got " + model);
    }
    file["post_processor"] = post_processor(model == "llama");
    return file;
  }

 private:
  [[noreturn]] void refuse(const std::string& name, const std::string& reason) const {
    refuse_value(source_ + ": tokenizer.ggml." + name + ": " + reason);
  }
  const GgufValue* find(const std::string& name, Kind kind) const {
    const auto found = metadata_.find("tokenizer.ggml." + name);
    if (found == metadata_.end()) return nullptr;
    if (found->second.kind != kind) refuse(name, "has another type than it should");
    return &found->second;
  }
  const GgufValue& required(const std::string& name, Kind kind) const {
    const GgufValue* const value = find(name, kind);
    if (value == nullptr) refuse(name, "is missing");
    return *value;
  }
  bool flag(const std::string& name, bool fallback) const {
    const GgufValue* const value = find(name, Kind::integer);
    return value == nullptr ? fallback : value->integer != 0;
  }

  Json added_tokens(const std::string& model) const {
    Json added = Json::array();
    for (std::size_t id = 0; id < pieces_.size(); ++id) {
      const bool special = types_[id] == kControl || (types_[id] == kUnknown && model == "llama");
      if (!special && types_[id] != kUserDefined) continue;
      added.push_back(Json{{"id", id},
                           {"content", pieces_[id]},
                           {"single_word", false},
                           {"lstrip", false},
                           {"rstrip", false},
                           {"special", special},
                           {"normalized", false}});
    }
    return added;
  }

  Json vocabulary() const {
    Json result = Json::object();
    for (std::size_t id = 0; id < pieces_.size(); ++id) {
      if (!result.emplace(pieces_[id], id).second)
        refuse("tokens", "the piece " + Json(pieces_[id]).dump() + " is given twice");
    }
    return result;
  }

  void byte_level(Json& file) const {
    static const std::unordered_map<std::string, std::string> forms{{"gpt-2", "gpt2"},       {"gpt2", "gpt2"},
                                                                    {"llama-bpe", "llama3"}, {"llama3", "llama3"},
                                                                    {"qwen2", "qwen2"},      {"smollm", "smollm"}};
    const std::string pre = required("pre", Kind::text).text;
    const auto form = forms.find(pre);
    if (form == forms.end()) {
      refuse_unsupported(source_ + ": tokenizer.ggml.pre: must be one of gpt-2, llama-bpe, qwen2, smollm, got " + pre);
    }
    const tokenizer_json::BpeForm sections = tokenizer_json::bpe_form(form->second);
    file["normalizer"] = sections.normalizer;
    file["pre_tokenizer"] = sections.pre_tokenizer;
    file["decoder"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
    file["model"] = {{"type", "BPE"}, {"vocab", vocabulary()}, {"merges", required("merges", Kind::texts).texts}};
    if (form->second == "llama3") file["model"]["ignore_merges"] = true;
  }

  // Merges of pieces that a tokenizer.json had, as convert and other programs write them beside the scores. llama.cpp
  // looks at the scores alone; the merges are what the tokenizer was made with.
  const std::vector<std::string>* given_merges() const {
    const GgufValue* const merges = find("merges", Kind::texts);
    return merges == nullptr || merges->texts.empty() ? nullptr : &merges->texts;
  }

  // Without merges a pair merges when together it is a piece, and the piece of the highest score goes first; several
  // cuts of a piece in the order that transformers gives them.
  Json scored_merges(const Json& vocabulary) const {
    const std::vector<double>& scores = required("scores", Kind::numbers).numbers;
    if (scores.size() != pieces_.size()) refuse("scores", "must have one number a token");
    struct Merge {
      double worse;  // minus the score
      std::size_t piece, left, right, cut;
      auto key() const { return std::tie(worse, piece, left, right); }
    };
    std::vector<Merge> merges;
    for (std::size_t id = 0; id < pieces_.size(); ++id) {
      const std::string& piece = pieces_[id];
      if (types_[id] == kByte || types_[id] == kControl || types_[id] == kUnknown || piece.empty()) continue;
      if (piece.size() > kLongestScoredPiece)
        refuse("tokens", "piece " + std::to_string(id) + " is longer than 1024 bytes");
      for (std::size_t cut = utf8_length(static_cast<unsigned char>(piece[0])); cut < piece.size();
           cut += utf8_length(static_cast<unsigned char>(piece[cut]))) {
        const auto left = vocabulary.find(piece.substr(0, cut)), right = vocabulary.find(piece.substr(cut));
        if (left == vocabulary.end() || right == vocabulary.end()) continue;
        merges.push_back({-scores[id], id, left->get<std::size_t>(), right->get<std::size_t>(), cut});
      }
    }
    std::sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) { return a.key() < b.key(); });
    Json result = Json::array();
    for (const Merge& merge : merges) {
      result.push_back(
          Json::array({pieces_[merge.piece].substr(0, merge.cut), pieces_[merge.piece].substr(merge.cut)}));
    }
    return result;
  }

  void scored(Json& file) const {
    const Json replace{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
    const bool prefix = flag("add_space_prefix", true);
    Json steps = Json::array();
    if (prefix) steps.push_back(Json{{"type", "Prepend"}, {"prepend", "\u2581"}});
    steps.push_back(replace);
    file["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
    Json decoders = Json::array();
    decoders.push_back(Json{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}});
    decoders.push_back(Json{{"type", "ByteFallback"}});
    decoders.push_back(Json{{"type", "Fuse"}});
    if (prefix) decoders.push_back(Json{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    file["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
    Json pieces = vocabulary();
    const std::vector<std::string>* const given = given_merges();
    Json merges = given == nullptr ? scored_merges(pieces) : Json(*given);
    file["model"] = {{"type", "BPE"}, {"byte_fallback", true}, {"fuse_unk", true}};
    file["model"]["vocab"] = std::move(pieces);
    file["model"]["merges"] = std::move(merges);
    if (const auto unknown = token("unknown_token_id")) file["model"]["unk_token"] = *unknown;
  }

  std::optional<std::string> token(const std::string& name) const {
    const GgufValue* const id = find(name, Kind::integer);
    if (id == nullptr) return std::nullopt;
    if (id->integer < 0 || static_cast<std::uint64_t>(id->integer) >= pieces_.size()) refuse(name, "is no token");
    return pieces_[static_cast<std::size_t>(id->integer)];
  }

  Json post_processor(bool begins) const {
    Json single = Json::array();
    Json tokens = Json::object();
    const auto add = [&](const std::string& name, const std::string& id_name) {
      const auto piece = token(id_name);
      if (!piece) refuse(id_name, "is missing, but " + name + " asks for it");
      single.push_back(Json{{"SpecialToken", {{"id", *piece}, {"type_id", 0}}}});
      Json ids = Json::array({find(id_name, Kind::integer)->integer});
      for (auto& id : ids) id = id.get<std::uint64_t>();
      tokens[*piece] = {{"id", *piece}, {"ids", ids}, {"tokens", Json::array({*piece})}};
    };
    const bool first = flag("add_bos_token", begins && find("bos_token_id", Kind::integer) != nullptr);
    const bool last = flag("add_eos_token", false);
    if (!first && !last) return nullptr;
    if (first) add("add_bos_token", "bos_token_id");
    single.push_back(Json{{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    if (last) add("add_eos_token", "eos_token_id");
    Json pair = single;
    pair.push_back(Json{{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
    return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
  }

  const GgufMetadata& metadata_;
  const std::string& source_;
  const std::vector<std::string>& pieces_;
  std::vector<std::int64_t> types_;
};

bool is_sentencepiece(const GgufMetadata& metadata) {
  const auto model = metadata.find("tokenizer.ggml.model");
  return model != metadata.end() && model->second.kind == Kind::text && model->second.text == "t5";
}

}  // namespace

nlohmann::json gguf_tokenizer_json(const GgufMetadata& metadata, const std::string& source) {
  return Translation(metadata, source).run();
}

std::unique_ptr<Tokenizer> read_gguf_tokenizer(const GgufMetadata& metadata, const std::string& source) {
  if (is_sentencepiece(metadata))
    return make_sentencepiece_tokenizer(gguf_tokenizer_file(metadata, source).content, source);
  return std::make_unique<PartsTokenizer>(tokenizer_json::read_file(gguf_tokenizer_json(metadata, source), source));
}

std::string gguf_tokenizer_name(const GgufMetadata& metadata) {
  return is_sentencepiece(metadata) ? "tokenizer.model" : "tokenizer.json";
}

TokenizerFile gguf_tokenizer_file(const GgufMetadata& metadata, const std::string& source) {
  const std::string name = gguf_tokenizer_name(metadata);
  if (is_sentencepiece(metadata)) return {name, sentencepiece_bytes(sentencepiece_of_gguf(metadata, source))};
  return {name, gguf_tokenizer_json(metadata, source).dump() + "\n"};
}

std::vector<TokenizerFile> gguf_side_files(const GgufMetadata& metadata) {
  const auto find = [&](const std::string& name, Kind kind) -> const GgufValue* {
    const auto found = metadata.find(name);
    return found == metadata.end() || found->second.kind != kind ? nullptr : &found->second;
  };
  const GgufValue* const tokens = find("tokenizer.ggml.tokens", Kind::texts);
  const auto id_of = [&](const std::string& name) -> std::optional<std::int64_t> {
    const GgufValue* const id = find("tokenizer.ggml." + name, Kind::integer);
    const bool known = id != nullptr && tokens != nullptr && id->integer >= 0 &&
                       static_cast<std::uint64_t>(id->integer) < tokens->texts.size();
    return known ? std::optional(id->integer) : std::nullopt;
  };
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}}, generation = Json::object();
  for (const auto& [theirs, ours] :
       {std::pair("bos_token_id", "bos_token"), std::pair("eos_token_id", "eos_token"),
        std::pair("unknown_token_id", "unk_token"), std::pair("padding_token_id", "pad_token")}) {
    const auto id = id_of(theirs);
    if (!id) continue;
    config[ours] = tokens->texts[static_cast<std::size_t>(*id)];
    if (std::string_view(ours) != "unk_token") generation[std::string(ours) + "_id"] = *id;
  }
  // A turn of a chat may end with a token of its own.
  Json ends = Json::array();
  for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    const auto id = id_of(name);
    if (id && std::find(ends.begin(), ends.end(), Json(*id)) == ends.end()) ends.push_back(*id);
  }
  if (ends.size() > 1) generation["eos_token_id"] = std::move(ends);
  if (const GgufValue* const add = find("tokenizer.ggml.add_bos_token", Kind::integer)) {
    config["add_bos_token"] = add->integer != 0;
  }
  if (const GgufValue* const chat = find("tokenizer.chat_template", Kind::text)) config["chat_template"] = chat->text;
  return {{"tokenizer_config.json", config.dump(2) + "\n"}, {"generation_config.json", generation.dump(2) + "\n"}};
}

}  // namespace samba
