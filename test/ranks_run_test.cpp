// Whole runs of several ranks, with all that a run does beside its steps: shards, frozen tensors, a model to begin
// from, evaluations, the best checkpoint, resuming. What they leave are the bytes that one process leaves.
#include <catch2/catch.hpp>
#include <filesystem>
#include <mutex>

#include "command.h"
#include "error_of.h"
#include "samba/backends/registry.h"
#include "samba/convert/initial_model.h"
#include "samba/train/local_communicator.h"
#include "samba/train/model_kind.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A run of several ranks in this process, as samba train makes one under mpirun; `resume`: an archive of the run.
TrainingResult run_ranks(int count, const json& config, const Path& folder, const Path& resume = {}) {
  TrainingResult result;
  std::mutex mutex;
  const auto body = [&](Communicator* ranks) {
    const auto executor = make_executor("cpu", {1, ""});
    const bool leads = ranks == nullptr || ranks->rank() == 0;
    std::unique_ptr<RunFolder> place;
    std::unique_ptr<Training> training;
    agreed(ranks, [&] {
      training = make_training(config, folder.parent_path(), model_opener());
      if (ranks != nullptr) training->join(*ranks);
      if (leads) place = resume.empty() ? RunFolder::create(folder, false) : RunFolder::resume(folder);
    });
    agreed(ranks, [&] {
      if (!leads) place = RunFolder::follow(folder, resume);
      if (resume.empty()) {
        training->start(*executor);
      } else {
        training->resume(*executor, resume);
        place->cut_metrics(training->completed_steps());
      }
      place->write_config(training->resolved());
    });
    const TrainingResult mine = training->run(*place, {});
    const std::lock_guard lock(mutex);
    if (leads) result = mine;
  };
  if (count == 1) {
    body(nullptr);
  } else {
    LocalRanks(count).run([&](Communicator& ranks) { body(&ranks); });
  }
  return result;
}

// The files of a run that must not depend on the number of ranks, with their content.
std::map<std::string, std::string> content_of(const Path& run) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints")) {
    files[entry.path().filename().string()] = read_file(entry.path());
  }
  for (const char* name : {"latest", "best", "samples.txt"}) {
    if (fs::exists(run / name)) files[name] = read_file(run / name);
  }
  for (const json& line : metrics_of(run)) files["metrics.jsonl"] += line.dump() + "\n";
  return files;
}

class RanksRun : public TinyRun {
 public:
  // Lines as documents, a fifth of them held out; half of the lines are pairs whose prompts do not count.
  RanksRun() {
    std::string lines;
    for (int i = 0; i < 120; ++i) {
      const std::string number = std::to_string(i), square = std::to_string(i * i);
      lines += i % 2 == 0 ? json({{"text", "the quick brown fox no. " + number + " jumps over the lazy dog"}}).dump()
                          : json({{"prompt", "the square of " + number + " is"}, {"completion", " " + square}}).dump();
      lines += "\n";
    }
    write_text(path() / "lines.jsonl", lines);
    REQUIRE(samba_command({"prepare", file("lines.jsonl"), "--held-out", "0.2", "--out", file("shards")}).code == 0);
    REQUIRE(train("base", {"--steps", "4", "--set", "model.n_kv_heads=1"}).code == 0);
  }

  json config() const {
    json config = tiny_config("text.txt");
    config.erase("model");
    config["steps"] = 9;
    config["train"] = {{"init_from", file("base")}, {"freeze", {"embed.*", "layers.1.*norm*"}}};
    config["data"] = {{"paths", {file("shards")}}, {"order", "permute.v1"}};
    config["batch"] = {{"rows", 8}, {"length", 64}};
    config["optimizer"] = {{"max_norm", 0.5}, {"weight_decay", 0.1}};
    config["schedule"] = {{"kind", "cosine"}, {"peak_lr", 0.02}, {"warmup_steps", 2}, {"total_steps", 9}};
    config["checkpoint"] = {{"every", 4}, {"keep_last", 1}, {"digest_every", 1}};
    config["evaluation"] = {{"every", 2}, {"keep_best", true}};
    config["sample"] = {{"every", 4}, {"tokens", 4}};
    return config;
  }
};

TEST_CASE("ranks on shards with frozen tensors, evaluations and a best checkpoint leave the files of one process") {
  const RanksRun run;
  for (const int accumulation : {1, 2}) {
    json config = run.config();
    config["batch"]["accumulation_steps"] = accumulation;
    const std::string alone = "alone" + std::to_string(accumulation);
    run_ranks(1, config, run.path() / alone);
    const auto wanted = content_of(run.path() / alone);
    REQUIRE(wanted.count("best") == 1);
    REQUIRE(wanted.at("metrics.jsonl").find("eval_loss") != std::string::npos);
    for (const int count : {2, 4}) {
      CAPTURE(accumulation, count);
      const Path folder = run.path() / ("ranks" + std::to_string(accumulation) + std::to_string(count));
      run_ranks(count, config, folder);
      const auto got = content_of(folder);
      for (const auto& [name, content] : wanted) {
        CAPTURE(name);
        CHECK(got.count(name) == 1);
        CHECK((got.count(name) == 1 && got.at(name) == content));
      }
      CHECK(got.size() == wanted.size());
    }
  }
  // Frozen tensors are those of the model the run began from.
  const json frozen = json::parse(samba_command({"inspect", run.file("ranks14"), "--json"}).out);
  const json base = json::parse(samba_command({"inspect", run.file("base"), "--json"}).out);
  std::size_t same = 0, other = 0;
  for (std::size_t i = 0; i < base["tensors"].size(); ++i) {
    const std::string name = base["tensors"][i]["name"];
    const bool held = name.starts_with("embed.") || (name.starts_with("layers.1.") && name.find("norm") != name.npos);
    CAPTURE(name);
    CHECK((base["tensors"][i]["sha256"] == frozen["tensors"][i]["sha256"]) == held);
    ++(held ? same : other);
  }
  CHECK(same >= 3);
  CHECK(other > 5);
}

TEST_CASE("a run of ranks goes on with other numbers of ranks, with its best evaluation and its frozen tensors") {
  const RanksRun run;
  const json config = run.config();
  run_ranks(1, config, run.path() / "alone");
  json first = config;
  first["steps"] = 3;
  first["checkpoint"]["keep_last"] = 0;
  run_ranks(4, first, run.path() / "parts");
  first["steps"] = 6;
  run_ranks(2, first, run.path() / "parts", run.path() / "parts/checkpoints/step-00000003.samba");
  run_ranks(4, config, run.path() / "parts", run.path() / "parts/checkpoints/step-00000006.samba");
  const std::string last = "step-00000009.samba";
  const auto wanted = content_of(run.path() / "alone"), got = content_of(run.path() / "parts");
  CHECK(got.at(last) == wanted.at(last));
  CHECK(got.at("best") == wanted.at("best"));
}

TEST_CASE("each rank evaluates its share of the windows, and a plateau ends all of them at one step") {
  const RanksRun run;
  json config = run.config();
  config["steps"] = 40;
  config["train"]["freeze"] = json::array();
  config["schedule"] = {{"kind", "constant"}, {"peak_lr", 0.0}};
  config["evaluation"] = {{"every", 2}, {"patience", 2}, {"windows", 11}};
  const TrainingResult alone = run_ranks(1, config, run.path() / "alone");
  const TrainingResult shared = run_ranks(4, config, run.path() / "ranks");
  CHECK(alone.plateau);
  CHECK(shared.plateau);
  CHECK(alone.step == 6);  // the first evaluation is the mark, two more are no better
  CHECK(shared.step == alone.step);
  CHECK(content_of(run.path() / "alone") == content_of(run.path() / "ranks"));
}

TEST_CASE("an evaluation that one rank cannot make is refused by all") {
  const RanksRun run;
  json config = run.config();
  config["evaluation"] = json::object();
  LocalRanks ranks(2);
  std::vector<std::string> messages(2);
  ranks.run([&](Communicator& communicator) {
    const auto executor = make_executor("cpu", {1, ""});
    const auto training = make_training(config, run.path(), model_opener());
    training->join(communicator);
    training->start(*executor);
    try {
      if (communicator.rank() == 1) {  // the share of the other rank is never made
        agreed(&communicator, [] { refuse_value("the disk is gone"); });
      } else {
        training->evaluate();
      }
    } catch (const AgreedError& error) {
      messages[static_cast<std::size_t>(communicator.rank())] = error.what();
    }
  });
  for (const std::string& message : messages) CHECK(message == "rank 1: the disk is gone");
}

}  // namespace
}  // namespace samba
