// The file as a whole, and the sections that are lists of steps: normalizer, pre-tokenizer, decoder, post-processor.
#include "samba/text/tokenizer_json.h"

#include <algorithm>

#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/formats/canonical_json.h"
#include "samba/text/utf8.h"

namespace samba {

namespace tokenizer_json {

namespace {

using Json = nlohmann::json;

// The pattern of GPT-2, which ByteLevel applies with use_regex.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string one_character(const JsonFields& fields, const std::string& name, const std::string& fallback) {
  const std::string text = fields.text(name, fallback);
  if (text.empty() || utf8_length(static_cast<unsigned char>(text[0])) != text.size()) {
    fields.refuse(name, "one character");
  }
  return text;
}

}  // namespace

std::string type_of(const Json& value, const std::string& pointer) {
  if (!value.is_object() || !value.contains("type") || !value["type"].is_string()) {
    refuse_value(pointer + ": must be an object with a \"type\", got " + shown(value));
  }
  return value["type"].get<std::string>();
}

const Json& read_sequence(const Json& value, const std::string& name, const std::string& pointer) {
  const JsonFields fields(value, pointer, {"type", name});
  const Json& list = fields.required(name);
  if (!list.is_array()) fields.refuse(name, "a list");
  if (list.size() > kMostSteps) {
    refuse_value(fields.pointer_to(name) + ": " + std::to_string(list.size()) + " steps; accepted: at most " +
                 std::to_string(kMostSteps));
  }
  return list;
}

std::string escaped_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}#").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

Regex read_pattern(const Json& value, const std::string& pointer, std::string* literal) {
  const JsonFields fields(value, pointer, {"String", "Regex"});
  if (fields.has("String") == fields.has("Regex")) refuse_value(pointer + ": must have either String or Regex");
  if (fields.has("Regex")) return Regex(fields.text("Regex", ""), fields.pointer_to("Regex"));
  const std::string text = fields.text("String", "");
  if (text.empty()) fields.refuse("String", "a text that is not empty");
  if (literal != nullptr) *literal = text;
  return Regex(escaped_pattern(text), fields.pointer_to("String"));
}

namespace {

void normalizer_steps(const Json& value, const std::string& pointer, Normalizer& normalizer, bool in_sequence) {
  const std::string type = type_of(value, pointer);
  if (type == "Sequence" && !in_sequence) {
    const Json& list = read_sequence(value, "normalizers", pointer);
    for (std::size_t i = 0; i < list.size(); ++i) {
      normalizer_steps(list[i], pointer + "/normalizers/" + std::to_string(i), normalizer, true);
    }
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    const JsonFields fields(value, pointer, {"type"});
    normalizer.add(Normalizer::Form{type == "NFC"    ? NormalForm::nfc
                                    : type == "NFD"  ? NormalForm::nfd
                                    : type == "NFKC" ? NormalForm::nfkc
                                                     : NormalForm::nfkd});
  } else if (type == "Prepend") {
    const JsonFields fields(value, pointer, {"type", "prepend"});
    normalizer.add(Normalizer::Prepend{fields.text("prepend", "")});
  } else if (type == "Replace") {
    const JsonFields fields(value, pointer, {"type", "pattern", "content"});
    Normalizer::Replace replace{std::nullopt, "", fields.text("content", "")};
    Regex pattern = read_pattern(fields.required("pattern"), fields.pointer_to("pattern"), &replace.text);
    if (replace.text.empty()) replace.pattern = std::move(pattern);
    normalizer.add(std::move(replace));
  } else if (type == "Strip") {
    const JsonFields fields(value, pointer, {"type", "strip_left", "strip_right"});
    normalizer.add(Normalizer::Strip{fields.boolean("strip_left", true), fields.boolean("strip_right", true)});
  } else {
    refuse_choice(pointer + "/type", value["type"],
                  {"Sequence", "NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Strip"});
  }
}

// What the characters of a class become: pieces of their own, or cut points.
PreTokenizer::Split class_split(const std::string& pattern, const std::string& pointer,
                                PreTokenizer::Behavior behavior) {
  return {Regex(pattern, pointer), behavior, false};
}

PreTokenizer::Behavior read_behavior(const JsonFields& fields, const std::string& fallback) {
  using Behavior = PreTokenizer::Behavior;
  const std::string name = fields.choice("behavior", fallback,
                                         {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"});
  return name == "Removed"              ? Behavior::removed
         : name == "Isolated"           ? Behavior::isolated
         : name == "MergedWithPrevious" ? Behavior::merged_with_previous
         : name == "MergedWithNext"     ? Behavior::merged_with_next
                                        : Behavior::contiguous;
}

void read_metaspace(const Json& value, const std::string& pointer, PreTokenizer& stages) {
  const JsonFields fields(value, pointer,
                          {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const std::string replacement = one_character(fields, "replacement", "\u2581");
  std::string scheme = fields.choice("prepend_scheme", "always", {"always", "first", "never"});
  if (!fields.boolean("add_prefix_space", true)) {
    if (fields.has("prepend_scheme") && scheme != "never") {
      fields.refuse("add_prefix_space", "true, or prepend_scheme \"never\"");
    }
    scheme = "never";
  }
  const auto prepend = scheme == "always"  ? PreTokenizer::Prepend::always
                       : scheme == "first" ? PreTokenizer::Prepend::first
                                           : PreTokenizer::Prepend::never;
  stages.add(PreTokenizer::Metaspace{replacement, prepend, fields.boolean("split", true),
                                     Regex(escaped_pattern(replacement), pointer)});
}

void read_byte_level(const Json& value, const std::string& pointer, PreTokenizer& stages) {
  const JsonFields fields(value, pointer, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (fields.boolean("add_prefix_space", true)) stages.add(PreTokenizer::PrefixSpace{});
  if (fields.boolean("use_regex", true)) {
    stages.add(PreTokenizer::Split{Regex(kByteLevelPattern, pointer), PreTokenizer::Behavior::isolated, false});
  }
}

void pre_tokenizer_stages(const Json& value, const std::string& pointer, PreTokenizer& stages, bool& bytes,
                          bool in_sequence) {
  using Behavior = PreTokenizer::Behavior;
  const std::string type = type_of(value, pointer);
  if (bytes) refuse_unsupported(pointer + ": a step behind ByteLevel is not supported");
  if (type == "Sequence" && !in_sequence) {
    const Json& list = read_sequence(value, "pretokenizers", pointer);
    for (std::size_t i = 0; i < list.size(); ++i) {
      pre_tokenizer_stages(list[i], pointer + "/pretokenizers/" + std::to_string(i), stages, bytes, true);
    }
  } else if (type == "ByteLevel") {
    read_byte_level(value, pointer, stages);
    bytes = true;
  } else if (type == "Split") {
    const JsonFields fields(value, pointer, {"type", "pattern", "behavior", "invert"});
    Regex pattern = read_pattern(fields.required("pattern"), fields.pointer_to("pattern"));
    if (!fields.has("behavior")) fields.refuse("behavior", "given");
    stages.add(PreTokenizer::Split{std::move(pattern), read_behavior(fields, ""), fields.boolean("invert", false)});
  } else if (type == "Digits") {
    const JsonFields fields(value, pointer, {"type", "individual_digits"});
    const bool each = fields.boolean("individual_digits", false);
    stages.add(class_split(each ? "\\p{N}" : "\\p{N}+", pointer, Behavior::isolated));
  } else if (type == "Punctuation") {
    const JsonFields fields(value, pointer, {"type", "behavior"});
    stages.add(class_split("[!-/:-@\\[-`{-~\\p{P}]", pointer, read_behavior(fields, "Isolated")));
  } else if (type == "WhitespaceSplit") {
    const JsonFields fields(value, pointer, {"type"});
    stages.add(class_split("\\s", pointer, Behavior::removed));
  } else if (type == "Metaspace") {
    read_metaspace(value, pointer, stages);
  } else {
    refuse_choice(pointer + "/type", value["type"],
                  {"Sequence", "ByteLevel", "Split", "Digits", "Punctuation", "WhitespaceSplit", "Metaspace"});
  }
}

struct DecoderOrder {
  bool bytes = false;  // pieces of single bytes exist from here on
  bool fused = false;
};

void decoder_steps(const Json& value, const std::string& pointer, TokenDecoder& decoder, DecoderOrder& order,
                   bool in_sequence) {
  const std::string type = type_of(value, pointer);
  if (type == "Sequence" && !in_sequence) {
    const Json& list = read_sequence(value, "decoders", pointer);
    for (std::size_t i = 0; i < list.size(); ++i) {
      decoder_steps(list[i], pointer + "/decoders/" + std::to_string(i), decoder, order, true);
    }
    return;
  }
  if (type == "Fuse") {
    const JsonFields fields(value, pointer, {"type"});
    order.fused = true;
    return;
  }
  if (type == "Strip" && order.fused) {
    const JsonFields fields(value, pointer, {"type", "content", "start", "stop"});
    if (fields.integer("stop", 0, 0) != 0) fields.refuse("stop", "0 behind Fuse");
    decoder.strip_start(one_character(fields, "content", " "), static_cast<int>(fields.integer("start", 0, 0, 1024)));
    return;
  }
  if (order.fused || order.bytes) refuse_unsupported(pointer + ": " + type + " at this place is not supported");
  if (type == "ByteLevel") {
    const JsonFields fields(value, pointer, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    decoder.add(TokenDecoder::ByteLevel{});
    order.bytes = true;
  } else if (type == "ByteFallback") {
    const JsonFields fields(value, pointer, {"type"});
    decoder.add(TokenDecoder::ByteFallback{});
    order.bytes = true;
  } else if (type == "Replace") {
    const JsonFields fields(value, pointer, {"type", "pattern", "content"});
    std::string text;
    read_pattern(fields.required("pattern"), fields.pointer_to("pattern"), &text);
    if (text.empty()) fields.refuse("pattern", "a String");
    decoder.add(TokenDecoder::Replace{text, fields.text("content", "")});
  } else if (type == "Metaspace") {
    const JsonFields fields(value, pointer,
                            {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    const std::string scheme = fields.choice("prepend_scheme", "always", {"always", "first", "never"});
    decoder.add(TokenDecoder::Metaspace{one_character(fields, "replacement", "\u2581"),
                                        scheme != "never" && fields.boolean("add_prefix_space", true)});
  } else if (type == "Strip") {
    const JsonFields fields(value, pointer, {"type", "content", "start", "stop"});
    decoder.add(TokenDecoder::StripToken{one_character(fields, "content", " "),
                                         static_cast<int>(fields.integer("start", 0, 0, 1024)),
                                         static_cast<int>(fields.integer("stop", 0, 0, 1024))});
  } else {
    refuse_choice(pointer + "/type", value["type"],
                  {"Sequence", "ByteLevel", "ByteFallback", "Replace", "Metaspace", "Fuse", "Strip"});
  }
}

// The ids of a special token of a template.
std::vector<std::int32_t> template_ids(const Json& tokens, const std::string& name, const std::string& pointer,
                                       const TokenizerParts& parts) {
  if (!tokens.is_object() || !tokens.contains(name)) refuse_value(pointer + ": has no token \"" + name + "\"");
  const JsonFields fields(tokens[name], pointer + "/" + name, {"id", "ids", "tokens"});
  const Json& ids = fields.required("ids");
  if (!ids.is_array()) fields.refuse("ids", "a list of token ids");
  std::vector<std::int32_t> result;
  for (const Json& id : ids) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= parts.vocabulary->size() ||
        !parts.vocabulary->has(id.get<std::int32_t>())) {
      fields.refuse("ids", "a list of ids of the vocabulary");
    }
    result.push_back(id.get<std::int32_t>());
  }
  return result;
}

void read_template(const Json& value, const std::string& pointer, TokenizerParts& parts) {
  const JsonFields fields(value, pointer, {"type", "single", "pair", "special_tokens"});
  const Json& list = fields.required("single");
  if (!list.is_array() || list.size() > kMostSteps) fields.refuse("single", "a list of at most 64 parts");
  bool text = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const JsonFields part(list[i], pointer + "/single/" + std::to_string(i), {"Sequence", "SpecialToken"});
    if (part.has("Sequence") == part.has("SpecialToken")) {
      refuse_value(part.pointer() + ": must have either Sequence or SpecialToken");
    }
    if (part.has("Sequence")) {
      const JsonFields sequence(part.required("Sequence"), part.pointer_to("Sequence"), {"id", "type_id"});
      if (text || sequence.text("id", "") != "A") sequence.refuse("id", "A, once");
      text = true;
      continue;
    }
    const JsonFields token(part.required("SpecialToken"), part.pointer_to("SpecialToken"), {"id", "type_id"});
    const std::vector<std::int32_t> ids =
        template_ids(fields.required("special_tokens"), token.text("id", ""), pointer + "/special_tokens", parts);
    std::vector<std::int32_t>& side = text ? parts.suffix : parts.prefix;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (!text) fields.refuse("single", "a template with the Sequence A");
}

void post_processor_steps(const Json& value, const std::string& pointer, TokenizerParts& parts, bool in_sequence) {
  const std::string type = type_of(value, pointer);
  if (type == "Sequence" && !in_sequence) {
    const Json& list = read_sequence(value, "processors", pointer);
    for (std::size_t i = 0; i < list.size(); ++i) {
      post_processor_steps(list[i], pointer + "/processors/" + std::to_string(i), parts, true);
    }
  } else if (type == "ByteLevel") {  // only offsets, which nobody here asks for
    const JsonFields fields(value, pointer, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  } else if (type == "TemplateProcessing") {
    if (!parts.prefix.empty() || !parts.suffix.empty()) refuse_unsupported(pointer + ": a second template");
    read_template(value, pointer, parts);
  } else {
    refuse_choice(pointer + "/type", value["type"], {"Sequence", "ByteLevel", "TemplateProcessing"});
  }
}

}  // namespace

void read_normalizer(const Json& value, const std::string& pointer, Normalizer& normalizer) {
  if (!value.is_null()) normalizer_steps(value, pointer, normalizer, false);
}

void read_pre_tokenizer(const Json& value, const std::string& pointer, PreTokenizer& stages, bool& bytes) {
  if (!value.is_null()) pre_tokenizer_stages(value, pointer, stages, bytes, false);
}

void read_decoder(const Json& value, const std::string& pointer, TokenDecoder& decoder) {
  if (value.is_null()) refuse_unsupported(pointer + ": a tokenizer without a decoder is not supported");
  DecoderOrder order;
  decoder_steps(value, pointer, decoder, order, false);
}

void read_post_processor(const Json& value, const std::string& pointer, TokenizerParts& parts) {
  if (!value.is_null()) post_processor_steps(value, pointer, parts, false);
}

TokenizerParts read_file(const Json& value, const std::string& source) {
  const JsonFields fields(value, source + ": ",
                          {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                           "post_processor", "decoder", "model"});
  if (fields.text("version", "1.0") != "1.0") fields.refuse("version", "\"1.0\"");
  for (const char* name : {"truncation", "padding"}) {
    if (fields.has(name)) refuse_unsupported(fields.pointer_to(name) + ": is not supported; accepted: null");
  }
  TokenizerParts parts;
  parts.vocabulary = std::make_unique<Vocabulary>();
  bool bytes = false;
  read_normalizer(fields.get("normalizer"), fields.pointer_to("normalizer"), parts.normalizer);
  read_pre_tokenizer(fields.get("pre_tokenizer"), fields.pointer_to("pre_tokenizer"), parts.pre_tokenizer, bytes);
  read_model(fields.required("model"), fields.pointer_to("model"), bytes, parts);
  read_added_tokens(fields.get("added_tokens"), fields.pointer_to("added_tokens"), parts);
  read_post_processor(fields.get("post_processor"), fields.pointer_to("post_processor"), parts);
  read_decoder(fields.get("decoder"), fields.pointer_to("decoder"), parts.decoder);
  return parts;
}

}  // namespace tokenizer_json

TokenizerParts read_tokenizer_json(std::string_view text, const std::string& source) {
  nlohmann::json value;
  try {
    value = parse_json(text);
  } catch (const Error& error) {
    throw Error(error.kind(), source + ": " + error.what());
  }
  return tokenizer_json::read_file(value, source);
}

}  // namespace samba
