// samba train as a user meets it: what a run leaves, how it resumes, what it refuses.
#include <catch2/catch.hpp>
#include <filesystem>

#include "command.h"
#include "samba/train/window_order.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

std::vector<std::string> names_in(const Path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST_CASE("a run leaves config, metrics, checkpoints, log, picture and samples") {
  const TinyRun run;
  const CommandResult result = run.train(
      "run", {"--json", "--set", "sample.every=10", "--set", "sample.tokens=5", "--set", "evaluation.every=10"});
  REQUIRE(result.code == 0);
  const Path folder = run.file("run");
  CHECK(names_in(folder) == std::vector<std::string>{".lock", "checkpoints", "config.json", "latest", "loss.svg",
                                                     "metrics.jsonl", "run.log", "samples.txt"});
  CHECK(names_in(folder / "checkpoints") == std::vector<std::string>{"step-00000010.json", "step-00000010.samba",
                                                                     "step-00000020.json", "step-00000020.samba"});
  CHECK(read_file(folder / "latest") == "checkpoints/step-00000020.samba\n");
  CHECK((fs::status(folder / "checkpoints/step-00000020.samba").permissions() & fs::perms::owner_all) ==
        (fs::perms::owner_read | fs::perms::owner_write));

  const std::vector<json> metrics = json_lines(read_file(folder / "metrics.jsonl"));
  REQUIRE(metrics.size() == 22);
  CHECK(metrics[0]["step"] == 1);
  for (const char* field :
       {"step", "loss", "loss_bits", "lr", "lr_bits", "total_norm", "tokens", "ignored_targets", "seconds"}) {
    CHECK(metrics[0].contains(field));
  }
  CHECK(metrics[0]["lr_bits"] == "0x3ac49ba6");  // float32(0.003 / 2)
  CHECK(metrics[20]["tokens"] == 640);
  CHECK(metrics[21]["step"] == 20);
  CHECK(metrics[21]["bits_per_byte"].get<double>() == Approx(metrics[21]["eval_loss"].get<double>() / std::log(2.0)));
  CHECK(metrics[20]["loss"].get<double>() < metrics[0]["loss"].get<double>() - 0.5);

  const json config = json::parse(read_file(folder / "config.json"));
  CHECK(config["data"]["sha256"].get<std::string>().size() == 64);
  CHECK(config["data"]["bytes"].get<int>() == static_cast<int>(fs::file_size(run.file("text.txt"))) - 200);
  const json sidecar = json::parse(read_file(folder / "checkpoints/step-00000020.json"));
  CHECK(sidecar["data"] == json({{"order", "draw.v1"}, {"seed", 3}, {"rows_drawn", 40}}));
  CHECK(sidecar["tokenizer"]["kind"] == "bytes");
  CHECK(sidecar["profile"] == "samba-stack.fp32.v1");
  CHECK_THAT(read_file(folder / "run.log"), Contains("checkpoint") && Contains("finished at step 20"));
  CHECK_THAT(read_file(folder / "loss.svg"), Contains("<polyline") && Contains("</svg>"));
  CHECK_THAT(read_file(folder / "samples.txt"), Contains("=== step 10\nThe ") && Contains("=== step 20\nThe "));

  const std::vector<json> events = json_lines(result.out);
  CHECK(events.back()["finished"] == true);
  CHECK(events.back()["step"] == 20);
  CHECK(std::count_if(events.begin(), events.end(), [](const json& e) {
          return e.contains("checkpoint") && e.contains("step") && !e.contains("finished");
        }) == 2);
  CHECK_THAT(result.err, Contains("train 20/20 steps"));
}

TEST_CASE("20 steps give the bytes of 7 steps and 13 more, on another number of threads and on the reference") {
  const TinyRun run;
  json config = tiny_config("text.txt");
  config["model"]["dropout"] = 0.1;
  config["data"]["order"] = "permute.v1";
  run.write(config);
  REQUIRE(run.train("whole", {"--threads", "1"}).code == 0);
  REQUIRE(run.train("parts", {"--steps", "7", "--device", "reference"}).code == 0);
  REQUIRE(read_file(run.path() / "parts/latest") == "checkpoints/step-00000007.samba\n");
  const CommandResult resumed =
      samba_command({"train", "--resume", run.file("parts"), "--steps", "20", "--threads", "2"});
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  const std::string last = "checkpoints/step-00000020.samba";
  CHECK(read_file(run.path() / "whole" / last) == read_file(run.path() / "parts" / last));
  std::vector<json> whole = metrics_of(run.file("whole"));
  std::vector<json> parts = metrics_of(run.file("parts"));
  parts.erase(parts.begin() + 7);  // the evaluation at the end of the first part
  CHECK(whole == parts);

  // Again from an older checkpoint: the metrics behind it are taken anew.
  const CommandResult again =
      samba_command({"train", "--resume", run.file("parts/checkpoints/step-00000010.samba"), "--steps", "20"});
  REQUIRE(again.code == 0);
  CHECK(read_file(run.path() / "whole" / last) == read_file(run.path() / "parts" / last));
  CHECK(metrics_of(run.file("parts")).size() == whole.size() + 1);
  // Nothing left to do is no error.
  CHECK(samba_command({"train", "--resume", run.file("parts")}).code == 0);
}

TEST_CASE("a run takes its windows in the order that its seed gives") {
  const TinyRun run;
  const std::uint64_t seed = 3, rows = 2, length = 16;
  const std::uint64_t training_bytes = fs::file_size(run.file("text.txt")) - 200;
  const auto permuted = permute_order(seed, (training_bytes - 1) / length, length);
  const auto drawn = draw_order(seed, training_bytes - length);
  for (const WindowOrder* order : {permuted.get(), drawn.get()}) {
    INFO(order->name());
    std::string lines;
    for (std::uint64_t step = 0; step < 20; ++step) {
      std::vector<std::uint64_t> starts(rows);
      order->starts(step, starts);
      lines += std::to_string(starts[0]) + " " + std::to_string(starts[1]) + "\n";
    }
    write_text(run.file("starts.txt"), lines);
    const std::string own = order->name();
    REQUIRE(run.train(own, {"--set", "data.order=" + own}).code == 0);
    REQUIRE(run.train("fixed-" + own, {"--set", "data.start_positions=" + run.file("starts.txt")}).code == 0);
    CHECK(read_file(run.path() / own / "checkpoints/step-00000020.samba") ==
          read_file(run.path() / ("fixed-" + own) / "checkpoints/step-00000020.samba"));
  }
}

TEST_CASE("Ctrl-C writes a checkpoint and ends with 130; the resumed run has the bits of the uninterrupted one") {
  const TinyRun run;
  REQUIRE(run.train("whole", {"--steps", "60"}).code == 0);
  Command command({"train", "--config", run.file("tiny.json"), "--out", run.file("run"), "--steps", "60", "--json"});
  REQUIRE(command.wait_for("\"step\":3,"));
  command.interrupt();
  const CommandResult result = command.finish();
  CHECK(result.code == 130);
  CHECK_THAT(result.err, Contains("interrupted after step") && Contains("samba train --resume"));
  const int step = json_lines(result.out).back()["step"].get<int>();
  REQUIRE(step < 60);
  char name[64];
  std::snprintf(name, sizeof name, "checkpoints/step-%08d.samba\n", step);
  CHECK(read_file(run.path() / "run/latest") == name);
  REQUIRE(samba_command({"train", "--resume", run.file("run")}).code == 0);
  CHECK(read_file(run.path() / "whole/checkpoints/step-00000060.samba") ==
        read_file(run.path() / "run/checkpoints/step-00000060.samba"));
}

TEST_CASE("keep_last and keep_every decide which checkpoints stay") {
  const TinyRun run;
  REQUIRE(run.train("run", {"--set", "checkpoint.every=2", "--set", "checkpoint.keep_last=2", "--set",
                            "checkpoint.keep_every=6"})
              .code == 0);
  CHECK(names_in(run.path() / "run/checkpoints") ==
        std::vector<std::string>{"step-00000006.json", "step-00000006.samba", "step-00000012.json",
                                 "step-00000012.samba", "step-00000016.json", "step-00000016.samba",
                                 "step-00000018.json", "step-00000018.samba", "step-00000020.json",
                                 "step-00000020.samba"});
}

TEST_CASE("a folder that holds a run is refused without --resume or --force; --force keeps the old one") {
  const TinyRun run;
  REQUIRE(run.train("run", {"--steps", "1"}).code == 0);
  const std::string old = read_file(run.path() / "run/metrics.jsonl");
  const CommandResult refused = run.train("run", {"--steps", "1"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("already holds a run") && Contains("--resume") && Contains("--force"));
  CHECK(read_file(run.path() / "run/metrics.jsonl") == old);
  REQUIRE(run.train("run", {"--steps", "2", "--force"}).code == 0);
  REQUIRE(run.train("run", {"--steps", "2", "--force"}).code == 0);
  CHECK(read_file(run.path() / "run.old-1/metrics.jsonl") == old);
  CHECK(fs::exists(run.path() / "run.old-2/latest"));
}

TEST_CASE("a resume with another configuration names the field that differs") {
  const TinyRun run;
  REQUIRE(run.train("run", {"--steps", "2"}).code == 0);
  const auto message = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"train", "--resume", run.file("run")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = samba_command(arguments);
    CHECK(result.code == 2);
    return result.err;
  };
  CHECK_THAT(message({"--set", "optimizer.beta2=0.95"}), Contains("/optimizer/beta2 is 0.95, the run has 0.999"));
  CHECK_THAT(message({"--set", "batch.rows=4"}), Contains("/batch/rows is 4, the run has 2"));
  CHECK_THAT(message({"--set", "schedule=null"}), Contains("/schedule is null, the run has {"));
  CHECK_THAT(message({"--steps", "1"}), Contains("/steps: 1 is less than the 2 steps"));
  CHECK_THAT(message({"--out", run.file("other")}), Contains("--resume and --out exclude each other"));
  CHECK_THAT(message({"--force"}), Contains("--resume and --force exclude each other"));
  write_text(run.path() / "other.txt", std::string(3000, 'x'));
  CHECK_THAT(message({"--data", run.file("other.txt")}), Contains("/data/sha256"));
  json other = tiny_config("text.txt");
  other["model"]["intermediate"] = 64;
  run.write(other);
  CHECK_THAT(message({"--config", run.file("tiny.json")}), Contains("/model/intermediate is 64, the run has 32"));
  // The same text elsewhere is the same text.
  fs::rename(run.path() / "text.txt", run.path() / "moved.txt");
  CHECK_THAT(message({}), Contains("there is no file or folder") && Contains("text.txt"));
  CHECK(samba_command({"train", "--resume", run.file("run"), "--data", run.file("moved.txt"), "--steps", "3"}).code ==
        0);
  const CommandResult nothing = samba_command({"train", "--resume", run.file("nowhere")});
  CHECK(nothing.code == 2);
  CHECK_THAT(nothing.err, Contains("there is no run"));
}

TEST_CASE("bad configs and bad text end with 2 before anything is written") {
  const TinyRun run;
  const auto message = [&](const std::vector<std::string>& more) {
    const CommandResult result = run.train("run", more);
    CHECK(result.code == 2);
    CHECK(!fs::exists(run.file("run")));
    return result.err;
  };
  CHECK_THAT(message({"--set", "model.layers.1=transformer"}),
             Contains("/model/layers/1: must be one of mamba3, attention, got \"transformer\""));
  CHECK_THAT(message({"--set", "optimiser={}"}), Contains("/optimiser: unknown key; did you mean \"optimizer\"?"));
  CHECK_THAT(message({"--set", "batch.length=0"}), Contains("/batch/length: must be an integer >= 1"));
  CHECK_THAT(message({"--set", "evaluation.every=3", "--set", "data.evaluation_bytes=0"}),
             Contains("/evaluation/every: 3 contradicts /data/evaluation_bytes"));
  CHECK_THAT(message({"--data", run.file("missing.txt")}),
             Contains("/data/paths/0: there is no file or folder") && Contains("missing.txt"));
  write_text(run.path() / "empty.txt", "");
  CHECK_THAT(message({"--data", run.file("empty.txt")}), Contains("the training text is empty"));
  write_text(run.path() / "short.txt", std::string(216, 'a'));
  CHECK_THAT(
      message({"--data", run.file("short.txt")}),
      Contains("the training text has 16 bytes without the 200 held back") && Contains("/batch/length + 1 = 17"));
  CHECK_THAT(message({"--set", "model.vocab=100"}),
             Contains("/model/vocab: the text has the token 116 at byte 0 of") && Contains("text.txt"));
  write_text(run.path() / "starts.txt", "0 1\n2 99999\n");
  CHECK_THAT(message({"--set", "data.start_positions=" + run.file("starts.txt"), "--steps", "2"}),
             Contains("line 2 of") && Contains("99999"));
  write_text(run.path() / "tiny.json", "{\"steps\": 3,");
  CHECK_THAT(message({}), Contains("tiny.json is not JSON"));
  const CommandResult missing = samba_command({"train", "--config", run.file("none.json")});
  CHECK(missing.code == 2);
  CHECK_THAT(missing.err, Contains("none.json"));
  const CommandResult neither = samba_command({"train"});
  CHECK(neither.code == 2);
  CHECK_THAT(neither.err, Contains("train needs --config FILE, or --resume DIR"));
}

TEST_CASE("a loss that is not finite stops the training with 1; the last good checkpoint stays") {
  const TinyRun run;
  json config = tiny_config("text.txt");
  config["schedule"] = nullptr;
  config["optimizer"] = {{"lr", 1e30}};
  config["checkpoint"]["every"] = 1;
  run.write(config);
  const CommandResult result = run.train("run");
  CHECK(result.code == 1);
  CHECK_THAT(result.err, Contains("training stopped at step") && Contains("index"));
  const std::string step = result.err.substr(result.err.find("at step ") + 8, 1);
  const std::string latest = read_file(run.path() / "run/latest");
  CHECK_THAT(latest, Contains("step-0000000" + std::to_string(std::stoi(step) - 1)));
  CHECK(samba_command({"inspect", run.file("run")}).code == 0);
  CHECK_THAT(read_file(run.path() / "run/run.log"), Contains("training stopped at step"));
}

TEST_CASE("a disk that is full while a checkpoint is saved ends with 4; the old checkpoint stays") {
  const TinyRun run;
  REQUIRE(run.train("run", {"--steps", "3"}).code == 0);
  const std::string before = read_file(run.path() / "run/checkpoints/step-00000003.samba");
  // No file may grow beyond half an archive.
  Command command({"train", "--resume", run.file("run"), "--steps", "6"}, before.size() / 2);
  const CommandResult result = command.finish();
  CHECK(result.code == 4);
  CHECK_THAT(result.err, Contains("step-00000006.samba") && Contains("File too large"));
  CHECK(read_file(run.path() / "run/latest") == "checkpoints/step-00000003.samba\n");
  CHECK(names_in(run.path() / "run/checkpoints") ==
        std::vector<std::string>{"step-00000003.json", "step-00000003.samba"});
  CHECK(read_file(run.path() / "run/checkpoints/step-00000003.samba") == before);
  CHECK(samba_command({"train", "--resume", run.file("run"), "--steps", "6"}).code == 0);
}

TEST_CASE("a damaged checkpoint is refused with 3 and leaves the run as it is") {
  const TinyRun run;
  REQUIRE(run.train("run", {"--steps", "2"}).code == 0);
  const Path archive = run.path() / "run/checkpoints/step-00000002.samba";
  std::string bytes = read_file(archive);
  bytes[bytes.size() - 1000] = static_cast<char>(bytes[bytes.size() - 1000] ^ 1);
  write_text(archive, bytes);
  const std::string metrics = read_file(run.path() / "run/metrics.jsonl");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"train", "--resume", run.file("run"), "--steps", "4"},
        {"inspect", run.file("run")},
        {"decode", "--model", run.file("run"), "--prompt", "a"},
        {"convert", run.file("run"), run.file("folder")}}) {
    const CommandResult result = samba_command(arguments);
    INFO(arguments[0]);
    CHECK(result.code == 3);
    CHECK_THAT(result.err, Contains("array_integrity") && Contains("step-00000002.samba"));
  }
  CHECK(read_file(run.path() / "run/metrics.jsonl") == metrics);
  CHECK(!fs::exists(run.file("folder")));
  write_text(archive, "nonsense");
  CHECK(samba_command({"inspect", archive.string()}).code == 3);
  write_text(run.path() / "run/latest", "../../etc/passwd\n");
  CHECK(samba_command({"inspect", run.file("run")}).code == 3);
}

TEST_CASE("two processes do not train in one folder") {
  const TinyRun run;
  REQUIRE(run.train("run", {"--steps", "1"}).code == 0);
  Command first({"train", "--resume", run.file("run"), "--steps", "100000", "--json"});
  REQUIRE(first.wait_for("\"step\":2,"));
  const CommandResult second = samba_command({"train", "--resume", run.file("run"), "--steps", "100000"});
  CHECK(second.code == 2);
  CHECK_THAT(second.err, Contains("in use by process "));
  const CommandResult forced = run.train("run", {"--force"});
  CHECK(forced.code == 2);
  CHECK_THAT(forced.err, Contains("in use by process "));
  first.interrupt();
  CHECK(first.finish().code == 130);
}

TEST_CASE("a reader of --json that goes away does not end the training") {
  const TinyRun run;
  Command command({"train", "--config", run.file("tiny.json"), "--out", run.file("run"), "--json"});
  REQUIRE(command.wait_for("\"step\":1,"));
  command.close_stdout();
  CHECK(command.finish().code == 0);
  CHECK(fs::exists(run.file("run/checkpoints/step-00000020.samba")));
}

TEST_CASE("--print-config prints the resolved configuration and writes nothing") {
  const TinyRun run;
  const CommandResult result = run.train("run", {"--print-config", "--set", "optimizer.lr=0.5"});
  REQUIRE(result.code == 0);
  const json config = json::parse(result.out);
  CHECK(config["optimizer"]["lr"] == 0.5);
  CHECK(config["model"]["n_kv_heads"] == 2);
  CHECK(config["data"]["paths"][0] == run.file("text.txt"));
  CHECK(!fs::exists(run.file("run")));
}

TEST_CASE("a run folder that cannot be made is refused") {
  const TinyRun run;
  const CommandResult file = run.train("text.txt");
  CHECK(file.code == 2);
  CHECK_THAT(file.err, Contains("is a file; a folder is needed"));
}

}  // namespace
}  // namespace samba
