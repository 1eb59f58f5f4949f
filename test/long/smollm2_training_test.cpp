// Fine-tuning a public model: SmolLM2-135M-Instruct from its Q4_1 GGUF file (scripts/get_smollm2.sh), 20 steps on a
// text. Without a network the test says that it was skipped.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "fetched_smollm2.h"
#include "samba/backends/registry.h"
#include "samba/convert/initial_model.h"
#include "samba/train/model_kind.h"
#include "temporary_folder.h"

namespace samba {
namespace {

struct Tuned {
  std::vector<float> losses;
  std::string card;
  std::string parameters;
};

Tuned tune(const nlohmann::json& config, int threads) {
  const auto executor = make_executor("cpu", {threads, ""});
  const auto training = make_training(config, "/", model_opener());
  training->start(*executor);
  Tuned tuned;
  while (training->completed_steps() < training->steps()) tuned.losses.push_back(training->take_step(false).loss);
  tuned.card = training->card();
  tuned.parameters = training->parameters_sha256();
  return tuned;
}

}  // namespace

TEST_CASE("20 steps from SmolLM2 lower its loss on a text, with the same bits on 1 and 2 threads") {
  const std::string path = fetched_smollm2();
  if (path.empty()) return;
  const TemporaryFolder folder;
  write_file_atomically(folder / "text.txt", read_file(SAMBA_SOURCE_DIR "/LICENSE").substr(0, 1500));
  const nlohmann::json config = {
      {"steps", 20},
      {"seed", 1},
      {"train", {{"init_from", path}, {"freeze", {"embed.*"}}}},
      {"data", {{"paths", {(folder / "text.txt").string()}}, {"order", "permute.v1"}}},
      {"batch", {{"rows", 1}, {"length", 64}}},
      {"optimizer", {{"lr", 1e-4}, {"max_norm", 1.0}}},
  };
  const Tuned one = tune(config, 1), two = tune(config, 2);
  const auto mean = [&](std::size_t first) {
    double sum = 0.0;
    for (std::size_t i = first; i < first + 5; ++i) sum += static_cast<double>(one.losses.at(i));
    return sum / 5.0;
  };
  INFO("mean loss of the first and last five steps: " << mean(0) << ", " << mean(15));
  CHECK(mean(15) < mean(0));
  CHECK(one.losses == two.losses);
  CHECK(one.card == two.card);
  CHECK(one.parameters == two.parameters);
}

}  // namespace samba
