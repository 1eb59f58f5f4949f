#include "samba/text/model_text.h"

#include <algorithm>
#include <filesystem>

#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/core/sha256.h"
#include "samba/formats/gguf_metadata.h"
#include "samba/text/gguf_tokenizer.h"

namespace samba {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::uint64_t kMostConfigBytes = std::uint64_t{16} << 20;
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "tokenizer.model"};
// What a run keeps beside the tokenizer itself.
constexpr const char* kSideFiles[] = {"tokenizer_config.json", "chat_template.jinja", "generation_config.json"};
// The end of a text where no file names it.
constexpr const char* kEndPieces[] = {"<|endoftext|>", "</s>",       "<|end_of_text|>", "<eos>",
                                      "<|im_end|>",    "<|eot_id|>", "<end_of_turn>",   "<|end|>"};

// What the files say, before it is known which of the ids are tokens.
struct Findings {
  std::vector<std::int64_t> ends;
  std::vector<std::int64_t> begins;  // the first that is a token counts
  std::vector<std::string> end_pieces;
  std::vector<std::string> begin_pieces;
  std::optional<bool> add_bos;
  std::string chat_template;
};

Json read_config(const Path& path) {
  Json value = parse_json(read_file(path, kMostConfigBytes), path.string());
  if (!value.is_object()) refuse_value(path.string() + ": must be a JSON object");
  return value;
}

void take_ids(const Json& object, const char* name, std::vector<std::int64_t>& ids) {
  const auto found = object.find(name);
  if (found == object.end()) return;
  const auto take = [&](const Json& value) {
    if (value.is_number_integer()) ids.push_back(value.get<std::int64_t>());
  };
  if (found->is_array()) {
    for (const Json& value : *found) take(value);
  } else {
    take(*found);
  }
}

// A token as tokenizer_config.json has it: its text, or an object with its text in "content".
void take_piece(const Json& object, const char* name, std::vector<std::string>& pieces) {
  const auto found = object.find(name);
  if (found == object.end()) return;
  if (found->is_string()) {
    pieces.push_back(found->get<std::string>());
  } else if (found->is_object() && found->contains("content") && found->at("content").is_string()) {
    pieces.push_back(found->at("content").get<std::string>());
  }
}

// The template is a text, or a list of named ones.
std::string template_of(const Json& object) {
  const auto found = object.find("chat_template");
  if (found == object.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return "";
  for (const Json& named : *found) {
    if (named.is_object() && named.value("name", Json()) == "default" && named.contains("template") &&
        named["template"].is_string()) {
      return named["template"].get<std::string>();
    }
  }
  return "";
}

void read_side_files(const Path& folder, Findings& found) {
  if (fs::exists(folder / "tokenizer_config.json")) {
    const Json config = read_config(folder / "tokenizer_config.json");
    take_piece(config, "eos_token", found.end_pieces);
    take_piece(config, "bos_token", found.begin_pieces);
    if (const auto add = config.find("add_bos_token"); add != config.end() && add->is_boolean()) {
      found.add_bos = add->get<bool>();
    }
    found.chat_template = template_of(config);
  }
  if (fs::exists(folder / "chat_template.jinja")) {
    found.chat_template = read_file(folder / "chat_template.jinja", kMostConfigBytes);
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (!fs::exists(folder / name)) continue;
    const Json config = read_config(folder / name);
    take_ids(config, "bos_token_id", found.begins);
    // config.json repeats what generation_config.json states, or the library's defaults.
    if (found.ends.empty()) take_ids(config, "eos_token_id", found.ends);
  }
}

void read_metadata(const GgufMetadata& metadata, Findings& found) {
  const auto id = [&](const char* name, std::vector<std::int64_t>& ids) {
    const auto value = metadata.find(std::string("tokenizer.ggml.") + name);
    if (value != metadata.end() && value->second.kind == GgufValue::Kind::integer) ids.push_back(value->second.integer);
  };
  id("eos_token_id", found.ends);
  id("eot_token_id", found.ends);
  id("eom_token_id", found.ends);
  id("bos_token_id", found.begins);
  if (const auto add = metadata.find("tokenizer.ggml.add_bos_token");
      add != metadata.end() && add->second.kind == GgufValue::Kind::integer) {
    found.add_bos = add->second.integer != 0;
  }
  if (const auto source = metadata.find("tokenizer.chat_template");
      source != metadata.end() && source->second.kind == GgufValue::Kind::text) {
    found.chat_template = source->second.text;
  }
}

// Turns what was found into tokens of the tokenizer; ids beyond it are a library's defaults and pass for nothing.
void settle(const Findings& found, ModelText& text) {
  const Tokenizer& tokenizer = *text.tokenizer;
  const auto is_token = [&](std::int64_t id) { return id >= 0 && id < tokenizer.vocabulary_size(); };
  const auto add_end = [&](std::int32_t id) {
    if (!text.eos) text.eos = id;
    text.end_ids.push_back(id);
  };
  for (const std::string& piece : found.end_pieces) {
    if (const auto id = tokenizer.id_of(piece)) add_end(*id);
  }
  for (const std::int64_t id : found.ends) {
    if (is_token(id)) add_end(static_cast<std::int32_t>(id));
  }
  for (std::size_t i = 0; i < std::size(kEndPieces) && text.end_ids.empty(); ++i) {
    const auto id = tokenizer.id_of(kEndPieces[i]);
    if (id && tokenizer.is_special(*id)) add_end(*id);
  }
  std::sort(text.end_ids.begin(), text.end_ids.end());
  text.end_ids.erase(std::unique(text.end_ids.begin(), text.end_ids.end()), text.end_ids.end());

  for (const std::string& piece : found.begin_pieces) {
    if (!text.bos) text.bos = tokenizer.id_of(piece);
  }
  for (const std::int64_t id : found.begins) {
    if (!text.bos && is_token(id)) text.bos = static_cast<std::int32_t>(id);
  }
  // What the tokenizer's own form puts around an empty text, but for its end.
  std::vector<std::int32_t> around = tokenizer.encode("", {.add_special_tokens = true});
  std::erase_if(around, [&](std::int32_t id) { return text.ends(id) && id != text.bos; });
  if (found.add_bos && !*found.add_bos) return;
  if (found.add_bos && text.bos) {
    text.prefix = {*text.bos};
    return;
  }
  if (!text.bos && !around.empty()) text.bos = around.front();
  if (around.size() > 1 && around.front() == around.back()) around.pop_back();  // one token is begin and end
  text.prefix = std::move(around);
}

bool has_tokenizer_file(const Path& folder) {
  return std::any_of(std::begin(kTokenizerFiles), std::end(kTokenizerFiles),
                     [&](const char* name) { return fs::exists(folder / name); });
}

// The tokenizer file in a folder, or the file itself.
Path tokenizer_file(const Path& path) {
  if (!fs::is_directory(path)) return path;
  for (const char* name : kTokenizerFiles) {
    if (fs::exists(path / name)) return path / name;
  }
  refuse_value(path.string() + ": the folder has neither tokenizer.json nor tokenizer.model");
}

ModelText text_from(const Path& tokenizer, const Path& side_folder) {
  ModelText text;
  text.tokenizer = load_tokenizer(tokenizer);
  text.source = tokenizer.string();
  Findings found;
  const bool gguf = fs::is_regular_file(tokenizer) && is_gguf(tokenizer);
  if (gguf) {
    read_metadata(read_gguf_metadata(tokenizer), found);
  } else {
    read_side_files(side_folder, found);
  }
  settle(found, text);
  text.chat_template = found.chat_template;
  return text;
}

}  // namespace

Path tokenizer_of_checkpoint(const Path& checkpoint) {
  Path beside = checkpoint;
  beside.replace_extension(".json");
  if (beside == checkpoint || !fs::is_regular_file(beside)) return {};
  const Json sidecar = parse_json(read_file(beside, kMostConfigBytes), beside.string());
  if (!sidecar.is_object() || !sidecar.contains("tokenizer") || !sidecar["tokenizer"].is_object()) return {};
  const Json& entry = sidecar["tokenizer"];
  if (entry.value("kind", Json()) != "file") return {};
  const JsonFields fields(entry, beside.string() + ": /tokenizer", {"kind", "vocab", "file", "sha256", "end_ids"});
  const std::string name = fields.text("file", "");
  if (name != "tokenizer.json" && name != "tokenizer.model") {
    fields.refuse("file", "tokenizer.json or tokenizer.model");
  }
  // checkpoints/step-N.samba: the tokenizer lies in the run's folder; a checkpoint taken elsewhere has it beside.
  const Path run = fs::absolute(checkpoint).parent_path().parent_path() / name;
  Path file = fs::absolute(checkpoint).parent_path() / name;
  if (!fs::exists(file) && fs::exists(run)) file = run;
  if (!fs::exists(file)) {
    refuse_value(checkpoint.string() + " needs the tokenizer " + name + ", which is neither beside it nor at " +
                 run.string() + "; give --tokenizer PATH");
  }
  if (fields.text("sha256", "") != tokenizer_sha256(file)) {
    refuse_value(file.string() + " is not the tokenizer that " + checkpoint.string() +
                 " was trained with (another SHA-256); give --tokenizer PATH");
  }
  return file;
}

std::vector<std::int32_t> ModelText::prompt_tokens(std::string_view text) const {
  if (tokenizer == nullptr) refuse_value("the model has no tokenizer; give --tokenizer PATH, or ids");
  std::vector<std::int32_t> ids = prefix;
  tokenizer->encode_to(text, {}, ids);
  return ids;
}

bool ModelText::ends(std::int32_t id) const { return std::find(end_ids.begin(), end_ids.end(), id) != end_ids.end(); }

ModelText read_tokenizer_text(const Path& tokenizer) {
  if (!fs::exists(tokenizer)) refuse_value("there is no tokenizer " + tokenizer.string());
  const Path file = tokenizer_file(tokenizer);
  return text_from(file, file.parent_path());
}

ModelText read_model_text(const Path& model, Index vocab, const Path& tokenizer) {
  ModelText text;
  if (!tokenizer.empty()) {
    text = read_tokenizer_text(tokenizer);
  } else if (fs::is_directory(model)) {
    if (has_tokenizer_file(model)) text = text_from(tokenizer_file(model), model);
  } else if (is_gguf(model)) {
    if (has_vocabulary(read_gguf_metadata(model))) text = text_from(model, {});
  } else if (const Path file = tokenizer_of_checkpoint(model); !file.empty()) {
    text = text_from(file, file.parent_path());
  }
  if (text.tokenizer == nullptr && vocab == kByteVocabulary) {
    text.tokenizer = make_byte_tokenizer();
    text.source = "bytes";
  }
  if (text.tokenizer != nullptr && text.tokenizer->vocabulary_size() > vocab) {
    refuse_value(text.source + ": the tokenizer has " + std::to_string(text.tokenizer->vocabulary_size()) +
                 " tokens, the model " + std::to_string(vocab) + "; it belongs to another model");
  }
  return text;
}

namespace {

// A tokenizer file as a folder keeps it; of a GGUF file what its metadata say.
TokenizerFile kept_file(const Path& file) {
  if (is_gguf(file)) return gguf_tokenizer_file(read_gguf_metadata(file), file.string());
  std::string content = read_file(file);
  const std::size_t start = content.find_first_not_of(" \t\r\n");
  const bool json = start != std::string::npos && content[start] == '{';
  return {json ? kTokenizerFiles[0] : kTokenizerFiles[1], std::move(content)};
}

}  // namespace

std::string tokenizer_sha256(const Path& tokenizer) { return sha256_hex(kept_file(tokenizer_file(tokenizer)).content); }

nlohmann::ordered_json keep_tokenizer(const ModelText& text, const Path& tokenizer, const Path& folder) {
  const Path file = tokenizer_file(tokenizer);
  const auto [name, content] = kept_file(file);
  const auto differs = [](const Path& a, const Path& b) { return !fs::exists(b) || !fs::equivalent(a, b); };
  if (differs(file, folder / name)) write_file_atomically(folder / name, content);
  if (is_gguf(file)) {
    for (const TokenizerFile& side : gguf_side_files(read_gguf_metadata(file))) {
      write_file_atomically(folder / side.name, side.content);
    }
  }
  for (const char* side : kSideFiles) {
    if (is_gguf(file)) break;
    const Path from = file.parent_path() / side;
    if (fs::exists(from) && differs(from, folder / side)) write_file_atomically(folder / side, read_file(from));
  }
  return {{"kind", "file"},
          {"file", name},
          {"sha256", sha256_hex(content)},
          {"vocab", text.tokenizer->vocabulary_size()},
          {"end_ids", text.end_ids}};
}

}  // namespace samba
