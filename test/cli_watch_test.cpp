// A run that is watched: TensorBoard's files, warnings when the loss leaps, the batch at fault again.
#include <catch2/catch.hpp>

#include "command.h"
#include "event_reader.h"
#include "samba/train/run_charts.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

std::vector<Path> event_files(const Path& folder) {
  std::vector<Path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

// What a reader keeps of a folder of event files: a session's start takes back what came before it.
std::map<std::string, std::map<std::int64_t, float>> kept_scalars(const Path& folder) {
  std::map<std::string, std::map<std::int64_t, float>> kept;
  for (const Path& file : event_files(folder)) {
    for (const ReadEvent& event : read_events(read_file(file))) {
      for (auto& [tag, values] : kept) {
        if (event.session == 1) values.erase(values.lower_bound(event.step), values.end());
      }
      for (const auto& [tag, value] : event.scalars) CHECK(kept[tag].emplace(event.step, value).second);
    }
  }
  return kept;
}

TEST_CASE("--tensorboard writes the numbers of metrics.jsonl; a resumed run has no step twice") {
  const TinyRun tiny;
  const CommandResult first = tiny.train("run", {"--tensorboard", "--steps", "20", "--set", "evaluation.every=10",
                                                 "--set", "sample.every=10", "--set", "sample.tokens=4"});
  INFO(first.err);
  REQUIRE(first.code == 0);
  const Path run = tiny.file("run");
  REQUIRE(event_files(run / "tensorboard").size() == 1);
  // From an older checkpoint: steps 11 to 20 are taken again.
  const CommandResult resumed = samba_command(
      {"train", "--resume", tiny.file("run/checkpoints/step-00000010.samba"), "--steps", "24", "--tensorboard"});
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  REQUIRE(event_files(run / "tensorboard").size() == 2);
  const auto kept = kept_scalars(run / "tensorboard");
  const RunRecord record = read_run(run);
  REQUIRE(record.steps.size() == 24);
  const std::vector<double> smoothed = smoothed_losses(record, kSmoothedSteps);
  for (std::size_t i = 0; i < record.steps.size(); ++i) {
    const RecordedStep& step = record.steps[i];
    CHECK(kept.at("loss/training").at(step.step) == static_cast<float>(step.loss));
    CHECK(kept.at("loss/smoothed").at(step.step) == static_cast<float>(smoothed[i]));
    CHECK(kept.at("learning_rate").at(step.step) == static_cast<float>(step.lr));
    CHECK(kept.at("gradient_norm").at(step.step) == static_cast<float>(*step.total_norm));
  }
  CHECK(kept.at("loss/held_out").size() == 3);
  CHECK(kept.at("loss/held_out").at(24) == static_cast<float>(record.evaluations.back().loss));
  CHECK(kept.at("bits_per_byte").at(24) == static_cast<float>(*record.evaluations.back().bits_per_byte));
  CHECK(kept.at("tokens_per_second").size() == 24);
  bool sampled = false;
  for (const ReadEvent& event : read_events(read_file(event_files(run / "tensorboard")[0]))) {
    if (event.step == 20 && event.texts.contains("samples/0")) {
      sampled = true;
      CHECK(event.texts.at("samples/0").starts_with("    The "));
    }
  }
  CHECK(sampled);
}

TEST_CASE("--tensorboard DIR writes there, and changes nothing in the run") {
  const TinyRun tiny;
  REQUIRE(tiny.train("plain").code == 0);
  REQUIRE(tiny.train("logged", {"--tensorboard", tiny.file("logs/deep")}).code == 0);
  CHECK_FALSE(fs::exists(tiny.file("logged/tensorboard")));
  CHECK(kept_scalars(tiny.file("logs/deep")).at("loss/training").size() == 20);
  CHECK(metrics_of(tiny.file("plain")) == metrics_of(tiny.file("logged")));
  for (const char* name : {"config.json", "checkpoints/step-00000020.samba", "checkpoints/step-00000020.json"}) {
    CHECK(read_file(Path(tiny.file("plain")) / name) == read_file(Path(tiny.file("logged")) / name));
  }
  write_text(tiny.file("file"), "");
  const CommandResult refused = tiny.train("again", {"--tensorboard", tiny.file("file/logs")});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("file/logs"));
}

TEST_CASE("plain lines tell step, loss, smoothed loss, learning rate, norm and pace") {
  const TinyRun tiny;
  const CommandResult result = tiny.train("run");
  REQUIRE(result.code == 0);
  CHECK_THAT(result.err, Contains("train 20/20 steps  loss ") && Contains("  smoothed ") && Contains("  lr ") &&
                             Contains("  norm ") && Contains(" tokens/s"));
  CHECK(result.err.find('\r') == std::string::npos);
  CHECK_THAT(tiny.train("quiet", {"--progress", "never"}).err, !Contains("train"));
}

// A run that reads the same words again and again, but random bytes in step 35.
class LeapingRun : public TinyRun {
 public:
  LeapingRun() {
    std::string text = read_file(file("text.txt")).substr(0, 2000);
    std::uint32_t state = 1;
    for (int i = 0; i < 400; ++i) text += static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
    write_text(file("text.txt"), text);
    std::string starts;
    for (int step = 1; step <= 40; ++step) {
      const int start = 37 * step;
      starts += std::to_string(start) + " " + std::to_string(step == 35 ? 2100 : start + 100) + "\n";
    }
    write_text(file("starts.txt"), starts);
    json config = tiny_config("text.txt");
    config["steps"] = 40;
    config["model"]["dropout"] = 0.1;
    config["data"] = {{"paths", {"text.txt"}}, {"start_positions", "starts.txt"}};
    config["train"] = {{"spike_window", 10}};
    config["schedule"]["total_steps"] = 40;
    write(config);
  }
};

TEST_CASE("a loss that leaps is warned of once, its batch is kept, and the step can be taken again") {
  const LeapingRun tiny;
  const CommandResult result = tiny.train("run", {"--json"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  const std::string file = tiny.file("run/batches/step-00000035.json");
  REQUIRE(event_files(tiny.file("run/batches")) == std::vector<Path>{file});
  CHECK_THAT(result.err, Contains("step 35: the loss leapt to ") && Contains("samba verify --replay " + file));
  std::size_t warnings = 0;
  for (const json& line : json_lines(result.out)) {
    if (!line.contains("warning")) continue;
    ++warnings;
    CHECK(line["step"] == 35);
    CHECK(line["batch"] == file);
  }
  CHECK(warnings == 1);
  CHECK_THAT(read_file(tiny.file("run/run.log")), Contains("the loss leapt"));
  const json kept = json::parse(read_file(file));
  CHECK(kept["reason"] == "loss_spike");
  CHECK(kept["data"]["starts"] == json({37 * 35, 2100}));
  CHECK(kept["data"]["stream"].is_number());
  CHECK(kept["loss_bits"] == metrics_of(tiny.file("run"))[34]["loss_bits"]);

  for (const char* device : {"cpu", "reference"}) {
    const CommandResult replay = samba_command({"verify", "--replay", file, "--json", "--device", device});
    INFO(replay.out << replay.err);
    CHECK(replay.code == 0);
    const json report = json::parse(replay.out);
    CHECK(report["equal"] == true);
    CHECK(report["steps_before"] == 4);  // behind the checkpoint of step 30
    CHECK(report["row_losses"][1].get<double>() > report["row_losses"][0].get<double>() + 1.0);
    CHECK(report["row_texts"][0].get<std::string>().find("lazy") != std::string::npos);
    CHECK(report["gradient"].size() > 10);
    CHECK(report["gradient"][0]["non_finite"] == 0);
  }
  const CommandResult words = samba_command({"verify", "--replay", file});
  CHECK_THAT(words.out, Contains("of its rows alone:\n  row 1: ") && Contains("equal: the loss "));
}

TEST_CASE("a resumed run warns of the same step and writes the same file") {
  const LeapingRun tiny;
  REQUIRE(tiny.train("whole").code == 0);
  REQUIRE(tiny.train("parts", {"--steps", "33"}).code == 0);
  CHECK_FALSE(fs::exists(tiny.file("parts/batches")));
  REQUIRE(samba_command({"train", "--resume", tiny.file("parts"), "--steps", "40"}).code == 0);
  CHECK(read_file(tiny.file("whole/batches/step-00000035.json")) ==
        read_file(tiny.file("parts/batches/step-00000035.json")));
  REQUIRE(tiny.train("silent", {"--set", "train.spike_warning=0"}).code == 0);
  CHECK_FALSE(fs::exists(tiny.file("silent/batches")));
}

TEST_CASE("the replay of a batch tells where it parts from the file, and refuses what is none") {
  const LeapingRun tiny;
  REQUIRE(tiny.train("run").code == 0);
  const std::string file = tiny.file("run/batches/step-00000035.json");
  const auto replay_of = [&](const std::string& path) { return samba_command({"verify", "--replay", path}); };
  const std::string text = read_file(file);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string edited = text;
    const std::size_t at = edited.find(from);
    REQUIRE(at != std::string::npos);
    write_text(file, edited.replace(at, from.size(), to));
    return replay_of(file);
  };
  const CommandResult loss = with("\"loss_bits\":\"0x", "\"loss_bits\":\"0y");
  CHECK(loss.code == 1);
  CHECK_THAT(loss.out, Contains("different: the run had a loss of 0y"));
  const CommandResult batch = with("\"inputs\":[[", "\"inputs\":[[1,");
  CHECK(batch.code == 1);
  CHECK_THAT(batch.out, Contains("give another batch than the one in the file"));
  const CommandResult card = with("\"card\":\"", "\"card\":\"0");
  CHECK(card.code == 1);
  CHECK_THAT(card.out, Contains("the steps before are not those of the run"));
  CHECK(with("samba.batch.v1", "samba.batch.v2").code == 3);
  CHECK(with("{", "").code == 3);
  write_text(file, text);
  CHECK(samba_command({"verify", "--replay", file, "--steps", "3"}).code == 2);
  write_text(tiny.file("alone.json"), text);
  const CommandResult alone = replay_of(tiny.file("alone.json"));
  CHECK(alone.code == 2);
  CHECK_THAT(alone.err, Contains("must lie in the folder `batches` of its run"));
  CHECK_THAT(tiny.train("bad", {"--set", "train.spike_warning=-1"}).err, Contains("/train/spike_warning: must be"));
  CHECK_THAT(tiny.train("bad", {"--set", "train.spike_window=1"}).err, Contains("/train/spike_window"));
}

TEST_CASE("a loss that is not finite leaves the step's batch, and its replay gives the same refusal") {
  const TinyRun tiny;
  json config = tiny_config("text.txt");
  config.erase("schedule");
  config["optimizer"] = {{"lr", 1e30}};
  config["checkpoint"] = {{"every", 1}};
  tiny.write(config);
  const CommandResult result = tiny.train("run");
  CHECK(result.code == 1);
  CHECK_THAT(result.err, Contains("training stopped at step ") && Contains("samba verify --replay"));
  const Path batches = tiny.file("run/batches");
  REQUIRE(fs::exists(batches));
  const Path file = event_files(batches).at(0);
  const json kept = json::parse(read_file(file));
  CHECK(kept["format"] == "samba.batch.v1");
  CHECK(kept["reason"] == "non_finite");
  CHECK(kept["loss_bits"].is_null());
  CHECK(kept["data"]["inputs"].size() == 2);
  CHECK(kept["data"]["inputs"][0].size() == 16);
  CHECK(kept["data"]["inputs"][0][1] == kept["data"]["targets"][0][0]);
  for (const std::vector<std::string>& place :
       {std::vector<std::string>{"--threads", "2"}, {"--device", "reference"}}) {
    std::vector<std::string> arguments{"verify", "--replay", file.string()};
    arguments.insert(arguments.end(), place.begin(), place.end());
    const CommandResult replay = samba_command(arguments);
    INFO(replay.out << replay.err);
    CHECK(replay.code == 0);
    CHECK_THAT(replay.out, Contains("equal: ") && Contains("non-finite") && Contains("row 0: nan  \""));
  }
}

}  // namespace
}  // namespace samba
