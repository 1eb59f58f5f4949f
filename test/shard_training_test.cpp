// Training on token shards: windows, mixtures, completions, evaluation, plateau, best checkpoint, what is refused.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "command.h"
#include "error_of.h"
#include "samba/train/evaluation_progress.h"
#include "samba/train/window_order.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

// ---- orders ----

TEST_CASE("windows of several sources: one permutation of all of them, none across a border") {
  const std::vector<WindowRange> ranges{{0, 10, 8}, {100, 1, 8}, {200, 30, 8}};
  const auto order = permute_order(5, ranges);
  std::multiset<std::uint64_t> wanted, taken;
  for (const WindowRange& range : ranges) {
    for (std::uint64_t i = 0; i < range.count; ++i) wanted.insert(range.first + i * range.stride);
  }
  std::vector<std::uint64_t> rows(41);
  order->starts(1, rows);  // the second epoch: 41 windows a step
  taken.insert(rows.begin(), rows.end());
  CHECK(taken == wanted);
  const auto drawn = draw_order(5, std::vector<WindowRange>{{0, 3, 1}, {50, 4, 1}});
  std::vector<std::uint64_t> many(4000);
  drawn->starts(0, many);
  std::set<std::uint64_t> starts(many.begin(), many.end());
  CHECK(starts == std::set<std::uint64_t>{0, 1, 2, 50, 51, 52, 53});
}

TEST_CASE("the shares of a mixture add up to a block, by largest remainders") {
  CHECK(mixture_shares(std::vector<double>{1, 1}) == std::vector<std::uint64_t>{2048, 2048});
  CHECK(mixture_shares(std::vector<double>{1, 1, 1}) == std::vector<std::uint64_t>{1366, 1365, 1365});
  CHECK(mixture_shares(std::vector<double>{0.7, 0.3}) == std::vector<std::uint64_t>{2867, 1229});
  CHECK(mixture_shares(std::vector<double>{5}) == std::vector<std::uint64_t>{4096});
  CHECK_THAT(error_of([] {
               mixture_shares(std::vector<double>{1, 1e-6});
             }).what(),
             Contains("/data/weights/1: is less than 1/4096"));
}

TEST_CASE("a mixture takes each source by its weight, every window once an epoch, whatever the rows of a step") {
  const std::vector<WindowRange> ranges{{0, 700, 16}, {1 << 20, 50, 16}, {1 << 24, 9000, 16}};
  const std::vector<double> weights{0.5, 0.25, 0.25};
  const auto order = mixture_order(3, ranges, weights);
  CHECK(order->name() == "permute.v1");
  constexpr std::uint64_t kRows = 3 * kMixtureBlock;
  std::vector<std::uint64_t> all(kRows);
  order->starts(0, all);
  std::map<std::uint64_t, int> counts[3];
  std::uint64_t of_source[3] = {};
  for (const std::uint64_t start : all) {
    const std::size_t source = start < (1 << 20) ? 0 : start < (1 << 24) ? 1 : 2;
    ++counts[source][start];
    ++of_source[source];
  }
  CHECK(of_source[0] == kRows / 2);
  CHECK(of_source[1] == kRows / 4);
  CHECK(of_source[2] == kRows / 4);
  for (std::size_t source = 0; source < 3; ++source) {
    int least = 1 << 30, most = 0;
    for (const auto& [start, count] : counts[source]) {
      least = std::min(least, count);
      most = std::max(most, count);
    }
    CHECK(most - least <= 1);
    CHECK(counts[source].size() == std::min<std::uint64_t>(ranges[source].count, of_source[source]));
  }
  // Steps of any size take the same rows.
  for (const std::uint64_t rows : {1U, 7U, 64U}) {
    for (const std::uint64_t step : {0U, 1U, 90U}) {
      std::vector<std::uint64_t> some(rows);
      order->starts(step, some);
      CHECK(std::equal(some.begin(), some.end(), all.begin() + static_cast<std::ptrdiff_t>(step * rows)));
    }
  }
  // Recorded: the order stays readable for good.
  std::vector<std::uint64_t> first(4);
  order->starts(100, first);
  INFO(first[0] << " " << first[1] << " " << first[2] << " " << first[3]);
  CHECK(first == std::vector<std::uint64_t>{all[400], all[401], all[402], all[403]});
}

// ---- runs on shards ----

class ShardRun : public TinyRun {
 public:
  CommandResult prepare(const std::string& from, const std::string& to, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{"prepare", file(from), "--out", file(to)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return samba_command(arguments);
  }
  // A configuration that trains on `paths`.
  json on(const std::vector<std::string>& paths) const {
    json config = tiny_config("text.txt");
    config["data"] = {{"paths", paths}, {"order", "permute.v1"}};
    return config;
  }
  std::string last(const std::string& run) const { return read_file(path() / run / "checkpoints/step-00000020.samba"); }
};

TEST_CASE("shards of a text train to the bits of the text itself, whatever their size, resumed or not") {
  const ShardRun run;
  REQUIRE(run.prepare("text.txt", "shards", {"--end-token", "none", "--shard-tokens", "504"}).code == 0);
  REQUIRE(fs::exists(run.path() / "shards/train-00004.tokens"));
  run.write(run.on({"text.txt"}));
  REQUIRE(run.train("text").code == 0);
  run.write(run.on({"shards"}));
  const CommandResult result = run.train("from-shards", {"--threads", "2"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK_THAT(result.err, Contains("of 1 document(s) in 1 folder(s) of shards"));
  CHECK(run.last("from-shards") == run.last("text"));
  REQUIRE(run.train("parts", {"--steps", "7"}).code == 0);
  REQUIRE(samba_command({"train", "--resume", run.file("parts"), "--steps", "20"}).code == 0);
  CHECK(run.last("parts") == run.last("text"));
  const json config = json::parse(read_file(run.path() / "parts/config.json"));
  CHECK(config["data"]["sha256"] == json::parse(read_file(run.path() / "shards/index.json"))["sha256"]);
  const CommandResult replayed = samba_command({"verify", "--replay", run.file("parts")});
  INFO(replayed.err);
  CHECK(replayed.code == 0);

  std::string bytes = read_file(run.path() / "shards/train-00001.tokens");
  bytes[77] = static_cast<char>(bytes[77] ^ 4);
  write_text(run.path() / "shards/train-00001.tokens", bytes);
  const CommandResult damaged = samba_command({"train", "--resume", run.file("parts"), "--steps", "21"});
  CHECK(damaged.code == 3);
  CHECK_THAT(damaged.err, Contains("train-00001.tokens: the SHA-256 is"));
}

TEST_CASE("a mixture of shards trains by its weights; weights of anything else are refused") {
  const ShardRun run;
  write_text(run.path() / "other.txt", std::string(3000, 'z'));
  REQUIRE(run.prepare("text.txt", "a").code == 0);
  REQUIRE(run.prepare("other.txt", "b").code == 0);
  json config = run.on({"a", "b"});
  config["data"]["weights"] = {3, 1};
  run.write(config);
  REQUIRE(run.train("mixed").code == 0);
  REQUIRE(run.train("again", {"--device", "reference"}).code == 0);
  CHECK(run.last("mixed") == run.last("again"));
  REQUIRE(run.train("half", {"--set", "data.weights=[1,1]"}).code == 0);
  CHECK(run.last("mixed") != run.last("half"));
  const CommandResult resumed =
      samba_command({"train", "--resume", run.file("mixed"), "--steps", "30", "--set", "data.weights=[1,1]"});
  CHECK(resumed.code == 2);
  CHECK_THAT(resumed.err,
             Contains("/data/weights is [1.0,1.0], the run has [3.0,1.0]") || Contains("/data/weights is"));
  const auto message = [&](const std::vector<std::string>& more) {
    const CommandResult refused = run.train("no", more);
    CHECK(refused.code == 2);
    CHECK(!fs::exists(run.file("no")));
    return refused.err;
  };
  CHECK_THAT(message({"--set", "data.weights=[1]"}), Contains("/data/weights: must be a list of 2 numbers"));
  CHECK_THAT(message({"--set", "data.weights=[1,0]"}), Contains("/data/weights/1: must be a number > 0, got 0"));
  CHECK_THAT(message({"--set", "data.order=draw.v1"}), Contains("/data/weights: need /data/order permute.v1"));
  CHECK_THAT(message({"--data", run.file("text.txt"), run.file("other.txt")}),
             Contains("/data/weights: are of token shards"));
  CHECK_THAT(message({"--data", run.file("a"), run.file("other.txt"), "--set", "data.weights=null"}),
             Contains("/data/paths/1:") && Contains("holds no token shards, another path does"));
  CHECK_THAT(message({"--set", "data.evaluation_bytes=300"}), Contains("/data/evaluation_bytes: 300 is for text"));
  CHECK_THAT(message({"--set", "evaluation.every=5"}), Contains("/evaluation/every: 5: the shards hold no window"));
  CHECK_THAT(message({"--set", "batch.length=4000"}), Contains("/data/paths/0:") && Contains("/batch/length + 1"));
  CHECK_THAT(message({"--set", "model.vocab=200"}), Contains("/model/vocab: 200 is less than the 256 tokens of"));
}

TEST_CASE("shards take the place of the text that a configuration names, and hold out documents of their own") {
  const ShardRun run;
  REQUIRE(run.prepare("text.txt", "whole").code == 0);
  REQUIRE(run.prepare("text.txt", "parted", {"--documents", "line", "--held-out", "0.2"}).code == 0);
  const std::string tokenizer = run.file("tokenizer.json");
  REQUIRE(samba_command({"train-tokenizer", run.file("text.txt"), "--vocab-size", "270", "--out", tokenizer}).code ==
          0);
  REQUIRE(
      run.prepare("text.txt", "pieces", {"--documents", "line", "--held-out", "0.2", "--tokenizer", tokenizer}).code ==
      0);
  const auto quickstart = [&](const std::string& shards, std::vector<std::string> more = {}) {
    more.insert(more.begin(),
                {"train", "--config", SAMBA_SOURCE_DIR "/configs/quickstart.json", "--data", run.file(shards), "--out",
                 run.file("run-" + shards), "--steps", "1", "--set", "batch.length=32"});
    return samba_command(more);
  };
  const CommandResult taken = quickstart("parted");
  INFO(taken.err);
  REQUIRE(taken.code == 0);
  CHECK_THAT(taken.err, Contains("hold out their own documents: data.evaluation_bytes of the configuration is 0"));
  CHECK(json::parse(read_file(run.path() / "run-parted/config.json"))["data"]["evaluation_bytes"] == 0);
  CHECK(metrics_of(run.path() / "run-parted").back().contains("bits_per_byte"));

  // What does not go names what would.
  const CommandResult nothing = quickstart("whole");
  CHECK(nothing.code == 2);
  CHECK_THAT(nothing.err, Contains("samba prepare --held-out P") && Contains("--set evaluation.every=0"));
  CHECK(quickstart("whole", {"--set", "evaluation.every=0"}).code == 0);
  const CommandResult small = quickstart("pieces");
  CHECK(small.code == 2);
  CHECK_THAT(small.err, Contains("/model/vocab: 256 is less than the 270 tokens of") &&
                            Contains("--set model.vocab=270 takes them"));
  CHECK(quickstart("pieces", {"--set", "model.vocab=270"}).code == 0);
  json config = run.on({"parted"});
  config["data"]["evaluation_bytes"] = 200;
  run.write(config);
  const CommandResult named = run.train("named");
  CHECK(named.code == 2);
  CHECK_THAT(named.err,
             Contains("/data/evaluation_bytes: 200 is for text") && Contains("--set data.evaluation_bytes=0"));
}

TEST_CASE("only completions are learned; what is not is counted in the metrics") {
  const ShardRun run;
  std::string lines;
  std::uint64_t prompts = 0, all = 0;
  for (int i = 0; i < 200; ++i) {
    const std::string prompt = "the square of " + std::to_string(i) + " is", completion = " " + std::to_string(i * i);
    prompts += prompt.size();
    all += prompt.size() + completion.size() + 1;
    lines += json({{"prompt", prompt}, {"completion", completion}}).dump() + "\n";
  }
  write_text(run.path() / "pairs.jsonl", lines);
  REQUIRE(run.prepare("pairs.jsonl", "pairs").code == 0);
  const json index = json::parse(read_file(run.path() / "pairs/index.json"));
  CHECK(index["sets"]["train"]["ignored"] == prompts);
  CHECK(index["sets"]["train"]["tokens"] == all);
  run.write(run.on({"pairs"}));
  REQUIRE(run.train("run").code == 0);
  std::uint64_t ignored = 0;
  for (const json& line : metrics_of(run.file("run"))) {
    const auto count = line["ignored_targets"].get<std::uint64_t>();
    CHECK(count > 0);
    CHECK(count <= 32);  // a step may read prompts alone
    ignored += count;
  }
  CHECK(static_cast<double>(ignored) / (20 * 32) ==
        Approx(static_cast<double>(prompts) / static_cast<double>(all)).margin(0.05));
}

// ---- evaluation ----

TEST_CASE("a plateau is so many evaluations in a row without a better loss; only due ones are remembered") {
  EvaluationProgress progress(2, 0.1);
  CHECK(progress.add(10, 3.0, true));
  CHECK(progress.add(20, 2.5, true));
  CHECK(progress.add(25, 2.0, false));  // better, and forgotten
  CHECK(progress.add(30, 2.45, true));  // the best, but by less than 0.1: one
  CHECK_FALSE(progress.plateau());
  CHECK_FALSE(progress.add(40, 2.6, true));  // two
  CHECK(progress.plateau());
  CHECK(progress.best_step() == 30);
  EvaluationProgress patient(0, 0.0);
  for (Index step = 1; step < 50; ++step) patient.add(step, 1.0, true);
  CHECK_FALSE(patient.plateau());
}

TEST_CASE("documents held out are evaluated, the best checkpoint stays, a plateau ends the run") {
  const ShardRun run;
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += "the quick brown fox no. " + std::to_string(i) + " jumps over the dog\n";
  write_text(run.path() / "lines.txt", lines);
  REQUIRE(run.prepare("lines.txt", "shards", {"--documents", "line", "--held-out", "0.2"}).code == 0);
  json config = run.on({"shards"});
  config["evaluation"] = {{"every", 4}, {"patience", 2}, {"keep_best", true}};
  config["sample"] = {{"every", 8}, {"prompts", {"the quick", "fox"}}, {"tokens", 4}};
  config["schedule"] = {{"kind", "constant"}, {"peak_lr", 0.05}};
  config["checkpoint"] = {{"every", 1000}, {"keep_last", 1}};
  config["steps"] = 400;
  run.write(config);
  const CommandResult result = run.train("run", {"--json"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  const json end = json_lines(result.out).back();
  CHECK(end["plateau"] == true);
  CHECK(end["finished"] == true);
  const int stopped = end["step"].get<int>();
  CHECK(stopped < 400);
  CHECK_THAT(result.err, Contains("the held-out loss got no better"));
  CHECK_THAT(read_file(run.path() / "run/run.log"), Contains("stopped: the held-out loss gets no better"));
  CHECK_THAT(read_file(run.path() / "run/samples.txt"),
             Contains("=== step 8\nthe quick") && Contains("=== step 8\nfox"));
  double best = 1e9;
  int best_step = 0, evaluations = 0;
  for (const json& line : metrics_of(run.file("run"))) {
    if (!line.contains("eval_loss")) continue;
    ++evaluations;
    const double loss = line["eval_loss"];
    CHECK((line.contains("best") && line["best"] == true) == (loss < best));
    CHECK(line["bits_per_byte"].get<double>() == Approx(loss / std::log(2.0)));
    if (loss >= best) continue;
    best = loss;
    best_step = line["step"];
  }
  CHECK(evaluations == stopped / 4);
  CHECK(best_step == stopped - 8);
  char name[64];
  std::snprintf(name, sizeof name, "checkpoints/step-%08d.samba", best_step);
  CHECK(read_file(run.path() / "run/best") == std::string(name) + "\n");
  CHECK(fs::exists(run.path() / "run" / name));

  // Again, stopped and resumed on the way: it ends at the same step with the same best.
  REQUIRE(run.train("parts", {"--steps", std::to_string(best_step - 2)}).code == 0);
  REQUIRE(samba_command({"train", "--resume", run.file("parts"), "--steps", "400"}).code == 0);
  CHECK(read_file(run.path() / "parts/best") == std::string(name) + "\n");
  CHECK(read_file(run.path() / "parts" / name) == read_file(run.path() / "run" / name));
  CHECK(read_file(run.path() / "parts/latest") == read_file(run.path() / "run/latest"));
  // A run that stands at its plateau stays there.
  const CommandResult still = samba_command({"train", "--resume", run.file("run"), "--json"});
  CHECK(json_lines(still.out).back()["step"] == stopped);

  // --eval-only gives the numbers of the run and touches nothing.
  const auto before = fs::last_write_time(run.path() / "run/metrics.jsonl");
  const CommandResult only =
      samba_command({"train", "--resume", (run.path() / "run" / name).string(), "--eval-only", "--json"});
  INFO(only.err);
  REQUIRE(only.code == 0);
  const json evaluated = json::parse(only.out);
  CHECK(evaluated["step"] == best_step);
  CHECK(evaluated["eval_loss"] == best);
  CHECK(evaluated["samples"].size() == 2);
  CHECK(fs::last_write_time(run.path() / "run/metrics.jsonl") == before);
  const CommandResult model = samba_command(
      {"train", "--config", run.file("tiny.json"), "--init-from", (run.path() / "run" / name).string(), "--eval-only"});
  INFO(model.err);
  REQUIRE(model.code == 0);
  CHECK_THAT(model.out, Contains("step 0: held-back text: loss") && Contains("bits per byte") && Contains("sample: "));
  const CommandResult some =
      samba_command({"train", "--resume", run.file("run"), "--eval-only", "--json", "--set", "evaluation.windows=3"});
  REQUIRE(some.code == 0);
  CHECK(json::parse(some.out)["eval_loss"] != best);
}

TEST_CASE("evaluation fields that contradict each other, and an evaluation of nothing, are refused") {
  const ShardRun run;
  const auto message = [&](const std::vector<std::string>& more) {
    const CommandResult refused = run.train("no", more);
    CHECK(refused.code == 2);
    CHECK(!fs::exists(run.file("no")));
    return refused.err;
  };
  CHECK_THAT(message({"--set", "evaluation.patience=2"}),
             Contains("/evaluation/patience: needs evaluations on the way; /evaluation/every is 0"));
  CHECK_THAT(message({"--set", "evaluation.keep_best=true"}), Contains("/evaluation/keep_best: needs evaluations"));
  CHECK_THAT(message({"--set", "evaluation.min_delta=-1"}), Contains("/evaluation/min_delta: must be a number >= 0"));
  CHECK_THAT(message({"--set", "evaluation.windows=-1"}), Contains("/evaluation/windows: must be an integer >= 0"));
  CHECK_THAT(message({"--set", "evaluation.patiense=1"}), Contains("did you mean \"patience\"?"));
  CHECK_THAT(message({"--set", "sample.prompts=[\"\"]"}), Contains("/sample/prompts/0: must be a text"));
  CHECK_THAT(message({"--set", "sample.prompts=x"}), Contains("/sample/prompts: must be a list of texts"));
  const CommandResult nothing =
      samba_command({"train", "--config", run.file("tiny.json"), "--eval-only", "--set", "data.evaluation_bytes=0"});
  CHECK(nothing.code == 2);
  CHECK_THAT(nothing.err, Contains("--eval-only: nothing is held out"));
  const CommandResult out =
      samba_command({"train", "--config", run.file("tiny.json"), "--eval-only", "--out", run.file("no")});
  CHECK(out.code == 2);
  CHECK_THAT(out.err, Contains("--eval-only writes nothing"));
  CHECK(samba_command({"train", "--resume", run.file("tiny.json"), "--eval-only"}).code == 2);
}

}  // namespace
}  // namespace samba
