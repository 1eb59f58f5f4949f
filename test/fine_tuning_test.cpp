// Training that begins from a model: what is taken over, what stays frozen, what is refused.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "command.h"
#include "error_of.h"
#include "samba/convert/model_source.h"
#include "samba/train/freeze.h"
#include "small_stack.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

TEST_CASE("a pattern of tensor names: * any characters, ? one") {
  CHECK(matches_pattern("layers.*.D", "layers.0.D"));
  CHECK(matches_pattern("layers.*.D", "layers.0.mixer.D"));
  CHECK(matches_pattern("*", ""));
  CHECK(matches_pattern("*norm*", "layers.3.input_layernorm.weight"));
  CHECK(matches_pattern("layers.?.D", "layers.7.D"));
  CHECK(matches_pattern("a*b*c", "a-b-b-c"));
  CHECK_FALSE(matches_pattern("layers.?.D", "layers.12.D"));
  CHECK_FALSE(matches_pattern("embed", "embed.weight"));
  CHECK_FALSE(matches_pattern("a*b", "a-b-c"));
  CHECK_FALSE(matches_pattern("", "a"));
}

TEST_CASE("patterns that match nothing, and patterns that leave nothing, are refused by their place") {
  const Registry registry{StackConfig(small_config())};
  CHECK_THAT(error_of([&] {
               frozen_tensors(registry, {"*", "embed.wieght"});
             }).what(),
             Contains("/train/freeze/1: no tensor") && Contains("did you mean \"embed.weight\"?"));
  CHECK_THAT(error_of([&] { frozen_tensors(registry, {"*"}); }).what(), Contains("/train/freeze: every tensor"));
  const std::vector<bool> frozen = frozen_tensors(registry, {"embed*", "layers.1.*"});
  CHECK(std::count(frozen.begin(), frozen.end(), true) > 1);
  CHECK_FALSE(frozen[registry.final_norm()]);
}

// The flat buffers of an optimizer of all tensors, some frozen, and of one that has the others alone.
void check_frozen_step(OptimizerSettings settings) {
  settings.max_norm = 0.05;
  settings.weight_decay = 0.1;
  const auto executor = make_executor("cpu", {1, ""});
  const std::vector<Index> sizes{5, 200, 7, 1, 130};
  const std::vector<bool> frozen{true, false, true, true, false};
  Optimizer whole(*executor, sizes, settings), part(*executor, {200, 130}, settings);
  whole.freeze(frozen);
  std::vector<float> all(343), all_gradient(343), few(330), few_gradient(330);
  const auto value = [](std::size_t i) { return 0.01F * static_cast<float>(i % 17) - 0.07F; };
  std::size_t next = 0, at = 0;
  std::vector<std::size_t> places;
  for (std::size_t j = 0; j < sizes.size(); ++j) {
    for (Index i = 0; i < sizes[j]; ++i, ++at) {
      all[at] = value(at);
      all_gradient[at] = frozen[j] ? std::numeric_limits<float>::quiet_NaN() : value(3 * at);
      if (frozen[j]) continue;
      few[next] = all[at];
      few_gradient[next++] = all_gradient[at];
      places.push_back(at);
    }
  }
  const std::vector<float> before = all;
  for (int step = 0; step < 3; ++step) {
    std::vector<float> g = all_gradient, h = few_gradient;
    const StepReport one = whole.step(all.data(), g.data());
    const StepReport other = part.step(few.data(), h.data());
    CHECK(one.clip->total_norm == other.clip->total_norm);
    CHECK(one.clip->coefficient < 1.0F);
  }
  for (std::size_t i = 0; i < places.size(); ++i) REQUIRE(all[places[i]] == few[i]);
  CHECK(std::equal(all.begin(), all.begin() + 5, before.begin()));
  CHECK(std::equal(all.begin() + 205, all.begin() + 213, before.begin() + 205));
  CHECK(all[100] != before[100]);
  CHECK(whole.exp_avg()[0] == 0.0F);
  CHECK(whole.exp_avg()[210] == 0.0F);
  all_gradient[100] = std::numeric_limits<float>::infinity();
  CHECK_THAT(error_of([&] { whole.step(all.data(), all_gradient.data()); }).what(),
             Contains("input.grad is infinity at flat index 100"));
}

TEST_CASE("an optimizer with frozen tensors has the bits of one without them") {
  check_frozen_step(OptimizerSettings::defaults(OptimizerKind::adamw));
  OptimizerSettings sgd = OptimizerSettings::defaults(OptimizerKind::sgd);
  sgd.momentum = 0.9;
  check_frozen_step(sgd);
}

// A run of 5 steps whose newest checkpoint is the model to begin from.
class TrainedRun : public TinyRun {
 public:
  TrainedRun() { REQUIRE(train("base", {"--steps", "5"}).code == 0); }
};

ArrayMap weights_of(const std::string& path) {
  const auto executor = make_executor("cpu", {1, ""});
  return load_model(*executor, find_model(path))->weights();
}

bool same(const Array& a, const Array& b) {
  return a.byte_size() == b.byte_size() && std::memcmp(a.data(), b.data(), a.byte_size()) == 0;
}

TEST_CASE("a run begins from a model, takes its configuration, and leaves frozen tensors as they were") {
  const TrainedRun run;
  json config = tiny_config("text.txt");
  config.erase("model");
  config["train"] = {{"init_from", "base"}, {"freeze", {"embed.*", "layers.0.*"}}};
  config["optimizer"]["weight_decay"] = 0.5;
  run.write(config);
  const CommandResult tuned = run.train("tuned", {"--threads", "1"});
  INFO(tuned.err);
  REQUIRE(tuned.code == 0);
  const json resolved = json::parse(read_file(run.path() / "tuned/config.json"));
  CHECK(resolved["model"] == json::parse(read_file(run.path() / "base/config.json"))["model"]);
  CHECK(resolved["train"] == json({{"activation_budget_bytes", nullptr},
                                   {"spike_warning", 6.0},
                                   {"spike_window", 100},
                                   {"init_from", run.file("base")},
                                   {"freeze", {"embed.*", "layers.0.*"}}}));
  const ArrayMap before = weights_of(run.file("base")), after = weights_of(run.file("tuned"));
  std::size_t changed = 0;
  for (const auto& [name, values] : before) {
    INFO(name);
    const bool frozen = name.starts_with("embed.") || name.starts_with("layers.0.");
    CHECK(same(values, after.at(name)) == frozen);
    changed += frozen ? 0 : 1;
  }
  CHECK(changed > 3);

  // The same bits on other threads, in two parts, and from every form of the model.
  const std::string last = "checkpoints/step-00000020.samba";
  const std::string wanted = read_file(run.path() / "tuned" / last);
  REQUIRE(run.train("parts", {"--steps", "8", "--threads", "2"}).code == 0);
  fs::rename(run.path() / "base", run.path() / "moved");  // a resumed run needs it no more
  REQUIRE(samba_command({"train", "--resume", run.file("parts"), "--steps", "20"}).code == 0);
  CHECK(read_file(run.path() / "parts" / last) == wanted);
  for (const char* form : {"safetensors", "samba"}) {
    const std::string to = run.file(std::string("model-") + form);
    REQUIRE(samba_command({"convert", run.file("moved"), to, "--to", form}).code == 0);
    REQUIRE(run.train(std::string("from-") + form, {"--init-from", to}).code == 0);
    CHECK(read_file(run.path() / (std::string("from-") + form) / last) == wanted);
  }
  const CommandResult replayed = samba_command({"verify", "--replay", run.file("from-samba"), "--steps", "1..4"});
  INFO(replayed.err);
  CHECK(replayed.code == 0);
  const CommandResult other =
      samba_command({"train", "--resume", run.file("parts"), "--steps", "30", "--set", "train.freeze=[\"embed.*\"]"});
  CHECK(other.code == 2);
  CHECK_THAT(other.err, Contains("/train/freeze is [\"embed.*\"], the run has [\"embed.*\",\"layers.0.*\"]"));
}

TEST_CASE("a model that does not fit the configuration is refused with the field, before anything is written") {
  const TrainedRun run;
  const auto message = [&](const std::vector<std::string>& more) {
    const CommandResult result = run.train("run", more);
    CHECK(result.code == 2);
    CHECK(!fs::exists(run.file("run")));
    return result.err;
  };
  const std::string base = run.file("base");
  CHECK_THAT(message({"--init-from", base, "--set", "model.vocab=300"}),
             Contains("/model/vocab: is 300, the model") && Contains("has 256 tokens; a model keeps its vocabulary"));
  CHECK_THAT(message({"--init-from", base, "--set", "model.intermediate=48"}),
             Contains("/model/layers: is not that of the model"));
  CHECK_THAT(message({"--init-from", run.file("nothing")}), Contains("nothing"));
  CHECK_THAT(message({"--set", "train.init_from=7"}), Contains("/train/init_from: must be"));
  CHECK_THAT(message({"--set", "train.freeze=embed"}), Contains("/train/freeze: must be a list of patterns"));
  CHECK_THAT(message({"--set", "train.freeze=[3]"}), Contains("/train/freeze/0: must be a pattern"));
  CHECK_THAT(message({"--set", "train.freeze=[\"head.*\"]"}), Contains("/train/freeze/0: no tensor of the model"));
  CHECK_THAT(message({"--set", "train.frees=[]"}), Contains("/train/frees: unknown key; did you mean \"freeze\"?"));
  REQUIRE(run.train("run", {"--init-from", base, "--set", "model.dropout=0.25", "--steps", "1"}).code == 0);
  const CommandResult both = samba_command({"train", "--resume", run.file("run"), "--init-from", base});
  CHECK(both.code == 2);
  CHECK_THAT(both.err, Contains("--resume and --init-from exclude each other"));
}

TEST_CASE("a model with a tokenizer gives it to the run; another tokenizer is refused by its first other token") {
  const TinyRun run;
  const std::string tokenizer = run.file("tokenizer.json"), other = run.file("other.json");
  write_text(run.path() / "numbers.txt", std::string(300, '7') + " 77 777 0 00 000 1111 222 2222 333\n");
  REQUIRE(samba_command({"train-tokenizer", run.file("text.txt"), "--vocab-size", "270", "--out", tokenizer}).code ==
          0);
  REQUIRE(samba_command({"train-tokenizer", run.file("numbers.txt"), "--vocab-size", "262", "--out", other}).code == 0);
  REQUIRE(run.train("base", {"--tokenizer", tokenizer, "--set", "model.vocab=270", "--set", "data.evaluation_bytes=500",
                             "--steps", "2"})
              .code == 0);
  json config = tiny_config("text.txt");
  config.erase("model");
  config["data"]["evaluation_bytes"] = 500;
  run.write(config);
  REQUIRE(run.train("tuned", {"--init-from", run.file("base"), "--steps", "2"}).code == 0);
  CHECK(read_file(run.path() / "tuned/tokenizer.json") == read_file(tokenizer));
  const CommandResult refused = run.train("no", {"--init-from", run.file("base"), "--tokenizer", other});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("/data/tokenizer: the token 25") && Contains("a model keeps its vocabulary"));
  CHECK(!fs::exists(run.file("no")));
}

}  // namespace
}  // namespace samba
