// Flags, help, versions and exit codes of the executable.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "command.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

const std::vector<std::string> kCommands = {"train",   "decode",   "prefill",         "verify",    "convert",
                                            "inspect", "tokenize", "train-tokenizer", "completion"};

TEST_CASE("--version says version, build flags, devices and the instruction set chosen") {
  const CommandResult result = samba_command({"--version"});
  CHECK(result.code == 0);
  CHECK_THAT(result.out, StartsWith("samba 0.") && Contains("-ffp-contract=off") &&
                             Contains("devices: auto, cpu, reference") && Contains("chosen: "));
}

TEST_CASE("every command has a help with an example") {
  const CommandResult all = samba_command({"--help"});
  CHECK(all.code == 0);
  for (const std::string& name : kCommands) {
    CHECK_THAT(all.out, Contains(name));
    const CommandResult result = samba_command({name, "--help"});
    INFO(name);
    CHECK(result.code == 0);
    CHECK_THAT(result.out, Contains("Example:") && Contains("samba " + name) && Contains("--numeric-mode"));
  }
  const CommandResult none = samba_command({});
  CHECK(none.code == 2);
  CHECK_THAT(none.out, Contains("samba COMMAND --help"));
}

TEST_CASE("a wrong flag or command is refused with the nearest one") {
  const auto message = [](const std::vector<std::string>& arguments) {
    const CommandResult result = samba_command(arguments);
    CHECK(result.code == 2);
    CHECK(result.out.empty());
    return result.err;
  };
  CHECK_THAT(message({"train", "--confg", "x"}),
             Contains("unknown flag --confg of samba train; did you mean --config?"));
  CHECK_THAT(message({"decode", "--model", "m", "--temprature=1"}), Contains("did you mean --temperature?"));
  CHECK_THAT(message({"train", "--thread", "1"}), Contains("did you mean --threads?"));
  CHECK_THAT(message({"trian"}), Contains("unknown command 'trian'; did you mean train?"));
  CHECK_THAT(message({"inspect", "a", "b"}), Contains("unexpected argument b of samba inspect"));
  CHECK_THAT(message({"decode"}), Contains("--model is required"));
  CHECK_THAT(message({"inspect", "x", "--threads", "many"}), Contains("--threads"));
  CHECK_THAT(message({"inspect", "x", "--progress", "sometimes"}), Contains("--progress") && Contains("auto"));
}

TEST_CASE("values and pairs of flags that mean nothing are refused in one line, before any work") {
  const TinyRun run;
  REQUIRE(run.train("run", {"--steps", "1", "--threads", "1"}).code == 0);
  const std::string model = run.file("run"), text = run.file("text.txt"), place = run.file("out");
  const auto message = [](const std::vector<std::string>& arguments) {
    const CommandResult result = samba_command(arguments);
    CHECK(result.code == 2);
    CHECK(result.out.empty());
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    return result.err;
  };
  CHECK_THAT(message({"decode", "--model", model, "--prompt", "a", "--max-tokens", "0"}),
             Contains("--max-tokens: must be a whole number, at least 1, got 0"));
  CHECK_THAT(message({"train", "--config", run.file("tiny.json"), "--steps", "many"}),
             Contains("--steps: must be a whole number, at least 1, got many"));
  CHECK_THAT(message({"decode", "--model", model, "--prompt", "a", "--top-p", "1.5"}), Contains("got 1.5\n"));
  CHECK_THAT(message({"prefill", "--model", model, "--prompt", "a", "--window", "3"}), Contains("need --score"));
  CHECK_THAT(message({"prefill", "--model", model, "--prompt", "a", "--layers", "0"}), Contains("needs --hidden"));
  CHECK_THAT(message({"inspect", model, "--batch", "3"}), Contains("need --memory"));
  CHECK_THAT(message({"prepare", text, "--out", place, "--resume", "--force"}), Contains("exclude each other"));
  CHECK_THAT(message({"prepare", text, "--out", text + "/below"}), Contains("cannot create the folder"));
  CHECK_THAT(message({"bench", "gemm", "--out", text + "/below"}), Contains("cannot create the folder"));
  CHECK_THAT(message({"train-tokenizer", run.file("nowhere"), "--out", place}),
             Contains("samba: there is no file or folder "));
  CHECK_THAT(message({"convert", model, place, "--model-type", "lama"}), Contains("did you mean \"llama\"?"));
  CHECK_FALSE(std::filesystem::exists(place));
}

TEST_CASE("common flags are accepted before and after the command") {
  const TinyRun run;
  REQUIRE(run.train("run", {"--steps", "1", "--threads", "1"}).code == 0);
  const std::string model = run.file("run");
  const CommandResult before = samba_command({"--json", "--threads", "1", "--device", "reference", "inspect", model});
  const CommandResult after = samba_command({"inspect", model, "--json", "--threads", "1", "--device", "cpu"});
  CHECK(before.code == 0);
  CHECK(before.out == after.out);
  CHECK(nlohmann::json::parse(after.out)["step"] == 1);
}

TEST_CASE("what is not offered is refused with what is") {
  const TinyRun run;
  REQUIRE(run.train("run", {"--steps", "1"}).code == 0);
  const CommandResult mode = samba_command({"inspect", run.file("run"), "--numeric-mode", "quick"});
  CHECK(mode.code == 2);
  CHECK_THAT(mode.err, Contains("--numeric-mode") && Contains("identical") && Contains("fast"));
  const CommandResult device = samba_command({"inspect", run.file("run"), "--device", "abacus"});
  CHECK(device.code == 2);
  CHECK_THAT(device.err, Contains("unknown device 'abacus'") && Contains("reference"));
  const CommandResult set = samba_command({"inspect", run.file("run"), "--device", "cpu", "--isa", "mmx"});
  CHECK(set.code == 2);
  CHECK_THAT(set.err, Contains("mmx") && Contains("scalar"));
}

TEST_CASE("a full device behind stdout is a resource error, a closed pipe is none") {
  const std::string list = std::string(SAMBA_EXECUTABLE) + " completion bash > /dev/full 2>/dev/null";
  CHECK(WEXITSTATUS(std::system(list.c_str())) == 4);
  Command closed({"completion", "bash"});
  closed.close_stdout();
  const CommandResult result = closed.finish();
  CHECK(result.code == 0);
  CHECK(result.err.empty());
}

TEST_CASE("completion scripts parse and complete commands and flags") {
  TemporaryFolder folder;
  const CommandResult bash = samba_command({"completion", "bash"});
  REQUIRE(bash.code == 0);
  write_text(folder.path() / "samba.bash", bash.out);
  const auto complete = [&](const std::string& words, int place) {
    const std::string script = "source " + (folder.path() / "samba.bash").string() + "; COMP_WORDS=(" + words +
                               "); COMP_CWORD=" + std::to_string(place) + "; _samba; echo \"${COMPREPLY[@]}\" > " +
                               (folder.path() / "reply").string();
    CHECK(std::system(("bash -c '" + script + "'").c_str()) == 0);
    return read_file(folder.path() / "reply");
  };
  CHECK(complete("samba tr", 1) == "train train-tokenizer\n");
  CHECK_THAT(complete("samba decode --temp", 2), Contains("--temperature"));
  CHECK_THAT(complete("samba decode --device r", 3), Contains("reference"));
  CHECK_THAT(samba_command({"completion", "zsh"}).out, StartsWith("#compdef samba"));
  CHECK(samba_command({"completion", "fish"}).code == 2);
}

}  // namespace
}  // namespace samba
