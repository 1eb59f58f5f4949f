#include "fuzz/dictionary.h"

#include <array>
#include <map>
#include <set>

namespace samba::fuzz {

namespace {

constexpr std::size_t kLongest = 40;
constexpr std::size_t kMost = 400;

const std::vector<std::string>& own_words(std::string_view reader) {
  static const std::vector<std::string> numbers{"-1",
                                                "0",
                                                "1e309",
                                                "-0.0",
                                                "1e-46",
                                                "nan",
                                                "inf",
                                                "2147483648",
                                                "9223372036854775807",
                                                "18446744073709551616",
                                                "null",
                                                "true",
                                                "[]",
                                                "{}",
                                                "[[",
                                                "\\ud800",
                                                "1.5"};
  static const std::map<std::string_view, std::vector<std::string>> words{
      {"chat_template",
       {"<|im_start|>",
        "<|im_end|>",
        "<|im_start|>system\\n",
        "<|im_start|>system\n",
        "<|start_header_id|>",
        "<|eot_id|>",
        "<start_of_turn>",
        "<end_of_turn>",
        "<|user|>",
        "<|end|>",
        "eos_token",
        "bos_token",
        "[INST]",
        " [/INST]",
        "<<SYS>>",
        "'[INST] '",
        "| trim",
        ".strip()",
        "eos_token + ' '",
        "<|begin_of_text|>",
        "<bos>",
        "'<s>'",
        "Cutting Knowledge Date"}},
      {"csv",
       {"class", ",", "\r\n", "\n", " ", "1e309", "1e-46", "nan", "inf", "-0", "0x1p3", "99", "4294967296",
        "a,b,c,d,e,f,g,h", "1,2,3,4,5,6,7,8,0\n"}},
      {"torch",
       {"ctorch\nHalfStorage\n", "ctorch\nBFloat16Storage\n", "ctorch\nDoubleStorage\n", "ctorch\nLongStorage\n",
        "ctorch\nByteStorage\n", "ctorch._utils\n_rebuild_parameter\n", "ccollections\nOrderedDict\n)R",
        "\x8A\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F", "\x95", "\x8C", "\x94", "\x93", "\x85", "\x87", "PK\5\6", "PK\6\6",
        "PK\6\7", "\xFF\xFF\xFF\xFF"}},
      {"gguf",
       {"general.architecture", "general.alignment", "tokenizer.ggml.model", "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges", "tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.pre", "llama",
        "mamba", "qwen2", "gemma", "gpt2", "llama-bpe"}},
      {"tokenizer_model",
       {"<s>", "</s>", "<unk>", "<0x00>", "<0xFF>", "\xE2\x96\x81", "\x18\2", "\x18\3", "\x18\4", "\x18\6"}}};
  const auto found = words.find(reader);
  return found == words.end() ? numbers : found->second;
}

std::string entry(std::string_view word) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string text = "\"";
  for (const char c : word) {
    const auto byte = static_cast<unsigned char>(c);
    text += "\\x";
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15U];
  }
  return text + "\"\n";
}

}  // namespace

std::string dictionary(std::string_view reader, const std::vector<std::string>& seeds) {
  const std::vector<std::string>& own = own_words(reader);
  std::set<std::string> words(own.begin(), own.end());
  for (const std::string& seed : seeds) {
    std::size_t begin = seed.find('"');
    while (begin != std::string::npos && words.size() < kMost) {
      const std::size_t end = seed.find('"', begin + 1);
      if (end == std::string::npos) break;
      if (end - begin > 1 && end - begin <= kLongest) words.insert(seed.substr(begin, end + 1 - begin));
      begin = seed.find('"', end + 1);
    }
  }
  std::string text;
  for (const std::string& word : words) text += entry(word);
  return text;
}

}  // namespace samba::fuzz
