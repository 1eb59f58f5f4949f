// The small MLP as a user meets it: train on rows, resume, logits, inspect, convert, and what is refused.
#include <catch2/catch.hpp>
#include <filesystem>

#include "bits.h"
#include "command.h"
#include "samba/backends/registry.h"
#include "samba/formats/safetensors.h"
#include "samba/model/mlp_inference.h"
#include "samba/train/mlp_checkpoint.h"
#include "samba/train/mlp_data.h"
#include "samba/train/mlp_trainer.h"
#include "samba/train/window_order.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

// A folder with rows.csv (60 rows with a class) and mlp.json.
class MlpFolder {
 public:
  MlpFolder() {
    std::string text = "a,b,c,d,e,f,g,h,class\n";
    for (int i = 0; i < 60; ++i) {
      for (int feature = 0; feature < 8; ++feature) {
        text += std::to_string((i * 7 + feature * 5) % 13 - 6 + 10 * (i % 3 == feature % 3)) + "e-1, ";
      }
      text += std::to_string(i % 3) + "\r\n";
    }
    write_text(path() / "rows.csv", text);
    write({{"seed", 5},
           {"steps", 20},
           {"model", {{"kind", "mlp"}}},
           {"data", {{"paths", {"rows.csv"}}, {"evaluation_rows", 12}}},
           {"batch", {{"rows", 10}}},
           {"optimizer", {{"lr", 0.02}}},
           {"checkpoint", {{"every", 8}}},
           {"evaluation", {{"every", 10}}}});
  }
  Path path() const { return folder_.path(); }
  std::string file(const std::string& name) const { return (path() / name).string(); }
  void write(const json& config) const { write_text(path() / "mlp.json", config.dump(2)); }
  CommandResult train(const std::string& out, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{"train", "--config", file("mlp.json"), "--out", file(out)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return samba_command(arguments);
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("the shipped configuration trains from the root of the source tree") {
  const MlpFolder folder;
  const CommandResult result = samba_command({"train", "--config", std::string(SAMBA_SOURCE_DIR) + "/configs/mlp.json",
                                              "--out", folder.file("run"), "--json"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  const std::vector<json> events = json_lines(result.out);
  CHECK(events.back()["step"] == 400);
  double accuracy = 0.0;
  for (const json& event : events) accuracy = event.value("accuracy", accuracy);
  CHECK(accuracy > 0.9);
  CHECK_THAT(result.err, Contains("training 195 parameters on 320 rows of 1 file(s)") && Contains("classes right"));
}

TEST_CASE("configs/mlp/schema.json knows the fields of an MLP's configuration and their defaults") {
  const json schema = json::parse(read_file(Path(SAMBA_SOURCE_DIR) / "configs/mlp/schema.json"));
  const MlpFolder folder;
  const std::string config = folder.file("least.json");
  write_text(config, json{{"model", {{"kind", "mlp"}}}, {"data", {{"paths", {"rows.csv"}}}}, {"epochs", 2}}.dump());
  const CommandResult printed = samba_command({"train", "--config", config, "--print-config"});
  REQUIRE(printed.code == 0);
  json resolved = json::parse(printed.out);
  std::size_t defaults = 0;
  for (const auto& [name, described] : schema.at("properties").items()) {
    INFO(name);
    if (name == "steps") continue;  // epochs were given
    REQUIRE(resolved.contains(name));
    const json value = resolved[name];
    resolved.erase(name);
    if (!described.contains("properties")) continue;
    REQUIRE(described.at("properties").size() == value.size());
    for (const auto& [field, leaf] : described.at("properties").items()) {
      INFO(field);
      REQUIRE(value.contains(field));
      if (!leaf.contains("default")) continue;
      CHECK(leaf.at("default") == value.at(field));
      ++defaults;
    }
  }
  CHECK(resolved.empty());
  CHECK(defaults == 14);
}

TEST_CASE("an MLP run leaves config, metrics and checkpoints as any run") {
  const MlpFolder folder;
  const CommandResult result = folder.train("run");
  INFO(result.err);
  REQUIRE(result.code == 0);
  const Path run = folder.path() / "run";
  CHECK(result.out == (run / "checkpoints/step-00000020.mlp").string() + "\n");
  CHECK(read_file(run / "latest") == "checkpoints/step-00000020.mlp\n");
  for (const char* name : {"step-00000008.mlp", "step-00000016.mlp", "step-00000020.mlp", "step-00000020.json"}) {
    CHECK(fs::exists(run / "checkpoints" / name));
  }
  CHECK((fs::status(run / "checkpoints/step-00000020.mlp").permissions() & fs::perms::all) ==
        (fs::perms::owner_read | fs::perms::owner_write));
  const std::vector<json> metrics = metrics_of(run);
  REQUIRE(metrics.size() == 22);
  CHECK(metrics[0]["lr_bits"] == "0x3ca3d70a");  // float32(0.02)
  CHECK(metrics[20]["tokens"] == 200);           // rows
  CHECK(metrics[21].contains("accuracy"));
  CHECK(metrics[20]["loss"].get<double>() < metrics[0]["loss"].get<double>());
  const json config = json::parse(read_file(run / "config.json"));
  CHECK(config["model"] == json({{"kind", "mlp"}}));
  CHECK(config["data"]["rows"] == 48);
  CHECK(config["steps"] == 20);
  const json checkpoint = json::parse(read_file(run / "checkpoints/step-00000020.mlp"));
  const json schedule = checkpoint["payload"]["data_schedule"];
  CHECK(schedule["rows_drawn"] == 200);
  CHECK(schedule["order"] == "permute.v1");
  CHECK(schedule["sha256"] == config["data"]["sha256"]);
  const json sidecar = json::parse(read_file(run / "checkpoints/step-00000020.json"));
  CHECK(sidecar["profile"] == "neural-training.fp32.v1");
  CHECK(sidecar["tokenizer"].is_null());
}

TEST_CASE("20 steps of an MLP give the bytes of 7 steps and 13 more, on the reference too") {
  for (const char* order : {"permute.v1", "draw.v1"}) {
    const MlpFolder folder;
    const std::string choice = std::string("data.order=") + order;
    REQUIRE(folder.train("whole", {"--set", choice}).code == 0);
    REQUIRE(folder.train("parts", {"--set", choice, "--steps", "7", "--device", "reference"}).code == 0);
    const CommandResult resumed = samba_command({"train", "--resume", folder.file("parts"), "--steps", "20"});
    INFO(resumed.err);
    REQUIRE(resumed.code == 0);
    const std::string last = "checkpoints/step-00000020.mlp";
    CHECK(read_file(folder.path() / "whole" / last) == read_file(folder.path() / "parts" / last));
    std::vector<json> parts = metrics_of(folder.path() / "parts");
    parts.erase(parts.begin() + 7);  // the evaluation at the end of the first part
    CHECK(parts == metrics_of(folder.path() / "whole"));
    // Again from an older checkpoint.
    const Path old = folder.path() / "whole/checkpoints/step-00000008.mlp";
    REQUIRE(samba_command({"train", "--resume", old.string()}).code == 0);
    CHECK(read_file(folder.path() / "whole" / last) == read_file(folder.path() / "parts" / last));
  }
}

TEST_CASE("step s of an MLP run takes rows s*B .. s*B+B-1 of the order of its seed, every row once an epoch") {
  const MlpFolder folder;
  REQUIRE(folder.train("run").code == 0);
  const json config = json::parse(read_file(folder.path() / "mlp.json"));
  const auto seed = config.at("seed").get<std::uint64_t>();
  const std::uint64_t rows_a_step = 10, training_rows = 48;
  const auto executor = make_executor("cpu");
  const MlpRows rows = read_mlp_rows({folder.file("rows.csv")}, ClassColumn::required);
  OptimizerSettings settings;
  settings.lr = 0.02;
  MlpTrainer trainer(*executor, mlp_arrays(draw_mlp_values(seed)), {{"by", "hand"}}, settings);
  for (std::uint64_t step = 0; step < 20; ++step) {
    std::vector<std::uint64_t> taken;
    for (std::uint64_t i = step * rows_a_step; i < (step + 1) * rows_a_step; ++i) {
      taken.push_back(permuted_index(seed, i / training_rows, i % training_rows, training_rows));
    }
    trainer.train_step(rows.features_of(taken), rows.classes_of(taken));
  }
  const auto trained = load_mlp_for_training(*executor, folder.path() / "run/checkpoints/step-00000020.mlp");
  for (const auto& [name, weight] : trainer.weights()) {
    INFO(name);
    CHECK(bits_equal(trained->weights().at(name).floats(), weight.floats()));
  }
}

TEST_CASE("epochs are as many steps as the rows need") {
  const MlpFolder folder;
  json config = json::parse(read_file(folder.path() / "mlp.json"));
  config.erase("steps");
  config["epochs"] = 3;
  folder.write(config);
  REQUIRE(folder.train("run").code == 0);  // 3 * 48 rows in batches of 10
  CHECK(read_file(folder.path() / "run/latest") == "checkpoints/step-00000015.mlp\n");
  CHECK(samba_command({"train", "--resume", folder.file("run"), "--steps", "16"}).code == 0);
}

TEST_CASE("a resume with other rows or settings names what differs") {
  const MlpFolder folder;
  REQUIRE(folder.train("run", {"--steps", "3"}).code == 0);
  const auto message = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"train", "--resume", folder.file("run")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = samba_command(arguments);
    CHECK(result.code == 2);
    return result.err;
  };
  CHECK_THAT(message({"--set", "optimizer.lr=0.5"}), Contains("/optimizer/lr is 0.5, the run has 0.02"));
  CHECK_THAT(message({"--set", "batch.rows=4"}), Contains("/batch/rows is 4, the run has 10"));
  CHECK_THAT(message({"--set", "data.evaluation_rows=5"}), Contains("/data/evaluation_rows"));
  CHECK_THAT(message({"--steps", "2"}), Contains("/steps: 2 is less than the 3 steps"));
  write_text(folder.path() / "other.csv", "1,2,3,4,5,6,7,8,0\n" + read_file(folder.path() / "rows.csv").substr(22));
  CHECK_THAT(message({"--data", folder.file("other.csv")}), Contains("/data/sha256"));
}

TEST_CASE("bad rows are named by their line, bad configs by their field, before anything is written") {
  const MlpFolder folder;
  const auto message = [&](std::vector<std::string> more) {
    const CommandResult result = folder.train("run", std::move(more));
    CHECK(result.code == 2);
    CHECK_FALSE(fs::exists(folder.file("run")));
    return result.err;
  };
  write_text(folder.path() / "bad.csv",
             "f1,f2,f3,f4,f5,f6,f7,f8,class\n1,2,3,4,5,6,7,8,0\n1,2,3,4,5,6,7,8,3\n\n1,2,x,4,5,6,7,8,1\n1,2,3\n"
             "1,2,3,4,nan,6,7,8,1\n1,2,3,4,5,6,7,1e99,1\n1,2,3,4,5,6,7,8,1.0\n");
  const std::string bad = message({"--data", folder.file("bad.csv")});
  CHECK_THAT(bad, Contains("6 bad row(s)") && Contains("bad.csv:3: the class must be 0, 1 or 2, got \"3\""));
  CHECK_THAT(bad, Contains("bad.csv:5: feature 3 must be a finite number, got \"x\""));
  CHECK_THAT(bad, Contains("bad.csv:6: needs 8 features and a class, got 3 fields"));
  CHECK_THAT(bad,
             Contains("bad.csv:7: feature 5") && Contains("bad.csv:8: feature 8") && Contains("bad.csv:9: the class"));
  write_text(folder.path() / "empty.csv", "f1,f2,f3,f4,f5,f6,f7,f8,class\n");
  CHECK_THAT(message({"--data", folder.file("empty.csv")}), Contains("empty.csv has no row of features"));
  CHECK_THAT(message({"--data", folder.file("none.csv")}), Contains("none.csv"));
  CHECK_THAT(message({"--data", folder.path().string()}), Contains("is a folder; a CSV file is needed"));
  CHECK_THAT(message({"--set", "model.kind=mpl"}), Contains("/model/kind: must be one of mlp") && Contains("mpl"));
  CHECK_THAT(message({"--set", "batch.rows=257"}), Contains("/batch/rows: must be an integer"));
  CHECK_THAT(message({"--set", "optimizer.lr=0"}), Contains("/optimizer: requires lr > 0"));
  CHECK_THAT(message({"--set", "epochs=2"}), Contains("either /steps or /epochs"));
  CHECK_THAT(message({"--set", "data.evaluation_rows=60"}), Contains("/data/evaluation_rows: 60 of the 60 rows"));
  CHECK_THAT(message({"--set", "model.vocab=256"}), Contains("/model/vocab: unknown key"));
  CHECK_THAT(message({"--set", "optimizer.beta1=1"}), Contains("/optimizer: betas must remain in [0, 1)"));
}

TEST_CASE("prefill gives the logits of rows, with or without their class") {
  const MlpFolder folder;
  REQUIRE(folder.train("run").code == 0);
  const CommandResult text =
      samba_command({"prefill", "--model", folder.file("run"), "--file", folder.file("rows.csv")});
  REQUIRE(text.code == 0);
  CHECK_THAT(text.out, Contains("row 0: class ") && Contains("row 59: class ") && Contains("  logits "));
  write_text(folder.path() / "one.csv", "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8\n-1,0,1,0,1,0,1,0\n");
  const CommandResult result =
      samba_command({"prefill", "--model", folder.file("run"), "--file", folder.file("one.csv"), "--json"});
  REQUIRE(result.code == 0);
  const std::vector<json> lines = json_lines(result.out);
  REQUIRE(lines.size() == 2);
  CHECK(lines[1]["row"] == 1);
  const std::vector<std::string> from_stdin{"prefill", "--model", folder.file("run"), "--file", "-", "--json"};
  CHECK(Command(from_stdin, 0, folder.file("one.csv")).finish().out == result.out);
  const CommandResult nothing = samba_command(from_stdin);
  CHECK(nothing.code == 2);
  CHECK_THAT(nothing.err, Contains("stdin has no row of features"));
  REQUIRE(lines[0]["logits"].size() == 3);
  REQUIRE(samba_command({"prefill", "--model", folder.file("run/checkpoints/step-00000020.mlp"), "--file",
                         folder.file("one.csv"), "--logits", folder.file("logits.safetensors")})
              .code == 0);
  const SafetensorsFile file = read_safetensors(folder.path() / "logits.safetensors");
  const Array& logits = file.tensors.at("logits");
  REQUIRE(logits.shape() == Shape{2, 3});
  for (std::size_t i = 0; i < 3; ++i)
    CHECK(static_cast<double>(logits.floats()[i]) == lines[0]["logits"][i].get<double>());
  const CommandResult score =
      samba_command({"prefill", "--model", folder.file("run"), "--file", folder.file("rows.csv"), "--score", "--json"});
  REQUIRE(score.code == 0);
  CHECK(json::parse(score.out)["rows"] == 60);
  CHECK(json::parse(score.out)["accuracy"].get<double>() > 0.5);
  const auto refused = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"prefill", "--model", folder.file("run")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult bad = samba_command(arguments);
    CHECK(bad.code == 2);
    return bad.err;
  };
  CHECK_THAT(refused({}), Contains("--file ROWS.csv"));
  CHECK_THAT(refused({"--prompt", "text"}), Contains("an MLP takes rows of 8 features"));
  CHECK_THAT(refused({"--file", folder.file("one.csv"), "--score"}), Contains("--score needs rows with a class"));
}

TEST_CASE("inspect shows an MLP; convert changes its form without loss; decode and verify say why not") {
  const MlpFolder folder;
  REQUIRE(folder.train("run").code == 0);
  const Path checkpoint = folder.path() / "run/checkpoints/step-00000020.mlp";
  const CommandResult shown = samba_command({"inspect", folder.file("run"), "--json", "--memory"});
  REQUIRE(shown.code == 0);
  const json description = json::parse(shown.out);
  CHECK(description["parameters"] == 195);
  CHECK(description["step"] == 20);
  CHECK(description["tensors"].size() == 4);
  CHECK(json::parse(description["data_schedule"].get<std::string>())["rows_drawn"] == 200);
  CHECK_THAT(samba_command({"inspect", folder.file("run")}).out,
             Contains("format: MLP checkpoint") && Contains("weight1"));

  REQUIRE(samba_command({"convert", folder.file("run"), folder.file("folder")}).code == 0);
  REQUIRE(samba_command({"convert", folder.file("folder"), folder.file("again.mlp")}).code == 0);
  CHECK(read_file(folder.path() / "again.mlp") == read_file(checkpoint));
  CHECK(samba_command({"inspect", folder.file("folder")}).code == 0);
  const CommandResult packed =
      samba_command({"convert", folder.file("run"), folder.file("packed"), "--dtype", "bf16", "--json"});
  REQUIRE(packed.code == 0);
  CHECK(json::parse(packed.out)["mapped"][0]["largest_error"].get<double>() < 0.01);
  CHECK_THAT(samba_command({"inspect", folder.file("packed")}).out, Contains("weight1.bits"));
  CHECK(samba_command({"prefill", "--model", folder.file("packed"), "--file", folder.file("rows.csv")}).code == 0);
  const auto refused = [](const std::vector<std::string>& arguments, int code) {
    const CommandResult result = samba_command(arguments);
    CHECK(result.code == code);
    return result.err;
  };
  CHECK_THAT(refused({"convert", folder.file("packed"), folder.file("no.mlp")}, 2), Contains("packed weights"));
  CHECK_THAT(refused({"convert", folder.file("run"), folder.file("no.mlp"), "--dtype", "int8"}, 2),
             Contains("--to safetensors"));
  CHECK_THAT(refused({"decode", "--model", folder.file("run"), "--prompt", "a"}, 2),
             Contains("is an MLP") && Contains("no tokens to continue"));
  CHECK_THAT(refused({"verify", "--model", folder.file("run")}, 2), Contains("is an MLP"));
  std::string bytes = read_file(checkpoint);
  bytes[bytes.find("\"hex\":\"") + 9] ^= 1;
  write_text(checkpoint, bytes);
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"inspect", folder.file("run")},
        {"prefill", "--model", folder.file("run"), "--file", folder.file("rows.csv")},
        {"train", "--resume", folder.file("run"), "--steps", "30"},
        {"convert", folder.file("run"), folder.file("other")}}) {
    CHECK_THAT(refused(arguments, 3), Contains("step-00000020.mlp"));
  }
}

TEST_CASE("a loss that is not finite stops the training of an MLP with 1") {
  const MlpFolder folder;
  const CommandResult result = folder.train(
      "run", {"--set", "optimizer.lr=1e38", "--set", "optimizer.weight_decay=0", "--set", "checkpoint.every=1"});
  CHECK(result.code == 1);
  CHECK_THAT(result.err, Contains("training stopped at step") && Contains("samba verify --replay"));
  const auto batch = std::filesystem::directory_iterator(folder.file("run/batches"))->path();
  const CommandResult replay = samba_command({"verify", "--replay", batch.string()});
  INFO(replay.out << replay.err);
  CHECK(replay.code == 0);
  CHECK_THAT(replay.out, Contains("of its rows alone:\n  row ") && Contains("equal: nonfinite: "));
}

TEST_CASE("a run of an MLP goes on in the folder that convert made of it, with the bits and the metrics of the run") {
  const MlpFolder folder;
  REQUIRE(folder.train("run").code == 0);
  REQUIRE(samba_command({"convert", folder.file("run"), folder.file("folder")}).code == 0);
  // The form of the folder changes nothing.
  REQUIRE(samba_command({"convert", folder.file("folder"), folder.file("again.mlp")}).code == 0);
  CHECK(read_file(folder.file("again.mlp")) == read_file(folder.file("run/checkpoints/step-00000020.mlp")));
  const auto resume = [&](const std::string& place) {
    const CommandResult result = samba_command({"train", "--resume", folder.file(place), "--steps", "30"});
    INFO(result.err);
    CHECK(result.code == 0);
    return result.err;
  };
  resume("run");
  CHECK_THAT(resume("folder"), Contains("it is now in " + folder.file("folder") + ".old-1"));
  for (const char* name : {"step-00000030.mlp", "step-00000030.json"}) {
    CHECK(read_file(folder.file("folder/checkpoints/") + name) == read_file(folder.file("run/checkpoints/") + name));
  }
  const CommandResult compared = samba_command({"verify", "--compare", folder.file("run"), folder.file("folder")});
  INFO(compared.out << compared.err);
  CHECK(compared.code == 0);

  // What holds no run is refused and stays as it is.
  REQUIRE(samba_command({"convert", folder.file("again.mlp"), folder.file("alone")}).code == 0);
  const CommandResult alone = samba_command({"train", "--resume", folder.file("alone")});
  CHECK(alone.code == 2);
  CHECK_THAT(alone.err, Contains("holds a model, but no training run to go on with"));
  CHECK(fs::exists(folder.file("alone/model.safetensors")));
}

}  // namespace samba
