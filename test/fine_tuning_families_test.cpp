// samba train --init-from on folders that transformers wrote: tiny random models of every family, fine-tuned by the
// command line.
#include <catch2/catch.hpp>
#include <filesystem>

#include "command.h"
#include "samba/backends/registry.h"
#include "samba/convert/model_source.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

std::string family(const std::string& name) {
  return (Path(SAMBA_SOURCE_DIR) / "test/huggingface/folders" / name).string();
}

// Sums, in characters below 61: the models know 61 tokens or some more.
class FamilyRun : public TinyRun {
 public:
  FamilyRun() {
    std::string sums;
    for (int i = 0; i < 300; ++i)
      sums += std::to_string(i % 10) + "+" + std::to_string(i % 7) + ":" + std::to_string(i % 10 + i % 7) + ";\n";
    write_text(path() / "sums.txt", sums);
    write({{"seed", 2},
           {"steps", 16},
           {"data", {{"paths", {"sums.txt"}}, {"order", "permute.v1"}, {"evaluation_bytes", 200}}},
           {"batch", {{"rows", 4}, {"length", 32}}},
           {"optimizer", {{"lr", 0.01}, {"max_norm", 1.0}}},
           {"train", {{"freeze", {"embed.*", "layers.0.*norm*"}}}}});
  }
};

double mean_loss(const std::vector<json>& metrics, std::size_t first, std::size_t count) {
  double sum = 0.0;
  for (std::size_t i = first; i < first + count; ++i) sum += metrics.at(i).at("loss").get<double>();
  return sum / static_cast<double>(count);
}

TEST_CASE("every family of public models is fine-tuned from its folder, with one and two threads to the same bits") {
  const auto executor = make_executor("cpu", {1, ""});
  for (const std::string name :
       {"llama", "llama_float16", "mistral", "qwen2", "qwen2_windows", "qwen3", "gemma", "phi3", "phi3_partial",
        "stablelm", "starcoder2", "mamba", "mamba_bfloat16", "mamba2", "mamba_ssm_1", "mamba_ssm_3_bin"}) {
    CAPTURE(name);
    const FamilyRun run;
    const CommandResult one = run.train("one", {"--init-from", family(name), "--threads", "1"});
    INFO(one.err);
    REQUIRE(one.code == 0);
    const std::vector<json> metrics = metrics_of(run.file("one"));
    REQUIRE(metrics.size() == 17);
    CHECK(mean_loss(metrics, 12, 4) < mean_loss(metrics, 0, 4) - 0.05);
    REQUIRE(run.train("two", {"--init-from", family(name), "--threads", "2"}).code == 0);
    CHECK(metrics_of(run.file("two")) == metrics);
    const std::string last = "checkpoints/step-00000016.samba";
    CHECK(read_file(run.path() / "one" / last) == read_file(run.path() / "two" / last));

    const ArrayMap before = load_model(*executor, find_model(family(name)))->weights();
    const ArrayMap after = load_model(*executor, find_model(run.file("one")))->weights();
    std::size_t changed = 0;
    for (const auto& [tensor, values] : before) {
      CAPTURE(tensor);
      const Array& tuned = after.at(tensor);
      REQUIRE(tuned.byte_size() == values.byte_size());
      const bool same = std::memcmp(values.data(), tuned.data(), values.byte_size()) == 0;
      const bool norm = tensor.starts_with("layers.0.") && tensor.find("norm") != std::string::npos;
      if (tensor.starts_with("embed.") || norm) CHECK(same);
      changed += same ? 0 : 1;
    }
    CHECK(changed > 3);
  }
}

TEST_CASE("a tuned model goes back to a folder of its family") {
  const FamilyRun run;
  for (const std::string name : {"qwen2", "gemma", "phi3", "stablelm", "starcoder2"}) {
    CAPTURE(name);
    REQUIRE(run.train(name, {"--init-from", family(name), "--steps", "2"}).code == 0);
    const std::string folder = run.file(name + "-folder");
    const CommandResult result =
        samba_command({"convert", run.file(name), folder, "--to", "safetensors", "--model-type",
                       json::parse(read_file(Path(family(name)) / "config.json"))["model_type"]});
    INFO(result.err);
    REQUIRE(result.code == 0);
    CHECK(json::parse(read_file(Path(folder) / "config.json"))["model_type"] ==
          json::parse(read_file(Path(family(name)) / "config.json"))["model_type"]);
  }
}

TEST_CASE("another vocabulary than that of the folder is refused with the reason, before anything is written") {
  const FamilyRun run;
  const std::string tokenizer = run.file("tokenizer.json");
  REQUIRE(samba_command({"train-tokenizer", run.file("text.txt"), "--vocab-size", "300", "--out", tokenizer}).code ==
          0);
  for (const std::string name : {"qwen2", "gemma", "phi3", "stablelm", "starcoder2"}) {
    CAPTURE(name);
    const auto message = [&](std::vector<std::string> more) {
      more.insert(more.end(), {"--init-from", family(name)});
      const CommandResult result = run.train("no", more);
      CHECK(result.code == 2);
      CHECK(!fs::exists(run.file("no")));
      return result.err;
    };
    CHECK_THAT(message({"--tokenizer", tokenizer}),
               Contains("/model/vocab: 61 is less than the ") && Contains("keeps its vocabulary"));
    CHECK_THAT(message({"--data", run.file("text.txt")}), Contains("text.txt") && Contains("61"));
    const CommandResult printed =
        samba_command({"train", "--config", run.file("tiny.json"), "--init-from", family(name), "--print-config"});
    REQUIRE(printed.code == 0);
    const json model = json::parse(printed.out)["model"];
    CHECK_THAT(message({"--set", "model=" + model.dump(), "--set", "model.vocab=100"}),
               Contains("/model/vocab: is 100, the model") && Contains("has 61 tokens; a model keeps its vocabulary"));
    CHECK_THAT(message({"--set", "model.vocab=100"}), Contains("/model"));
  }
}

}  // namespace
}  // namespace samba
