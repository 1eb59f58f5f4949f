// Text in and out of the commands: tokenizers of runs, chat, states between processes, scores, hard input.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "command.h"
#include "recorded_tokenizers.h"
#include "samba/convert/gguf_vocabulary.h"
#include "samba/formats/safetensors.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

// A run of 12 steps on the tokens of the recorded form gpt2.
class TokenRun {
 public:
  TokenRun() {
    write_text(run_.file("given.json"), recorded_file("gpt2.tokenizer.json"));
    tokenizer_ = load_tokenizer(run_.file("given.json"));
    const CommandResult result =
        run_.train("run", {"--steps", "12", "--tokenizer", run_.file("given.json"), "--set", vocab(), "--set",
                           "sample.every=6", "--set", "data.evaluation_bytes=400", "--set", "checkpoint.every=6"});
    if (result.code != 0) throw std::runtime_error(result.err);
  }
  std::string vocab() const { return "model.vocab=" + std::to_string(tokenizer_->vocabulary_size()); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  std::string file(const std::string& name) const { return run_.file(name); }
  CommandResult on(const std::string& command, std::vector<std::string> more) const {
    more.insert(more.begin(), {command, "--model", file("run"), "--progress", "never"});
    return samba_command(more);
  }

 private:
  TinyRun run_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

const TokenRun& trained() {
  static const TokenRun run;
  return run;
}

json without_timing(json result) {
  result.erase("timing");
  return result;
}

json decoded(std::vector<std::string> more) {
  more.emplace_back("--json");
  const CommandResult result = trained().on("decode", more);
  INFO(result.err);
  REQUIRE(result.code == 0);
  return without_timing(json::parse(result.out));
}

CommandResult with_input(const std::vector<std::string>& arguments, const std::string& input) {
  const TemporaryFolder folder;
  write_text(folder / "input", input);
  return Command(arguments, 0, (folder / "input").string()).finish();
}

TEST_CASE("a run with a tokenizer keeps it, and every command finds it there") {
  const TokenRun& run = trained();
  CHECK(read_file(run.file("run/tokenizer.json")) == read_file(run.file("given.json")));
  const json beside = json::parse(read_file(run.file("run/checkpoints/step-00000012.json")));
  CHECK(beside["tokenizer"]["kind"] == "file");
  CHECK(beside["tokenizer"]["file"] == "tokenizer.json");
  CHECK(beside["tokenizer"]["vocab"] == run.tokenizer().vocabulary_size());
  CHECK(beside["tokenizer"]["sha256"] == sha256_hex(read_file(run.file("given.json"))));

  const json result = decoded({"--prompt", "the quick brown", "--max-tokens", "9"});
  CHECK(result["prompt_tokens"] == run.tokenizer().encode("the quick brown"));
  CHECK(result["tokens"].size() == 9);
  const std::string checkpoint = run.file("run/checkpoints/step-00000012.samba");
  const CommandResult file = samba_command({"decode", "--model", checkpoint, "--prompt", "the quick brown",
                                            "--max-tokens", "9", "--json", "--progress", "never"});
  CHECK(without_timing(json::parse(file.out)) == result);

  // The evaluation is per byte of the text that was predicted.
  const std::string text = read_file(run.file("text.txt"));
  const auto held_back = run.tokenizer().encode(text.substr(text.size() - 400));
  const std::vector<json> metrics = json_lines(read_file(run.file("run/metrics.jsonl")));
  const auto evaluation =
      std::find_if(metrics.begin(), metrics.end(), [](const json& line) { return line.contains("eval_loss"); });
  REQUIRE(evaluation != metrics.end());
  const double tokens = (*evaluation)["eval_loss"].get<double>() / std::log(2.0);
  const double ratio = (*evaluation)["bits_per_byte"].get<double>() / tokens;  // tokens a byte
  CHECK(ratio == Approx(static_cast<double>(held_back.size()) / 400.0).epsilon(0.1));
  CHECK(ratio < 0.9);
}

TEST_CASE("a run takes the tokenizer out of a GGUF file: the bits of the run with the file it was made of") {
  const TemporaryFolder folder;
  fs::copy_file(trained().file("given.json"), folder / "tokenizer.json");
  OpenModel model;
  model.companions = {folder / "tokenizer.json"};
  GgufFields fields;
  CHECK(add_gguf_vocabulary(fields, model, trained().tokenizer().vocabulary_size()) == "tokenizer.json");
  const std::string gguf = (folder / "vocabulary.gguf").string(), run = (folder / "run").string();
  write_gguf(gguf, fields, {});
  const CommandResult result =
      samba_command({"train", "--config", trained().file("tiny.json"), "--out", run, "--steps", "12", "--tokenizer",
                     gguf, "--set", trained().vocab(), "--set", "sample.every=6", "--set", "data.evaluation_bytes=400",
                     "--set", "checkpoint.every=6"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  const std::string last = "/checkpoints/step-00000012.samba";
  CHECK(read_file(run + last) == read_file(trained().file("run") + last));
  // The run has it as a file of its own and needs the GGUF file no more.
  fs::remove(gguf);
  const CommandResult resumed = samba_command({"train", "--resume", run + "/checkpoints/step-00000006.samba"});
  INFO(resumed.err);
  CHECK(resumed.code == 0);
  CHECK(read_file(run + last) == read_file(trained().file("run") + last));
  const CommandResult text =
      samba_command({"decode", "--model", run, "--prompt", "the quick", "--max-tokens", "5", "--json"});
  CHECK(without_timing(json::parse(text.out)) == decoded({"--prompt", "the quick", "--max-tokens", "5"}));
}

TEST_CASE("a checkpoint alone needs the tokenizer named") {
  const TemporaryFolder folder;
  const std::string alone = (folder / "alone.samba").string();
  fs::copy_file(trained().file("run/checkpoints/step-00000012.samba"), alone);
  const CommandResult refused = samba_command({"decode", "--model", alone, "--prompt", "the"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("no tokenizer is beside it; give --tokenizer PATH"));
  const std::vector<std::string> named{
      "decode",   "--model", alone,          "--tokenizer", trained().file("given.json"),
      "--prompt", "the",     "--max-tokens", "5",           "--json"};
  CHECK(without_timing(json::parse(samba_command(named).out)) == decoded({"--prompt", "the", "--max-tokens", "5"}));
  const CommandResult ids = samba_command({"decode", "--model", alone, "--tokens", "5,6", "--max-tokens", "3"});
  CHECK(ids.code == 0);
  CHECK(std::count(ids.out.begin(), ids.out.end(), ',') == 2);
}

TEST_CASE("a resumed run keeps its tokenizer and refuses another") {
  const TemporaryFolder folder;
  fs::copy(trained().file("run"), folder / "run", fs::copy_options::recursive);
  fs::remove(folder / "run" / ".lock");
  write_text(folder / "other.json", recorded_file("llama2.tokenizer.json"));
  const std::string first = (folder / "run/checkpoints/step-00000006.samba").string();
  const CommandResult other =
      samba_command({"train", "--resume", first, "--tokenizer", (folder / "other.json").string()});
  CHECK(other.code == 2);
  CHECK_THAT(other.err, Contains("cannot resume") || Contains("/model/vocab"));
  const CommandResult same = samba_command({"train", "--resume", first});
  INFO(same.err);
  REQUIRE(same.code == 0);
  CHECK(read_file(folder / "run/checkpoints/step-00000012.samba") ==
        read_file(trained().file("run/checkpoints/step-00000012.samba")));
  // A tokenizer that changed since is no longer the checkpoint's.
  write_text(folder / "run/tokenizer.json", recorded_file("llama2.tokenizer.json"));
  const CommandResult changed = samba_command({"decode", "--model", (folder / "run").string(), "--prompt", "a"});
  CHECK(changed.code == 2);
  CHECK_THAT(changed.err, Contains("another SHA-256"));
}

TEST_CASE("a state saved by one process goes on in another") {
  const TemporaryFolder folder;
  const std::string state = (folder / "state").string();
  const std::vector<std::string> options{"--temperature", "0.9", "--seed", "5"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), options.begin(), options.end());
    return decoded(more);
  };
  const json whole = with({"--prompt", "the quick brown fox", "--max-tokens", "12"});
  const json begin = with({"--prompt", "the quick brown fox", "--max-tokens", "5", "--save-state", state});
  const json end = with({"--state", state, "--max-tokens", "7", "--threads", "3"});
  json tokens = begin["tokens"];
  tokens.insert(tokens.end(), end["tokens"].begin(), end["tokens"].end());
  CHECK(tokens == whole["tokens"]);

  REQUIRE(trained().on("prefill", {"--prompt", "the quick", "--save-state", state}).code == 0);
  const json split = with({"--state", state, "--prompt", " brown fox", "--max-tokens", "12"});
  CHECK(split["tokens"] == whole["tokens"]);
  const json other_device =
      with({"--state", state, "--prompt", " brown fox", "--max-tokens", "12", "--device", "reference"});
  CHECK(other_device["tokens"] == whole["tokens"]);

  const CommandResult two =
      trained().on("decode", {"--prompt", "a", "--prompt", "b", "--save-state", (folder / "x").string()});
  CHECK(two.code == 2);
  CHECK_THAT(two.err, Contains("--save-state takes one prompt"));
  write_text(folder / "broken", read_file(state).substr(0, 2000));
  const CommandResult broken = trained().on("decode", {"--state", (folder / "broken").string()});
  CHECK(broken.code == 3);
}

TEST_CASE("a conversation in a pipe: a line a turn, its state taken up by the next process") {
  const TemporaryFolder folder;
  const std::string state = (folder / "state").string();
  const std::vector<std::string> chat{
      "decode", "--model", trained().file("run"), "--chat", "--chat-template", "chatml", "--max-tokens",
      "6",      "--json",  "--progress",          "never"};
  const CommandResult both = with_input(chat, "Hello\n\nand a line\\\nmore\n");
  INFO(both.err);
  REQUIRE(both.code == 0);
  CHECK_THAT(both.err, Contains("the tokenizer has no token that ends an answer in this chat template"));
  const std::vector<json> turns = json_lines(both.out);
  REQUIRE(turns.size() == 2);
  CHECK(turns[0]["prompt"] == "Hello");
  CHECK(turns[1]["prompt"] == "and a line\nmore");
  std::vector<std::string> keep = chat;
  keep.insert(keep.end(), {"--save-state", state});
  REQUIRE(with_input(keep, "Hello").code == 0);
  std::vector<std::string> take_up = chat;
  take_up.insert(take_up.end(), {"--state", state});
  const std::vector<json> second = json_lines(with_input(take_up, "and a line\\\nmore\n").out);
  REQUIRE(second.size() == 1);
  CHECK(second[0]["tokens"] == turns[1]["tokens"]);
  CHECK(second[0]["prompt_tokens"] == turns[1]["prompt_tokens"]);
  // One message by flag is the first turn.
  std::vector<std::string> flag = chat;
  flag.insert(flag.end(), {"--prompt", "Hello"});
  CHECK(json::parse(samba_command(flag).out)["tokens"] == turns[0]["tokens"]);
  CHECK(with_input(chat, "").out.empty());

  const CommandResult unknown = trained().on("decode", {"--chat", "--prompt", "Hello"});
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.err, Contains("names no chat template") && Contains("--chat-template"));
  CHECK_THAT(trained().on("decode", {"--system", "x", "--prompt", "a"}).err, Contains("--system is for --chat"));
}

TEST_CASE("choices are scored behind their prompts") {
  const TemporaryFolder folder;
  const std::string file = (folder / "choices").string();
  write_text(file, R"({"prompt": "the quick brown", "choices": [" fox", " zebra crossing"], "answer": 0}
{"prompt": "jumps over the lazy", "choices": [" qqq", " dog"], "answer": " dog"}

{"prompt": "no. ", "choices": ["x"]}
)");
  const CommandResult result = trained().on("prefill", {"--choices", file, "--json"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  const std::vector<json> lines = json_lines(result.out);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0]["answer"] == 0);
  CHECK(lines[1]["answer"] == 1);
  CHECK(!lines[2].contains("answer"));
  CHECK(lines[3]["items"] == 3);
  CHECK(lines[3]["answered"] == 2);
  // The score of a choice is that of its tokens in the whole text.
  std::vector<double> logprobs;
  for (const json& line :
       json_lines(trained().on("prefill", {"--prompt", "the quick brown fox", "--score", "--json"}).out)) {
    if (line.contains("logprob")) logprobs.push_back(line["logprob"]);
  }
  const std::size_t prompt = trained().tokenizer().encode("the quick brown").size();
  double total = 0.0;
  for (std::size_t i = prompt - 1; i < logprobs.size(); ++i) total += logprobs[i];
  CHECK(lines[0]["log_likelihood"][0].get<double>() == Approx(total));
  const auto refusal = [&](const std::string& line) {
    write_text(file, line + "\n");
    const CommandResult refused = trained().on("prefill", {"--choices", file});
    CHECK(refused.code == 2);
    return refused.err;
  };
  CHECK_THAT(refusal(R"({"prompt": "a", "choices": []})"), Contains("choices:1") && Contains("/choices"));
  CHECK_THAT(refusal(R"({"prompt": "a", "choices": ["b"], "answer": 1})"), Contains("/answer"));
  CHECK_THAT(refusal(R"({"prompt": "a", "choices": ["b", ""]})"), Contains("/choices/1: must not be empty"));
  CHECK_THAT(refusal("{"), Contains("choices:1"));
  CHECK_THAT(refusal(""), Contains("has no line"));
}

TEST_CASE("hidden states and logits go to safetensors and .npy") {
  const TemporaryFolder folder;
  const std::string hidden = (folder / "hidden.safetensors").string(), npy = (folder / "logits.npy").string();
  const std::size_t tokens = trained().tokenizer().encode("the quick brown fox").size();
  REQUIRE(trained()
              .on("prefill", {"--prompt", "the quick brown fox", "--hidden", hidden, "--layers", "1,embed,final",
                              "--logits", npy, "--chunk", "2"})
              .code == 0);
  const SafetensorsFile file = read_safetensors(hidden);
  CHECK(file.tensors.size() == 3);
  CHECK(file.tensors.at("hidden.1").shape() == Shape{static_cast<Index>(tokens), 32});
  const std::string content = read_file(npy);
  CHECK(content.substr(0, 8) == std::string("\x93NUMPY\x01\x00", 8));
  CHECK_THAT(content.substr(0, 128),
             Contains("'descr': '<f4'") && Contains("'shape': (" + std::to_string(tokens) + ", " +
                                                    std::to_string(trained().tokenizer().vocabulary_size()) + ")"));
  CHECK(content.size() % 64 == (tokens * static_cast<std::size_t>(trained().tokenizer().vocabulary_size()) * 4) % 64);
  CHECK_THAT(trained().on("prefill", {"--prompt", "a", "--hidden", npy}).err, Contains("a .npy file holds one array"));
  CHECK_THAT(trained().on("prefill", {"--prompt", "a", "--hidden", npy, "--layers", "2"}).err,
             Contains("--layers: must be numbers from 0 to 1"));
}

TEST_CASE("text of any bytes goes through; what cannot is refused in one line") {
  const TemporaryFolder folder;
  const std::string file = (folder / "prompt").string();
  for (const std::string& text : {std::string("a\0b\0", 4), std::string("\xFF\xFE\xC3"), std::string("\xED\xA0\x80 x"),
                                  std::string(3000, 'z'), std::string("\xF0\x9F\x98"), std::string("\r\n\t\x01\x7F")}) {
    write_text(file, text);
    const json result = decoded({"--prompt-file", file, "--max-tokens", "4"});
    CHECK(result["tokens"].size() == 4);
    const json piped = json::parse(with_input({"decode", "--model", trained().file("run"), "--prompt-file", "-",
                                               "--max-tokens", "4", "--json", "--progress", "never"},
                                              text)
                                       .out);
    CHECK(piped["tokens"] == result["tokens"]);
  }
  const auto message = [&](const std::vector<std::string>& more) {
    const CommandResult result = trained().on("decode", more);
    CHECK(result.code == 2);
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    return result.err;
  };
  CHECK_THAT(message({"--prompt", ""}), Contains("prompt 0 is empty"));
  CHECK_THAT(message({"--tokens", "999999"}), Contains("token 999999 at position 0 is outside the vocabulary"));
  CHECK_THAT(message({"--tokens", "99999999999"}), Contains("--tokens: must be ids"));
  CHECK_THAT(message({"--prompt", "a", "--max-tokens", "9223372036854775807"}), Contains("more than"));
  CHECK_THAT(message({"--prompt", "a", "--n", "0"}), Contains("--n"));
  CHECK_THAT(message({"--prompt", "a", "--batch", "-3"}), Contains("--batch"));
  CHECK_THAT(message({"--prompt", "a", "--stop", ""}), Contains("stop"));
  CHECK_THAT(message({"--prompt", "a", "--tokenizer", "/nowhere"}), Contains("there is no tokenizer /nowhere"));
  write_text(file, "{\"prompt\": 5}\n");
  CHECK_THAT(message({"--prompts-file", file}), Contains("prompt:1"));
  write_text(file, "{\"prompt\": \"a\", \"max_tokens\": 0}\n");
  CHECK_THAT(message({"--prompts-file", file}), Contains("max_tokens"));
  std::string endless;
  for (int i = 0; i < 9000; ++i) endless += "fox " + std::to_string(i) + " ";
  write_text(file, endless);
  CHECK_THAT(message({"--prompt-file", file}), Contains("tokens; the model has 8192 positions"));
  CHECK_THAT(trained().on("prefill", {"--file", file}).err, Contains("tokens; the model has 8192 positions"));
}

}  // namespace
}  // namespace samba
