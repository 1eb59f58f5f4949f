// `samba COMMAND --help`, the table of commands in README.md, and the commands and flags the program is meant to have.
#include <catch2/catch.hpp>
#include <map>
#include <regex>
#include <set>

#include "command.h"

namespace samba {
namespace {

using Names = std::set<std::string>;

const Names kCommonFlags{"--device", "--threads", "--isa", "--numeric-mode", "--json", "--log-level", "--progress"};

// Every command with its own flags; what all commands take is kCommonFlags.
const std::map<std::string, Names> kCommands{
    {"train",
     {"--config", "--data", "--tokenizer", "--out", "--init-from", "--resume", "--force", "--steps", "--set",
      "--eval-only", "--print-config", "--tensorboard"}},
    {"plot", {"--out", "--x", "--log", "--smooth"}},
    {"decode", {"--model",       "--tokenizer",     "--prompt", "--prompt-file", "--prompts-file",       "--tokens",
                "--chat",        "--chat-template", "--system", "--state",       "--save-state",         "--max-tokens",
                "--temperature", "--top-k",         "--top-p",  "--min-p",       "--repetition-penalty", "--seed",
                "--n",           "--batch",         "--stop",   "--logprobs"}},
    {"prefill",
     {"--model", "--tokenizer", "--prompt", "--file", "--tokens", "--logits", "--hidden", "--layers", "--save-state",
      "--score", "--choices", "--chunk", "--window", "--stride", "--out"}},
    {"verify",
     {"--list", "--quick", "--cases", "--only", "--all", "--tutorial-steps", "--model", "--write-hashes", "--replay",
      "--steps", "--compare", "--record", "--against", "--prompt", "--tokens", "--decode"}},
    {"convert", {"--to", "--dtype", "--codec", "--model-type", "--dry-run"}},
    {"inspect", {"--memory", "--batch", "--length"}},
    {"tokenize", {"--model", "--tokenizer", "--file", "--add-special-tokens", "--plain"}},
    {"train-tokenizer", {"--out", "--vocab-size", "--min-frequency", "--special", "--form", "--force"}},
    {"prepare",
     {"--out", "--tokenizer", "--model", "--documents", "--text-field", "--prompt-field", "--completion-field",
      "--end-token", "--held-out", "--dedup", "--shard-tokens", "--resume", "--force"}},
    {"bench", {"--shapes", "--quick", "--repeat", "--paced", "--list", "--out"}},
    {"completion", {}},
};

Names long_flags(const std::string& text) {
  static const std::regex flag("--[a-z][a-z-]*");
  return {std::sregex_token_iterator(text.begin(), text.end(), flag), std::sregex_token_iterator()};
}

std::string help_of(const std::vector<std::string>& command) {
  std::vector<std::string> arguments = command;
  arguments.emplace_back("--help");
  const CommandResult result = samba_command(arguments);
  CHECK(result.code == 0);
  CHECK(result.err.empty());
  return result.out;
}

// The flags a help text defines: the first word of a line of its options ("  -h,--help", "  --plain").
Names defined_flags(const std::string& help) {
  static const std::regex definition("(?:^|\n)  (?:-[a-z],)?(--[a-z][a-z-]*)");
  Names names(std::sregex_token_iterator(help.begin(), help.end(), definition, 1), std::sregex_token_iterator{});
  names.erase("--help");
  return names;
}

// The commands that `samba --help` lists.
Names listed_commands() {
  const std::string help = help_of({});
  const std::size_t begin = help.find("Subcommands:\n");
  REQUIRE(begin != std::string::npos);
  const std::string list = help.substr(begin, help.find("\n\n", begin) - begin);
  static const std::regex name("\n  ([a-z][a-z-]*)");
  return {std::sregex_token_iterator(list.begin(), list.end(), name, 1), std::sregex_token_iterator()};
}

// The README's section "## Commands".
std::string readme_section() {
  const std::string readme = read_file(Path(SAMBA_SOURCE_DIR) / "README.md");
  const std::size_t begin = readme.find("\n## Commands\n");
  REQUIRE(begin != std::string::npos);
  return readme.substr(begin, readme.find("\n## ", begin + 1) - begin);
}

// The rows of its table by command; a command may have several rows.
std::map<std::string, std::string> readme_rows() {
  const std::string section = readme_section();
  static const std::regex row("\n\\| `samba ([a-z-]+)([^\n]*)");
  std::map<std::string, std::string> rows;
  for (std::sregex_iterator it(section.begin(), section.end(), row); it != std::sregex_iterator(); ++it) {
    rows[(*it)[1]] += (*it)[2].str() + "\n";
  }
  return rows;
}

// What the section says outside its table.
std::string readme_paragraphs() { return std::regex_replace(readme_section(), std::regex("\n\\|[^\n]*"), ""); }

Names commands_of(const std::map<std::string, std::string>& rows) {
  Names names;
  for (const auto& [name, row] : rows) names.insert(name);
  return names;
}

TEST_CASE("samba --help lists every command and every common flag") {
  Names expected;
  for (const auto& [name, flags] : kCommands) expected.insert(name);
  CHECK(listed_commands() == expected);
  Names common = kCommonFlags;
  common.insert("--version");
  CHECK(defined_flags(help_of({})) == common);
}

TEST_CASE("the help of a command defines its flags, names the common ones and gives an example") {
  for (const auto& [name, flags] : kCommands) {
    INFO(name);
    const std::string help = help_of({name});
    CHECK(defined_flags(help) == flags);
    const std::size_t common = help.find("Flags of every command");
    REQUIRE(common != std::string::npos);
    Names named = long_flags(help.substr(common));
    named.erase("--help");
    CHECK(named == kCommonFlags);
    const std::size_t example = help.find("\nExample:\n");
    REQUIRE(example != std::string::npos);
    CHECK(help.find("samba " + name, example) != std::string::npos);
  }
}

TEST_CASE("the README's table has the commands of the program, and each row the flags of its command") {
  const std::map<std::string, std::string> rows = readme_rows();
  CHECK(commands_of(rows) == listed_commands());
  for (const auto& [name, row] : rows) {
    INFO(name);
    CHECK(long_flags(row) == defined_flags(help_of({name})));
  }
}

TEST_CASE("the README's paragraph below the table has the common flags") {
  Names named = long_flags(readme_paragraphs());
  named.erase("--help");
  Names common = kCommonFlags;
  common.insert("--version");
  CHECK(named == common);
}

}  // namespace
}  // namespace samba
