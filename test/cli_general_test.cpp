// General stacks on the command line: train, resume, decode, prefill, verify; models that are for inference only.
#include <catch2/catch.hpp>
#include <filesystem>

#include "command.h"
#include "general_stack.h"
#include "samba/formats/safetensors.h"
#include "samba/train/stored_model.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

json general_config(const char* optimizer) {
  json config = tiny_config("text.txt");
  config["model"] = json::parse(R"({
    "vocab": 256, "d_model": 32, "final_norm": "rmsnorm_offset", "embedding_scale": 5.5, "logits_softcap": 20,
    "dropout": 0.1,
    "layers": [{"kind": "mamba2"}, {"kind": "mamba1"},
               {"kind": "transformer", "n_heads": 2, "head_dim": 24, "n_kv_heads": 1, "intermediate": 20, "window": 9}]})");
  config["optimizer"]["kind"] = optimizer;
  return config;
}

TEST_CASE("20 steps of a general stack give the bytes of 7 steps and 13 more, on other threads and the reference") {
  for (const char* optimizer : {"adamw", "sgd"}) {
    INFO(optimizer);
    const TinyRun run;
    run.write(general_config(optimizer));
    const CommandResult whole = run.train("whole", {"--threads", "1"});
    INFO(whole.err);
    REQUIRE(whole.code == 0);
    REQUIRE(run.train("parts", {"--steps", "7", "--device", "reference"}).code == 0);
    const CommandResult resumed =
        samba_command({"train", "--resume", run.file("parts"), "--steps", "20", "--threads", "3"});
    INFO(resumed.err);
    REQUIRE(resumed.code == 0);
    const std::string last = "checkpoints/step-00000020.samba";
    CHECK(read_file(run.path() / "whole" / last) == read_file(run.path() / "parts" / last));
    CHECK(json::parse(read_file(run.path() / "whole/checkpoints/step-00000020.json"))["profile"] ==
          "samba.stack.fp32.v1");
    const CommandResult other =
        samba_command({"train", "--resume", run.file("parts"), "--set", "model.logits_softcap=21"});
    CHECK(other.code == 2);
    CHECK_THAT(other.err, Contains("/model/logits_softcap is 21.0, the run has 20.0"));
  }
}

TEST_CASE("A trained general stack decodes, scores and verifies") {
  const TinyRun run;
  run.write(general_config("adamw"));
  REQUIRE(run.train("run").code == 0);
  const CommandResult decoded = samba_command({"decode", "--model", run.file("run"), "--prompt", "the quick ",
                                               "--max-tokens", "12", "--json", "--threads", "1"});
  REQUIRE(decoded.code == 0);
  const CommandResult on_reference = samba_command({"decode", "--model", run.file("run"), "--prompt", "the quick ",
                                                    "--max-tokens", "12", "--json", "--device", "reference"});
  CHECK(json::parse(decoded.out)["tokens"] == json::parse(on_reference.out)["tokens"]);
  CHECK(json::parse(decoded.out)["tokens"].size() == 12);

  const CommandResult scored = samba_command(
      {"prefill", "--model", run.file("run"), "--file", run.file("text.txt"), "--score", "--chunk", "33", "--json"});
  REQUIRE(scored.code == 0);
  const std::string lines = scored.out.substr(0, scored.out.find_last_not_of('\n') + 1);  // a token each, then the text
  CHECK(json::parse(lines.substr(lines.rfind('\n') + 1))["bits_per_byte"].get<double>() < 8.0);
  const CommandResult verified = samba_command({"verify", "--model", run.file("run")});
  CHECK(verified.code == 0);
  CHECK_THAT(verified.out, Contains("checks: 10 passed, 0 failed"));
}

// A model file of initial values.
Path write_model_of(const StackConfig& config, const Path& path) {
  const auto executor = make_executor("cpu", {1, ""});
  Generator generator(4);
  const SambaStack stack(*executor, config, generator, widest_use(config));
  StoredModel model;
  model.state.config = config;
  for (auto& [name, array] : stack.weights()) model.weights.emplace(name, std::move(array));
  write_model_file(model, path);
  return path;
}

TEST_CASE("A model for inference only runs from a file; training refuses its configuration with the reason") {
  const TinyRun run;
  const json model = json::parse(R"({
    "vocab": 256, "d_model": 64,
    "layers": [{"kind": "transformer", "n_heads": 4, "intermediate": 96, "numeric_profile": "fixed15_v1"}]})");
  const StackConfig config = stack_config_from_json(model);
  REQUIRE(inference_only_reason(config).has_value());
  const std::string file = write_model_of(config, run.path() / "integers.samba").string();
  const CommandResult logits =
      samba_command({"prefill", "--model", file, "--tokens", "5,17,3,200", "--logits", run.file("logits.safetensors")});
  INFO(logits.err);
  REQUIRE(logits.code == 0);
  const auto executor = make_executor("cpu", {1, ""});
  Generator generator(4);
  SambaStack stack(*executor, config, generator, SambaStack::Use::inference);
  const std::vector<std::int32_t> ids = {5, 17, 3, 200};
  const Array wanted = stack.forward(ConstArray{DType::int32, {1, 4}, ids.data()});
  const SafetensorsFile written = read_safetensors(run.path() / "logits.safetensors");
  const std::span<const float> got = written.tensors.at("logits").floats();
  CHECK(std::equal(got.begin(), got.end(), wanted.floats().begin(), wanted.floats().end()));
  CHECK(samba_command({"verify", "--model", file}).code == 0);
  CHECK(samba_command({"decode", "--model", file, "--prompt", "a", "--max-tokens", "40"}).code == 0);

  json training = json::parse(read_file(Path(SAMBA_SOURCE_DIR) / "configs/llama_small.json"));
  training["model"] = model;
  write_file_atomically(run.path() / "integers.json", training.dump());
  const CommandResult refused =
      samba_command({"train", "--config", run.file("integers.json"), "--out", run.file("no")});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("/model/layers/0/numeric_profile") && Contains("for inference only"));
  CHECK_FALSE(std::filesystem::exists(run.path() / "no"));
}

TEST_CASE("A model that declares more positions than its angles reach says so, and refuses what reaches the limit") {
  const TinyRun run;
  const StackConfig config = stack_config_from_json(json::parse(R"({
    "vocab": 256, "d_model": 16,
    "layers": [{"kind": "transformer", "n_heads": 2, "intermediate": 8, "max_positions": 40000}]})"));
  const std::string file = write_model_of(config, run.path() / "long.samba").string();
  const CommandResult fits = samba_command({"decode", "--model", file, "--tokens", "1,2", "--max-tokens", "3"});
  CHECK(fits.code == 0);
  CHECK_THAT(fits.err, Contains("40000 positions") && Contains("8192"));
  const CommandResult refused = samba_command({"decode", "--model", file, "--tokens", "1,2", "--max-tokens", "8192"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("8193 positions; the model has 8192"));
}

}  // namespace
}  // namespace samba
