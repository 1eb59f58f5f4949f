// samba verify --replay, --compare, --record and --against as a user runs them.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "command.h"

namespace samba {
namespace {

using nlohmann::json;

const std::string kModel = std::string(SAMBA_GOLDEN_DIR) + "/samba/ckpt/stack_04_hybrid_t3.ckpt";

// Replaces the first `from` behind the line of `step`.
void edit_metrics(const Path& run, int step, const std::string& from, const std::string& to) {
  std::string text = read_file(run / "metrics.jsonl");
  const std::size_t line = text.find("{\"step\":" + std::to_string(step) + ",");
  REQUIRE(line != std::string::npos);
  const std::size_t at = text.find(from, line);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  write_text(run / "metrics.jsonl", text);
}

bool says(const CommandResult& result, const std::string& text) { return result.out.find(text) != std::string::npos; }

}  // namespace

TEST_CASE("a stretch of a run taken again has its bits, on any device and number of threads") {
  const TinyRun tiny;
  REQUIRE(tiny.train("run", {"--set", "checkpoint.digest_every=4"}).code == 0);
  const std::string run = tiny.file("run");
  const std::vector<json> lines = metrics_of(run);

  const CommandResult whole = samba_command({"verify", "--replay", run, "--threads", "1"});
  INFO(whole.out << whole.err);
  CHECK(whole.code == 0);
  CHECK(says(whole, "steps 1 to 20, from the initial values"));
  CHECK(says(whole, "20 steps"));
  CHECK(says(whole, "5 digests of all parameters, 2 whole checkpoints"));
  std::string card;
  for (const json& line : lines) card = line.value("card", card);
  CHECK(card.size() == 32);
  CHECK(says(whole, "identity card " + card));

  for (const std::vector<std::string>& place :
       {std::vector<std::string>{"--threads", "3"}, {"--device", "reference"}, {"--isa", "avx2"}}) {
    std::vector<std::string> arguments{"verify", "--replay", run, "--steps", "12..15", "--json"};
    arguments.insert(arguments.end(), place.begin(), place.end());
    const CommandResult part = samba_command(arguments);
    CHECK(part.code == 0);
    const json report = json::parse(part.out);
    CHECK(report.at("steps") == 4);
    CHECK(report.at("from").get<std::string>().find("step-00000010.samba") != std::string::npos);
    CHECK(report.at("parameter_digests") == 1);
  }
}

TEST_CASE("a replay names the step and the number in which a run leaves its record") {
  const TinyRun tiny;
  REQUIRE(tiny.train("run").code == 0);
  edit_metrics(tiny.file("run"), 13, "\"loss_bits\":\"0x4", "\"loss_bits\":\"0x3");
  const CommandResult wrong = samba_command({"verify", "--replay", tiny.file("run")});
  CHECK(wrong.code == 1);
  CHECK(says(wrong, "they part at step 13: loss_bits: the run has \"0x3"));
  CHECK(samba_command({"verify", "--replay", tiny.file("run"), "--steps", "1..12"}).code == 0);
}

TEST_CASE("a replay names the tensor when the run has a checkpoint of the step") {
  const TinyRun tiny;
  REQUIRE(tiny.train("run", {"--set", "checkpoint.digest_every=10"}).code == 0);
  edit_metrics(tiny.file("run"), 10, "\"parameters_sha256\":\"", "\"parameters_sha256\":\"x");
  const CommandResult wrong = samba_command({"verify", "--replay", tiny.file("run")});
  CHECK(wrong.code == 1);
  CHECK(says(wrong, "they part at step 10: parameters_sha256: the run has \"x"));
}

TEST_CASE("a replay refuses what it cannot take again") {
  const TinyRun tiny;
  REQUIRE(tiny.train("run").code == 0);
  const std::string run = tiny.file("run");
  CHECK(samba_command({"verify", "--replay", run, "--steps", "18..21"}).code == 2);
  CHECK(samba_command({"verify", "--replay", run, "--steps", "x"}).code == 2);
  CHECK(samba_command({"verify", "--replay", tiny.file("nowhere")}).code == 2);
  write_text(tiny.file("text.txt"), read_file(tiny.file("text.txt")) + "more");
  const CommandResult changed = samba_command({"verify", "--replay", run});
  CHECK(changed.code == 2);
  CHECK(changed.err.find("its data changed since") != std::string::npos);
}

TEST_CASE("two runs are compared to the step, the number and the tensor in which they part") {
  const TinyRun tiny;
  REQUIRE(tiny.train("one").code == 0);
  REQUIRE(tiny.train("two", {"--threads", "2"}).code == 0);
  REQUIRE(tiny.train("other", {"--set", "optimizer.eps=1e-7"}).code == 0);
  const auto compare = [&](const std::string& a, const std::string& b) {
    return samba_command({"verify", "--compare", tiny.file(a), tiny.file(b)});
  };
  const CommandResult equal = compare("one", "two");
  INFO(equal.out << equal.err);
  CHECK(equal.code == 0);
  CHECK(says(equal, "2 of 2 checkpoints that both have are equal"));

  const CommandResult other = compare("one", "other");
  CHECK(other.code == 1);
  CHECK(says(other, "config.json: /optimizer/eps differs"));
  CHECK(says(other, "step 2: loss"));
  CHECK(says(other, "checkpoint step-00000010: "));

  const CommandResult metrics = compare("one/metrics.jsonl", "other/metrics.jsonl");
  CHECK(metrics.code == 1);
  CHECK(says(metrics, "different: they part at step 2: "));

  const CommandResult models = compare("one/checkpoints/step-00000010.samba", "one/checkpoints/step-00000020.samba");
  CHECK(models.code == 1);
  CHECK(says(models, "step: 10 and 20"));
  CHECK(says(models, "tensor embed.weight at "));
  CHECK(says(models, " ulp; "));
  CHECK(compare("one/checkpoints/step-00000010.samba", "two/checkpoints/step-00000010.samba").code == 0);
  CHECK(compare("one/metrics.jsonl", "two").code == 2);
  CHECK(compare("one", "nowhere").code == 2);
}

TEST_CASE("a record of a model and a prompt is checked elsewhere, and its first difference is named") {
  const TemporaryFolder folder;
  const std::string file = (folder / "mine.json").string();
  const CommandResult made = samba_command(
      {"verify", "--record", file, "--model", kModel, "--tokens", "1,2,3,4,5", "--tokens", "7", "--decode", "5"});
  INFO(made.out << made.err);
  REQUIRE(made.code == 0);
  for (const std::vector<std::string>& place :
       {std::vector<std::string>{"--threads", "2"}, {"--device", "reference"}, {"--isa", "avx2"}}) {
    std::vector<std::string> arguments{"verify", "--against", file};
    arguments.insert(arguments.end(), place.begin(), place.end());
    const CommandResult same = samba_command(arguments);
    INFO(same.out << same.err);
    CHECK(same.code == 0);
    CHECK(says(same, ", 0 different"));
  }

  json record = json::parse(read_file(file));
  json& result = record["prompts"][0]["results"][1];
  result["sha256"] = std::string(64, '0');
  result["values"][0][1] = "0x3f800000";
  write_text(file, record.dump());
  const CommandResult other = samba_command({"verify", "--against", file});
  CHECK(other.code == 1);
  CHECK(says(other, "they part at prompt 0, " + result["name"].get<std::string>() + ": another digest; at 0: got "));
  CHECK(says(other, ", 1 different"));

  write_text(file, "{}");
  CHECK(samba_command({"verify", "--against", file}).code == 3);
}

}  // namespace samba
