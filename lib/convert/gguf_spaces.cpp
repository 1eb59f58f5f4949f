#include "samba/convert/gguf_spaces.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace samba {

namespace {

using Json = nlohmann::json;

constexpr const char* kSpace = "\u2581";

std::string type_of(const Json& stage) { return stage.is_object() ? stage.value("type", "") : ""; }

// The stages of a section; a Sequence is its parts.
std::vector<Json> stages_of(const Json& section, const char* parts) {
  if (!section.is_object()) return {};
  if (type_of(section) != "Sequence") return {section};
  std::vector<Json> stages;
  for (const Json& part : section.value(parts, Json::array())) {
    const std::vector<Json> inner = stages_of(part, parts);
    stages.insert(stages.end(), inner.begin(), inner.end());
  }
  return stages;
}

std::optional<std::string> base64_bytes(std::string_view text) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  for (const char c : text) {
    const std::size_t digit = kAlphabet.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    if ((count += 6) < 8) continue;
    count -= 8;
    bytes += static_cast<char>(static_cast<unsigned char>(bits >> count));
  }
  return bytes;
}

// " {2,}" becomes one space.
bool joins_spaces(const Json& stage) {
  const std::string content = stage.value("content", "");
  return type_of(stage) == "Replace" && stage.value("pattern", Json()) == Json{{"Regex", " {2,}"}} &&
         (content == " " || content == kSpace);
}

bool marks_spaces(const Json& stage) {
  return type_of(stage) == "Replace" && stage.value("pattern", Json()) == Json{{"String", " "}} &&
         stage.value("content", "") == kSpace;
}

// always, first or never, of a Metaspace.
std::string scheme_of(const Json& stage) {
  return stage.value("prepend_scheme", stage.value("add_prefix_space", true) ? "always" : "never");
}

bool is_metaspace(const Json& stage) {
  return type_of(stage) == "Metaspace" && stage.value("replacement", kSpace) == kSpace;
}

// Of a Metaspace that puts a space in front, where no space stands yet.
std::string space_remark(const std::string& scheme) {
  return "from GGUF a text that begins with a space gets one more" +
         std::string(scheme == "first" ? ", and text behind special tokens gets one" : "");
}

// The steps of a Unigram's normalizer that GGUF has fields for.
struct UnigramNormalizer {
  std::optional<std::string> map;
  bool joins = false;   // repeated spaces
  bool strips = false;  // at the end
};

std::string read_normalizer(const Json& section, UnigramNormalizer& found) {
  for (const Json& stage : stages_of(section, "normalizers")) {
    const std::string type = type_of(stage);
    if (type == "Precompiled" && !found.map && !found.joins && !found.strips) {
      found.map = base64_bytes(stage.value("precompiled_charsmap", ""));
      if (!found.map) return "its precompiled_charsmap is no base64";
    } else if (type == "Strip" && stage.value("strip_right", true)) {
      found.strips = true;
    } else if (joins_spaces(stage)) {
      found.joins = true;
    } else {
      return "its normalizer is " + type + "; Unigram can be held without one, or with Precompiled";
    }
  }
  return "";
}

}  // namespace

std::string unigram_spaces(const Json& file, SentencePieceModel& model, std::string& remark) {
  UnigramNormalizer normalizer;
  if (std::string why = read_normalizer(file.value("normalizer", Json()), normalizer); !why.empty()) return why;
  std::vector<Json> cuts = stages_of(file.value("pre_tokenizer", Json()), "pretokenizers");
  const bool words = !cuts.empty() && type_of(cuts.front()) == "WhitespaceSplit";
  if (words) cuts.erase(cuts.begin());
  if (cuts.size() != 1 || !is_metaspace(cuts.front())) return "its pre-tokenizer is not Metaspace";
  const std::string scheme = scheme_of(cuts.front());
  if (scheme == "first") return "its prepend_scheme is first; always and never can be held";
  // A map turns white space into spaces; without one, tabs and line ends stay in llama.cpp.
  if (words && !normalizer.map) return "its pre-tokenizer is WhitespaceSplit without a map of characters";
  const bool ends = words || normalizer.strips;
  const bool repeated = words || normalizer.joins;
  if (ends != repeated) return "its normalizer takes away spaces at the end alone, or repeated ones alone";
  if (ends && scheme == "never") return "its normalizer takes away spaces, and its prepend_scheme is never";
  model.space_in_front = scheme == "always";
  model.drops_spaces = ends;
  if (model.space_in_front && !ends) remark = space_remark(scheme);
  model.characters_map = normalizer.map.value_or("");
  return "";
}

std::string bpe_spaces(const Json& file, bool& space_in_front, std::string& remark) {
  bool prepends = false;
  bool marks = false;
  for (const Json& stage : stages_of(file.value("normalizer", Json()), "normalizers")) {
    if (type_of(stage) == "Prepend" && stage.value("prepend", "") == kSpace && !prepends && !marks) {
      prepends = true;
    } else if (marks_spaces(stage) && !marks) {
      marks = true;
    } else {
      return "its normalizer is " + type_of(stage) + "; BPE with byte fallback can be held with Prepend and Replace";
    }
  }
  for (const Json& stage : stages_of(file.value("pre_tokenizer", Json()), "pretokenizers")) {
    // Cuts at spaces that the normalizer has marked: none are left.
    if (marks && type_of(stage) == "Split" && stage.value("pattern", Json()) == Json{{"String", " "}}) continue;
    if (marks || !is_metaspace(stage) || stage.value("split", true)) {
      return "its pre-tokenizer is " + type_of(stage) + "; BPE with byte fallback can be held with Metaspace, uncut";
    }
    marks = true;
    prepends = scheme_of(stage) != "never";
    if (prepends) remark = space_remark(scheme_of(stage));
  }
  if (!marks) return "it does not mark spaces";
  space_in_front = prepends;
  return "";
}

}  // namespace samba
