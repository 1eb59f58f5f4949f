// The commands of samba that write files, in small, for the fault tests.
#pragma once

#include <cstdlib>

#include "fault_walk.h"

namespace samba {

inline std::vector<std::string> quiet(std::vector<std::string> arguments) {
  for (const char* flag : {"--progress", "never", "--log-level", "error", "--threads", "1", "--device", "cpu"}) {
    arguments.emplace_back(flag);
  }
  return arguments;
}

inline void must_run(const std::vector<std::string>& arguments) {
  const CommandResult result = samba_command(quiet(arguments));
  if (result.code != 0) throw std::runtime_error(result.err);
}

inline nlohmann::json fault_config() {
  nlohmann::json config = tiny_config("text.txt");
  config["steps"] = 6;
  config["schedule"]["total_steps"] = 6;
  config["checkpoint"] = {{"every", 3}, {"keep_last", 2}, {"digest_every", 3}};
  config["sample"] = {{"every", 4}, {"tokens", 3}};
  config["evaluation"] = {{"every", 3}};
  return config;
}

inline void lay_text(const Path& folder, const nlohmann::json& config) {
  std::string text;
  for (int i = 0; i < 30; ++i) text += "the quick brown fox no. " + std::to_string(i) + " jumps over the lazy dog\n";
  write_text(folder / "text.txt", text);
  write_text(folder / "tiny.json", config.dump());
}

inline std::vector<std::string> train_of(const Path& folder) {
  return quiet({"train", "--config", folder / "tiny.json", "--out", folder / "run", "--force"});
}
inline std::vector<std::string> resume_of(const Path& folder) {
  return quiet({"train", "--resume", folder / "run", "--steps", "6"});
}
// What a user does behind a run that failed: go on with it where there is something to go on with.
inline std::vector<std::string> go_on_with(const Path& folder) {
  return std::filesystem::exists(folder / "run/latest") ? resume_of(folder) : train_of(folder);
}

inline const std::vector<std::string> kRunFiles = {
    "run/checkpoints/step-00000003.samba", "run/checkpoints/step-00000003.json", "run/checkpoints/step-00000006.samba",
    "run/checkpoints/step-00000006.json"};

// A trained run of three steps.
inline void lay_run(const Path& folder) {
  lay_text(folder, fault_config());
  must_run({"train", "--config", folder / "tiny.json", "--out", folder / "run", "--steps", "3"});
}

inline FaultScenario training_scenario() {
  FaultScenario scenario;
  scenario.name = "train";
  scenario.lay = [](const Path& folder) { lay_text(folder, fault_config()); };
  scenario.command = train_of;
  scenario.retry = go_on_with;
  scenario.outputs = kRunFiles;
  scenario.changing = {"run/latest", "run/loss.svg"};
  scenario.metrics = {"run/metrics.jsonl"};
  return scenario;
}

inline FaultScenario resume_scenario() {
  FaultScenario scenario;
  scenario.name = "resume";
  scenario.lay = lay_run;
  scenario.command = resume_of;
  scenario.outputs = kRunFiles;
  scenario.changing = {"run/latest", "run/loss.svg"};
  scenario.outputs.emplace_back("run/config.json");
  scenario.metrics = {"run/metrics.jsonl"};
  return scenario;
}

inline FaultScenario tokenizer_training_scenario() {
  FaultScenario scenario = training_scenario();
  scenario.name = "train with a tokenizer";
  scenario.lay = [](const Path& folder) {
    nlohmann::json config = fault_config();
    config["model"]["vocab"] = 300;
    config["data"]["tokenizer"] = "tokenizer.json";
    lay_text(folder, config);
    must_run({"train-tokenizer", folder / "text.txt", "--vocab-size", "300", "--out", folder / "tokenizer.json"});
  };
  scenario.outputs.emplace_back("run/tokenizer.json");
  return scenario;
}

inline FaultScenario mlp_scenario() {
  FaultScenario scenario;
  scenario.name = "train an mlp";
  scenario.lay = [](const Path& folder) {
    std::string rows = "f0,f1,f2,f3,f4,f5,f6,f7,class\n";
    for (int i = 0; i < 12; ++i) {
      for (int j = 0; j < 8; ++j) rows += std::to_string((i * 7 + j * 3) % 10) + ".5,";
      rows += std::to_string(i % 3) + "\n";
    }
    write_text(folder / "rows.csv", rows);
    const nlohmann::json config = {{"model", {{"kind", "mlp"}}},
                                   {"data", {{"paths", {"rows.csv"}}, {"evaluation_rows", 2}}},
                                   {"batch", {{"rows", 2}}},
                                   {"steps", 4},
                                   {"checkpoint", {{"every", 2}}}};
    write_text(folder / "tiny.json", config.dump());
  };
  scenario.command = train_of;
  scenario.retry = [](const Path& folder) {
    const bool begun = std::filesystem::exists(folder / "run/latest");
    return begun ? quiet({"train", "--resume", folder / "run"}) : train_of(folder);
  };
  scenario.outputs = {"run/checkpoints/step-00000002.mlp", "run/checkpoints/step-00000004.mlp",
                      "run/checkpoints/step-00000004.json"};
  scenario.changing = {"run/latest", "run/loss.svg"};
  scenario.metrics = {"run/metrics.jsonl"};
  return scenario;
}

// `arguments`: of `samba convert` behind the model; the file or folder OUT is in the way with other content when
// `replaces`.
inline FaultScenario convert_scenario(const std::string& name, const std::string& out, std::vector<std::string> more,
                                      std::vector<std::string> outputs, bool replaces) {
  FaultScenario scenario;
  scenario.name = "convert to " + name;
  scenario.lay = [=](const Path& folder) {
    lay_run(folder);
    if (replaces) write_text(folder / out, "what was there before");
  };
  scenario.command = [=](const Path& folder) {
    std::vector<std::string> arguments{"convert", folder / "run", folder / out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return quiet(std::move(arguments));
  };
  // A folder must be new: one that is complete but for the last fsync is in the way.
  scenario.retry = [=, command = scenario.command](const Path& folder) {
    if (std::filesystem::is_directory(folder / out)) std::filesystem::remove_all(folder / out);
    return command(folder);
  };
  scenario.outputs = std::move(outputs);
  return scenario;
}

// From a Hugging Face folder, with a tokenizer that goes along.
inline FaultScenario foreign_scenario(const std::string& name, const std::string& out, std::vector<std::string> more,
                                      std::vector<std::string> outputs) {
  FaultScenario scenario = convert_scenario(name, out, std::move(more), std::move(outputs), false);
  scenario.lay = [](const Path& folder) {
    std::filesystem::create_directory(folder / "out");
    std::filesystem::copy(Path(SAMBA_SOURCE_DIR) / "test/huggingface/folders/llama", folder / "run");
    write_text(folder / "text.txt", "one two three one two three four");
    must_run({"train-tokenizer", folder / "text.txt", "--vocab-size", "257", "--out", folder / "run/tokenizer.json"});
    write_text(folder / "run/tokenizer_config.json", "{}");
  };
  return scenario;
}

// A command that reads the trained run and writes one file, over an old one.
inline FaultScenario writing_scenario(const std::string& name, std::vector<std::string> command,
                                      const std::vector<std::string>& flags_of_files) {
  FaultScenario scenario;
  scenario.name = name;
  scenario.lay = [=](const Path& folder) {
    lay_run(folder);
    for (std::size_t i = 1; i < flags_of_files.size(); i += 2) write_text(folder / flags_of_files[i], "before");
  };
  scenario.command = [=](const Path& folder) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--model", folder / "run"});
    for (std::size_t i = 0; i < flags_of_files.size(); i += 2) {
      arguments.insert(arguments.end(), {flags_of_files[i], folder / flags_of_files[i + 1]});
    }
    return quiet(std::move(arguments));
  };
  for (std::size_t i = 1; i < flags_of_files.size(); i += 2) scenario.outputs.push_back(flags_of_files[i]);
  return scenario;
}

inline FaultScenario continued_state_scenario() {
  FaultScenario scenario =
      writing_scenario("decode from a state", {"decode", "--max-tokens", "3"}, {"--save-state", "after.state"});
  const auto lay = scenario.lay;
  const auto command = scenario.command;
  scenario.lay = [=](const Path& folder) {
    lay(folder);
    must_run({"prefill", "--model", folder / "run", "--prompt", "the quick", "--save-state", folder / "first.state"});
  };
  scenario.command = [=](const Path& folder) {
    std::vector<std::string> arguments = command(folder);
    arguments.insert(arguments.end(), {"--state", folder / "first.state"});
    return arguments;
  };
  return scenario;
}

inline FaultScenario train_tokenizer_scenario() {
  FaultScenario scenario;
  scenario.name = "train-tokenizer";
  scenario.lay = [](const Path& folder) {
    lay_text(folder, fault_config());
    write_text(folder / "tokenizer.json", "before");
  };
  scenario.command = [](const Path& folder) {
    return quiet(
        {"train-tokenizer", folder / "text.txt", "--vocab-size", "270", "--force", "--out", folder / "tokenizer.json"});
  };
  scenario.outputs = {"tokenizer.json"};
  return scenario;
}

inline void lay_texts(const Path& folder) {
  lay_text(folder, fault_config());
  std::filesystem::create_directory(folder / "in");
  std::filesystem::rename(folder / "text.txt", folder / "in/text.txt");
  std::string lines;
  for (int i = 0; i < 12; ++i) {
    lines += "{\"prompt\": \"what is no. " + std::to_string(i) + "?\", \"completion\": \"a number\"}\n";
  }
  write_text(folder / "in/lines.jsonl", lines);
  must_run({"train-tokenizer", folder / "in/text.txt", "--vocab-size", "270", "--out", folder / "tokenizer.json"});
}

inline std::vector<std::string> prepare_of(const Path& folder, const std::string& more = "") {
  std::vector<std::string> arguments{
      "prepare",     folder / "in",    "--tokenizer", folder / "tokenizer.json", "--end-token", "none",
      "--documents", "line",           "--out",       folder / "shards",         "--held-out",  "0.2",
      "--dedup",     "--shard-tokens", "400"};
  if (!more.empty()) arguments.push_back(more);
  return quiet(std::move(arguments));
}

inline FaultScenario prepare_scenario() {
  FaultScenario scenario;
  scenario.name = "prepare";
  scenario.lay = lay_texts;
  scenario.command = [](const Path& folder) { return prepare_of(folder); };
  // What a user does behind a preparation that failed: go on with it, or begin anew.
  scenario.retry = [](const Path& folder) {
    if (std::filesystem::exists(folder / "shards/index.json")) return prepare_of(folder, "--force");
    return prepare_of(folder, std::filesystem::exists(folder / "shards/progress.json") ? "--resume" : "");
  };
  for (const char* name :
       {"index.json", "train-00000.tokens", "train-00000.documents", "train-00000.targets", "train-00001.tokens",
        "held_out-00000.tokens", "held_out-00000.documents", "tokenizer.json"}) {
    scenario.outputs.push_back(std::string("shards/") + name);
  }
  return scenario;
}

inline FaultScenario resumed_prepare_scenario() {
  FaultScenario scenario = prepare_scenario();
  scenario.name = "prepare --resume";
  scenario.takes_back = true;  // shards that were closed behind the recorded place
  scenario.lay = [](const Path& folder) {
    lay_texts(folder);
    const CommandResult failed = Command(prepare_of(folder), 0, "/dev/null", [&] {
                                   for (const auto& [name, value] : {std::pair{"LD_PRELOAD", SAMBA_FAULT_SHIM},
                                                                     {"SAMBA_FAULT_CALL", "rename"},
                                                                     {"SAMBA_FAULT_KIND", "EIO"},
                                                                     {"SAMBA_FAULT_NUMBER", "5"}}) {
                                     ::setenv(name, value, 1);
                                   }
                                   ::setenv("SAMBA_FAULT_PATH", (folder / "shards").c_str(), 1);
                                 }).finish();
    if (failed.code != 4 || !std::filesystem::exists(folder / "shards/progress.json")) {
      throw std::runtime_error("the preparation did not stop half-way: " + failed.err);
    }
  };
  scenario.command = [](const Path& folder) { return prepare_of(folder, "--resume"); };
  return scenario;
}

// Pictures of a run, over old ones.
inline FaultScenario plot_scenario(const std::string& name, std::vector<std::string> outputs) {
  FaultScenario scenario;
  scenario.name = name;
  scenario.outputs = std::move(outputs);
  scenario.lay = [outputs = scenario.outputs](const Path& folder) {
    lay_run(folder);
    for (const std::string& file : outputs) write_text(folder / file, "before");
  };
  scenario.command = [outputs = scenario.outputs](const Path& folder) {
    std::vector<std::string> arguments{"plot", folder / "run"};
    for (const std::string& file : outputs) arguments.insert(arguments.end(), {"--out", folder / file});
    return quiet(std::move(arguments));
  };
  return scenario;
}

// A command whose last argument is the run.
inline FaultScenario reading_scenario(const std::string& name, const std::vector<std::string>& command) {
  FaultScenario scenario;
  scenario.name = name;
  scenario.lay = lay_run;
  scenario.command = [=](const Path& folder) {
    std::vector<std::string> arguments = command;
    arguments.push_back(folder / "run");
    return quiet(std::move(arguments));
  };
  return scenario;
}

// All, or with SAMBA_FAULT_SCENARIO=NAME that one.
inline std::vector<FaultScenario> fault_scenarios() {
  std::vector<FaultScenario> scenarios{
      training_scenario(),
      resume_scenario(),
      tokenizer_training_scenario(),
      mlp_scenario(),
      convert_scenario("a samba archive", "out.samba", {}, {"out.samba"}, true),
      convert_scenario("a stack archive", "out.samba", {"--dtype", "bfloat16", "--codec", "zstd"}, {"out.samba"}, true),
      convert_scenario("a folder", "out", {}, {"out/config.json", "out/model.safetensors", "out/optimizer.safetensors"},
                       false),
      foreign_scenario("a folder for transformers", "out", {},
                       {"out/config.json", "out/model.safetensors", "out/tokenizer.json"}),
      foreign_scenario("a file with a tokenizer", "out/model.samba", {},
                       {"out/model.samba", "out/model.json", "out/tokenizer.json"}),
      foreign_scenario("gguf", "out.gguf", {}, {"out.gguf"}),
      writing_scenario("prefill", {"prefill", "--prompt", "the quick brown"},
                       {"--logits", "logits.safetensors", "--hidden", "hidden.safetensors", "--save-state", "state"}),
      writing_scenario("prefill --score", {"prefill", "--score", "--prompt", "the quick brown"}, {"--out", "score"}),
      writing_scenario("decode", {"decode", "--prompt", "the quick", "--max-tokens", "4"}, {"--save-state", "state"}),
      continued_state_scenario(),
      writing_scenario("verify --record", {"verify", "--prompt", "the quick", "--decode", "3"}, {"--record", "record"}),
      train_tokenizer_scenario(),
      prepare_scenario(),
      resumed_prepare_scenario(),
      plot_scenario("plot", {"curves.svg", "curves.html"}),
      plot_scenario("plot a PNG", {"curves.png"}),
      reading_scenario("verify --model", {"verify", "--model"}),
      reading_scenario("inspect", {"inspect"}),
  };
  for (FaultScenario& one : scenarios) one.foreign = one.name == "plot a PNG";
  const char* only = std::getenv("SAMBA_FAULT_SCENARIO");
  if (only != nullptr) std::erase_if(scenarios, [&](const FaultScenario& one) { return one.name != only; });
  if (scenarios.empty()) throw std::runtime_error(std::string("no fault scenario is named ") + only);
  return scenarios;
}

}  // namespace samba
