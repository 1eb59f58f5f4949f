// configs/recipes: every configuration is valid, has the number of parameters that its name says, and those of 1 M
// train.
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <set>

#include "command.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const Path kRecipes = Path(SAMBA_SOURCE_DIR) / "configs/recipes";

std::set<std::string> recipe_names() {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(kRecipes)) {
    if (entry.path().extension() == ".json") names.insert(entry.path().stem().string());
  }
  return names;
}

json config_of(const std::string& name) { return json::parse(read_file(kRecipes / (name + ".json"))); }

TEST_CASE("there is a recipe of every size and kind, with as many parameters as its name says") {
  const std::map<std::string, double> sizes{{"1m", 1e6}, {"10m", 10e6}, {"50m", 50e6}};
  std::set<std::string> wanted;
  for (const auto& [size, parameters] : sizes) {
    for (const std::string kind : {"hybrid", "attention", "mamba"}) {
      const std::string name = kind + "_" + size;
      CAPTURE(name);
      wanted.insert(name);
      const CommandResult printed = samba_command({"inspect", (kRecipes / (name + ".json")).string(), "--json"});
      INFO(printed.err);
      REQUIRE(printed.code == 0);
      CHECK(json::parse(printed.out)["parameters"].get<double>() == Approx(parameters).epsilon(0.07));
      const json config = config_of(name);
      std::set<std::string> layers;
      for (const json& layer : config["model"]["layers"]) layers.insert(layer.get<std::string>());
      CHECK(layers == (kind == "hybrid"      ? std::set<std::string>{"attention", "mamba3"}
                       : kind == "attention" ? std::set<std::string>{"attention"}
                                             : std::set<std::string>{"mamba3"}));
    }
  }
  CHECK(recipe_names() == wanted);
}

TEST_CASE("the first run trains the hybrid recipe of 10 M parameters") {
  const json run = json::parse(read_file(Path(SAMBA_SOURCE_DIR) / "configs/first_run.json"));
  CHECK(run["model"] == config_of("hybrid_10m")["model"]);
  CHECK(run["schedule"]["total_steps"] == run["steps"]);
}

TEST_CASE("every recipe is a valid configuration whose schedule ends with its steps") {
  for (const std::string& name : recipe_names()) {
    CAPTURE(name);
    const CommandResult printed =
        samba_command({"train", "--config", (kRecipes / (name + ".json")).string(), "--print-config", "--data",
                       std::string(SAMBA_SOURCE_DIR) + "/LICENSE", "--set", "data.evaluation_bytes=1000"});
    INFO(printed.err);
    REQUIRE(printed.code == 0);
    const json resolved = json::parse(printed.out);
    CHECK(resolved["schedule"]["total_steps"] == resolved["steps"]);
    CHECK(resolved["data"]["order"] == "permute.v1");
  }
}

TEST_CASE("a step of every recipe of 1 M parameters on shards is taken, and evaluated") {
  const TinyRun run;
  std::string lines;
  for (int i = 0; i < 400; ++i) {
    lines += "the line no. " + std::to_string(i) + " is " + std::to_string(i * i % 97) + " of them, and then some\n";
  }
  write_text(run.path() / "lines.txt", lines);
  REQUIRE(samba_command(
              {"train-tokenizer", run.file("lines.txt"), "--vocab-size", "400", "--out", run.file("tokenizer.json")})
              .code == 0);
  REQUIRE(samba_command({"prepare", run.file("lines.txt"), "--documents", "line", "--tokenizer",
                         run.file("tokenizer.json"), "--held-out", "0.2", "--out", run.file("shards")})
              .code == 0);
  for (const std::string kind : {"hybrid", "attention", "mamba"}) {
    CAPTURE(kind);
    const CommandResult result = samba_command({"train", "--config", (kRecipes / (kind + "_1m.json")).string(),
                                                "--data", run.file("shards"), "--out", run.file(kind), "--steps", "1"});
    INFO(result.err);
    REQUIRE(result.code == 0);
    const std::vector<json> metrics = metrics_of(run.file(kind));
    REQUIRE(metrics.size() == 2);
    CHECK(metrics[0]["loss"].get<double>() == Approx(std::log(4096.0)).margin(0.5));
    CHECK(metrics[1]["bits_per_byte"].get<double>() > 0.0);
  }
}

}  // namespace
}  // namespace samba
