// Decoding in batches, in chunks and from saved states: every way gives the bits of the lone run.
#include <catch2/catch.hpp>
#include <limits>

#include "bits.h"
#include "general_stack.h"
#include "samba/core/error.h"
#include "samba/formats/sealed_safetensors.h"
#include "samba/generate/decode_session.h"
#include "samba/generate/prefill.h"
#include "samba/generate/scoring.h"
#include "samba/generate/state_file.h"
#include "temporary_folder.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;
using Ids = std::vector<std::int32_t>;

// A stack of each kind of block, one with a window, and one with all of them.
const std::vector<std::pair<std::string, std::string>> kStacks{
    {"transformer", R"({"layers": [{"kind": "transformer", "n_heads": 2, "n_kv_heads": 1, "intermediate": 40}]})"},
    {"window", R"({"layers": [{"kind": "transformer", "n_heads": 2, "intermediate": 40, "window": 9}]})"},
    {"fixed15",
     R"({"layers": [{"kind": "transformer", "n_heads": 2, "intermediate": 40, "numeric_profile": "fixed15_v1"}]})"},
    {"mamba1", R"({"layers": [{"kind": "mamba1"}, {"kind": "mamba1"}]})"},
    {"mamba2", R"({"layers": [{"kind": "mamba2"}, {"kind": "mamba2"}]})"},
    {"mamba3", R"({"layers": [{"kind": "mamba3"}, {"kind": "mamba3"}]})"},
    {"all", "{}"}};

class TestStack {
 public:
  explicit TestStack(const std::string& changes, std::uint64_t seed = 5)
      : executor_(make_executor("cpu", {2, ""})), generator_(seed) {
    const StackConfig config = small_general_config(changes);
    stack_ = std::make_unique<SambaStack>(*executor_, config, generator_, widest_use(config));
  }
  SambaStack& operator*() { return *stack_; }
  SambaStack* operator->() { return stack_.get(); }

 private:
  std::unique_ptr<Executor> executor_;
  Generator generator_;
  std::unique_ptr<SambaStack> stack_;
};

Ids some_tokens(std::size_t count, std::size_t seed) {
  Ids tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = static_cast<std::int32_t>((i * i + 7 * i + 13 * seed) % 40);
  return tokens;
}

DecodeOptions sampling() {
  DecodeOptions options;
  options.sampler.temperature = 1.0;
  options.sampler.seed = 11;
  options.sampler.repetition_penalty = 1.1;
  options.tokenizer = nullptr;
  options.logprobs = true;
  return options;
}

DecodeResult decode_one(SambaStack& stack, const DecodeRequest& request, const DecodeOptions& options) {
  return std::move(decode(stack, {&request, 1}, options)[0]);
}

void check_equal(const DecodeResult& result, const DecodeResult& expected) {
  CHECK(result.tokens == expected.tokens);
  CHECK(bits_equal(result.logprobs, expected.logprobs));
  CHECK(result.reason == expected.reason);
}

TEST_CASE("rows that join and leave a batch keep the bits they have alone") {
  // Lengths around the chunks of Mamba-2 (256) and Mamba-3 (64); ends that let rows join in the middle of others.
  const std::size_t lengths[] = {1, 63, 70, 5, 258, 12, 64};
  const Index tokens[] = {9, 1, 12, 3, 5, 8, 2};
  for (const auto& [name, changes] : kStacks) {
    INFO(name);
    TestStack stack(changes);
    std::vector<DecodeRequest> requests;
    std::vector<DecodeResult> alone;
    DecodeOptions options = sampling();
    for (std::size_t i = 0; i < std::size(lengths); ++i) {
      requests.push_back({some_tokens(lengths[i], i), static_cast<std::uint32_t>(i % 3), nullptr, tokens[i]});
      alone.push_back(decode_one(*stack, requests.back(), options));
      CHECK(alone.back().tokens.size() == static_cast<std::size_t>(tokens[i]));
    }
    for (const Index batch : {1, 2, 3, 100}) {
      INFO("batch " << batch);
      options.batch = batch;
      std::vector<std::size_t> ended;
      DecodeHooks hooks;
      hooks.on_result = [&](std::size_t number, const DecodeResult&) { ended.push_back(number); };
      const auto results = decode(*stack, requests, options, hooks);
      REQUIRE(results.size() == alone.size());
      for (std::size_t i = 0; i < results.size(); ++i) check_equal(results[i], alone[i]);
      CHECK(ended.size() == results.size());
      if (batch == 100) CHECK(ended.front() == 1);  // the row of one token leaves first
    }
  }
}

TEST_CASE("samples share what was read of their prompt, and each has its own stream") {
  TestStack stack("{}");
  DecodeOptions options = sampling();
  options.samples = 3;
  const std::vector<DecodeRequest> requests{{some_tokens(20, 1)}, {some_tokens(3, 2)}};
  DecodeTimes times;
  DecodeHooks hooks;
  hooks.times = &times;
  options.batch = 2;
  const auto results = decode(*stack, requests, options, hooks);
  REQUIRE(results.size() == 6);
  CHECK(times.prompt_tokens == 23);
  options.samples = 1;
  for (std::size_t i = 0; i < 6; ++i) {
    const DecodeRequest lone{requests[i / 3].prompt, static_cast<std::uint32_t>(i % 3)};
    check_equal(results[i], decode_one(*stack, lone, options));
  }
  CHECK(results[0].tokens != results[1].tokens);
}

TEST_CASE("a prompt read in chunks of any size gives the logits, hidden states and state of the whole") {
  for (const auto& [name, changes] : kStacks) {
    INFO(name);
    TestStack stack(changes);
    const Ids prompt = some_tokens(150, 3);
    PrefillOptions options;
    options.logits = true;
    options.hidden = parse_hidden_names(stack->config(), "0,embed,final");
    const PrefillResult whole = prefill(*stack, prompt, options);
    const Array direct = stack->forward(ConstArray{DType::int32, {1, 150}, prompt.data()});
    CHECK(bits_equal(whole.logits.floats(), direct.floats()));
    for (const Index chunk : {1, 7, 64, 149, 500}) {
      INFO("chunk " << chunk);
      options.chunk = chunk;
      const PrefillResult parts = prefill(*stack, prompt, options);
      CHECK(bits_equal(parts.logits.floats(), whole.logits.floats()));
      for (const auto& [layer, array] : whole.hidden) {
        CHECK(array.shape() == Shape{150, 32});
        CHECK(bits_equal(parts.hidden.at(layer).floats(), array.floats()));
      }
      PrefillOptions last;
      last.chunk = chunk;
      CHECK(bits_equal(prefill(*stack, prompt, last).sequence.logits, whole.sequence.logits));
    }
  }
}

TEST_CASE("a state saved and loaded goes on with the bits of the run that never stopped") {
  const TemporaryFolder folder;
  const Path file = folder.path() / "state.safetensors";
  for (const auto& [name, changes] : kStacks) {
    INFO(name);
    TestStack stack(changes);
    const DecodeRequest request{some_tokens(250, 4), 2};
    DecodeOptions options = sampling();
    options.max_tokens = 20;  // beyond the 256 positions that the state has room for at first
    const DecodeResult whole = decode_one(*stack, request, options);
    for (const Index first : {1, 5, 12}) {
      options.max_tokens = first;
      options.keep_sequences = true;
      DecodeResult begin = decode_one(*stack, request, options);
      REQUIRE(begin.sequence);
      save_sequence(*stack, *begin.sequence, file);
      TestStack other(changes);  // another program's
      const Sequence loaded = load_sequence(*other, file);
      CHECK(loaded.tokens.size() == 250 + static_cast<std::size_t>(first));
      CHECK(loaded.generated == static_cast<std::uint64_t>(first));
      options.max_tokens = 20 - first;
      options.keep_sequences = false;
      const DecodeRequest rest{{}, 0, &loaded};
      const DecodeResult end = decode_one(*other, rest, options);
      Ids tokens = begin.tokens;
      tokens.insert(tokens.end(), end.tokens.begin(), end.tokens.end());
      CHECK(tokens == whole.tokens);
      CHECK(bits_equal(end.logprobs, std::span(whole.logprobs).subspan(static_cast<std::size_t>(first))));
    }
    // Behind a prompt alone the state has its logits; more prompt may follow.
    const Ids prompt = some_tokens(250, 4);
    const PrefillResult read = prefill(*stack, Ids(prompt.begin(), prompt.begin() + 100));
    save_sequence(*stack, read.sequence, file);
    Sequence loaded = load_sequence(*stack, file);
    CHECK(bits_equal(loaded.logits, read.sequence.logits));
    loaded.sample = 2;
    options.max_tokens = 20;
    const DecodeRequest rest{Ids(prompt.begin() + 100, prompt.end()), 0, &loaded};
    check_equal(decode_one(*stack, rest, options), whole);
  }
}

TEST_CASE("a state of another model, or a damaged one, is refused") {
  const TemporaryFolder folder;
  const Path file = folder.path() / "state.safetensors";
  TestStack stack("{}");
  save_sequence(*stack, prefill(*stack, some_tokens(9, 1)).sequence, file);
  TestStack other_weights("{}", 6);
  CHECK_THROWS_WITH(load_sequence(*other_weights, file), Contains("state of another model") && Contains("weights"));
  TestStack other_config(R"({"norm_eps": 1e-6})");
  CHECK_THROWS_WITH(load_sequence(*other_config, file), Contains("configuration"));

  const std::string good = read_file(file);
  for (std::size_t at = 8; at < good.size(); at += good.size() / 60) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    write_file_atomically(file, bad);
    CHECK_THROWS_AS(load_sequence(*stack, file), Error);
  }
  for (const std::size_t length : {std::size_t{0}, std::size_t{7}, good.size() / 2, good.size() - 1}) {
    write_file_atomically(file, good.substr(0, length));
    CHECK_THROWS_AS(load_sequence(*stack, file), Error);
  }
  write_file_atomically(file, good);
  CHECK(load_sequence(*stack, file).tokens.size() == 9);

  // A file with a sound seal and contents that do not fit.
  const auto rewritten = [&](auto change) {
    SafetensorsFile content = read_sealed_safetensors(file, "samba.state.v1");
    change(content);
    ConstArrayMap views;
    for (const auto& [name, array] : content.tensors) views.emplace(name, array.view());
    const Path bad = folder.path() / "bad.safetensors";
    write_sealed_safetensors(bad, "samba.state.v1", views, content.metadata);
    try {
      load_sequence(*stack, bad);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("taken");
  };
  CHECK(rewritten([](SafetensorsFile&) {}) == "taken");
  CHECK_THAT(rewritten([](SafetensorsFile& f) { f.tensors.erase("tokens"); }), Contains("no tensor tokens"));
  CHECK_THAT(rewritten([](SafetensorsFile& f) { f.tensors.erase("logits"); }), Contains("no tensor logits"));
  CHECK_THAT(rewritten([](SafetensorsFile& f) { f.tensors.erase("layers.1.h"); }), Contains("layer 1 of the state"));
  CHECK_THAT(rewritten([](SafetensorsFile& f) { f.tensors["extra"] = Array::zeros({1}); }),
             Contains("unknown tensor extra"));
  CHECK_THAT(rewritten([](SafetensorsFile& f) { f.tensors["layers.0.k_cache"] = Array::zeros({100000}); }),
             Contains("layer 0 of the state"));
  CHECK_THAT(rewritten([](SafetensorsFile& f) { f.metadata["read"] = "10"; }),
             Contains("read must be a number up to 9"));
  CHECK_THAT(rewritten([](SafetensorsFile& f) { f.metadata["read"] = "-1"; }), Contains("read must be a number"));
  CHECK_THAT(rewritten([](SafetensorsFile& f) { f.metadata["counters"] = "[]"; }), Contains("counters of 0 layers"));
  CHECK_THAT(rewritten([](SafetensorsFile& f) { f.metadata["counters"] = "{"; }), Contains("counters"));
  CHECK_THAT(rewritten([](SafetensorsFile& f) { f.metadata["numeric_mode"] = "fast"; }),
             Contains("made in the numeric mode fast, this is identical"));
  CHECK_THAT(rewritten([](SafetensorsFile& f) { f.metadata.erase("profile"); }), Contains("have no profile"));
  CHECK_THAT(rewritten([](SafetensorsFile& f) { f.metadata["profile"] = "samba-stack.fp32.v1"; }),
             Contains("samba-stack.fp32.v1") && Contains("samba.stack.fp32.v1"));
}

TEST_CASE("a token of the end ends a continuation; it is counted, and has no text") {
  TestStack stack(R"({"vocab": 256})");
  DecodeOptions options;
  options.max_tokens = 12;
  const DecodeRequest request{some_tokens(5, 1)};
  const Ids free = decode_one(*stack, request, options).tokens;
  options.end_ids = {free[4]};
  const std::size_t at = static_cast<std::size_t>(std::find(free.begin(), free.end(), free[4]) - free.begin());
  const DecodeResult ended = decode_one(*stack, request, options);
  CHECK(ended.reason == FinishReason::end);
  CHECK(ended.tokens == Ids(free.begin(), free.begin() + static_cast<std::ptrdiff_t>(at) + 1));
  Utf8Stream utf8;
  const std::string text = utf8.push(byte_text(std::span(ended.tokens).first(at))) + utf8.finish();
  CHECK(ended.text == text);
}

TEST_CASE("requests that cannot run are refused before anything runs") {
  TestStack stack("{}");
  DecodeOptions options = sampling();
  const auto refusal = [&](const DecodeRequest& request) {
    try {
      static_cast<void>(decode(*stack, {&request, 1}, options));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("taken");
  };
  const Index limit = position_limit(stack->config());
  CHECK_THAT(refusal({{}}), Contains("prompt 0 is empty"));
  CHECK_THAT(refusal({{3, 40}}), Contains("token 40 at position 1 is outside the vocabulary [0, 40)"));
  CHECK_THAT(refusal({{-1}}), Contains("token -1"));
  CHECK_THAT(refusal({some_tokens(static_cast<std::size_t>(limit) + 1, 0)}),
             Contains("has " + std::to_string(limit + 1) + " tokens; the model has " + std::to_string(limit)));
  CHECK_THAT(refusal({{1}, 0, nullptr, limit + 1}), Contains("positions; the model has " + std::to_string(limit)));
  CHECK_THAT(refusal({{1}, 0, nullptr, std::numeric_limits<Index>::max()}), Contains("more than"));
  CHECK_THAT(refusal({{1}, 0, nullptr, Index{0}}), Contains("max tokens must be >= 1"));
  options.batch = 0;
  CHECK_THAT(refusal({{1}}), Contains("batch: must be >= 1, got 0"));
  options.batch = 1;
  options.stop = {""};
  CHECK_THAT(refusal({{1}}), Contains("stop: must be a text that is not empty"));
}

TEST_CASE("an interruption ends rows where they are and leaves their states usable") {
  TestStack stack("{}");
  DecodeOptions options = sampling();
  options.max_tokens = 30;
  options.batch = 2;
  options.keep_sequences = true;
  const std::vector<DecodeRequest> requests{{some_tokens(4, 1)}, {some_tokens(6, 2)}, {some_tokens(3, 3)}};
  const DecodeResult whole = decode_one(*stack, requests[0], options);
  int asked = 0;
  DecodeHooks hooks;
  hooks.interrupted = [&] { return ++asked > 9; };
  auto results = decode(*stack, requests, options, hooks);
  REQUIRE(results.size() == 3);
  CHECK(results[0].reason == FinishReason::interrupted);
  CHECK(results[0].tokens.size() > 3);
  CHECK(results[2].tokens.empty());
  REQUIRE(results[0].sequence);
  const Index done = static_cast<Index>(results[0].tokens.size());
  options.max_tokens = 30 - done;
  const DecodeRequest rest{{}, 0, &*results[0].sequence};
  Ids tokens = results[0].tokens;
  const DecodeResult end = decode_one(*stack, rest, options);
  tokens.insert(tokens.end(), end.tokens.begin(), end.tokens.end());
  CHECK(tokens == whole.tokens);
}

TEST_CASE("endings scored behind one beginning have the likelihoods of the whole text") {
  for (const auto& [name, changes] : kStacks) {
    INFO(name);
    TestStack stack(changes);
    const Ids beginning = some_tokens(70, 2);
    const std::vector<Ids> endings{some_tokens(4, 8), some_tokens(1, 9), some_tokens(65, 5)};
    const auto scores = score_endings(*stack, beginning, endings);
    for (std::size_t i = 0; i < endings.size(); ++i) {
      Ids whole = beginning;
      whole.insert(whole.end(), endings[i].begin(), endings[i].end());
      const Score score = score_tokens(*stack, whole);
      CHECK(bits_equal(scores[i], std::span(score.log_likelihood).subspan(beginning.size() - 1)));
    }
  }
}

}  // namespace
}  // namespace samba
