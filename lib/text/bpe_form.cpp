// The known forms of byte-level BPE.
#include "samba/text/tokenizer_json.h"

namespace samba::tokenizer_json {

namespace {

using Json = nlohmann::ordered_json;

Json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

Json regex_and_bytes(const std::string& digits) {
  const std::string pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)" + digits +
                              R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const Json split{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level(false)})}};
}

}  // namespace

BpeForm bpe_form(const std::string& name) {
  if (name == "llama3") return {nullptr, regex_and_bytes(R"(\p{N}{1,3})")};
  if (name == "qwen2") return {{{"type", "NFC"}}, regex_and_bytes(R"(\p{N})")};
  if (name == "smollm") {
    const Json digits{{"type", "Digits"}, {"individual_digits", true}};
    return {nullptr, {{"type", "Sequence"}, {"pretokenizers", Json::array({digits, byte_level(true)})}}};
  }
  return {nullptr, byte_level(true)};
}

}  // namespace samba::tokenizer_json
