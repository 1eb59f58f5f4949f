// samba decode, prefill, convert and inspect on a small trained model.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "bits.h"
#include "command.h"
#include "samba/formats/safetensors.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

// One run of 20 steps that all cases read.
const TinyRun& trained() {
  static const TinyRun run;
  static const bool done = [] {
    const CommandResult result = run.train("run");
    if (result.code != 0) throw std::runtime_error(result.err);
    return true;
  }();
  static_cast<void>(done);
  return run;
}

CommandResult on_model(const std::string& command, std::vector<std::string> more) {
  std::vector<std::string> arguments{command, "--model", trained().file("run")};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return samba_command(arguments);
}

std::vector<json> json_lines(const std::string& text) {
  std::vector<json> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

json without_timing(json result) {
  result.erase("timing");
  return result;
}

TEST_CASE("decode prints the continuation on stdout, rates on stderr") {
  const CommandResult result = on_model("decode", {"--prompt", "the quick ", "--max-tokens", "12"});
  CHECK(result.code == 0);
  CHECK(result.out.ends_with("\n"));
  CHECK_THAT(result.err, Contains("prompt: 10 tokens") && Contains("generated: 12 tokens") && Contains("tokens/s"));
  const CommandResult quiet =
      on_model("decode", {"--prompt", "the quick ", "--max-tokens", "12", "--progress", "never"});
  CHECK(quiet.out == result.out);
  CHECK(quiet.err.empty());
  const json document = json::parse(on_model("decode", {"--prompt", "the quick ", "--max-tokens", "12", "--json"}).out);
  CHECK(document["text"].get<std::string>() + "\n" == result.out);
  CHECK(document["tokens"].size() == 12);
  CHECK(document["finish_reason"] == "length");
}

TEST_CASE("the tokens are the same on every device, thread count and prompt form") {
  const std::vector<std::string> sampled{"--prompt", "the quick ", "--max-tokens", "16",      "--temperature",
                                         "1",        "--top-k",    "40",           "--top-p", "0.9",
                                         "--seed",   "7",          "--json"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = sampled;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return json::parse(on_model("decode", arguments).out)["tokens"];
  };
  const json tokens = with({});
  CHECK(with({"--device", "reference"}) == tokens);
  CHECK(with({"--threads", "3"}) == tokens);
  CHECK(with({"--isa", "scalar"}) == tokens);
  std::vector<std::string> other_seed = sampled;
  *(std::find(other_seed.begin(), other_seed.end(), "--seed") + 1) = "8";
  CHECK(json::parse(on_model("decode", other_seed).out)["tokens"] != tokens);
  std::vector<std::string> ids = sampled;
  ids[0] = "--tokens";
  ids[1] = "116,104,101,32,113,117,105,99,107,32";
  CHECK(json::parse(on_model("decode", ids).out)["tokens"] == tokens);
}

TEST_CASE("several prompts give each what it gets alone") {
  const TemporaryFolder folder;
  const std::vector<std::string> prompts{"the", "the quick brown fox", "a", "lazy dog"};
  std::string file;
  for (const std::string& prompt : prompts) file += json({{"prompt", prompt}}).dump() + "\n";
  file += "plain text\n{\"tokens\": [97]}\n";
  write_text(folder.path() / "prompts", file);
  const std::vector<std::string> options{"--max-tokens", "9", "--temperature", "0.9",
                                         "--seed",       "3", "--logprobs",    "--json"};
  std::vector<std::string> together = options;
  together.insert(together.end(), {"--prompts-file", (folder.path() / "prompts").string()});
  const std::vector<json> results = json_lines(on_model("decode", together).out);
  REQUIRE(results.size() == 6);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    std::vector<std::string> alone = options;
    alone.insert(alone.end(), {"--prompt", prompts[i]});
    json single = json::parse(on_model("decode", alone).out);
    single["index"] = i;
    CHECK(without_timing(single) == without_timing(results[i]));
  }
  CHECK(results[0]["timing"].size() == 4);
  for (const char* batch : {"1", "2", "3"}) {
    std::vector<std::string> small = together;
    small.insert(small.end(), {"--batch", batch});
    const std::vector<json> again = json_lines(on_model("decode", small).out);
    REQUIRE(again.size() == 6);
    for (std::size_t i = 0; i < 6; ++i) CHECK(without_timing(again[i]) == without_timing(results[i]));
  }
  CHECK(results[5]["tokens"] == results[2]["tokens"]);
}

TEST_CASE("a stop text ends the continuation before it") {
  const json free = json::parse(on_model("decode", {"--prompt", "the quick ", "--max-tokens", "30", "--json"}).out);
  const std::string text = free["text"];
  const std::string stop = text.substr(3, 2);
  const json stopped = json::parse(on_model("decode", {"--prompt", "the quick ", "--max-tokens", "30", "--json",
                                                       "--stop", "never comes", "--stop", stop})
                                       .out);
  CHECK(stopped["finish_reason"] == "stop");
  CHECK(stopped["text"] == text.substr(0, text.find(stop)));
}

TEST_CASE("a pipe that closes early ends decode quietly; Ctrl-C ends it with 130") {
  Command closed(
      {"decode", "--model", trained().file("run"), "--prompt", "a", "--max-tokens", "8000", "--progress", "never"});
  closed.close_stdout();
  const CommandResult quiet = closed.finish();
  CHECK(quiet.code == 0);
  CHECK(quiet.err.empty());
  Command stopped({"decode", "--model", trained().file("run"), "--tokens", "97", "--max-tokens", "8000", "--logprobs"});
  REQUIRE(stopped.wait_for("\n"));
  stopped.interrupt();
  CHECK(stopped.finish().code == 130);
}

TEST_CASE("decode refuses bad requests by name") {
  const auto message = [](const std::vector<std::string>& more) {
    const CommandResult result = on_model("decode", more);
    CHECK(result.code == 2);
    return result.err;
  };
  CHECK_THAT(message({}), Contains("no prompt: give --prompt TEXT, --prompt-file FILE or --tokens IDS"));
  CHECK_THAT(message({"--prompt", ""}), Contains("prompt 0 is empty"));
  CHECK_THAT(message({"--tokens", "1,x"}), Contains("--tokens: must be ids separated by commas") && Contains("1,x"));
  CHECK_THAT(message({"--tokens", "1,256"}), Contains("token 256 at position 1 is outside the vocabulary [0, 256)"));
  CHECK_THAT(message({"--prompt", "a", "--temperature", "-1"}),
             Contains("temperature: must be 0 or a positive number"));
  CHECK_THAT(message({"--prompt", "a", "--top-p", "0"}), Contains("top-p: must be in (0, 1], got 0\n"));
  for (const char* flag : {"--n", "--batch", "--max-tokens"}) {
    for (const char* value : {"0", "-1", "many", "1.5"}) {
      CHECK(message({"--prompt", "a", flag, value}) ==
            "samba: " + std::string(flag) + ": must be a whole number, at least 1, got " + value + "\n");
    }
  }
  CHECK(message({"--prompt", "a", "--seed", "-1"}) == "samba: --seed: must be at least 0, got -1\n");
  CHECK(message({"--prompt", "a", "--top-k", "1.5"}) == "samba: --top-k: must be a whole number, got 1.5\n");
  CHECK(message({"--prompt", "a", "--temperature", "x"}) == "samba: --temperature: must be a number, got x\n");
  CHECK_THAT(message({"--prompt", "a", "--max-tokens", "9000"}), Contains("need 9000 positions; the model has 8192"));
  CHECK_THAT(message({"--prompt-file", "/nowhere"}), Contains("/nowhere"));
  const CommandResult model = samba_command({"decode", "--model", "/nowhere", "--prompt", "a"});
  CHECK(model.code == 2);
  CHECK_THAT(model.err, Contains("there is no model /nowhere"));
}

TEST_CASE("a model of another vocabulary takes ids, text is refused") {
  const TinyRun run;
  std::string text;
  for (int i = 0; i < 900; ++i) text += static_cast<char>(i * i % 9);
  write_text(run.path() / "text.txt", text);
  REQUIRE(run.train("run", {"--set", "model.vocab=9", "--steps", "1"}).code == 0);
  const CommandResult refused = samba_command({"decode", "--model", run.file("run"), "--prompt", "a"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("vocabulary has 9 tokens") && Contains("--tokens"));
  const CommandResult ids =
      samba_command({"decode", "--model", run.file("run"), "--tokens", "1,2", "--max-tokens", "3"});
  CHECK(ids.code == 0);
  CHECK(std::count(ids.out.begin(), ids.out.end(), ',') == 2);
}

TEST_CASE("prefill writes the logits, and its score follows from them") {
  const TemporaryFolder folder;
  const std::string text = "the quick brown fox";
  const std::string file = (folder.path() / "logits.safetensors").string();
  REQUIRE(on_model("prefill", {"--prompt", text, "--logits", file}).code == 0);
  const SafetensorsFile written = read_safetensors(file);
  const Array& logits = written.tensors.at("logits");
  CHECK(logits.shape() == Shape{19, 256});
  double total = 0.0;
  for (std::size_t t = 0; t + 1 < text.size(); ++t) {
    const auto row = logits.floats().subspan(t * 256, 256);
    double sum = 0.0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit));
    total += static_cast<double>(row[static_cast<unsigned char>(text[t + 1])]) - std::log(sum);
  }
  const std::vector<json> lines = json_lines(on_model("prefill", {"--prompt", text, "--score", "--json"}).out);
  REQUIRE(lines.size() == text.size());  // one a token that is predicted, and the whole
  CHECK(lines[0]["position"] == 1);
  CHECK(lines[0]["token"] == 'h');
  CHECK(lines[0]["text"] == "h");
  const json score = lines.back();
  CHECK(score["tokens"] == 19);
  CHECK(score["log_likelihood"].get<double>() == Approx(total).epsilon(1e-5));
  CHECK(score["perplexity"].get<double>() == Approx(std::exp(-total / 18)).epsilon(1e-5));
  CHECK(score["bits_per_byte"].get<double>() == Approx(-total / 18 / std::log(2.0)).epsilon(1e-5));

  REQUIRE(on_model("prefill", {"--prompt", text, "--prompt", "fox", "--logits", file}).code == 0);
  const SafetensorsFile two = read_safetensors(file);
  CHECK(bits_equal(two.tensors.at("logits.0").floats(), logits.floats()));
  CHECK(two.tensors.at("logits.1").shape() == Shape{3, 256});
  CHECK_THAT(on_model("prefill", {"--prompt", text}).out, Contains("\n"));
}

TEST_CASE("a score has the same bits in chunks of any size, and windows where the context ends") {
  const std::string file = trained().file("text.txt");
  const std::string whole = on_model("prefill", {"--file", file, "--score", "--json"}).out;
  for (const char* chunk : {"1", "7", "300", "4000"}) {
    CHECK(on_model("prefill", {"--file", file, "--score", "--json", "--chunk", chunk}).out == whole);
  }
  const auto logprobs = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--file", file, "--score", "--json"});
    std::vector<double> values;
    for (const json& line : json_lines(on_model("prefill", more).out)) {
      if (line.contains("logprob")) values.push_back(line["logprob"]);
    }
    return values;
  };
  const std::vector<double> all = logprobs({});
  const std::vector<double> windows = logprobs({"--window", "50", "--chunk", "8"});
  REQUIRE(windows.size() == all.size());
  CHECK(windows != all);
  CHECK(windows[49] == all[49]);
  CHECK(windows[50] != all[50]);
  // With a stride the second window starts at token 20 and scores what the first has not: it has 30 tokens of context.
  const std::vector<double> strides = logprobs({"--window", "50", "--stride", "20"});
  REQUIRE(strides.size() == all.size());
  CHECK(strides[49] == all[49]);
  CHECK(strides[50] != windows[50]);
  CHECK(logprobs({"--window", "50", "--stride", "20", "--chunk", "7"}) == strides);
  CHECK_THAT(on_model("prefill", {"--file", file, "--score", "--window", "50", "--stride", "51"}).err,
             Contains("stride: must be from 1 to the window, 50"));
  const CommandResult one = on_model("prefill", {"--prompt", "a", "--score"});
  CHECK(one.code == 2);
  CHECK_THAT(one.err, Contains("at least two tokens, got 1"));
}

TEST_CASE("a checkpoint goes to a safetensors folder and back without a bit lost") {
  const TemporaryFolder folder;
  const std::string model = (folder.path() / "model").string();
  const std::string back = (folder.path() / "back.samba").string();
  const CommandResult dry = samba_command({"convert", trained().file("run"), model, "--dry-run"});
  CHECK(dry.code == 0);
  CHECK_THAT(dry.out, Contains("exp_avg/embed.weight -> optimizer.safetensors/exp_avg.embed.weight") &&
                          Contains("nothing written"));
  CHECK(!fs::exists(model));
  REQUIRE(samba_command({"convert", trained().file("run"), model}).code == 0);
  REQUIRE(samba_command({"convert", model, back}).code == 0);
  const std::string archive = trained().file("run/checkpoints/step-00000020.samba");
  CHECK(read_file(back) == read_file(archive));
  // It trains on as well as the original: step, moments, schedule and stream are there.
  CHECK(json::parse(samba_command({"inspect", back, "--json"}).out)["step"] == 20);
  const CommandResult again = samba_command({"convert", archive, (folder.path() / "again.samba").string(), "--json"});
  CHECK(json::parse(again.out)["written"] == true);
  CHECK(read_file(folder.path() / "again.samba") == read_file(archive));

  const CommandResult busy = samba_command({"convert", trained().file("run"), model});
  CHECK(busy.code == 2);
  CHECK_THAT(busy.err, Contains("is not empty; give a new folder"));
  const auto rewrite = [&](auto change) {
    SafetensorsFile file = read_safetensors(Path(model) / "model.safetensors");
    change(file.tensors);
    const std::string bad = (folder.path() / "bad").string();
    fs::remove_all(bad);
    fs::copy(model, bad);
    ConstArrayMap views;
    for (const auto& [name, array] : file.tensors) views.emplace(name, array.view());
    write_safetensors(Path(bad) / "model.safetensors", views);
    fs::remove(Path(bad) / "hashes.json");  // which would say that it was changed
    const CommandResult result = samba_command({"convert", bad, (folder.path() / "bad.samba").string()});
    CHECK(result.code == 3);
    CHECK(!fs::exists(folder.path() / "bad.samba"));
    return result.err;
  };
  CHECK_THAT(rewrite([](ArrayMap& t) { t.erase("norm_f.weight"); }), Contains("the tensor norm_f.weight is missing"));
  CHECK_THAT(rewrite([](ArrayMap& t) { t["extra"] = Array::zeros({2}); }),
             Contains("the tensor extra is none of this model"));
  CHECK_THAT(rewrite([](ArrayMap& t) { t["norm_f.weight"] = Array::zeros({31}); }),
             Contains("norm_f.weight must be float32 (32,), got float32 (31,)"));
  CHECK_THAT(rewrite([](ArrayMap& t) { t["norm_f.weight"].floats()[5] = INFINITY; }),
             Contains("element 5 of norm_f.weight is not finite"));
}

TEST_CASE("a legacy JSON checkpoint becomes the archive of the same state") {
  const TemporaryFolder folder;
  const Path golden = Path(SAMBA_GOLDEN_DIR) / "samba/corrupt";
  const std::string out = (folder.path() / "new.samba").string();
  const CommandResult result = samba_command({"convert", (golden / "legacy_ok.ckpt").string(), out});
  REQUIRE(result.code == 0);
  CHECK(read_file(out) == read_file(golden / "ok.ckpt"));
  CHECK(json::parse(samba_command({"inspect", (golden / "legacy_ok.ckpt").string(), "--json"}).out)["format"] ==
        "legacy JSON");
}

TEST_CASE("every recorded damaged checkpoint is refused with 3 and its class") {
  const TemporaryFolder folder;
  const Path golden = Path(SAMBA_GOLDEN_DIR) / "samba/corrupt";
  const json index = json::parse(read_file(golden / "index.json"));
  const auto check = [&](const json& expected, const std::vector<std::string>& arguments) {
    const CommandResult result = samba_command(arguments);
    INFO(arguments[0] << " " << arguments[1] << ": " << result.err);
    CHECK(result.code == (expected.is_null() ? 0 : 3));
    if (!expected.is_null()) CHECK_THAT(result.err, Contains(expected["class"].get<std::string>()));
  };
  for (const json& variant : index["variants"]) {
    const std::string file = (golden / variant["file"].get<std::string>()).string();
    check(variant["inference"], {"inspect", file});
    check(variant["train"], {"convert", file, (folder.path() / "out.samba").string()});
  }
  CHECK(index["variants"].size() > 80);
}

TEST_CASE("convert refuses what it does not offer") {
  const TemporaryFolder folder;
  const auto message = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"convert", trained().file("run"), (folder.path() / "out").string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = samba_command(arguments);
    CHECK(result.code == 2);
    return result.err;
  };
  CHECK_THAT(message({"--to", "gguf"}), Contains("--to gguf: no architecture of GGUF files computes this stack"));
  CHECK_THAT(message({"--dtype", "float16"}), Contains("--dtype") && Contains("float16"));
  CHECK(samba_command({"convert", "/nowhere", (folder.path() / "x").string()}).code == 2);
}

TEST_CASE("inspect shows config, tensors, step and memory") {
  const CommandResult text = samba_command({"inspect", trained().file("run"), "--memory"});
  CHECK(text.code == 0);
  CHECK_THAT(text.out, Contains("step: 20") && Contains("embed.weight") && Contains("(256, 32)") &&
                           Contains("memory: ") && Contains("workspace"));
  const json document = json::parse(samba_command({"inspect", trained().file("run"), "--memory", "--json"}).out);
  CHECK(document["config"]["d_model"] == 32);
  CHECK(document["tensors"][0]["name"] == "embed.weight");
  const json& training = document["memory"]["training"];
  CHECK(document["parameters"].get<std::int64_t>() * 4 == training["gradients"].get<std::int64_t>());
  CHECK(training["batch"] == 2);  // of the run
  CHECK(training["length"] == 16);
  const json other = json::parse(
      samba_command({"inspect", trained().file("run"), "--memory", "--json", "--batch", "4", "--length", "32"}).out);
  CHECK(other["memory"]["inference"]["batch"] == 4);
  CHECK(other["memory"]["inference"]["positions"] == 32);
  CHECK(other["memory"]["training"]["workspace"] > training["workspace"]);
  CHECK(document["tokenizer"] == "bytes");
}

}  // namespace
}  // namespace samba
